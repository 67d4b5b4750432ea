"""Commands of the sink, obeyed in process: what is published, and what is refused with nothing published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from broker.nodes import BreakableFiles, batch_of, node_on, values_of
from support.clocks import ManualClock

from cordwood.broker.node import Node
from cordwood.broker.staging import Command, FrameKey, StagedFrames, is_command, staging_topic
from cordwood.broker.topics import is_internal
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, RecordRefused, UnknownTopic
from cordwood.formats import batch as frames
from cordwood.records import Record
from cordwood.storage.sink.staging import Share

QUERY = "query q"
TOPIC = staging_topic(QUERY)
SINK = "/data/tmp/sink"


@pytest.fixture
def node() -> Iterator[Node]:
    opened = node_on(MemoryFiles())
    opened.topics.create("out", 2)
    opened.topics.create(TOPIC, 4)
    yield opened
    opened.directory.close()


def key_of(node: Node, task: str, partition: int = 0, topic: str = "out") -> bytes:
    entry = node.topics.find(topic)
    assert entry is not None
    return msgspec.json.encode(FrameKey(task, topic, entry.id, partition))


def send(node: Node, rows: Sequence[tuple[bytes | None, bytes | None]], partition: int = 1) -> range:
    """Append records to the staging topic as a task does; return their offsets."""
    placed = node.append(TOPIC, partition, memoryview(frames.encode_records(rows, 1000)))
    placed.log.commit()
    return range(placed.base_offset, placed.next_offset)


def stage(node: Node, task: str, *values: bytes, partition: int = 0, at: int = 1) -> StagedFrames:
    """Stage one frame a value."""
    key = key_of(node, task, partition)
    sent = send(node, [(key, bytes(batch_of(value))) for value in values], at)
    return StagedFrames(task, at, sent.start, sent.stop, len(values))


def obey(node: Node, command: Command | bytes | None, topic: str = TOPIC) -> list[Share]:
    value = msgspec.json.encode(command) if isinstance(command, Command) else command
    return node.sink.execute(topic, [Record(0, 1000, None, value)])


def command(batch: int, *staged: StagedFrames, **more: Any) -> Command:
    return Command(query=QUERY, batch=batch, staged=staged, **more)


def output(node: Node) -> list[list[bytes]]:
    return [values_of(node, "out", partition) for partition in range(2)]


def nothing_left(node: Node) -> bool:
    files = node.directory.files
    return not files.exists(SINK) or files.list(SINK) == []


def test_a_command_publishes_tasks_in_its_order_and_frames_in_theirs(node: Node) -> None:
    """Whatever the order in which they came."""
    second = stage(node, "t2", b"c", b"d", at=2)
    first = stage(node, "t1", b"a", b"b")
    other = stage(node, "t3", b"e", partition=1, at=2)
    shares = obey(node, command(0, first, second, other))
    assert output(node) == [[b"a", b"b", b"c", b"d"], [b"e"]]
    assert sum(section.records for share in shares for section in share.sections) == 5
    assert nothing_left(node)


def test_frames_of_an_attempt_that_lost_are_not_published(node: Node) -> None:
    """Both attempts sent to the same partition, one between the frames of the other."""
    key, loser = key_of(node, "winner"), key_of(node, "loser")
    rows = [(key, b"a"), (loser, b"a"), (key, b"b"), (loser, b"b")]
    sent = send(node, [(key, bytes(batch_of(value))) for key, value in rows])
    obey(node, command(0, StagedFrames("winner", 1, sent.start, sent.stop, 2)))
    assert output(node) == [[b"a", b"b"], []]


def test_what_was_staged_is_gone_from_the_staging_topic_when_it_is_published(node: Node) -> None:
    staged = stage(node, "t1", b"a")
    stage(node, "loser", b"a", at=2)
    obey(node, command(0, staged))
    assert [node.directory.readable(TOPIC, number).log_start_offset for number in range(4)] == [0, 1, 1, 0]


@pytest.mark.parametrize("again", [5, 4, 0])
def test_a_batch_is_published_once_and_none_below_it(node: Node, again: int) -> None:
    obey(node, command(5, stage(node, "t1", b"a")))
    assert obey(node, command(again, stage(node, "t2", b"b"))) == []
    assert output(node) == [[b"a"], []]
    assert nothing_left(node)
    assert len(obey(node, command(6, stage(node, "t3", b"c")))) == 1
    assert output(node) == [[b"a", b"c"], []]


def test_a_query_that_has_no_second_try_is_forgotten(node: Node) -> None:
    obey(node, command(0, stage(node, "t1", b"a"), remember=False))
    assert node.directory.publisher.promised(QUERY) == -1
    assert output(node) == [[b"a"], []]


def test_an_empty_batch_counts_as_published(node: Node) -> None:
    obey(node, command(3))
    assert obey(node, command(3, stage(node, "t1", b"a"))) == []
    assert output(node) == [[], []]


GARBAGE = {
    "nothing": None,
    "no bytes": b"",
    "no JSON": b"\xff\xfe{",
    "a list": b"[1, 2]",
    "no batch": b'{"query": "query q"}',
    "a batch that is text": b'{"query": "query q", "batch": "1"}',
    "a batch that is no whole number": b'{"query": "query q", "batch": 1.5}',
    "staged nonsense": b'{"query": "query q", "batch": 1, "staged": [{"task": 1}]}',
    "another query": msgspec.json.encode(Command(query="query z", batch=0)),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_record_that_is_no_command_of_this_topic_is_refused(node: Node, what: str) -> None:
    stage(node, "t1", b"a")
    with pytest.raises(RecordRefused):
        obey(node, GARBAGE[what])
    assert output(node) == [[], []]
    # What was staged is still there for the command that may follow.
    assert node.directory.readable(TOPIC, 1).log_start_offset == 0


def test_a_command_that_misses_frames_is_refused_and_publishes_nothing(node: Node) -> None:
    whole = stage(node, "t1", b"a", b"b")
    for wrong in (
        msgspec.structs.replace(whole, frames=3),
        msgspec.structs.replace(whole, frames=1),
        msgspec.structs.replace(whole, start=1),
        msgspec.structs.replace(whole, end=1),
        msgspec.structs.replace(whole, start=-5, end=0),
        msgspec.structs.replace(whole, start=2, end=1 << 62),
        msgspec.structs.replace(whole, task="t2"),
        msgspec.structs.replace(whole, partition=2),
    ):
        with pytest.raises(RecordRefused, match=r"sent \d+ frames; \d+ are here"):
            obey(node, command(0, wrong))
    assert output(node) == [[], []]
    assert nothing_left(node)
    obey(node, command(0, whole))
    assert output(node) == [[b"a", b"b"], []]


def test_frames_that_were_cleared_already_are_missed(node: Node) -> None:
    """A driver that comes back late does not publish the half that is left."""
    late = stage(node, "late", b"a", b"b")
    obey(node, command(0, stage(node, "t1", b"c")))
    with pytest.raises(RecordRefused, match="sent 2 frames; 0 are here"):
        obey(node, command(1, late))
    assert output(node) == [[b"c"], []]


@pytest.mark.parametrize("partition", [-1, 4, 1 << 40])
def test_a_partition_that_is_not_there_is_refused(node: Node, partition: int) -> None:
    with pytest.raises(UnknownTopic):
        obey(node, command(0, StagedFrames("t1", partition, 0, 1, 1)))


@pytest.mark.parametrize("task", ["../../../x", "a/b", "x" * 200, "t\x00"])
def test_a_task_whose_name_leads_elsewhere_is_refused(node: Node, task: str) -> None:
    staged = stage(node, task, b"a")
    with pytest.raises(RecordRefused):
        obey(node, command(0, staged))
    assert output(node) == [[], []]


@pytest.mark.parametrize("name", ["../../../meta/broker.id", "1-a.share/../x", "nothing", "1-a.share"])
def test_a_share_that_is_not_there_or_no_share_is_refused(node: Node, name: str) -> None:
    entry = node.topics.find("out")
    assert entry is not None
    section = {"topic": "out", "topic_id": entry.id, "partition": 0, "position": 0, "size": 70, "records": 1}
    named = {"query": QUERY, "batch": 0, "shares": [{"name": name, "sections": [section]}]}
    with pytest.raises(RecordRefused):
        obey(node, msgspec.json.encode(named))
    assert output(node) == [[], []]


def test_a_staged_record_that_is_no_frame_is_refused(node: Node) -> None:
    for key, value, what in (
        (None, b"x", "not a frame"),
        (b"\xff", b"x", "not a frame"),
        (b'["t1"]', b"x", "not a frame"),
        (key_of(node, "t1"), None, None),
        (key_of(node, "t1"), b"not a batch", None),
        (key_of(node, "t1"), bytes(batch_of(b"a"))[:-1], None),
        (key_of(node, "t1"), bytes(batch_of(b"a"))[:-1] + b"?", None),
        (key_of(node, "t1"), bytes(batch_of(b"a")) * 2, None),
    ):
        sent = send(node, [(key, value)])
        with pytest.raises(CordwoodError, match=what):
            obey(node, command(0, StagedFrames("t1", 1, sent.start, sent.stop, 1)))
        assert output(node) == [[], []]
    obey(node, command(0, stage(node, "t2", b"b")))
    assert output(node) == [[b"b"], []]
    assert nothing_left(node)


def test_frames_for_a_topic_that_was_made_again_are_refused(node: Node) -> None:
    staged = stage(node, "t1", b"a")
    node.topics.delete("out")
    node.topics.create("out", 2)
    with pytest.raises(UnknownTopic, match="deleted since"):
        obey(node, command(0, staged))
    assert output(node) == [[], []]


def test_a_command_in_a_topic_that_is_gone_is_refused(node: Node) -> None:
    node.topics.delete(TOPIC)
    with pytest.raises(UnknownTopic):
        obey(node, command(0))


def test_a_node_that_died_after_the_intent_publishes_before_anyone_reads() -> None:
    files = BreakableFiles()
    dying = node_on(files)
    dying.topics.create("out", 2)
    dying.topics.create(TOPIC, 4)
    staged = stage(dying, "t1", b"a")
    files.after = lambda kind, path, result: _die() if kind == "rename" and "/meta/sink/" in path else None
    with pytest.raises(_Killed):
        obey(dying, command(0, staged))
    files.after = lambda kind, path, result: None
    dying.directory.abandon()
    back = node_on(files)
    assert output(back) == [[b"a"], []]
    assert obey(back, command(0, staged)) == []
    assert output(back) == [[b"a"], []]
    back.directory.close()


class _Killed(BaseException):
    """kill -9, as far as the engine can tell."""


def _die() -> None:
    raise _Killed


def test_only_partition_0_of_a_staging_topic_takes_commands() -> None:
    assert is_command(TOPIC, 0)
    assert not is_command(TOPIC, 1)
    assert not is_command("orders", 0)
    assert is_internal(TOPIC)
    assert not is_internal("orders")


def test_a_publication_that_is_refused_leaves_no_share(node: Node) -> None:
    """Asked for again and again, it would otherwise fill the disk."""
    wrong = [stage(node, "t1", b"a"), StagedFrames("t2", 1, 0, 1, 7)]
    for _ in range(3):
        with pytest.raises(RecordRefused, match="sent 7 frames; 0 are here"):
            obey(node, command(0, *wrong))
    node.topics.delete("out")
    node.topics.create("out", 2)
    with pytest.raises(UnknownTopic):
        obey(node, command(0, wrong[0]))
    directory = node.directory
    assert directory.files.list(f"{SINK}/{TOPIC.partition('-')[2]}/0") == []


def test_a_batch_below_none_is_refused(node: Node) -> None:
    with pytest.raises(RecordRefused, match="not a command"):
        obey(node, command(-1, stage(node, "t1", b"a")))


def test_a_command_for_a_batch_that_is_published_leaves_what_is_staged_for_the_next(node: Node) -> None:
    first = stage(node, "t1", b"a")
    obey(node, command(0, first))
    second = stage(node, "t2", b"b")
    assert obey(node, command(0, first)) == []
    obey(node, command(1, second))
    assert values_of(node, "out", 0) == [b"a", b"b"]


@pytest.mark.parametrize(("days", "gone"), [(6, []), (8, [TOPIC])])
def test_staging_topics_that_nobody_comes_back_for_are_removed_after_a_week(
    days: int, gone: list[str]
) -> None:
    clock = ManualClock()
    node = node_on(MemoryFiles(), clock=clock)
    node.topics.create("out")
    node.topics.create(TOPIC, 2, {"message.timestamp.type": "LogAppendTime"})
    other = staging_topic("of another clock")
    node.topics.create(other, 2)
    node.append(other, 1, memoryview(frames.encode_records([(None, b"x")], 1000)))
    stage(node, "t1", b"a")
    clock.advance(days * 24 * 3_600_000)
    node.collect_abandoned()
    assert [name for name in (TOPIC, other) if node.topics.find(name) is None] == gone
    node.directory.close()
