"""The frames of the shared log: envelopes, owners, topic hashes, and rafka's layout."""

from cordwood.formats.shared import rafka
from cordwood.formats.shared.envelope import (
    ENVELOPE_SIZE,
    Envelope,
    EnvelopeFormat,
    EnvelopeKind,
    EnvelopeTable,
    Owner,
    content_of,
    read_envelope,
    seal,
)
from cordwood.formats.shared.owners import (
    ENTRY_SIZE,
    Expected,
    OwnerEntry,
    Role,
    find_entry,
    find_read_entry,
    pack_entry,
    sound_entries,
    unpack_entry,
)
from cordwood.formats.shared.rafka import OffsetIndexEntry
from cordwood.formats.shared.topic_hashing import topic_hash, topic_hash_bytes

__all__ = [
    "ENTRY_SIZE",
    "ENVELOPE_SIZE",
    "Envelope",
    "EnvelopeFormat",
    "EnvelopeKind",
    "EnvelopeTable",
    "Expected",
    "OffsetIndexEntry",
    "Owner",
    "OwnerEntry",
    "Role",
    "content_of",
    "find_entry",
    "find_read_entry",
    "pack_entry",
    "rafka",
    "read_envelope",
    "seal",
    "sound_entries",
    "topic_hash",
    "topic_hash_bytes",
    "unpack_entry",
]
