"""Publishing what was staged: once, whole, in order, or not at all (E1, E2, E3)."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from support.clocks import HookedFiles, ManualClock
from support.disks import CHANGES, FaultPlan, FaultyFiles, image
from support.logs import disk_of
from support.patience import SECONDS_MAX
from support.publishing import (
    ALWAYS,
    CONFIG,
    DATA,
    MIXED,
    NEVER,
    NOW_MS,
    QUERY,
    Plan,
    State,
    adopting,
    contents_of,
    frame_of,
    kill,
    open_log,
    records_of,
    stage,
    staged_files,
    target_of,
    writer,
)
from support.sweeps import every
from support.verifying import verify

import cordwood
from cordwood.disk.checked_json import write_metadata
from cordwood.disk.files import Files, join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import (
    CordwoodError,
    DirectoryRefused,
    DiskFull,
    LogClosed,
    LogFailed,
    MetadataDamaged,
    RecordRefused,
    StorageError,
    UnknownTopic,
)
from cordwood.formats import batch as batches
from cordwood.formats.batch import BatchOptions
from cordwood.storage.directory.data_directory import DataDirectory
from cordwood.storage.readonly.directory import ReadOnlyDirectory
from cordwood.storage.sink import ABANDONED_MS, publishing
from cordwood.storage.sink.journal import (
    NOTHING_PUBLISHED,
    Journal,
    journal_path,
    journal_paths,
    promised,
    read_journal,
)
from cordwood.storage.sink.staging import Share, share_path

P0, P1, OTHER = ("orders", 0), ("orders", 1), ("other", 0)
PLAN: Plan = {P0: [[b"a"], [b"b", b"c"]], P1: [[b"d"]], OTHER: [[b"e"]]}
PUBLISHED: State = {P0: [b"a", b"b", b"c"], P1: [b"d"], OTHER: [b"e"]}
NOTHING: State = {P0: [], P1: [], OTHER: []}
SMALL = {"segment.bytes": "400", "index.interval.bytes": "100"}
THRESHOLDS = [NEVER, MIXED, ALWAYS]


def made(
    files: Files, config: dict[str, str] | None = None, clock: ManualClock | None = None
) -> cordwood.Log:
    """A directory with a topic of two partitions and one of one."""
    log = open_log(files, clock)
    log.data_directory.topics.create("orders", "id-orders", 2, config or {})
    log.data_directory.topics.create("other", "id-other", 1, config or {})
    return log


@pytest.fixture(params=THRESHOLDS, ids=["appended", "both", "adopted"])
def way_in(request: pytest.FixtureRequest) -> Iterator[int]:
    """Each way in turn."""
    with adopting(request.param):
        yield request.param


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def data(files: MemoryFiles) -> DataDirectory:
    return made(files).data_directory


# --- Once -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("way_in")
def test_a_batch_is_published_whole_and_in_the_order_of_its_shares(
    files: MemoryFiles, data: DataDirectory
) -> None:
    data.partitions.own("orders", 0).append([(None, b"before")])
    shares = stage(files, data, PLAN, task="0-a") + stage(
        files, data, {P0: [[b"f"]], P1: [[b"g"]]}, task="1-a"
    )
    assert contents_of(data) == NOTHING, "E3: what is staged is visible"
    assert data.publisher.publish(QUERY, 0, shares)
    wanted = {P0: [b"before", b"a", b"b", b"c", b"f"], P1: [b"d", b"g"], OTHER: [b"e"]}
    assert contents_of(data) == wanted
    assert contents_of(ReadOnlyDirectory(files, DATA, CONFIG)) == wanted
    assert staged_files(files) == []
    assert data.partitions.own("orders", 0).append([(None, b"after")]).base_offset == 5


def test_a_topic_that_lifts_timestamps_lifts_those_of_a_published_batch(
    files: MemoryFiles, way_in: int
) -> None:
    """No staged file becomes a segment of it: its timestamps could not be changed any more."""
    log = made(files, {"cordwood.timestamp.order": "lift"})
    data = log.data_directory
    log.topic("other").append(b"before", timestamp=NOW_MS + 500)
    staged = writer(files)
    for value, timestamp in ((b"a", NOW_MS), (b"b", NOW_MS + 900), (b"c", NOW_MS + 100)):
        staged.append(target_of(data, "other", 0), frame_of(value, timestamp=timestamp))
    data.publisher.publish(QUERY, 0, staged.finish())
    found = [(record.value, record.timestamp - NOW_MS) for record in log.topic("other").read(0)]
    assert found == [(b"before", 500), (b"a", 500), (b"b", 900), (b"c", 900)]
    log.close()


def test_a_topic_that_refuses_timestamps_refuses_a_batch_before_its_intent(files: MemoryFiles) -> None:
    log = made(files, {"cordwood.timestamp.order": "refuse"})
    data = log.data_directory
    shares = stage(files, data, PLAN)
    with pytest.raises(RecordRefused, match="set it to lift or any"):
        data.publisher.publish(QUERY, 0, shares)
    assert contents_of(data) == NOTHING
    assert log.topic("orders").append(b"goes on", partition=0).offset == 0
    log.close()


@pytest.mark.usefixtures("way_in")
def test_a_batch_is_published_once_however_often_it_is_asked_for(
    files: MemoryFiles, data: DataDirectory
) -> None:
    """Twice in a row, after a close, after a kill, and with shares of another attempt."""
    shares = stage(files, data, PLAN, 5)
    assert data.publisher.publish(QUERY, 5, shares)
    assert not data.publisher.publish(QUERY, 5, shares)
    data.close()
    log = open_log(files)
    assert not log.data_directory.publisher.publish(QUERY, 5, shares)
    kill(log)
    data = open_log(files).data_directory
    again = stage(files, data, PLAN, 5, task="0-b")
    assert not data.publisher.publish(QUERY, 5, again)
    assert contents_of(data) == PUBLISHED
    assert staged_files(files) == []


@pytest.mark.parametrize("batch", [0, 4, 5])
def test_no_batch_comes_after_a_later_one(files: MemoryFiles, data: DataDirectory, batch: int) -> None:
    assert data.publisher.publish(QUERY, 5, stage(files, data, PLAN, 5))
    assert not data.publisher.publish(QUERY, batch, stage(files, data, {P0: [[b"late"]]}, batch, task="late"))
    assert contents_of(data) == PUBLISHED
    assert data.publisher.promised(QUERY) == 5
    assert data.publisher.publish(QUERY, 6, stage(files, data, {P0: [[b"next"]]}, 6))
    assert contents_of(data)[P0][-1] == b"next"


def test_two_queries_know_nothing_of_each_other(files: MemoryFiles, data: DataDirectory) -> None:
    first = stage(files, data, {P0: [[b"1"]]}, 3)
    second = stage(files, data, {P0: [[b"2"]]}, 3, query="another")
    assert data.publisher.publish(QUERY, 3, first)
    assert len(staged_files(files)) == 1
    assert data.publisher.publish("another", 3, second)
    assert contents_of(data)[P0] == [b"1", b"2"]
    assert (
        data.publisher.promised(QUERY),
        data.publisher.promised("another"),
        data.publisher.promised("none"),
    ) == (3, 3, -1)


@pytest.mark.usefixtures("way_in")
def test_many_threads_publish_each_batch_once_while_others_append(files: MemoryFiles) -> None:
    """Two queries, each asked for by two threads, into partitions that others append to meanwhile."""
    data = made(files, SMALL).data_directory
    staged: dict[tuple[str, int], tuple[Share, ...]] = {}
    for query in ("q1", "q2"):
        for batch in range(6):
            contents = {name: [[f"{query}/{batch}/{n}".encode()] for n in range(3)] for name in (P0, P1)}
            staged[query, batch] = stage(files, data, contents, batch, query=query)
    answers: dict[tuple[str, int], list[bool]] = {key: [] for key in staged}
    problems: list[BaseException] = []
    done = threading.Event()

    def publish(query: str) -> None:
        for batch in range(6):
            answers[query, batch].append(data.publisher.publish(query, batch, staged[query, batch]))

    def append(partition: int) -> None:
        log = data.partitions.own("orders", partition)
        for number in range(400):
            if done.is_set():
                return
            log.commit(log.append([(None, b"other/%d" % number)]).next_offset)

    def guarded(call: Callable[[Any], None], argument: Any) -> None:
        try:
            call(argument)
        except BaseException as error:
            problems.append(error)

    publishers = [threading.Thread(target=guarded, args=(publish, q)) for q in ("q1", "q2", "q1", "q2")]
    appenders = [threading.Thread(target=guarded, args=(append, p)) for p in (0, 1)]
    for thread in (*appenders, *publishers):
        thread.start()
    for thread in publishers:
        thread.join(SECONDS_MAX)
    done.set()
    for thread in appenders:
        thread.join(SECONDS_MAX)
    assert not problems, problems
    assert all(sorted(answer) == [False, True] for answer in answers.values())
    for values in (contents_of(data)[P0], contents_of(data)[P1]):
        for query in ("q1", "q2"):
            mine = [value.decode() for value in values if value.startswith(query.encode())]
            assert mine == [f"{query}/{batch}/{n}" for batch in range(6) for n in range(3)]
            for batch in range(6):
                # Nobody else comes between the records of one batch.
                first = values.index(f"{query}/{batch}/0".encode())
                assert values[first : first + 3] == [f"{query}/{batch}/{n}".encode() for n in range(3)]
        numbers = [int(value[6:]) for value in values if value.startswith(b"other/")]
        assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("moment", ["the intent", "an append", "the end"])
def test_an_append_of_another_thread_lands_behind_a_batch_that_has_begun(moment: str) -> None:
    """From the intent on its offsets are promised: others wait, and none is in between."""
    hooked = HookedFiles(MemoryFiles())
    data = made(hooked).data_directory
    log = data.partitions.own("orders", 0)
    shares = stage(hooked, data, PLAN)
    places: list[int] = []
    threads: list[threading.Thread] = []
    at = {
        "the intent": ("rename", "meta/sink", False),
        "an append": ("sync", "segments", True),
        "the end": ("rename", "meta/sink", True),
    }

    def other(kind: str, path: str) -> None:
        wanted, place, begun = at[moment]
        if kind != wanted or place not in path or threads:
            return
        if (read_journal(hooked.inner, DATA, QUERY).intent is not None) == begun:
            thread = threading.Thread(target=lambda: places.append(log.append([(None, b"x")]).base_offset))
            threads.append(thread)
            thread.start()
            thread.join(0.1)

    hooked.before = other
    assert data.publisher.publish(QUERY, 0, shares)
    threads[0].join(SECONDS_MAX)
    assert places == [3]
    log.commit()
    assert contents_of(data)[P0] == [b"a", b"b", b"c", b"x"]


def test_a_batch_without_records_is_remembered(files: MemoryFiles, data: DataDirectory) -> None:
    assert data.publisher.publish(QUERY, 4, ())
    assert not data.publisher.publish(QUERY, 4, stage(files, data, PLAN, 4))
    data.close()
    data = open_log(files).data_directory
    assert not data.publisher.publish(QUERY, 3, ())
    assert data.publisher.promised(QUERY) == 4
    assert contents_of(data) == NOTHING


def test_a_query_that_is_not_to_be_remembered_leaves_a_number_until_the_next_publication(
    files: MemoryFiles, data: DataDirectory
) -> None:
    """Readers beside the writer learn from it that a batch was published meanwhile."""
    for number in range(3):
        query = f"once {number}"
        shares = stage(files, data, {P0: [[b"x"]]}, query=query)
        assert data.publisher.publish(query, 0, shares, remember=False)
        assert data.publisher.promised(query) == NOTHING_PUBLISHED
        assert journal_paths(files, DATA) == [journal_path(DATA, query)]
        assert read_journal(files, DATA, query) == Journal(query=query, number=number + 1)
    assert contents_of(data)[P0][-3:] == [b"x"] * 3
    assert staged_files(files) == []
    # It may be published again: nothing is known of it.
    assert data.publisher.publish("once 2", 0, stage(files, data, PLAN, query="once 2"), remember=False)
    assert data.publisher.publish(QUERY, 0, stage(files, data, PLAN))
    assert journal_paths(files, DATA) == [journal_path(DATA, QUERY)]


def test_numbers_go_on_after_an_opening_and_old_ones_are_removed(
    files: MemoryFiles, data: DataDirectory
) -> None:
    assert data.publisher.publish(QUERY, 0, stage(files, data, PLAN))
    assert data.publisher.publish("once", 0, stage(files, data, PLAN, query="once"), remember=False)
    data.close()
    # A power cut may bring back the name of a journal that was removed.
    write_metadata(files, journal_path(DATA, "older"), Journal(query="older", number=1))
    data = open_log(files).data_directory
    assert not data.publisher.publish(QUERY, 0, ())
    assert sorted(journal_paths(files, DATA)) == sorted(journal_path(DATA, name) for name in (QUERY, "once"))
    assert data.publisher.publish(QUERY, 1, stage(files, data, PLAN, 1))
    assert read_journal(files, DATA, QUERY).number == 3
    assert journal_paths(files, DATA) == [journal_path(DATA, QUERY)]


def test_a_query_that_was_remembered_before_stays_so(files: MemoryFiles, data: DataDirectory) -> None:
    """E1: what one call wants forgotten is its own batch, not those before it."""
    shares = stage(files, data, PLAN, 5)
    assert data.publisher.publish(QUERY, 5, shares)
    assert data.publisher.publish(QUERY, 6, stage(files, data, {P0: [[b"x"]]}, 6), remember=False)
    again = stage(files, data, PLAN, 5)
    assert not data.publisher.publish(QUERY, 5, again)


# --- After a kill -------------------------------------------------------------------------------------


def killed_at_each_call(config: dict[str, str]) -> Iterator[tuple[dict[str, bytes | None], bool]]:
    """Yield what a kill before each call of a publication leaves, and whether it had answered."""
    hooked = HookedFiles(MemoryFiles())
    data = made(hooked, config).data_directory
    data.partitions.own("orders", 0).append([(None, b"before")])
    data.partitions.own("orders", 0).commit()
    shares = stage(hooked, data, PLAN) + stage(hooked, data, {P0: [[b"f" * 200], [b"g" * 200]]}, task="1-a")
    left: list[tuple[dict[str, bytes | None], bool]] = []
    hooked.before = lambda kind, path: left.append((image(hooked.inner, DATA), False))
    data.publisher.publish(QUERY, 0, shares)
    hooked.before = lambda kind, path: None
    yield from left
    yield image(hooked.inner, DATA), True


@pytest.mark.usefixtures("way_in")
def test_a_killed_publication_is_finished_at_the_next_open_once_it_has_an_intent() -> None:
    """At whatever call: all of it in every partition or nothing, and never nothing after the intent."""
    outcomes = []
    for left, done in killed_at_each_call(SMALL):
        files = disk_of(left)
        journal = read_journal(files, DATA, QUERY)
        intent = journal.intent is not None or journal.published == 0
        files_read = disk_of(left)
        for finding in verify(files_read).findings:
            assert finding.severity == "note", finding
        data = open_log(files).data_directory
        found = contents_of(data)
        whole = {P0: [b"before", b"a", b"b", b"c", b"f" * 200, b"g" * 200], P1: [b"d"], OTHER: [b"e"]}
        assert found in (whole, {**NOTHING, P0: [b"before"]})
        assert (found == whole) == intent, "E2" if intent else "E3"
        assert not done or intent
        outcomes.append(intent)
        if intent:
            assert read_journal(files, DATA, QUERY).intent is None
            assert staged_files(files) == []
        assert data.partitions.own("orders", 1).append([(None, b"x")]).base_offset == len(found[P1])
        data.close()
    assert outcomes == sorted(outcomes), "a publication was taken back"
    assert outcomes.count(False) > 5
    assert outcomes.count(True) > 5
    print(f"{len(outcomes)} kills, {outcomes.count(True)} rolled forward")


def open_intent(files: MemoryFiles) -> dict[str, bytes | None]:
    """Return a disk with an intent of which nothing is appended yet."""
    for left, _ in killed_at_each_call({}):
        if read_journal(disk_of(left), DATA, QUERY).intent is not None:
            return left
    raise AssertionError("there never was an intent")


def test_an_intent_for_a_topic_that_was_deleted_is_closed(files: MemoryFiles) -> None:
    """Its other partitions get their records all the same."""
    left = open_intent(files)
    journal = read_journal(disk_of(left), DATA, QUERY)
    assert journal.intent is not None
    places = [
        msgspec.structs.replace(place, topic_id="id-gone") if place.topic == "other" else place
        for place in journal.intent.places
    ]
    files = disk_of(left)
    intent = msgspec.structs.replace(journal.intent, places=tuple(places))
    write_metadata(files, journal_path(DATA, QUERY), msgspec.structs.replace(journal, intent=intent))
    data = open_log(files).data_directory
    assert contents_of(data)[OTHER] == []
    assert len(contents_of(data)[P0]) == 6
    assert read_journal(files, DATA, QUERY).intent is None


def test_an_intent_whose_share_is_gone_refuses_its_partitions_and_no_others(files: MemoryFiles) -> None:
    """R4, R6: nothing may be appended where records are promised; everything else goes on."""
    left = open_intent(files)
    gone = [path for path in left if path.endswith(".share")]
    files = disk_of(left, gone=gone)
    log = open_log(files)
    data = log.data_directory
    data.topics.create("third", "id-third", 1, {})
    for name in (P0, P1, OTHER):
        with pytest.raises(StorageError, match="cannot be published"):
            data.partitions.own(*name)
    with pytest.raises(StorageError):
        data.publisher.publish(QUERY, 1, ())
    data.partitions.own("third", 0).append([(None, b"x")])
    with contextlib.suppress(CordwoodError):
        log.close()
    assert not files.exists(join(DATA, "meta", "clean"))
    assert any("share" in finding.what for finding in verify(files).findings if finding.severity != "note")
    # With the share back, it is published after all.
    healed = disk_of({**image(files, DATA), **{path: left[path] for path in gone}})
    data = open_log(healed).data_directory
    assert len(contents_of(data)[P0]) == 6


def test_shares_of_an_open_intent_are_never_abandoned(files: MemoryFiles) -> None:
    """However old: they are what is published at the next open."""
    left = open_intent(files)
    files = disk_of(left)
    publisher = open_log(MemoryFiles(), ManualClock(NOW_MS + 11 * ABANDONED_MS)).data_directory.publisher
    publisher._files = files
    before = staged_files(files)
    assert publisher.collect_abandoned() == 0
    assert staged_files(files) == before != []


def test_shares_that_a_publication_takes_meanwhile_are_not_abandoned() -> None:
    """Whoever comes second waits: the publication is whole, or finds its shares gone before its intent."""
    hooked, clock = HookedFiles(MemoryFiles()), ManualClock()
    log = made(hooked, clock=clock)
    data = log.data_directory
    shares = stage(hooked, data, PLAN)
    clock.advance(2 * ABANDONED_MS)
    errors: list[Exception] = []
    began = threading.Event()

    def publish() -> None:
        began.set()
        try:
            data.publisher.publish(QUERY, 0, shares)
        except RecordRefused as error:
            errors.append(error)

    other = threading.Thread(target=publish)

    def publish_meanwhile(kind: str, path: str) -> None:
        # Between the look at the journals and the first removal another thread wants to publish.
        if kind == "unlink" and path.endswith(".share") and not began.is_set():
            other.start()
            began.wait()

    hooked.before = publish_meanwhile
    assert data.publisher.collect_abandoned() == len(shares)
    other.join()
    assert [str(error).endswith("is missing") for error in errors] == [True]
    kill(log)
    assert contents_of(open_log(hooked).data_directory)[P0] == []


def test_leftovers_of_other_attempts_and_older_batches_go_with_a_publication(
    files: MemoryFiles, data: DataDirectory
) -> None:
    for batch in (1, 2, 3):
        stage(files, data, PLAN, batch, task="0-lost")
    shares = stage(files, data, PLAN, 2, task="0-won")
    assert data.publisher.publish(QUERY, 2, shares)
    assert {path.split("/")[-2] for path in staged_files(files)} == {"3"}


@pytest.mark.parametrize("damage", [b"rubbish", b"", b'{"crc32c":"00000000","body":{}}'])
def test_a_damaged_journal_is_refused_and_never_taken_for_none(damage: bytes, files: MemoryFiles) -> None:
    """R6: what cannot be read does not mean that nothing was published."""
    data = made(files).data_directory
    shares = stage(files, data, PLAN)
    assert data.publisher.publish(QUERY, 0, shares)
    data.close()
    broken = disk_of(image(files, DATA), {journal_path(DATA, QUERY): damage})
    data = open_log(broken).data_directory
    with pytest.raises(MetadataDamaged):
        data.publisher.publish(QUERY, 0, shares)
    with pytest.raises(MetadataDamaged):
        promised(broken, DATA, QUERY)
    assert contents_of(data) == PUBLISHED


def test_the_journal_of_another_query_is_refused(files: MemoryFiles, data: DataDirectory) -> None:
    assert data.publisher.publish("another", 7, ())
    whole = read_file(files, journal_path(DATA, "another"))
    data.close()
    swapped = disk_of(image(files, DATA), {journal_path(DATA, QUERY): whole})
    with pytest.raises(MetadataDamaged, match="another"):
        open_log(swapped).data_directory.publisher.publish(QUERY, 0, ())


def test_a_closed_directory_publishes_nothing(files: MemoryFiles, data: DataDirectory) -> None:
    shares = stage(files, data, PLAN)
    data.close()
    before = image(files, DATA)
    for each in (shares, ()):
        with pytest.raises(LogClosed):
            data.publisher.publish(QUERY, 0, each)
    assert image(files, DATA) == before


# --- What is refused -----------------------------------------------------------------------------------


def refused(data: DataDirectory, files: Files, shares: tuple[Share, ...], kind: type[CordwoodError]) -> None:
    """The shares are refused, nothing of them is visible, and the partitions go on."""
    before, journal = contents_of(data), read_journal(files, DATA, QUERY)
    with pytest.raises(kind):
        data.publisher.publish(QUERY, 0, shares)
    assert contents_of(data) == before
    assert read_journal(files, DATA, QUERY) == journal
    for name, values in before.items():
        log = data.partitions.own(*name)
        assert log.append([(b"k", b"goes on")]).base_offset == len(values)
        log.commit()


def changed(share: Share, **changes: Any) -> Share:
    """Return the share with its first section changed."""
    first = msgspec.structs.replace(share.sections[0], **changes)
    return Share(share.name, (first, *share.sections[1:]))


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"topic": "nowhere"}, UnknownTopic),
        ({"topic_id": "id-of-another"}, UnknownTopic),
        ({"partition": 2}, UnknownTopic),
        ({"partition": -1}, UnknownTopic),
        ({"records": 2}, RecordRefused),
        ({"records": 4}, RecordRefused),
        ({"records": 0}, RecordRefused),
        ({"size": 10}, RecordRefused),
        ({"size": 1 << 40}, RecordRefused),
        ({"position": 1}, RecordRefused),
        ({"position": 1 << 40}, RecordRefused),
    ],
    ids=str,
)
def test_a_section_that_is_not_what_was_staged_is_refused(
    files: MemoryFiles, data: DataDirectory, changes: dict[str, Any], kind: type[CordwoodError]
) -> None:
    first, *rest = stage(files, data, PLAN)
    refused(data, files, (changed(first, **changes), *rest), kind)


def test_a_section_that_begins_before_its_file_is_refused_as_ours(
    files: MemoryFiles, data: DataDirectory
) -> None:
    first, *rest = stage(files, data, PLAN)
    refused(data, files, (changed(first, position=-1), *rest), RecordRefused)


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("name", ["../x.share", "1-a-1.share/../y", "/etc/passwd", "", "1-missing-1.share"])
def test_a_share_that_is_not_there_or_somewhere_else_is_refused(
    files: MemoryFiles, data: DataDirectory, name: str
) -> None:
    shares = stage(files, data, PLAN)
    refused(data, files, (*shares[:-1], Share(name, shares[-1].sections)), RecordRefused)


@pytest.mark.usefixtures("way_in")
def test_a_share_cut_short_is_refused_at_every_length() -> None:
    files = MemoryFiles()
    data = made(files).data_directory
    (share,) = stage(files, data, {P0: [[b"a"], [b"bcd"]]})
    path = share_path(DATA, QUERY, 0, share.name)
    size = len(read_file(files, path))
    for length in range(size):
        cut = disk_of(image(files, DATA))
        cut.open(path, "write").truncate(length)
        data = open_log(cut).data_directory
        with pytest.raises(RecordRefused):
            data.publisher.publish(QUERY, 0, (share,))
        assert contents_of(data) == NOTHING
        assert read_journal(cut, DATA, QUERY).intent is None


@pytest.mark.usefixtures("way_in")
def test_no_flipped_bit_of_a_share_is_published() -> None:
    """Every bit of every byte. Offset and epoch, which no checksum covers, are set anew anyway."""
    files = MemoryFiles()
    data = made(files).data_directory
    (share,) = stage(files, data, {P0: [[b"a"], [b"bc"]]})
    path = share_path(DATA, QUERY, 0, share.name)
    whole = read_file(files, path)
    sizes = [len(frame_of(b"a"))]
    data.close()
    base = image(files, DATA)
    overwritten = {*range(8), *range(12, 16)}
    overwritten |= {sizes[0] + at for at in overwritten}
    flips = taken = 0
    disk = disk_of(base)
    data = open_log(disk).data_directory
    for at in range(len(whole)):
        if at in overwritten:
            disk = disk_of(base)
            data = open_log(disk).data_directory
        for bit in range(8) if at not in overwritten else (0, 7):
            flips += 1
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            disk.open(path, "write").write_at(0, [flipped])
            if at in overwritten:
                assert data.publisher.publish(QUERY, taken, (share,)) if bit == 0 else True
                assert contents_of(data)[P0] == [b"a", b"bc"]
                taken += bit == 0
                break
            with pytest.raises(RecordRefused):
                data.publisher.publish(QUERY, taken, (share,))
            assert data.readable("orders", 0).high_watermark == 0
        if at in overwritten:
            taken = 0
            disk = disk_of(base)
            data = open_log(disk).data_directory
    print(f"{flips} flips")
    assert flips > 900


def test_a_topic_that_was_created_again_gets_no_records_of_the_old_one(
    files: MemoryFiles, data: DataDirectory
) -> None:
    shares = stage(files, data, PLAN)
    data.topics.delete("other")
    with pytest.raises(UnknownTopic):
        data.publisher.publish(QUERY, 0, shares)
    data.topics.create("other", "id-new", 1, {})
    refused(data, files, shares, UnknownTopic)


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(files: MemoryFiles) -> None:
    data = made(files, {"cleanup.policy": "compact"}).data_directory
    staged = writer(files)
    staged.append(target_of(data, *P0), frame_of(b"keyed"))
    staged.append(target_of(data, *P0), frame_of(b"keyless", key=None))
    refused(data, files, staged.finish(), RecordRefused)


def test_a_frame_larger_than_the_topic_takes_is_refused(files: MemoryFiles) -> None:
    data = made(files, {"max.message.bytes": "200"}).data_directory
    staged = writer(files)
    staged.append(target_of(data, *P0), frame_of(b"x" * 300))
    refused(data, files, staged.finish(), RecordRefused)


@pytest.mark.usefixtures("way_in")
def test_records_of_a_topic_with_append_time_get_the_time_of_their_publication(files: MemoryFiles) -> None:
    """So they are never adopted as they are."""
    clock = ManualClock()
    data = made(files, {"message.timestamp.type": "LogAppendTime"}, clock).data_directory
    shares = stage(files, data, {P0: [[b"a"], [b"b", b"c"]]})
    clock.advance(5_000)
    assert data.publisher.publish(QUERY, 0, shares)
    assert [record.timestamp for record in records_of(data.readable(*P0))] == [NOW_MS + 5_000] * 3
    assert data.partitions.own(*P0).state.sealed == ()
    assert verify(files).sound


BRICKS = {
    "a share that is named twice": "a share is named twice",
    "a file with more behind its section": "has more than the",
    "a frame of an idempotent producer": "has a frame that no task stages",
    "a frame whose largest timestamp is wrong": "has a frame that no task stages",
}


@pytest.mark.parametrize("what", BRICKS)
def test_what_cannot_be_published_gets_no_intent(what: str, files: MemoryFiles) -> None:
    """E2: an intent that can never be fulfilled would close its partitions for ever."""
    log = made(files)
    data = log.data_directory
    with adopting(ALWAYS if what != "a frame of an idempotent producer" else NEVER):
        staged = writer(files)
        if what == "a frame of an idempotent producer":
            for sequence in (0, 99):
                options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=sequence)
                frame = batches.encode_records([(b"k", b"v")], NOW_MS, options)
                staged.append(target_of(data, *P0), frame)
        elif what == "a frame whose largest timestamp is wrong":
            frame = frame_of(b"a", timestamp=NOW_MS)
            batches.set_max_timestamp(memoryview(frame), batches.read_header(frame), NOW_MS - 1_000)
            staged.append(target_of(data, *P0), frame)
        else:
            staged.append(target_of(data, *P0), frame_of(b"a"))
        shares = staged.finish()
        if what == "a share that is named twice":
            shares += shares
        if what == "a file with more behind its section":
            path = share_path(DATA, QUERY, 0, shares[0].name)
            files.open(path, "write").write_at(shares[0].sections[0].size, [b"more"])
        with pytest.raises(RecordRefused, match=BRICKS[what]):
            data.publisher.publish(QUERY, 0, shares)
        kill(log)
        data = open_log(files).data_directory
        data.partitions.own(*P0).append([(b"k", b"goes on")])


# --- A disk that refuses ----------------------------------------------------------------------------

FAULTS: dict[str, Callable[[int], FaultPlan]] = {
    "EIO once": lambda n: FaultPlan(n),
    "EIO for ever": lambda n: FaultPlan(n, forever=True),
    "ENOSPC once": lambda n: FaultPlan(n, kinds=CHANGES, error=errno.ENOSPC),
    "ENOSPC for ever": lambda n: FaultPlan(n, kinds=CHANGES, error=errno.ENOSPC, forever=True),
    "short write": lambda n: FaultPlan(n, kinds=frozenset({"write"}), error=None, short=5),
}


class Sweep:
    """One publication with the n-th call failing, and what came of it."""

    def __init__(self, fault: str, n: int) -> None:
        self.disk = MemoryFiles()
        self.files = FaultyFiles(self.disk)
        self.log = made(self.files, SMALL)
        self.data = self.log.data_directory
        for name in (P0, P1):
            self.data.partitions.own(*name).append([(None, b"before")])
            self.data.partitions.own(*name).commit()
        self.data.topics.create("third", "id-third", 1, {})
        self.data.partitions.own("third", 0).append([(None, b"before")])
        self.shares = stage(self.files, self.data, PLAN)
        self.files.plan(FAULTS[fault](n))
        self.error: BaseException | None = None
        try:
            self.data.publisher.publish(QUERY, 0, self.shares)
        except Exception as error:
            self.error = error
        self.failures = self.files.failures
        self.files.heal()


AFTER: State = {P0: [b"before", b"a", b"b", b"c"], P1: [b"before", b"d"], OTHER: [b"e"]}
BEFORE: State = {P0: [b"before"], P1: [b"before"], OTHER: []}


def checked(sweep: Sweep) -> list[str]:
    """Return what is wrong after a publication that failed, or not."""
    found: list[str] = []
    error = sweep.error
    if error is not None and not isinstance(error, CordwoodError):
        found.append(f"{type(error).__name__} leaks")
    journal = read_journal(sweep.disk, DATA, QUERY)
    intended = journal.intent is not None or journal.published == 0
    if isinstance(error, DiskFull | RecordRefused | UnknownTopic) and intended:
        found.append(f"{type(error).__name__} says that nothing was published, but there is an intent")
    third = sweep.data.partitions.own("third", 0)
    third.commit(third.append([(None, b"goes on")]).next_offset)
    if error is None or isinstance(error, DiskFull):
        new = sweep.data.publisher.publish(QUERY, 0, sweep.shares)
        if new != (error is not None):
            found.append("after that, publish did something else than was to be expected")
        if {k: v for k, v in contents_of(sweep.data).items() if k in AFTER} != AFTER:
            found.append("after a second try it is not all there")
        intended = True
    elif journal.intent is not None:
        # The next offsets are promised: nobody else may get them.
        for name in (P0, P1, OTHER):
            with contextlib.suppress(LogFailed):
                log = sweep.data.partitions.own(*name)
                log.commit(log.append([(None, b"intruder")]).next_offset)
    with contextlib.suppress(CordwoodError):
        sweep.log.close()
    with open_log(sweep.disk) as again:
        try:
            now = contents_of(again.data_directory)
        except CordwoodError as failure:
            return [*found, f"R1: after reopening: {type(failure).__name__}"]
        if now.pop(("third", 0)) != [b"before", b"goes on"]:
            found.append("another partition lost records")
        if any(b"intruder" in values for values in now.values()):
            found.append("E1: another append got offsets that were promised")
        if now != (AFTER if intended else BEFORE):
            found.append(
                "E2: has an intent and is not published" if intended else "E3: visible without intent"
            )
    for finding in verify(sweep.disk).findings:
        if finding.severity != "note":
            found.append(f"verify: {finding.what}")
    return found


@pytest.mark.parametrize("way", ["appended", "adopted"])
@pytest.mark.parametrize("fault", FAULTS)
def test_whichever_call_of_a_publication_fails_it_is_whole_or_not_there(fault: str, way: str) -> None:
    """E1, E2, E3 after any I/O error, in errors of ours, and other partitions go on."""
    problems: dict[str, list[int]] = {}
    with adopting(NEVER if way == "appended" else ALWAYS):
        for n in itertools.count(1, every(2)):
            sweep = Sweep(fault, n)
            for problem in checked(sweep):
                problems.setdefault(problem, []).append(n)
            if not sweep.failures:
                break
    print(f"{fault}, {way}: up to call {n - 1}")
    assert n > 5
    assert not problems, "; ".join(f"{problem} (calls {calls})" for problem, calls in problems.items())


def test_a_read_error_after_the_intent_lets_nobody_have_the_promised_offsets() -> None:
    """E2: whatever goes wrong after the intent, the partitions take nothing else before it is fulfilled."""
    files = FaultyFiles(MemoryFiles())
    log = made(files)
    data = log.data_directory
    shares = stage(files, data, {P0: [[b"a"], [b"b"]]})
    data_reads = 0
    for n in range(1, 60):
        trial = FaultyFiles(disk_of(image(files.inner, DATA)))
        other = open_log(trial)
        trial.plan(FaultPlan(n, kinds=frozenset({"read"})))
        error: Exception | None = None
        try:
            other.data_directory.publisher.publish(QUERY, 0, shares)
        except Exception as failure:
            error = failure
        trial.heal()
        if error is None:
            break
        journal = read_journal(trial, DATA, QUERY)
        if journal.intent is None:
            continue
        data_reads += 1
        partition = other.data_directory.partitions.own(*P0)
        with pytest.raises(LogFailed):
            partition.append([(None, b"intruder")])
    assert data_reads


def test_an_interrupt_after_the_intent_lets_nobody_have_the_promised_offsets() -> None:
    """Ctrl-C is no error of ours, and comes at any call."""
    hooked = HookedFiles(MemoryFiles())
    log = made(hooked)
    data = log.data_directory
    shares = stage(hooked, data, {P0: [[b"a"], [b"b"]]})

    def interrupt(kind: str, path: str) -> None:
        if kind == "read" and path.endswith(".share") and read_journal(hooked.inner, DATA, QUERY).intent:
            raise KeyboardInterrupt

    hooked.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        data.publisher.publish(QUERY, 0, shares)
    hooked.before = lambda kind, path: None
    with pytest.raises(LogFailed):
        data.partitions.own(*P0).append([(None, b"intruder")])
    kill(log)
    assert contents_of(open_log(hooked).data_directory)[P0] == [b"a", b"b"]


def test_every_partition_has_its_records_before_the_first_of_them_is_visible() -> None:
    """So readers see a batch in some of its partitions only for as long as the syncs take."""
    hooked = HookedFiles(MemoryFiles())
    data = made(hooked).data_directory
    shares = stage(hooked, data, PLAN)
    logs = [data.partitions.own(*place) for place in (P0, P1, OTHER)]
    seen: list[tuple[list[int], list[int]]] = []

    def look(kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log") and read_journal(hooked.inner, DATA, QUERY).intent:
            seen.append(([log.log_end_offset for log in logs], [log.high_watermark for log in logs]))

    hooked.before = look
    assert data.publisher.publish(QUERY, 0, shares)
    assert [ends for ends, _ in seen] == [[3, 1, 1]] * 3
    assert seen[0][1] == [0, 0, 0]


def test_no_space_before_the_intent_publishes_nothing_and_works_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is published must fit beside a reserve, or it is refused before anything is promised."""
    files = MemoryFiles()
    data = made(files).data_directory
    shares = stage(files, data, PLAN)
    size = sum(section.size for share in shares for section in share.sections)
    monkeypatch.setattr(files, "free_bytes", lambda path: size + publishing.SPACE_LEFT - 1)
    refused_before = contents_of(data)
    with pytest.raises(DiskFull):
        data.publisher.publish(QUERY, 0, shares)
    assert contents_of(data) == refused_before == NOTHING
    assert not files.exists(journal_path(DATA, QUERY))
    monkeypatch.setattr(files, "free_bytes", lambda path: size + publishing.SPACE_LEFT)
    assert data.publisher.publish(QUERY, 0, shares)
    assert contents_of(data) == PUBLISHED


def test_the_journal_is_what_the_specification_says(files: MemoryFiles, data: DataDirectory) -> None:
    assert data.publisher.publish(QUERY, 3, stage(files, data, PLAN, 3))
    content = json.loads(read_file(files, journal_path(DATA, QUERY)))
    body = {"format": 1, "query": QUERY, "number": 1, "published": 3, "intent": None}
    assert content["body"] == body


def test_a_journal_of_a_newer_version_is_refused_by_name(files: MemoryFiles, data: DataDirectory) -> None:
    files.make_directories(f"{DATA}/meta/sink")
    write_metadata(files, journal_path(DATA, QUERY), Journal(format=2, query=QUERY))
    with pytest.raises(DirectoryRefused, match="has format 2; this version reads up to 1"):
        data.publisher.publish(QUERY, 0, stage(files, data, PLAN))
