"""A source that is wrong, or lies, or changes: what is stored is sound, and everything else is named."""

from __future__ import annotations

import contextlib
import struct

import pytest
from support.mirroring import (
    ScriptedPartition,
    batch_at,
    failed,
    memory,
    mirrored,
    mirrored_into,
    opened,
    scripted,
    stored,
    without_epoch,
)

from cordwood.errors import CordwoodError
from cordwood.formats import batch
from cordwood.kernels import HEADER_SIZE
from cordwood.protocol import ApiKey, ErrorCode, encode_response
from cordwood.protocol.messages import fetch

GOOD = [batch_at(0, [b"a", b"b"]), batch_at(2, [b"c"])]


def patched(data: bytes, at: int, form: str, value: int, *, sealed: bool = True) -> bytes:
    """Return a batch with one field changed, and its checksum right or as it was."""
    found = bytearray(data)
    struct.pack_into(form, found, at, value)
    if sealed:
        batch.seal(found)
    return bytes(found)


def lie_of(at: int, form: str, value: int, *, sealed: bool = True) -> list[bytes]:
    """Return a batch at offset 3 that lies in one field."""
    return [patched(batch_at(3, [b"x"]), at, form, value, sealed=sealed)]


def too_few() -> list[bytes]:
    """Return a batch of three records, as it says, that has one."""
    return [patched(patched(batch_at(3, [b"x"]), 57, ">i", 3), 23, ">i", 2)]


LIES: dict[str, tuple[list[bytes], str]] = {
    "wrong checksum": (lie_of(61, ">b", 9, sealed=False), "CRC-32C of the batch"),
    "offsets that go back": ([batch_at(1, [b"x", b"y", b"z"])], "base offset"),
    "batches that overlap": ([batch_at(3, [b"x"] * 5), batch_at(5, [b"y"])], "base offset"),
    "a batch again": ([batch_at(3, [b"x"]), batch_at(3, [b"x"])], "base offset"),
    "a giant length": (lie_of(8, ">i", 0x7FFF_FFF0), "max.message.bytes"),
    "a negative length": (lie_of(8, ">i", -5), "batch length"),
    "a length that is too short": (lie_of(8, ">i", 20), "batch length"),
    "an old message format": (lie_of(16, ">b", 1, sealed=False), "message format 1"),
    "an unknown magic": (lie_of(16, ">b", 7, sealed=False), "magic"),
    "unknown attributes": (lie_of(21, ">h", 0x80), "attributes"),
    "an unknown compression": (lie_of(21, ">h", 7), "compression"),
    "more records than offsets": (lie_of(57, ">i", 5), "record count"),
    "fewer records than it says": (too_few(), "record"),
    "a record that goes on past the end": (lie_of(61, ">b", 0x7E), "record"),
    "an offset nobody has": ([batch_at((1 << 62) - 1, [b"x"])], "last offset"),
    "a gap nobody has": ([batch_at(1 << 50, [b"x"])], "offsets are missing before"),
    "a producer id nobody has": ([batch_at(3, [b"x"], producer=(1 << 62, 0, 0))], "producer id"),
    "a transaction of nobody": (lie_of(21, ">h", 0x10), "batch of a transaction"),
    "only a part of a batch": ([batch_at(3, [b"x" * 500])[:200]], "only a part of the batch"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_named_and_what_came_before_it_is_kept(lie: str) -> None:
    lying, named = LIES[lie]
    data = b"".join([*GOOD, *lying])
    files = memory()
    with scripted(ScriptedPartition(reply=lambda offset, size: data, high_watermark=10)) as source:
        report = mirrored(files, source.bootstrap)
    sentence = failed(report)
    print(sentence)
    assert sentence.startswith("orders-0: ")
    assert named in sentence
    whole = stored(files, "orders")
    assert whole[: len(GOOD)] == GOOD
    # At most a good batch before the wrong one, or what stands for a gap.
    assert all(batch.read_header(each).record_count in (0, 1, 5) for each in whole[len(GOOD) :])


def test_an_answer_of_any_claimed_length_takes_no_memory_and_is_refused() -> None:
    with scripted(ScriptedPartition(list(GOOD))) as source:
        source.raw = struct.pack(">i", 0x7FFF_FFFF) + bytes(100)
        with pytest.raises(CordwoodError, match=r"2147483647 bytes"):
            mirrored(memory(), source.bootstrap)


def test_an_answer_to_another_request_is_refused() -> None:
    with scripted(ScriptedPartition(list(GOOD))) as source:
        parts = encode_response(ApiKey.FETCH, 12, 99_999, fetch.FetchResponse())
        source.raw = b"".join(map(bytes, parts))
        with pytest.raises(CordwoodError, match="the answer to request 99999"):
            mirrored(memory(), source.bootstrap)


def test_a_source_that_hangs_up_on_every_fetch_is_given_up_in_time() -> None:
    """The sentence says so, and nothing waits for ever."""

    def hang_up(node: int, key: ApiKey) -> None:
        if key is ApiKey.FETCH:
            raise ConnectionError

    with scripted(ScriptedPartition(list(GOOD))) as source:
        source.before = hang_up
        assert "its leader does not answer" in failed(mirrored(memory(), source.bootstrap, seconds=0.5))


def test_a_source_that_repeats_old_batches_is_given_up() -> None:
    with scripted(ScriptedPartition(reply=lambda offset, size: GOOD[0], high_watermark=10)) as source:
        assert "sends only batches before offset 2" in failed(mirrored(memory(), source.bootstrap))


def test_a_source_that_ends_before_where_it_said_is_given_up() -> None:
    partition = ScriptedPartition(list(GOOD), high_watermark=9)
    with scripted(partition) as source:

        def shrink(node: int, key: ApiKey) -> None:
            if key is ApiKey.FETCH:
                partition.high_watermark = 3

        source.before = shrink
        sentence = failed(mirrored(memory(), source.bootstrap, seconds=0.5))
    assert sentence == "orders-0: the source went up to offset 9, and ends at 3"


def test_a_batch_that_does_not_fit_beside_others_comes_whole_alone() -> None:
    """A broker cuts the last batch of an answer, however large it is."""
    large = batch_at(3, [b"x" * (6 << 20)])
    files = memory()
    with scripted(ScriptedPartition([*GOOD, large]), ScriptedPartition(list(GOOD))) as source:
        report = mirrored(files, source.bootstrap, verify=True)
    assert report.is_whole
    assert report.check is not None
    assert (report.check.identical, report.check.rewritten) == (5, 0)
    assert stored(files, "orders") == [*GOOD, large]


def test_leaders_are_found_again_after_an_election() -> None:
    """Partitions are on two brokers, and move while they are copied."""
    first = ScriptedPartition([*GOOD, batch_at(3, [b"d"])], leader=0)
    second = ScriptedPartition(list(GOOD), leader=1)
    with scripted(first, second, nodes=2) as source:
        fetches = 0

        def elect(node: int, key: ApiKey) -> None:
            nonlocal fetches
            if key is ApiKey.FETCH:
                fetches += 1
                moving = fetches == 1
                first.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if moving else ErrorCode.NONE
                if moving:
                    first.leader, first.epoch, first.epoch_end = 1, 3, 3

        source.before = elect
        files = memory()
        report = mirrored(files, source.bootstrap, verify=True)
    assert report.is_whole, report
    assert stored(files, "orders", 0) == first.batches
    assert stored(files, "orders", 1) == second.batches


def test_a_partition_without_a_leader_is_named_and_the_others_are_copied() -> None:
    files = memory()
    with scripted(ScriptedPartition(list(GOOD), leader=-1), ScriptedPartition(list(GOOD))) as source:
        assert failed(mirrored(files, source.bootstrap, seconds=0.5)) == "orders-0: no broker leads it"
    assert stored(files, "orders", 1) == GOOD


def test_a_new_leader_that_lost_what_was_copied_is_found_at_once() -> None:
    """An unclean election: the log grew again, so that offsets alone do not show it."""
    partition = ScriptedPartition([batch_at(0, [b"a", b"b"], epoch=2), batch_at(2, [b"c"], epoch=2)])
    partition.epoch = 2
    with scripted(partition) as source, contextlib.closing(opened(memory())) as directory:
        looks = 0

        def elect(node: int, key: ApiKey) -> None:
            nonlocal looks
            looks += key is ApiKey.FETCH
            if looks == 2:
                partition.batches[1:] = [batch_at(2, [b"other"] * 9, epoch=5)]
                partition.epoch, partition.epoch_end = 5, 2
                partition.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                partition.error_code = 0

        source.before = elect
        report = mirrored_into(directory, source.bootstrap, follow=True)
    assert "it ends leader epoch 2 at offset 2, and the log here goes up to 3" in failed(report)


def test_a_later_epoch_is_not_appended_before_the_source_has_said_where_the_earlier_one_ends() -> None:
    """The log was truncated and has grown again, and metadata still has the leader of before."""
    partition = ScriptedPartition([batch_at(0, [b"a", b"b"], epoch=2), batch_at(2, [b"c"], epoch=2)])
    partition.epoch = 2
    files = memory()
    with scripted(partition) as source, contextlib.closing(opened(files)) as directory:
        looks = 0

        def grow(node: int, key: ApiKey) -> None:
            nonlocal looks
            looks += key is ApiKey.FETCH
            if looks == 2:
                partition.batches[1:] = [batch_at(2, [b"C"], epoch=5), batch_at(3, [b"d"], epoch=5)]
                partition.epoch_end = 2

        source.before = grow
        report = mirrored_into(directory, source.bootstrap, follow=True, stopped=lambda: looks > 9)
    assert "it ends leader epoch 2 at offset 2, and the log here goes up to 3" in failed(report)
    assert looks < 9
    assert [batch.read_header(each).next_offset for each in stored(files, "orders")] == [2, 3]


def test_a_fenced_fetch_is_asked_again_with_the_new_epoch() -> None:
    """The epochs of metadata and of the leader differ for a moment after an election."""
    partition = ScriptedPartition(list(GOOD), epoch=4)
    files = memory()
    with scripted(partition) as source:
        fetches = 0

        def elect(node: int, key: ApiKey) -> None:
            nonlocal fetches
            fetches += key is ApiKey.FETCH
            if key is ApiKey.FETCH and fetches == 1:
                partition.epoch = 6

        source.before = elect
        report = mirrored(files, source.bootstrap)
    assert report.is_whole
    assert fetches > 1
    assert stored(files, "orders") == GOOD


@pytest.mark.parametrize("grown", [False, True])
def test_a_source_that_was_truncated_between_two_runs_is_not_continued(grown: bool) -> None:
    files = memory()
    partition = ScriptedPartition(list(GOOD))
    with scripted(partition) as source:
        assert mirrored(files, source.bootstrap).is_whole
        partition.batches[1:] = [batch_at(2, [b"C", b"D"])] if grown else []
        sentence = failed(mirrored(files, source.bootstrap))
    wanted = "the record at offset 2 is another one here" if grown else "the source ends at offset 2"
    assert wanted in sentence
    assert stored(files, "orders") == GOOD


def test_a_topic_that_is_deleted_or_created_again_while_it_is_followed_is_named() -> None:
    for change, named in (("delete", "it was deleted at the source"), ("again", "created again")):
        with (
            scripted(ScriptedPartition(list(GOOD))) as source,
            contextlib.closing(opened(memory())) as directory,
        ):
            fetches = 0

            def changed(node: int, key: ApiKey, how: str = change, at: object = source) -> None:
                nonlocal fetches
                fetches += key is ApiKey.FETCH
                if key is ApiKey.FETCH and fetches == 2:
                    partition = source.topics.pop("orders")[0]
                    source.ids.pop("orders")
                    if how == "again":
                        source.add("orders", partition)

            source.before = changed
            said: list[str] = []
            report = mirrored_into(
                directory,
                source.bootstrap,
                follow=True,
                failed=lambda failure, said=said: said.append(failure.sentence()),
                stopped=lambda said=said: bool(said),
            )
        assert named in failed(report)
        assert said == [failed(report)]


def test_an_empty_end_is_passed_only_if_the_source_has_nothing_there() -> None:
    """Compaction may remove the last batches: committed offsets lie beyond the last batch then."""
    files = memory()
    with scripted(ScriptedPartition(list(GOOD), high_watermark=8)) as source:
        report = mirrored(files, source.bootstrap)
    (partition,) = report.topics[0].partitions
    assert (partition.end, partition.filled, report.is_whole) == (8, 5, True)
    assert [batch.read_header(each).next_offset for each in stored(files, "orders")] == [2, 3, 8]


def test_a_throttled_answer_is_not_an_empty_end() -> None:
    files = memory()
    partition = ScriptedPartition(list(GOOD), high_watermark=8)
    with scripted(partition) as source:
        source.throttled = 100

        def calm(node: int, key: ApiKey) -> None:
            if len(source.fetches) == 6:
                partition.batches.append(batch_at(3, [b"x"] * 5))
                source.throttled = 0

        source.before = calm
        report = mirrored(files, source.bootstrap)
    (copied,) = report.topics[0].partitions
    assert (copied.end, copied.filled, copied.records) == (8, 0, 8)


def test_the_leader_epoch_is_the_only_change() -> None:
    files = memory()
    sent = [batch_at(0, [b"a"], epoch=4), batch_at(1, [b"b"], epoch=9)]
    with scripted(ScriptedPartition(list(sent))) as source:
        assert mirrored(files, source.bootstrap, verify=True).is_whole
    kept = stored(files, "orders")
    assert kept == [without_epoch(each) for each in sent]
    assert len(kept[0]) > HEADER_SIZE


def test_two_topics_with_one_id_are_not_one_topic() -> None:
    files = memory()
    with scripted(ScriptedPartition(list(GOOD))) as source:
        source.add("other", ScriptedPartition([batch_at(0, [b"z"])]))
        source.ids["other"] = source.ids["orders"]
        assert "is that of topic orders here" in failed(mirrored(files, source.bootstrap, topics=("*",)))


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".", "x" * 300, "__consumer_offsets"])
def test_a_name_that_no_topic_may_have_is_refused(name: str) -> None:
    with scripted(ScriptedPartition(list(GOOD)), topic=name) as source:
        assert failed(mirrored(memory(), source.bootstrap, topics=(name,))).startswith(f"{name}: ")


def test_settings_that_lie_are_left_out_and_named() -> None:
    with scripted(ScriptedPartition(list(GOOD))) as source:
        source.settings["orders"] = {"retention.ms": "soon", "segment.bytes": "65536", "no.such": "1"}
        report = mirrored(memory(), source.bootstrap)
    (topic,) = report.topics
    assert [line.partition("=")[0] for line in topic.not_kept] == ["retention.ms", "no.such"]
