"""Every disk that a power cut could leave, from the history of a `RecordingFiles`.

What a device keeps, as modelled here:

- A file has the bytes and the size of its last sync, and any subset of the writes, truncations and
  preallocations since; the subsets tried are the kinds of fault in `ALL_KINDS`.
- A directory has the names of its last sync. Changes of names since then, in all directories
  together and in the order they were made, are there up to some point and missing after it.
- Syncing a file says nothing about its name, syncing a directory nothing about the bytes of its files
  or about its own name in its parent. A file none of whose names is there is gone.
- A rename is there whole or not at all. One from directory to directory is certain once both were
  synced, or once a later change of one of its two names is.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from cordwood.disk import memory as memory_files
from cordwood.disk.files import parent
from cordwood.disk.memory import MemoryFiles
from support.disks import (
    Acknowledged,
    Create,
    Link,
    MakeDirectory,
    Operation,
    Preallocate,
    RecordingFiles,
    RemoveDirectory,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Unlink,
    Write,
)
from support.seeds import seed_or

#: The garbage that is written and the images that are sampled, unless a test says otherwise.
SEED = seed_or(0)
MISFITS = (AttributeError, NameError, TypeError)
"""What is raised where a planted bug does not fit the engine any more: that proves nothing of the harness."""

ALL_KINDS = (
    "all",  # everything reached the device
    "none",  # names did, of the data only what was synced
    "ordered prefix",  # the first k data operations, over all files
    "drop one",
    "keep one",
    "torn byte",  # one write cut between two bytes
    "torn sector",  # one write cut at a sector, or without one of its sectors
    "tail zeros",  # the size reached the device, the bytes behind it did not: they read as zeros
    "tail garbage",  # the same, and they read as anything
    "names dropped",  # the last k changes of names are missing, all data is there
    "names and data dropped",  # the last k changes of names are missing, and all unsynced data
)
"""The kinds of fault. Unless the kind says otherwise, everything but the fault reached the device."""

SECTOR_BYTES = 512
SECTOR_TEARS_MAX = 8
"""How many of its sectors one write is torn at: the first, the last and some between."""

Edges: TypeAlias = Callable[[bytes], Iterable[int]]
"""From the bytes of one write to the positions in them where a header or a frame ends."""

DataOperation: TypeAlias = Write | Truncate | Preallocate


@dataclass(frozen=True)
class CrashImage:
    """A disk after a power cut. The files are the caller's to change; no two images share any.

    *kind* is the first fault that gave this content, *prefix* the number of operations of the history
    before the cut, *acknowledged* everything promised by then, in order. *digest* covers all names,
    which of them are links to one file, and all contents.
    """

    files: MemoryFiles
    kind: str
    prefix: int
    acknowledged: tuple[object, ...]
    digest: bytes


@dataclass(frozen=True)
class Violation:
    """What a check found wrong with an image. *message* starts with the invariant's name: ``D1: …``."""

    kind: str
    prefix: int
    message: str

    @property
    def invariant(self) -> str:
        """The name of the invariant that was broken."""
        return self.message.partition(":")[0]

    def __str__(self) -> str:
        summary = self.message.partition("\n")[0]
        return f"{summary} (power cut after {self.prefix} operations, {self.kind})"


class CrashCount:
    """How many images were looked at, by kind of fault and distinct by content.

    A content that several kinds produce counts for each of them and once in ``total``. ``images`` is
    the number handed out: the same content again after a further acknowledgement is another image.
    May be shared by several enumerations.
    """

    def __init__(self) -> None:
        self.images = 0
        self._digests: dict[str, set[bytes]] = {kind: set() for kind in ALL_KINDS}
        self._total: set[bytes] = set()

    def note(self, kind: str, digest: bytes, *, new: bool) -> None:
        """Count an image of this kind; *new* if it was handed out and not a repetition."""
        self.images += new
        self._digests[kind].add(digest)
        self._total.add(digest)

    @property
    def counts(self) -> dict[str, int]:
        """Distinct contents of each kind of fault."""
        return {kind: len(digests) for kind, digests in self._digests.items()}

    @property
    def total(self) -> int:
        """Distinct contents of all kinds together."""
        return len(self._total)

    def report(self) -> list[str]:
        """Return lines to print: the seed, one for each kind, then the totals."""
        lines = [f"{kind:<24}{count:>9,}" for kind, count in self.counts.items()]
        totals = [f"{'distinct disks':<24}{self.total:>9,}", f"{'images checked':<24}{self.images:>9,}"]
        return [f"seed {SEED}", *lines, *totals]

    def require(self, minimum_total: int, kinds: Iterable[str] = ALL_KINDS) -> None:
        """Fail if one of *kinds* never occurred, or fewer than *minimum_total* distinct disks were seen."""
        missing = [kind for kind in kinds if not self.counts[kind]]
        assert not missing, f"no disk had these faults: {', '.join(missing)}"
        assert self.total >= minimum_total, f"{self.total} distinct disks, expected {minimum_total} or more"


def crash_images(
    recording: RecordingFiles,
    *,
    seed: int = SEED,
    limit_per_prefix: int | None = None,
    kinds: Container[str] = ALL_KINDS,
    edges: Edges | None = None,
    count: CrashCount | None = None,
) -> Iterator[CrashImage]:
    """Yield the disks a power cut could leave, for a cut after each operation since recording began.

    A content is yielded once for each tuple of acknowledgements. *seed* decides the garbage and, with
    *limit_per_prefix*, which images a cut with more than that many gives: kinds take turns, so each is
    there. Faults of other *kinds* are left out. *edges* adds places to tear writes at. *count* learns of
    every image as it is handed out. Deterministic. Time is in the bytes of the changed files and in the
    operations not synced at the cut.
    """
    disk = _Disk()
    faults = _Faults(disk, edges or (lambda data: ()), seed)
    acknowledged: tuple[object, ...] = ()
    seen: set[bytes] = set()
    for prefix in range(len(recording.history) + 1):
        if prefix > 0:
            operation = recording.history[prefix - 1]
            disk.apply(operation)
            if isinstance(operation, Acknowledged):
                # The same disk must now keep more, so it is worth another look.
                acknowledged += (operation.what,)
                seen.clear()
        if prefix < recording.began:
            continue
        candidates: Iterator[_Candidate] = (each for each in faults.candidates() if each.kind in kinds)
        if limit_per_prefix is not None:
            candidates = _in_turns(candidates, random.Random(f"{seed}/{prefix}"))
        yielded = 0
        for candidate in candidates:
            if yielded == limit_per_prefix:
                break
            contents = disk.settled | candidate.contents()
            digest = candidate.tree.digest(contents)
            new = digest not in seen
            if count is not None:
                count.note(candidate.kind, digest, new=new)
            if new:
                seen.add(digest)
                yielded += 1
                files = candidate.tree.materialise(contents)
                yield CrashImage(files, candidate.kind, prefix, acknowledged, digest)


def again(image: CrashImage, existing: str = "/") -> RecordingFiles:
    """Record what happens to an image's files from here on, for a crash inside recovery.

    What was acknowledged before the first crash stays acknowledged at every later one.
    """
    recording = RecordingFiles(image.files, existing=existing)
    for what in image.acknowledged:
        recording.acknowledge(what)
    recording.began = len(recording.history)
    return recording


def survives(
    workload: Callable[[RecordingFiles], object],
    check: Callable[[CrashImage], object],
    *,
    images_max: int,
    seed: int = SEED,
    limit_per_prefix: int | None = None,
    edges: Edges | None = None,
    count: CrashCount | None = None,
) -> Violation | None:
    """Run *workload* on a new disk, *check* every image of it, and return the first violation, if any.

    *check* raises AssertionError with a message that starts with the invariant: ``D1: …``. Any other
    exception is a violation of R1, because the engine must start unattended on every disk.

    Raises:
        RuntimeError: If *images_max* images were fine and there are more, or if what was found is a mistake
            in the code itself: that proves nothing.
    """
    recording = RecordingFiles(MemoryFiles())
    workload(recording)
    images = crash_images(recording, seed=seed, limit_per_prefix=limit_per_prefix, edges=edges, count=count)
    for number, image in enumerate(images):
        if number == images_max:
            cuts = f"up to operation {image.prefix} of {len(recording.history)}"
            raise RuntimeError(f"no violation in the first {images_max} images, {cuts}: there are more")
        try:
            check(image)
        except Exception as error:
            return violation_of(error, image.kind, image.prefix)
    return None


def violation_of(error: Exception, kind: str = "no cut", prefix: int = 0) -> Violation:
    """Return which promise *error* breaks; without a cut, the workload itself met it.

    Raises:
        RuntimeError: If it is one of `MISFITS`, or comes of one, or tells of one: that is a mistake in what
            was planted, or in the engine, which shows on any disk.
    """
    message = str(error)
    if not isinstance(error, AssertionError) or not re.match(r"[A-Z]\d+: ", message):
        message = f"R1: {type(error).__name__}: {message}"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, MISFITS):
        cause = cause.__cause__
    if cause is not None or any(misfit.__name__ in message for misfit in MISFITS):
        raise RuntimeError(f"this is no fault of a disk: {message}") from error
    return Violation(kind, prefix, message)


# --- What the device certainly has, and what it may have ------------------------------------------


class _Content:
    """The bytes of a file. From the end of *data* to *size* it reads as zeros; *data* ends in no zero.

    So preallocated space costs nothing, and equal files have equal digests.
    """

    __slots__ = ("data", "digest", "size")

    def __init__(self, data: bytes | bytearray, size: int) -> None:
        self.data = bytes(data.rstrip(b"\0"))
        self.size = size
        state = hashlib.blake2b(size.to_bytes(8, "big"), digest_size=16)
        state.update(self.data)
        self.digest = state.digest()

    def after(self, operations: Iterable[DataOperation]) -> _Content:
        data, size = bytearray(self.data), self.size
        for operation in operations:
            match operation:
                case Write(_, position, written):
                    data.extend(bytes(max(0, position - len(data))))
                    data[position : position + len(written)] = written
                    size = max(size, len(data))
                case Truncate(_, size):
                    del data[size:]
                case Preallocate(_, least):
                    size = max(size, least)
        return _Content(data, size)

    def filled(self, start: int, end: int, filler: bytes) -> _Content:
        """Return this content with *filler* between two positions of the file."""
        data = bytearray(self.data)
        data.extend(bytes(max(0, start - len(data))))
        data[start:end] = filler
        return _Content(data, self.size)


_EMPTY = _Content(b"", 0)


class _Directory:
    """The names in a directory: as the running system sees them, and as they were last synced."""

    __slots__ = ("live", "settled")

    def __init__(self) -> None:
        self.live: dict[str, _Node] = {}
        self.settled: dict[str, _Node] = {}


_Node: TypeAlias = int | _Directory
_Names: TypeAlias = Mapping[_Directory, Mapping[str, _Node | None]]


@dataclass(slots=True)
class _NameChange:
    """Names that changed in one step; None removes a name. *waiting* are the directories yet to be synced."""

    edits: tuple[tuple[_Directory, str, _Node | None], ...]
    waiting: set[_Directory]


class _Tree:
    """The paths of one image: directories parents first, and files by inode number."""

    def __init__(self, root: _Directory, changes: Iterable[_NameChange]) -> None:
        self.directories: list[str] = []
        self.files: list[tuple[str, int]] = []
        changed: dict[_Directory, dict[str, _Node | None]] = defaultdict(dict)
        for change in changes:
            for directory, name, node in change.edits:
                changed[directory][name] = node
        self._walk("", root, changed)
        self.inodes = {inode for _, inode in self.files}
        # Inode numbers differ from run to run of an engine; which names share a file does not.
        ranks = {inode: rank for rank, inode in enumerate(dict.fromkeys(inode for _, inode in self.files))}
        shape = repr((self.directories, [(path, ranks[inode]) for path, inode in self.files]))
        self._names = hashlib.blake2b(shape.encode(), digest_size=16)

    def _walk(self, above: str, directory: _Directory, changed: _Names) -> None:
        entries = {**directory.settled, **changed.get(directory, {})}
        for name in sorted(entries):
            node, path = entries[name], f"{above}/{name}"
            if isinstance(node, _Directory):
                self.directories.append(path)
                self._walk(path, node, changed)
            elif node is not None:
                self.files.append((path, node))

    def digest(self, contents: Mapping[int, _Content]) -> bytes:
        """Return the digest of the names with these contents."""
        state = self._names.copy()
        state.update(b"".join([contents[inode].digest for _, inode in self.files]))
        return state.digest()

    def materialise(self, contents: Mapping[int, _Content]) -> MemoryFiles:
        """Return a file system of its own with these names and contents."""
        files = MemoryFiles()
        # Past the public interface, which takes five times as long: most of an enumeration is this loop.
        directories = {"": files._root}
        for path in self.directories:
            above, _, name = path.rpartition("/")
            directories[path] = directories[above].entries[name] = memory_files.MemoryDirectory()
        nodes: dict[int, memory_files.MemoryInode] = {}
        for path, inode in self.files:
            node = nodes.get(inode)
            if node is None:
                node = nodes[inode] = memory_files.MemoryInode()
                node.data += contents[inode].data
                node.size = contents[inode].size
            else:
                node.names += 1
            above, _, name = path.rpartition("/")
            directories[above].entries[name] = node
        return files


class _Disk:
    """A disk under a running system, followed one operation at a time.

    ``settled`` is the content of each file as of its last sync, ``live`` the present one, ``unsynced``
    the operations between the two, of all files in order. ``trees`` are the names that may be there:
    the first has every change, each further one lacks one change more.
    """

    def __init__(self) -> None:
        self.settled: dict[int, _Content] = {}
        self.live: dict[int, _Content] = {}
        self.unsynced: list[DataOperation] = []
        self._root = _Directory()
        self._changes: list[_NameChange] = []
        self._trees: list[_Tree] = []

    @property
    def trees(self) -> list[_Tree]:
        if not self._trees:
            kept = range(len(self._changes), -1, -1)
            self._trees = [_Tree(self._root, self._changes[:number]) for number in kept]
        return self._trees

    def apply(self, operation: Operation) -> None:
        """Take note of one operation of the history."""
        match operation:
            case Write(inode) | Truncate(inode) | Preallocate(inode):
                self.live[inode] = self.live[inode].after([operation])
                self.unsynced.append(operation)
            case Sync(inode):
                self.settled[inode] = self.live[inode]
                self.unsynced = [other for other in self.unsynced if other.inode != inode]
            case SyncDirectory(path):
                self._sync_directory(self._directory(path))
            case Create(path, inode):
                self.live[inode] = self.settled[inode] = _EMPTY
                self._change((path, inode))
            case MakeDirectory(path):
                self._change((path, _Directory()))
            case Link(source, target):
                self._change((target, self._node(source)))
            case Rename(source, target):
                holder, name = self._place(target)
                # Two names of one file stay as they are.
                if holder.live.get(name) != self._node(source):
                    self._change((source, None), (target, self._node(source)))
            case Unlink(path) | RemoveDirectory(path):
                self._change((path, None))
            case Acknowledged():
                pass

    def _change(self, *changes: tuple[str, _Node | None]) -> None:
        edits = tuple((*self._place(path), node) for path, node in changes)
        for directory, name, node in edits:
            _set(directory.live, name, node)
        self._changes.append(_NameChange(edits, {directory for directory, _, _ in edits}))
        self._trees = []

    def _sync_directory(self, synced: _Directory) -> None:
        kept: list[_NameChange] = []
        settled: list[_NameChange] = []
        certain: set[tuple[_Directory, str]] = set()
        for change in reversed(self._changes):
            change.waiting.discard(synced)
            places = {(directory, name) for directory, name, _ in change.edits}
            # A later change of a name cannot be on the device without an earlier one of the same name.
            if change.waiting and not places & certain:
                kept.append(change)
            else:
                settled.append(change)
                certain |= places
        for change in reversed(settled):
            for directory, name, node in change.edits:
                _set(directory.settled, name, node)
        self._changes = kept[::-1]
        self._trees = []

    def _directory(self, path: str) -> _Directory:
        directory = self._root
        for name in _parts(path):
            node = directory.live.get(name)
            if node is None:
                # No operation made it, and some operation was inside it: it was there before the recording.
                node = directory.live[name] = directory.settled[name] = _Directory()
            assert isinstance(node, _Directory), f"{path} leads through a file"
            directory = node
        return directory

    def _place(self, path: str) -> tuple[_Directory, str]:
        return self._directory(parent(path)), _parts(path)[-1]

    def _node(self, path: str) -> _Node:
        holder, name = self._place(path)
        return holder.live[name]


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _set(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


# --- The faults ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Candidate:
    """An image not yet built: names, and the contents that differ from the synced ones."""

    kind: str
    tree: _Tree
    contents: Callable[[], dict[int, _Content]]


class _Faults:
    """The ways in which the unsynced part of a disk may be lost."""

    def __init__(self, disk: _Disk, edges: Edges, seed: int) -> None:
        self._disk = disk
        self._edges = edges
        self._garbage = random.Random(seed).randbytes(4096)

    def candidates(self) -> Iterator[_Candidate]:
        """Yield every image of a power cut now, kind by kind. To be used up before the disk moves on."""
        tree = self._disk.trees[0]
        # What happened to a file without a name cannot be seen.
        unsynced = [operation for operation in self._disk.unsynced if operation.inode in tree.inodes]
        last = len(unsynced) - 1
        replaced = functools.partial(self._replaced, unsynced)
        yield _Candidate("all", tree, self._everything)
        yield _Candidate("none", tree, dict)
        for kept in range(1, last + 1):
            yield _Candidate("ordered prefix", tree, functools.partial(self._only, unsynced[:kept]))
        for number, operation in enumerate(unsynced):
            yield _Candidate("drop one", tree, functools.partial(replaced, number, ()))
            yield _Candidate("keep one", tree, functools.partial(self._only, [operation]))
        # An earlier write of the same file was torn everywhere at an earlier cut. Doing it again at each
        # later one would make a file that is rarely synced cost the square of its writes several times.
        newest = {operation.inode: number for number, operation in enumerate(unsynced)}
        for number, operation in enumerate(unsynced):
            if isinstance(operation, Write):
                for kind, pieces in self._torn(operation, everywhere=newest[operation.inode] == number):
                    yield _Candidate(kind, tree, functools.partial(replaced, number, pieces))
                    if number == last:
                        yield _Candidate(kind, tree, functools.partial(self._only, pieces))
        yield from self._tails(tree, unsynced)
        for tree in self._disk.trees[1:]:
            yield _Candidate("names dropped", tree, self._everything)
            yield _Candidate("names and data dropped", tree, dict)

    def _everything(self) -> dict[int, _Content]:
        return self._disk.live

    def _only(self, kept: Iterable[DataOperation]) -> dict[int, _Content]:
        by_inode: dict[int, list[DataOperation]] = defaultdict(list)
        for operation in kept:
            by_inode[operation.inode].append(operation)
        return {inode: self._disk.settled[inode].after(own) for inode, own in by_inode.items()}

    def _replaced(
        self, unsynced: list[DataOperation], number: int, pieces: tuple[Write, ...]
    ) -> dict[int, _Content]:
        """Return all contents, with *pieces* in place of one operation."""
        inode = unsynced[number].inode
        operations = [*unsynced[:number], *pieces, *unsynced[number + 1 :]]
        own = [operation for operation in operations if operation.inode == inode]
        return self._disk.live | {inode: self._disk.settled[inode].after(own)}

    def _torn(self, write: Write, *, everywhere: bool) -> Iterator[tuple[str, tuple[Write, ...]]]:
        """Yield what a write that was under way may have left, as smaller writes.

        Of the places between two bytes only the middle one, unless *everywhere*.
        """
        size = len(write.data)
        edges = {1, size - 1, *self._edges(write.data)} if everywhere else ()
        for cut in sorted({size // 2, *edges}):
            if 0 < cut < size:
                yield "torn byte", (Write(write.inode, write.position, write.data[:cut]),)
        boundaries = _sector_boundaries(write)
        for cut in boundaries:
            yield "torn sector", (Write(write.inode, write.position, write.data[:cut]),)
        for end in boundaries:
            # The sector before this boundary is missing and the others are there.
            start = max(0, end - SECTOR_BYTES)
            yield (
                "torn sector",
                (
                    Write(write.inode, write.position, write.data[:start]),
                    Write(write.inode, write.position + end, write.data[end:]),
                ),
            )

    def _tails(self, tree: _Tree, unsynced: list[DataOperation]) -> Iterator[_Candidate]:
        """Yield the images where sizes reached the device and the new bytes did not.

        Of one file or of all; and of the last write to each file, from its start or from a place within.
        """
        by_inode: dict[int, list[DataOperation]] = defaultdict(list)
        for operation in unsynced:
            by_inode[operation.inode].append(operation)
        for kind in ("tail zeros", "tail garbage"):
            every: dict[int, _Content] = {}
            for inode, operations in by_inode.items():
                writes = [operation for operation in operations if isinstance(operation, Write)]
                cuts = [operation.size for operation in operations if isinstance(operation, Truncate)]
                # Bytes before this position were synced, and no unsynced size ends before them.
                tail = min([len(self._disk.settled[inode].data), *cuts])
                lost = functools.partial(self._lost, kind, inode, tail)
                every[inode] = lost([(write, 0) for write in writes])
                yield self._instead(kind, tree, {inode: every[inode]})
                for write in writes[-1:]:
                    middle, sectors = len(write.data) // 2, _sector_boundaries(write)
                    for place in sorted({0, middle, *sectors[:1], *self._edges(write.data)}):
                        yield self._instead(kind, tree, {inode: lost([(write, place)])})
            if len(every) > 1:
                yield self._instead(kind, tree, every)

    def _instead(self, kind: str, tree: _Tree, contents: dict[int, _Content]) -> _Candidate:
        return _Candidate(kind, tree, lambda: self._disk.live | contents)

    def _lost(self, kind: str, inode: int, tail: int, losses: Iterable[tuple[Write, int]]) -> _Content:
        """Return a file at its full size that lost, behind *tail*, each write from a place in it on."""
        content = self._disk.live[inode]
        for write, place in losses:
            start = max(write.position + place, tail)
            end = min(write.position + len(write.data), content.size)
            if start < end:
                garbage = kind == "tail garbage"
                filler = self._garbage_at(inode, start, end) if garbage else bytes(end - start)
                content = content.filled(start, end, filler)
        return content

    def _garbage_at(self, inode: int, start: int, end: int) -> bytes:
        pool = self._garbage
        offset = (start + 1021 * inode) % len(pool)
        return (pool * ((end - start) // len(pool) + 2))[offset : offset + end - start]


def _sector_boundaries(write: Write) -> list[int]:
    """Return where sectors of the device end within a write, thinned out to `SECTOR_TEARS_MAX` of them."""
    boundaries = range(SECTOR_BYTES - write.position % SECTOR_BYTES, len(write.data), SECTOR_BYTES)
    if len(boundaries) <= SECTOR_TEARS_MAX:
        return list(boundaries)
    steps = SECTOR_TEARS_MAX - 1
    return [boundaries[number * (len(boundaries) - 1) // steps] for number in range(SECTOR_TEARS_MAX)]


def _in_turns(candidates: Iterable[_Candidate], order: random.Random) -> Iterator[_Candidate]:
    """Yield one candidate of each kind, then a second of each, and so on; which one is up to *order*."""
    by_kind: dict[str, list[_Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_kind[candidate.kind].append(candidate)
    for waiting in by_kind.values():
        order.shuffle(waiting)
    # Whose turn is first is drawn too: with few images per cut, no kind is left with what others leave.
    turns = list(by_kind)
    order.shuffle(turns)
    while by_kind:
        for kind in [kind for kind in turns if kind in by_kind]:
            yield by_kind[kind].pop()
            if not by_kind[kind]:
                del by_kind[kind]
