"""Deleting topics: gone for good once it was said, and in no other topic's way (D1, R1, R6)."""

from __future__ import annotations

import errno
import json
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.clocks import HookedFiles, ManualClock
from support.disks import CHANGES, KINDS, FaultPlan, FaultyFiles, image
from support.logs import disk_of
from support.patience import SECONDS_MAX
from support.producing import Sent, send

from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files, join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, DiskFull, LogClosed, StorageError, UnknownTopic
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.meta.catalogue import Contents, DeletedEntry, ProducerIdsEntry, TopicEntry
from cordwood.storage.meta.security_entries import AclEntry
from cordwood.storage.readonly.directory import ReadOnlyDirectory
from cordwood.telemetry import Telemetry

DATA = "/data"
TMP = join(DATA, "tmp")
CONFIG = load_broker_config(environment={})[0]
SMALL = {"segment.bytes": "400"}


def open_data(files: Files) -> DataDirectory:
    return DataDirectory(
        Opening(
            files=files,
            path=DATA,
            clock=ManualClock(),
            telemetry=Telemetry(),
            holder="a test",
            uuid="u-1",
            node_name="here",
            config=CONFIG,
            mapped=False,
        )
    )


def append(data: DataDirectory, topic: str, *values: bytes, partition: int = 0) -> None:
    """Append a frame for each value and have them acknowledged."""
    log = data.partitions.own(topic, partition)
    for value in values:
        log.append([(None, value)])
    log.commit()


def values_of(data: DataDirectory, topic: str, partition: int = 0) -> list[bytes]:
    """Return the value of every record that can be read."""
    log, found = data.readable(topic, partition), []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        fetched = log.read(offset, 1 << 20)
        for run in fetched.runs:
            found += [record.value or b"" for record in run.records()]
        offset = fetched.next_offset
    return found


def moved_away(files: Files) -> list[str]:
    """Return what is left of deleted topics in ``tmp/``."""
    return [name for name in files.list(TMP) if name.endswith(".deleted")] if files.exists(TMP) else []


def lived_in(files: Files) -> DataDirectory:
    """A directory with three topics; one has segments and producers, and is the one to go."""
    data = open_data(files)
    data.topics.create("orders", "id-1", 2, SMALL)
    data.topics.create("orders.2", "id-2", 1, {})
    data.topics.create("unused", "id-3", 1, {})
    append(data, "orders", *(b"old %d" % i * 5 for i in range(20)))
    append(data, "orders", b"old too", partition=1)
    send(data.partitions.own("orders", 0), Sent(7, 0, 0, (b"of a producer",)))
    data.partitions.own("orders", 0).roll()
    append(data, "orders.2", b"another's")
    return data


# --- Gone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["open", "closed", "killed"])
def test_a_deleted_topic_is_gone_and_the_others_are_not(how: str) -> None:
    files = MemoryFiles()
    data = lived_in(files)
    data.topics.delete("orders")
    if how == "closed":
        data.close()
    if how != "open":
        files = disk_of(image(files, DATA))
        data = open_data(files)
    assert list(data.topics) == ["orders.2", "unused"]
    assert data.topics.by_id("id-1") is None
    assert files.list(join(DATA, "topics")) == ["orders.2"]
    assert moved_away(files) == []
    for call in (data.partitions.writable, data.readable, data.partitions.find):
        with pytest.raises(UnknownTopic):
            call("orders", 0)
    with pytest.raises(UnknownTopic):
        data.topics.delete("orders")
    assert values_of(data, "orders.2") == [b"another's"]


@pytest.mark.parametrize("reopened", [False, True])
def test_a_topic_of_the_same_name_has_its_own_records_and_nothing_of_the_old_one(reopened: bool) -> None:
    """From offset 0 again, under another id, with producers of its own."""
    files = MemoryFiles()
    data = lived_in(files)
    data.topics.delete("orders")
    if reopened:
        data.close()
        data = open_data(files)
    data.topics.create("orders", "id-9", 3, {})
    assert values_of(data, "orders") == []
    append(data, "orders", b"new")
    assert send(data.partitions.own("orders", 0), Sent(7, 0, 0, (b"of a producer",))) == (1, 2)
    data.partitions.own("orders", 0).commit()
    data.close()
    data = open_data(files)
    assert values_of(data, "orders") == [b"new", b"of a producer"]
    assert values_of(data, "orders", 1) == []
    assert data.topics["orders"].partitions == 3
    found = data.topics.by_id("id-9")
    assert found is not None
    assert found.name == "orders"
    assert data.topics.by_id("id-1") is None


def test_a_topic_can_be_deleted_and_created_again_and_again() -> None:
    files = MemoryFiles()
    data = open_data(files)
    for i in range(12):
        data.topics.create("orders", f"id-{i}", 1, {})
        assert data.topics["orders"].id == f"id-{i}"
        append(data, "orders", b"%d" % i)
        if i % 3 == 1:
            files = disk_of(image(files, DATA))
            data = open_data(files)
        assert values_of(data, "orders") == [b"%d" % i]
        data.topics.delete("orders")
        if i % 4 == 1:
            data.close()
            data = open_data(files)
    assert data.topics == {}
    assert files.list(join(DATA, "topics")) == []


def test_a_topic_that_never_had_a_record_can_be_deleted() -> None:
    files = MemoryFiles()
    data = lived_in(files)
    data.topics.delete("unused")
    assert list(data.topics) == ["orders", "orders.2"]
    assert moved_away(files) == []


def test_whoever_holds_a_log_of_a_deleted_topic_is_told_that_it_is_closed() -> None:
    data = lived_in(MemoryFiles())
    log = data.partitions.own("orders", 0)
    data.topics.delete("orders")
    for call in (
        lambda: log.append([(None, b"more")]),
        lambda: send(log, Sent(7, 0, 1, (b"x",))),
        lambda: log.read(0, 100),
        lambda: log.commit(),
        lambda: log.truncate(0),
        lambda: log.wait_beyond(log.high_watermark),
    ):
        with pytest.raises(LogClosed):
            call()


def test_whoever_waits_for_records_of_a_deleted_topic_waits_no_longer() -> None:
    """For the next one of a log, or for the first one of a topic that never had any."""
    data = lived_in(MemoryFiles())
    outcomes: dict[str, Exception] = {}
    waiting = {name: threading.Event() for name in ("orders", "unused")}

    def wait(name: str) -> None:
        log = data.readable(name, 0)
        waiting[name].set()
        try:
            log.wait_beyond(log.high_watermark)
        except CordwoodError as error:
            outcomes[name] = error

    threads = [threading.Thread(target=wait, args=[name], daemon=True) for name in waiting]
    for thread in threads:
        thread.start()
    for name in waiting:
        assert waiting[name].wait(SECONDS_MAX)
        data.topics.delete(name)
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert isinstance(outcomes.get("orders"), LogClosed)
    assert isinstance(outcomes.get("unused"), UnknownTopic)


@pytest.mark.parametrize("how", ["closed", "forked"])
def test_a_directory_that_is_not_ours_any_more_deletes_nothing(how: str) -> None:
    """After close, and in a forked child, whose parent goes on writing the same files."""
    files = MemoryFiles()
    data = lived_in(files)
    if how == "closed":
        data.close()
    else:
        data.abandon()
    before = image(files, DATA)
    with pytest.raises(LogClosed):
        data.topics.delete("orders")
    with pytest.raises(LogClosed):
        data.producer_ids.reserve(10)
    assert image(files, DATA) == before


def test_the_summary_names_no_topic_that_is_gone() -> None:
    files = MemoryFiles()
    data = lived_in(files)
    data.close()

    def summarised() -> set[tuple[str, int]]:
        summary = json.loads(read_file(files, join(DATA, "meta", "checkpoint.json")))
        return {(each["topic"], each["partition"]) for each in summary["partitions"]}

    assert summarised() == {("orders", 0), ("orders", 1), ("orders.2", 0)}
    data = open_data(files)
    data.topics.delete("orders")
    data.close()
    assert summarised() == {("orders.2", 0)}


def test_a_reader_beside_is_told_that_the_topic_is_gone() -> None:
    files = MemoryFiles()
    data = lived_in(files)
    beside = ReadOnlyDirectory(files, DATA, CONFIG)
    log = beside.readable("orders", 0)
    assert log.high_watermark == 21
    data.topics.delete("orders")
    with pytest.raises(UnknownTopic):
        log.read(0, 100)
    assert list(beside.topics) == ["orders.2", "unused"]


# --- Cut short ----------------------------------------------------------------------------------------


def kills_during(act: Callable[[DataDirectory], None]) -> list[tuple[bool, dict[str, bytes | None]]]:
    """Return what a kill before each call of *act* on a directory leaves, and whether *act* was done."""
    hooked = HookedFiles(MemoryFiles())
    data = lived_in(hooked)
    left: list[tuple[bool, dict[str, bytes | None]]] = []
    hooked.before = lambda kind, path: left.append((False, image(hooked.inner, DATA)))
    act(data)
    hooked.before = lambda kind, path: None
    left.append((True, image(hooked.inner, DATA)))
    return left


def test_a_deletion_that_is_killed_is_finished_or_never_was() -> None:
    """At whatever call: every record is there, or none, and once it was said none."""
    outcomes = []
    for done, left in kills_during(lambda data: data.topics.delete("orders")):
        files = disk_of(left)
        data = open_data(files)
        there = "orders" in data.topics
        outcomes.append(there)
        assert not (done and there)
        if there:
            assert len(values_of(data, "orders")) == 21
            assert values_of(data, "orders", 1) == [b"old too"]
            data.topics.delete("orders")
        assert files.list(join(DATA, "topics")) == ["orders.2"]
        assert moved_away(files) == []
        data.topics.create("orders", "id-9", 1, {})
        append(data, "orders", b"new")
        assert values_of(data, "orders") == [b"new"]
        assert values_of(data, "orders.2") == [b"another's"]
        data.close()
    assert True in outcomes
    assert outcomes.count(False) > 10
    assert outcomes == sorted(outcomes, reverse=True), "a deletion was taken back"


def test_a_new_topic_of_the_same_name_survives_a_kill_at_any_call_of_its_making() -> None:
    """What a crash left of the old one is told apart by its id, and the new one's records stay."""

    def replace(data: DataDirectory) -> None:
        data.topics.delete("orders")
        data.topics.create("orders", "id-9", 1, SMALL)
        append(data, "orders", b"new 0")
        append(data, "orders", b"new 1")

    cases = 0
    for done, left in kills_during(replace):
        files = disk_of(left)
        data = open_data(files)
        entry = data.topics.get("orders")
        if entry is not None and entry.id == "id-9":
            found = values_of(data, "orders")
            assert found == [b"new 0", b"new 1"][: len(found)]
            assert len(found) == 2 or not done
            append(data, "orders", b"more")
            data = open_data(disk_of(image(files, DATA)))
            assert values_of(data, "orders") == [*found, b"more"]
            cases += 1
    assert cases > 20


def test_a_directory_of_a_topic_that_lives_is_never_taken_for_a_leftover() -> None:
    """Same name, another id; and one whose metadata cannot be read is nobody's to remove (R6)."""
    files = MemoryFiles()
    data = lived_in(files)
    data.topics.delete("orders")
    data.topics.create("orders", "id-9", 1, {})
    append(data, "orders", b"new")
    left = image(files, DATA)
    assert values_of(open_data(disk_of(left)), "orders") == [b"new"]
    state = join(DATA, "topics", "orders", "0", "partition.json")
    damaged = disk_of(left, {state: b"rubbish"})
    with pytest.raises(StorageError):
        open_data(damaged).partitions.own("orders", 0)
    whole = {**image(damaged, DATA), state: left[state]}
    assert values_of(open_data(disk_of(whole)), "orders") == [b"new"]


def test_a_directory_of_a_deleted_topic_makes_room_for_the_one_that_has_its_name_now() -> None:
    """However it came to be there, its id says whose it is."""
    files = MemoryFiles()
    data = lived_in(files)
    old = {
        path: each for path, each in image(files, DATA).items() if path.startswith(f"{DATA}/topics/orders/")
    }
    data.topics.delete("orders")
    data.topics.create("orders", "id-9", 1, {})
    files = disk_of({**image(files, DATA), **old})
    data = open_data(files)
    assert values_of(data, "orders") == []
    append(data, "orders", b"new")
    assert values_of(open_data(disk_of(image(files, DATA))), "orders") == [b"new"]
    assert moved_away(files) == []


def test_a_topic_that_cannot_be_opened_can_be_deleted_and_created_again() -> None:
    files = MemoryFiles()
    lived_in(files)
    state = join(DATA, "topics", "orders", "0", "partition.json")
    files = disk_of(image(files, DATA), {state: b"rubbish"})
    data = open_data(files)
    with pytest.raises(StorageError):
        data.partitions.own("orders", 0)
    data.topics.delete("orders")
    data.topics.create("orders", "id-9", 1, {})
    append(data, "orders", b"new")
    assert values_of(data, "orders") == [b"new"]
    data.close()
    assert files.exists(join(DATA, "meta", "clean"))


def test_the_last_word_on_a_name_counts() -> None:
    """A deletion is of an id: the topic that has the name by then is not meant."""
    first, second = TopicEntry("orders", "id-1", 1), TopicEntry("orders", "id-2", 1)
    contents = Contents([first, second, DeletedEntry("id-1"), DeletedEntry("id-1"), DeletedEntry("id-7")])
    assert contents.topics == {"orders": second}
    assert contents.by_id == {"id-2": second}
    assert contents.deleted == {"id-1": first}
    contents.apply([DeletedEntry("id-2")])
    assert (contents.topics, contents.by_id) == ({}, {})
    contents.apply([ProducerIdsEntry(50), ProducerIdsEntry(20)])
    assert contents.next_producer_id == 50


# --- A disk that refuses ------------------------------------------------------------------------------


def failing(files: FaultyFiles, *plans: FaultPlan) -> None:
    """Let calls fail from now on."""
    files.plan(*plans)


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_deletion_that_cannot_be_noted_has_not_happened(kind: str) -> None:
    files = FaultyFiles(MemoryFiles())
    data = lived_in(files)
    code = errno.ENOSPC if kind == "write" else errno.EIO
    failing(files, FaultPlan(1, frozenset({kind}), code))
    with pytest.raises(DiskFull if kind == "write" else StorageError):
        data.topics.delete("orders")
    files.heal()
    if kind == "write":
        assert len(values_of(data, "orders")) == 21
        append(data, "orders", b"more")
        data.topics.delete("orders")
        assert "orders" not in data.topics


def test_a_directory_that_cannot_be_moved_is_removed_at_the_next_open() -> None:
    """The deletion stands: it was noted. The directory is not called clean, so the next open looks."""
    files = HookedFiles(MemoryFiles())
    data = lived_in(files)

    def refuse(kind: str, path: str) -> None:
        if kind == "rename" and path == join(DATA, "topics", "orders"):
            raise OSError(errno.EIO, "refused", path)

    files.before = refuse
    data.topics.delete("orders")
    assert "orders" not in data.topics
    assert files.list(join(DATA, "topics")) == ["orders", "orders.2"]
    files.before = lambda kind, path: None
    data.close()
    data = open_data(files)
    assert files.list(join(DATA, "topics")) == ["orders.2"]
    assert list(data.topics) == ["orders.2", "unused"]


@pytest.mark.parametrize("kind", ["rename", "make_directories"])
def test_a_topic_is_not_created_on_top_of_one_that_could_not_be_moved(kind: str) -> None:
    """Else the next open would take the records of both for those of the deleted one.

    A full disk is when topics are deleted, and ``tmp/`` may not be there yet.
    """
    files = FaultyFiles(MemoryFiles())
    data = open_data(files)
    data.topics.create("orders", "id-1", 1, {})
    append(data, "orders", b"old")
    failing(files, FaultPlan(1, frozenset({kind}), errno.ENOSPC, forever=True))
    data.topics.delete("orders")
    with pytest.raises(DiskFull):
        data.topics.create("orders", "id-9", 2, {})
    assert "orders" not in data.topics
    files.heal()
    data.topics.create("orders", "id-9", 2, {})
    append(data, "orders", b"new", partition=1)
    append(data, "orders", b"new too")
    for again in (open_data(disk_of(image(files, DATA))), data):
        assert values_of(again, "orders", 1) == [b"new"]
        assert values_of(again, "orders") == [b"new too"]


@pytest.mark.parametrize("kind", ["unlink", "remove_directory", "list"])
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_files_that_cannot_be_removed_are_in_nobodys_way_and_go_at_the_next_open(how: str, kind: str) -> None:
    files = FaultyFiles(MemoryFiles())
    data = lived_in(files)
    failing(files, FaultPlan(2, frozenset({kind})))
    data.topics.delete("orders")
    assert files.failures == 1
    files.heal()
    assert moved_away(files) == ["id-1.deleted"]
    data.topics.create("orders", "id-9", 1, {})
    append(data, "orders", b"new")
    if how == "closed":
        data.close()
    after = disk_of(image(files.inner, DATA))
    data = open_data(after)
    assert moved_away(after) == []
    assert values_of(data, "orders") == [b"new"]


def test_what_is_left_of_an_earlier_topic_is_not_in_the_way_of_moving_a_later_one() -> None:
    """Two deleted topics of one name: one half removed in ``tmp/``, one still where it was."""
    files = HookedFiles(MemoryFiles())
    data = lived_in(files)
    refused = ["unlink"]

    def refuse(kind: str, path: str) -> None:
        if kind in refused and ("/tmp/" in path or path == join(DATA, "topics", "orders")):
            raise OSError(errno.EIO, "refused", path)

    files.before = refuse
    data.topics.delete("orders")
    data.topics.create("orders", "id-9", 1, {})
    append(data, "orders", b"newer")
    refused[:] = ["rename"]
    data.topics.delete("orders")
    assert moved_away(files) == ["id-1.deleted"]
    refused.clear()
    data.topics.create("orders", "id-10", 1, {})
    append(data, "orders", b"newest")
    data.close()
    data = open_data(files)
    assert values_of(data, "orders") == [b"newest"]
    assert moved_away(files) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_whichever_call_fails_a_topic_is_whole_or_gone_and_its_name_can_be_used(
    forever: bool, code: int
) -> None:
    """Delete, create again, append: done, or refused by an error of ours; never half of two topics."""
    kinds = CHANGES if code == errno.ENOSPC else KINDS - {"lock"}
    cases = n = 0
    while True:
        n += 1
        disk = MemoryFiles()
        files = FaultyFiles(disk)
        data = lived_in(files)
        failing(files, FaultPlan(n, kinds, code, forever))
        promised: list[list[bytes]] = [[b"old"]]
        steps: list[tuple[Callable[[], Any], list[list[bytes]], list[list[bytes]]]] = [
            # What is done, what may be there if it fails, and what is there if it does not.
            (partial(data.topics.delete, "orders"), [[b"old"], []], [[]]),
            (partial(data.topics.create, "orders", "id-9", 2, {}), [[]], [[]]),
            (partial(append, data, "orders", b"new", partition=1), [[], [b"new"]], [[b"new"]]),
        ]
        for act, if_refused, if_done in steps:
            try:
                act()
                promised = if_done
            except CordwoodError:
                promised = [*promised, *if_refused]
                break
        files.heal()
        touched = files.failures
        found = what_is_there(open_data(disk_of(image(disk, DATA))))
        assert found in promised, f"call {n}: {found}, not one of {promised}"
        cases += 1
        if not touched:
            break
    print(f"{cases} runs with a failing call")
    assert cases > 40


def what_is_there(data: DataDirectory) -> list[bytes]:
    """Return the records of the new topic, or ``old`` for all of the old one's; and use the name."""
    entry = data.topics.get("orders")
    found: list[bytes] = []
    if entry is not None and entry.id == "id-1":
        assert len(values_of(data, "orders")) == 21
        assert values_of(data, "orders", 1) == [b"old too"]
        found = [b"old"]
    elif entry is not None:
        assert values_of(data, "orders") == []
        found = values_of(data, "orders", 1)
    if entry is None:
        data.topics.create("orders", "id-10", 2, {})
        append(data, "orders", b"x")
        assert values_of(data, "orders") == [b"x"]
    assert values_of(data, "orders.2") == [b"another's"]
    return found


# --- Ids of producers ---------------------------------------------------------------------------------


def test_no_producer_id_is_given_twice() -> None:
    """Across closes, kills and deletions, and whatever was asked for at once."""
    files = MemoryFiles()
    given: list[int] = []
    for i in range(9):
        data = open_data(files)
        first = data.producer_ids.reserve(1 + i)
        given += range(first, first + 1 + i)
        data.topics.create("t", f"id-{i}", 1, {})
        data.topics.delete("t")
        first = data.producer_ids.reserve(3)
        given += range(first, first + 3)
        if i % 2:
            data.close()
        files = disk_of(image(files, DATA))
    assert len(set(given)) == len(given) == 72
    assert given == sorted(given)


def test_many_threads_get_different_producer_ids() -> None:
    data = open_data(MemoryFiles())
    given: list[list[int]] = [[] for _ in range(4)]

    def reserve(mine: list[int]) -> None:
        for _ in range(25):
            mine.append(data.producer_ids.reserve(2))

    threads = [threading.Thread(target=reserve, args=[mine]) for mine in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert sorted(first for mine in given for first in mine) == list(range(0, 200, 2))


def test_a_producer_id_that_could_not_be_reserved_is_not_given() -> None:
    files = FaultyFiles(MemoryFiles())
    data = open_data(files)
    assert data.producer_ids.reserve(5) == 0
    failing(files, FaultPlan(1, frozenset({"write"}), errno.ENOSPC))
    with pytest.raises(DiskFull):
        data.producer_ids.reserve(5)
    files.heal()
    assert data.producer_ids.reserve(5) == 5
    assert open_data(disk_of(image(files.inner, DATA))).producer_ids.reserve(1) == 10


def test_the_worked_examples_of_catalogue_entries_are_their_bytes() -> None:
    page = (Path(__file__).parents[3] / "docs/formats/directory.md").read_text()
    examples = re.findall(r"^([0-9a-f]{8}) ([0-9a-f]{8})  (\{.*\})$", page, re.MULTILINE)
    files = MemoryFiles()
    data = open_data(files)
    data.topics.create("orders", "7f5ac1d2-90b5-4c4a-9a0d-2d1c4d8f3b60", 1, {})
    data.topics.delete("orders")
    data.producer_ids.reserve(1000)
    data.security.change([AclEntry(0, 2, "public.", 4, "User:*", "*", 3, 3)])
    written = b"".join(bytes.fromhex(size + crc) + body.encode() for size, crc, body in examples)
    assert len(examples) == 3
    assert read_file(files, join(DATA, "meta", "catalogue.log")).endswith(written)
