"""The one seam to the operating system: files and their contract, stores, marks, checksummed JSON."""

from cordwood.disk.changes import CutChange, FileChange, JournalCut, changed_bytes
from cordwood.disk.checked_json import decode_sealed, encode_sealed, read_metadata, write_metadata
from cordwood.disk.choosing import files_of
from cordwood.disk.files import (
    DISK_FULL,
    PASSING,
    Buffer,
    File,
    Files,
    Lock,
    Mode,
    Names,
    ReadableFile,
    ReadableFiles,
    SyncFailed,
    WritableBuffer,
    join,
    os_error,
    parent,
    read_file,
    remove_tree,
    write_all,
    write_atomically,
)
from cordwood.disk.journal import DiskJournal
from cordwood.disk.journaled import JournaledFiles
from cordwood.disk.mark import (
    SIZE,
    UNKNOWN_MS,
    UNKNOWN_OFFSET,
    Mark,
    MarkFile,
    encode_slot,
    read_marks,
    read_published,
)
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.patches import Patches, Stretch
from cordwood.disk.posix import BY_UMASK, GROUP, PosixFiles, is_locked
from cordwood.disk.reserve import RESERVE_BYTES, Reserve
from cordwood.disk.store import Store, as_storage_error
from cordwood.disk.volatile import VolatileFiles
from cordwood.disk.watched import WatchedFiles

__all__ = [
    "BY_UMASK",
    "DISK_FULL",
    "GROUP",
    "PASSING",
    "RESERVE_BYTES",
    "SIZE",
    "UNKNOWN_MS",
    "UNKNOWN_OFFSET",
    "Buffer",
    "CutChange",
    "DiskJournal",
    "File",
    "FileChange",
    "Files",
    "JournalCut",
    "JournaledFiles",
    "Lock",
    "Mark",
    "MarkFile",
    "MemoryFiles",
    "Mode",
    "Names",
    "Patches",
    "PosixFiles",
    "ReadableFile",
    "ReadableFiles",
    "Reserve",
    "Store",
    "Stretch",
    "SyncFailed",
    "VolatileFiles",
    "WatchedFiles",
    "WritableBuffer",
    "as_storage_error",
    "changed_bytes",
    "decode_sealed",
    "encode_sealed",
    "encode_slot",
    "files_of",
    "is_locked",
    "join",
    "os_error",
    "parent",
    "read_file",
    "read_marks",
    "read_metadata",
    "read_published",
    "remove_tree",
    "write_all",
    "write_atomically",
    "write_metadata",
]
