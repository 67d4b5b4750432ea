"""File handles run out: files that nobody uses are closed, the rest is refused for now, and no log fails."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from broker.nodes import DATA, EVERYTHING, batch_of, node_on, values_in, values_of
from support.disks import LimitedFiles
from support.logs import partition_path

from cordwood.broker.fetching import PartitionFetch
from cordwood.broker.node import Node
from cordwood.disk.files import os_error
from cordwood.disk.handles import Handles, RestingFile
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.store import Store
from cordwood.errors import CordwoodError, LogFailed, ResourcesExhausted
from cordwood.formats import batch
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.verify import verify_directory

SMALL = {"segment.bytes": "300"}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


@contextlib.contextmanager
def served(files: LimitedFiles) -> Iterator[Node]:
    node = node_on(files)
    try:
        yield node
    finally:
        files.take_all_at(None)
        node.directory.close()


def log_of(node: Node, topic: str) -> PartitionLog:
    log = node.directory.partitions.opened(topic, 0)
    assert isinstance(log, PartitionLog)
    return log


def append(node: Node, topic: str, *values: bytes, key: bytes | None = None) -> int:
    """Append a batch, and return its offset once it is durable."""
    data = batch_of(*values) if key is None else memoryview(batch.encode_records([(key, values[0])], 1_000))
    placed = node.append(topic, 0, data)
    placed.log.commit(placed.next_offset)
    return placed.base_offset


# --- More partitions than handles -----------------------------------------------------------------


def test_more_partitions_than_handles_are_appended_to_read_followed_and_deleted() -> None:
    """P4. Nothing is refused: each is closed while others are used, and opened again for its next record."""
    topics, limit = 60, 40
    files = LimitedFiles(MemoryFiles(), limit)
    with served(files) as node:
        for number in range(topics):
            node.topics.create(f"t{number}", config=SMALL)
        expected: dict[str, list[bytes]] = {f"t{number}": [] for number in range(topics)}
        for round_ in range(4):
            for name, values in expected.items():
                value = b"%s, round %d" % (name.encode(), round_) * 5
                assert append(node, name, value) == len(values)
                values.append(value)
            assert node.follow_changed(lambda size: None) == {}
        for name, values in expected.items():
            assert values_of(node, name) == values
            assert log_of(node, name).failure is None
        for name in list(expected)[::3]:
            assert node.delete_records(name, 0, 2) == 2
            del expected[name][:2]
        for name in list(expected)[1::3]:
            node.topics.delete(name)
            del expected[name]
        for name, values in expected.items():
            assert values_of(node, name) == values
        assert files.most <= limit
        assert files.refused > topics, "there was never a lack of handles"
    assert files.opened == 0
    assert files.exists(f"{DATA}/meta/clean")
    assert verify_directory(files, DATA).sound
    with served(files) as node:
        for name, values in expected.items():
            assert values_of(node, name) == values


@pytest.mark.parametrize("sync", ["each", "never", "every:3"])
def test_a_log_that_rests_goes_on_where_it_was(sync: str) -> None:
    files = LimitedFiles(MemoryFiles())
    values: list[bytes] = []
    with served(files) as node:
        node.topics.create("orders", config={**SMALL, "cordwood.sync": sync})
        for number in range(12):
            values.append(b"order %d" % number)
            append(node, "orders", values[-1])
            before = files.opened
            log = log_of(node, "orders")
            given = log.rest()
            assert given == before - files.opened == 2
            assert log.rest() == 0
            assert values_of(node, "orders") == values
    with served(files) as node:
        assert values_of(node, "orders") == values


def test_what_waits_for_a_sync_is_not_closed() -> None:
    """A failure to write it back is told to whoever has the file open."""
    files = LimitedFiles(MemoryFiles())
    with served(files) as node:
        node.topics.create("orders")
        placed = node.append("orders", 0, batch_of(b"not synced"))
        log = log_of(node, "orders")
        assert log.rest() == 0
        placed.log.commit()
        assert log.rest() == 2


# --- Handles that somebody else takes ----------------------------------------------------------------


class Scene:
    """A broker with a topic of a few segments, and what it acknowledged."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.values: list[bytes] = []
        self.start = 0
        node.topics.create("orders", config=SMALL)
        node.topics.create("latest", config=COMPACTED)
        for number in range(7):
            self.append(b"order %d" % number * 9)
            append(node, "latest", b"value %d" % number * 9, key=b"key")
        node.follow_changed(lambda size: None)

    def append(self, value: bytes) -> None:
        """Append a record; each third needs a segment of its own."""
        assert append(self.node, "orders", value) == len(self.values)
        self.values.append(value)

    def advance(self) -> None:
        self.start = self.node.delete_records("orders", 0, 3)

    def create(self) -> None:
        if self.node.topics.find("another") is None:
            self.node.topics.create("another")

    def use(self) -> None:
        self.create()
        append(self.node, "another", b"value")

    def read(self) -> None:
        wanted = PartitionFetch("orders", 0, self.start, EVERYTHING)
        (got,) = self.node.read([wanted], EVERYTHING).each
        if got.error is not None:
            raise got.error
        assert values_in(got.frames) == self.values[self.start :]

    def compact(self) -> None:
        report = self.node.maintain("latest", 0, needed_from=None, pace=lambda size: None)
        assert not [sentence for sentence in report.failures if "Too many open files" not in sentence]

    def follow(self) -> None:
        for error in self.node.follow_changed(lambda size: None).values():
            raise error

    def hash(self) -> None:
        log_of(self.node, "orders").hash_sealed()

    def delete(self) -> None:
        if self.node.topics.find("latest") is not None:
            self.node.topics.delete("latest")

    def steps(self) -> dict[str, Callable[[], None]]:
        return {
            "append": partial(self.append, b"small"),
            "append and roll": partial(self.append, b"large" * 60),
            "advance": self.advance,
            "create": self.create,
            "use": self.use,
            "read": self.read,
            "compact": self.compact,
            "follow": self.follow,
            "hash": self.hash,
            "delete": self.delete,
        }


STEPS = (
    "append",
    "append and roll",
    "advance",
    "create",
    "use",
    "read",
    "compact",
    "follow",
    "hash",
    "delete",
)


@pytest.mark.parametrize("step", STEPS)
def test_wherever_handles_run_out_work_is_refused_and_goes_on_when_there_are_some_again(step: str) -> None:
    """P4. From each call on that needs a handle there is none left. No log fails, nothing is lost."""
    cases = 0
    for call in range(1, 200):
        files = LimitedFiles(MemoryFiles())
        with served(files) as node:
            scene = Scene(node)
            # Nothing that can be closed is left open, or it would be closed for whoever needs a handle.
            while node.directory.handles.make_room():
                pass
            refused = files.refused
            files.take_all_at(call)
            with contextlib.suppress(ResourcesExhausted):
                scene.steps()[step]()
            reached = files.refused > refused
            files.take_all_at(None)
            assert node.directory.failures.first is None, f"call {call}"
            cases += reached
            # The same again, and everything else: without opening anything again.
            for again in (step, "append", "append and roll", "use", "read"):
                scene.steps()[again]()
            assert all(log.failure is None for log in node.directory.partitions.opened_logs())
        assert files.exists(f"{DATA}/meta/clean"), f"call {call}"
        with served(files) as node:
            assert values_of(node, "orders") == scene.values[scene.start :]
        assert verify_directory(files, DATA).sound, f"call {call}"
        if not reached:
            break
    else:
        pytest.fail("the step never completes")
    print(f"{step}: {cases} calls found no handle")
    assert cases or step == "create", "the catalogue needs no handle"


def test_a_partition_that_cannot_be_opened_for_want_of_a_handle_is_opened_later() -> None:
    """It is not one that is damaged: nobody has to restart anything."""
    files = LimitedFiles(MemoryFiles())
    with served(files) as node:
        Scene(node)
    with served(files) as node:
        for call in range(1, 30):
            files.take_all_at(call)
            try:
                values_of(node, "orders")
            except (CordwoodError, AssertionError):
                files.take_all_at(None)
                assert node.directory.partitions.refused() == set()
                continue
            break
        files.take_all_at(None)
        assert call > 2
        assert len(values_of(node, "orders")) == 7
        assert append(node, "orders", b"more") == 7


# --- The parts ------------------------------------------------------------------------------------


def test_a_call_that_finds_no_handle_is_tried_again_after_others_gave_some_back() -> None:
    handles, left = Handles(), [0]
    given: list[int] = []

    def give(count: int) -> int:
        given.append(count)
        left[0] = 1 if len(given) < 3 else 0
        return left[0]

    def call() -> str:
        if not left[0]:
            raise os_error(errno.EMFILE, "path")
        left[0] -= 1
        return "done"

    handles.add(give)
    assert handles.call(call) == "done"
    assert handles.call(call) == "done"
    with pytest.raises(OSError, match="Too many open files"):
        handles.call(call)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.ENOSPC])
def test_other_errors_are_not_tried_again(code: int) -> None:
    handles = Handles()
    handles.add(lambda count: pytest.fail("nobody has to give anything back"))

    def call() -> None:
        raise os_error(code, "path")

    with pytest.raises(OSError) as caught:
        handles.call(call)
    assert caught.value.errno == code


def test_the_reserve_is_for_what_is_urgent_and_is_filled_again() -> None:
    files = LimitedFiles(MemoryFiles())
    files.open("/file", "create").close()
    handles = Handles()
    handles.fill_reserve(files, "/file", 3)
    assert files.opened == 3
    files.limit = 3
    for _ in range(5):
        handles.call(lambda: files.list("/"), urgent=True)
        assert files.opened == 3
    with pytest.raises(OSError, match="Too many open files"):
        handles.call(lambda: files.list("/"))
    with handles.urgently():
        handles.call(lambda: files.list("/"))
    kept = [handles.call(lambda: files.open("/file", "read"), urgent=True) for _ in range(3)]
    with pytest.raises(OSError, match="Too many open files"):
        handles.call(lambda: files.list("/"), urgent=True)
    for file in kept:
        file.close()
    handles.close()
    assert files.opened == 0


def test_a_file_that_rests_is_opened_by_its_first_use_and_closed_for_good_by_close() -> None:
    files = LimitedFiles(MemoryFiles())
    file = files.open("/file", "create")
    file.write_at(0, [b"before"])
    file.close()
    store = Store(files.open("/file", "write"), 6)
    assert (store.rest(files, synced=True), files.opened) == (1, 0)
    resting = store.file
    store.sync()
    assert files.opened == 0, "what is synced needs no other sync"
    assert store.read_at(0, 100) == b"before"
    assert not isinstance(store.file, RestingFile)
    store.append([b" and after"])
    assert resting.size() == 16, "whoever still knows the one that rested gets the one that is open"
    assert files.opened == 1
    resting.close()
    assert files.opened == 0
    with pytest.raises(ValueError, match="closed"):
        resting.read_at(0, 1)


def test_a_log_that_failed_keeps_its_files_and_says_why() -> None:
    files = LimitedFiles(MemoryFiles())
    with contextlib.suppress(LogFailed), served(files) as node:
        node.topics.create("orders")
        append(node, "orders", b"value")
        log = log_of(node, "orders")
        log.fail("for a test")
        assert log.rest() == 0
        assert files.exists(partition_path("orders", 0))
