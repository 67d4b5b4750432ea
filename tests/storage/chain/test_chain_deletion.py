"""Topics that are deleted while their chains are followed or their logs maintained: the others go on."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest
from broker.nodes import BreakableFiles, batch_of, open_on
from support.logs import partition_path
from support.patience import SECONDS_MAX

from cordwood.broker.node import Node
from cordwood.disk.files import Files
from cordwood.errors import LogClosed, StorageError
from cordwood.formats import batch
from cordwood.storage.chain import chains as chain_module
from cordwood.storage.chain import follower as chain_following
from cordwood.storage.chain.chains import kept_chain
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.verify import verify_directory

OTHERS = ("one", "two", "three")
CHURNED = {"cleanup.policy": "compact", "segment.bytes": "200", "min.cleanable.dirty.ratio": "0.01"}


def append(node: Node, topic: str, *values: bytes) -> PartitionLog:
    if node.topics.find(topic) is None:
        node.topics.create(topic)
    log = node.append(topic, 0, batch_of(*values)).log
    log.commit()
    assert isinstance(log, PartitionLog)
    return log


def committed(files: Files, topic: str) -> int:
    """Return how many leaves of a topic's chain are durable, 0 without a chain."""
    with kept_chain(files, partition_path(topic, 0)) as chain:
        return 0 if chain is None else chain.head.size


@contextlib.contextmanager
def committing_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_following, "COMMIT_NS", 0)
        yield


class Deleting:
    """Deletes a topic in another thread, begun by `begin`, which returns once its log is closed."""

    def __init__(self, node: Node, topic: str, log: PartitionLog, *, again: bool = False) -> None:
        self._log = log
        self._closed = Event()
        close = log.close

        def closing() -> None:
            close()
            self._closed.set()

        log.close = closing  # type: ignore[method-assign]

        def work() -> None:
            node.topics.delete(topic)
            if again:
                append(node, topic, b"of the new topic")

        self._thread = Thread(target=work, daemon=True)

    def begin(self) -> None:
        if not self._thread.ident:
            self._thread.start()
            assert self._closed.wait(SECONDS_MAX)

    def end(self) -> None:
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive()


def test_a_topic_that_is_deleted_after_it_was_followed_is_followed_no_more() -> None:
    """Closing its log shows the last records, which must not ask for a chain that is gone."""
    files = BreakableFiles()
    with open_on(files) as node, committing_at_once():
        append(node, "gone", b"1")
        node.append("gone", 0, batch_of(b"not synced"))
        node.topics.delete("gone")
        append(node, "one", b"1")
        assert node.follow_changed(lambda size: None) == {}
        assert not node.directory.chains.is_behind
        assert committed(files, "one") == 1
    assert files.exists("/data/meta/clean")


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_while_it_is_followed_holds_up_no_other(again: bool) -> None:
    """Whichever topic it is, and also where another of its name is created at once."""
    for deleted in range(len(OTHERS)):
        files = BreakableFiles()
        with open_on(files) as node, committing_at_once():
            logs = {name: append(node, name, b"1", b"2") for name in OTHERS}
            gone = OTHERS[deleted]
            deleting = Deleting(node, gone, logs[gone], again=again)
            assert node.follow_changed(lambda size, deleting=deleting: deleting.begin()) == {}  # type: ignore[misc]
            deleting.end()
            assert node.follow_changed(lambda size: None) == {}
            assert not node.directory.chains.is_behind
            for name in OTHERS:
                if name != gone:
                    assert committed(files, name) == 1
            assert committed(files, gone) == (1 if again else 0)
        assert files.exists("/data/meta/clean")
        assert verify_directory(files, "/data").sound


def test_topics_that_all_go_while_the_first_is_followed_leave_nothing_to_follow() -> None:
    files = BreakableFiles()
    with open_on(files) as node:
        logs = {name: append(node, name, b"1") for name in OTHERS}
        deleted: list[Thread] = []

        def delete_all(size: int) -> None:
            if not deleted:
                deleted.extend(Thread(target=node.topics.delete, args=(name,), daemon=True) for name in logs)
                for thread in deleted:
                    thread.start()
                while not any(log.closed for log in logs.values()):
                    pass

        assert node.follow_changed(delete_all) == {}
        for thread in deleted:
            thread.join(SECONDS_MAX)
        assert node.follow_changed(lambda size: None) == {}
        assert not node.directory.chains.is_behind


def test_a_chain_that_cannot_be_committed_holds_up_no_other_and_is_followed_again() -> None:
    files = BreakableFiles()
    with open_on(files) as node:
        logs = {name: append(node, name, b"1") for name in OTHERS}
        assert node.follow_changed(lambda size: None) == {}
        files.fail("write", "create", code=errno.ENOSPC, within="/two/0/chain")
        with committing_at_once():
            failed = node.follow_changed(lambda size: None)
            assert list(failed) == [("two", 0)]
            assert isinstance(failed["two", 0], StorageError)
            assert [committed(files, name) for name in OTHERS] == [1, 0, 1]
            assert node.directory.chains.is_behind
            files.heal()
            assert node.follow_changed(lambda size: None) == {}
            assert [committed(files, name) for name in OTHERS] == [1, 1, 1]
        assert all(log.failure is None for log in logs.values())


def test_a_chain_that_is_closed_to_make_room_and_cannot_be_committed_is_followed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The chain that needs the room is not to blame."""
    monkeypatch.setattr(chain_module, "OPEN_MAX", 1)
    files = BreakableFiles()
    with open_on(files) as node:
        append(node, "one", b"1")
        assert node.follow_changed(lambda size: None) == {}
        files.fail("write", "create", code=errno.ENOSPC, within="/one/0/chain")
        append(node, "two", b"1")
        assert node.follow_changed(lambda size: None) == {}
        assert committed(files, "one") == 0
        files.heal()
        with committing_at_once():
            assert node.follow_changed(lambda size: None) == {}
            assert node.follow_changed(lambda size: None) == {}
        assert [committed(files, name) for name in ("one", "two")] == [1, 1]


def test_a_topic_that_is_deleted_while_it_is_compacted_leaves_nothing_in_the_one_that_has_its_name() -> None:
    """A pass finds files by their paths: it has ended before these can be another topic's."""
    files = BreakableFiles()
    with open_on(files) as node:
        node.topics.create("orders", config=CHURNED)
        for number in range(40):
            log = keyed(node, b"key-%d" % (number % 3), b"value-%d" % number)
        deleting = Deleting(node, "orders", log)
        came = []

        def pace(size: int) -> None:
            came.append(size)
            deleting.begin()

        report = node.maintain("orders", 0, needed_from=None, pace=pace)
        deleting.end()
        assert came, "nothing was compacted"
        assert report.failures == ()
        append(node, "orders", b"of the new topic")
        names = files.list(partition_path("orders", 0))
        assert ".cleaner_checkpoint" not in names
        assert not any(name.endswith(".swap") for name in files.list(partition_path("orders", 0, "segments")))


def keyed(node: Node, key: bytes, value: bytes) -> PartitionLog:
    data = memoryview(batch.encode_records([(key, value)], 1_000))
    log = node.append("orders", 0, data).log
    log.commit()
    assert isinstance(log, PartitionLog)
    return log


def test_a_read_that_meets_a_deletion_never_shows_records_of_the_topic_that_has_the_name_now() -> None:
    files = BreakableFiles()
    with open_on(files) as node:
        node.topics.create("orders", config={"segment.bytes": "100"})
        for number in range(3):
            log = append(node, "orders", b"old-%d" % number)
        files.before = once(lambda: replaced(node))
        with pytest.raises(LogClosed):
            log.read(0, 1)
        files.before = lambda kind, path: None
        assert files.exists(partition_path("orders", 0))


def once(call: Callable[[], None]) -> Callable[[str, str], None]:
    """Return a hook that calls *call* at the first opening of a sealed segment."""
    called: list[bool] = []

    def before(kind: str, path: str) -> None:
        if kind == "open" and path.endswith("00000.log") and not called:
            called.append(True)
            call()

    return before


def replaced(node: Node) -> None:
    node.topics.delete("orders")
    node.topics.create("orders", config={"segment.bytes": "100"})
    for number in range(3):
        append(node, "orders", b"new-%d" % number)
