"""Transactions in the shared log: the contract of a partition with its own files, and what is its own.

Beside each partition another tenant's topic of the same name takes appends, whose records stay stable.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from threading import Thread

import pytest
from formats.readers import read_shared
from storage.offline.test_reindex import reindex
from storage.shared.test_shared_log import INDEXES, RESTARTS, Bench
from support.clocks import ManualClock
from support.disks import image
from support.logs import Image, disk_of
from support.patience import SECONDS_MAX
from support.producing import Sent, receive
from support.seeds import seeds_from
from support.shared import (
    DATA,
    SMALL,
    create,
    index_files,
    left_by,
    markers_of,
    open_data,
    physical,
    put,
    shared_log,
    virtual,
)
from support.sweeps import FULL, bits_of, every
from support.transactions import admitted, committed_values, end_transaction, every_value, send_in_transaction

from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CorruptRange, ProducerFenced, TransactionStateInvalid
from cordwood.formats import Marker
from cordwood.formats.shared import Role, unpack_entry
from cordwood.formats.shared.owners import ENTRY_SIZE
from cordwood.storage.directory.data_directory import DataDirectory
from cordwood.storage.log import Partition, WritablePartition, committed_runs
from cordwood.storage.log.state import read_state
from cordwood.storage.readonly import ReadOnlyDirectory
from cordwood.verify import verify_directory

A, B = 1, 2
PAIR = ("orders", "orders@7")


@pytest.fixture(params=["own", "shared"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    yield made
    if hasattr(made, "data"):
        made.data.close()


def say(log: WritablePartition, producer: int, sequence: int, *values: bytes, epoch: int = 0) -> int:
    """Append a transactional batch; return its first offset."""
    return send_in_transaction(log, Sent(producer, epoch, sequence, values)).base_offset


def reader(files: Files, topic: str = "orders") -> Partition:
    """Return a partition as another process reads it."""
    config = load_broker_config(environment={}, overrides=dict(SMALL))[0]
    directory = ReadOnlyDirectory(files, DATA, config, mapped=False)
    return directory.readable(topic, 0, directory.topics[topic])


def everything(log: WritablePartition) -> tuple[object, ...]:
    """Return all that readers and the coordinator learn from a partition."""
    log.commit()
    return (
        log.last_stable_offset,
        committed_values(log, 300),
        every_value(log),
        [each[:3] for each in log.open_transactions()],
        log.aborted(log.log_start_offset, log.high_watermark),
        [(each.id, each.epoch, each.open_offset, each.coordinator_epoch) for each in log.producers()],
    )


def busy(bench: Bench) -> None:
    """Append transactions of two producers over several segments, with one of each left open."""
    log = bench.log
    bench.put(b"plain")
    for round_ in range(8):
        say(log, A, 2 * round_, b"a%d" % round_, b"A%d" % round_)
        bench.put(b"plain %d" % round_)
        say(log, B, round_, b"b%d" % round_)
        log.append_marker(Marker(A, 0, round_ % 2 == 0, round_))
        if round_ % 3:
            end_transaction(log, B, committed=round_ % 4 != 1)
    say(log, A, 16, b"open")


# --- what is stable -----------------------------------------------------------------------------------


def test_records_of_an_open_transaction_and_all_after_it_are_not_stable(bench: Bench) -> None:
    """X1; and the records of the neighbour are, in the same log."""
    log = bench.open()
    bench.put(b"plain")
    first = say(log, A, 0, b"a0", b"a1")
    bench.put(b"after")
    assert (log.last_stable_offset, log.high_watermark) == (first, 4)
    assert bench.neighbour.last_stable_offset == bench.neighbour.high_watermark > 0
    assert committed_values(log) == [b"plain"]
    assert every_value(log) == [b"plain", b"a0", b"a1", b"after"]
    end_transaction(log, A, committed=True)
    assert log.last_stable_offset == 4, "a decided transaction is visible before its marker is synced"
    log.commit()
    assert log.last_stable_offset == log.high_watermark == 5
    assert committed_values(log) == [b"plain", b"a0", b"a1", b"after"]


def test_the_last_stable_offset_waits_for_the_oldest_of_several_transactions(bench: Bench) -> None:
    log = bench.open()
    say(log, A, 0, b"a0")
    say(log, B, 0, b"b0")
    say(log, A, 1, b"a1")
    end_transaction(log, B, committed=True)
    log.commit()
    assert log.last_stable_offset == 0
    end_transaction(log, A, committed=False)
    log.commit()
    assert log.last_stable_offset == log.high_watermark == 5
    assert committed_values(log) == [b"b0"]
    assert log.aborted(0, 5) == [(A, 0, 4, 5)]
    assert log.read(0, 1 << 20, committed=True).aborted == ((A, 0, 4, 5),)
    assert log.read(0, 1 << 20).aborted == ()


def test_what_is_not_synced_is_not_stable(bench: Bench) -> None:
    log = bench.open()
    say(log, A, 0, b"a0")
    end_transaction(log, A, committed=True)
    assert log.last_stable_offset == log.high_watermark == 0


def test_the_transactions_of_a_neighbour_with_the_same_producer_are_others(bench: Bench) -> None:
    """T1."""
    log = bench.open()
    say(log, A, 0, b"mine")
    say(bench.neighbour, A, 0, b"theirs")
    end_transaction(bench.neighbour, A, committed=False)
    log.commit()
    assert (log.last_stable_offset, committed_values(bench.neighbour)) == (0, [])
    assert (len(log.open_transactions()), bench.neighbour.open_transactions()) == (1, [])
    end_transaction(log, A, committed=True)
    log.commit()
    assert committed_values(log) == [b"mine"]
    assert log.aborted(0, 9) == []


def test_a_reader_of_committed_records_waits_for_the_end_of_the_transaction(bench: Bench) -> None:
    log = bench.open()
    say(log, A, 0, b"a0")
    log.commit()
    assert log.wait_beyond(0) == 1
    told: list[int] = []
    thread = Thread(target=lambda: told.append(log.wait_beyond(0, committed=True)))
    thread.start()
    bench.put(b"after")
    end_transaction(log, A, committed=True)
    log.commit()
    thread.join(SECONDS_MAX)
    assert len(told) == 1
    assert 2 <= told[0] <= 3


# --- what is refused ------------------------------------------------------------------------------------


def test_a_transactional_batch_needs_to_be_admitted(bench: Bench) -> None:
    log = bench.open()
    frame = receive(Sent(A, 0, 0, (b"x",)))
    assert frame.stamp is not None
    transactional = frame._replace(stamp=frame.stamp._replace(transactional=True))

    def refuse(stamp: object) -> None:
        raise TransactionStateInvalid("no ongoing transaction")

    for admit in (None, refuse):
        with pytest.raises(TransactionStateInvalid):
            log.append_received(transactional, admit=admit)
    assert log.log_end_offset == 0
    assert log.append_received(frame, admit=refuse)[:2] == (0, 1), "it is not asked for other batches"


def test_a_plain_batch_within_an_open_transaction_is_refused(bench: Bench) -> None:
    log = bench.open()
    say(log, A, 0, b"a0")
    with pytest.raises(TransactionStateInvalid):
        log.append_received(receive(Sent(A, 0, 1, (b"plain",))))


@pytest.mark.parametrize("how", RESTARTS)
def test_a_marker_of_an_older_epoch_is_refused_and_a_later_one_fences(bench: Bench, how: str) -> None:
    """X3: after the marker of a later epoch the old producer appends nothing more, nor after a restart."""
    log = bench.open()
    say(log, A, 0, b"a0")
    end_transaction(log, A, committed=False, epoch=1)
    log.commit()
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            say(log, A, 1, b"a1")
        with pytest.raises(ProducerFenced):
            end_transaction(log, A, committed=True, epoch=0)
        assert committed_values(log) == []
        log = bench.restart(how)
    say(log, A, 0, b"again", epoch=1)


def test_a_duplicate_of_an_ended_transaction_is_answered_with_the_original(bench: Bench) -> None:
    log = bench.open()
    first = send_in_transaction(log, Sent(A, 0, 0, (b"a0",)))
    end_transaction(log, A, committed=True)
    assert send_in_transaction(log, Sent(A, 0, 0, (b"a0",))) == first
    assert log.open_transactions() == []


# --- after a restart, and beside the writer -------------------------------------------------------------


@pytest.mark.parametrize("how", RESTARTS)
def test_every_restart_leaves_the_same_transactions(bench: Bench, how: str) -> None:
    """R5: open and aborted transactions follow from the frames."""
    log = bench.open()
    busy(bench)
    before = everything(log)
    assert log.open_transactions()
    assert log.aborted(0, 99)
    for _ in range(2):
        log = bench.restart(how)
        assert everything(log) == before
    end_transaction(log, A, committed=True)
    end_transaction(log, B, committed=True)
    log.commit()
    assert log.last_stable_offset == log.high_watermark


def test_a_reader_beside_the_writer_sees_the_same_committed_records(bench: Bench) -> None:
    log = bench.open()
    busy(bench)
    log.commit()
    beside = reader(bench.files)
    for committed in (False, True):
        assert (beside.last_stable_offset, beside.high_watermark) == (
            log.last_stable_offset,
            log.high_watermark,
        )
        assert committed_values(beside, 300) == committed_values(log)
        assert beside.aborted(0, 99) == log.aborted(0, 99)
        end_transaction(log, A, committed=committed)
        end_transaction(log, B, committed=committed)
        log.commit()
    assert beside.last_stable_offset == log.high_watermark
    assert beside.wait_beyond(0, committed=True) == log.high_watermark


def test_a_marker_that_is_not_synced_ends_nothing_for_a_reader_beside_the_writer(bench: Bench) -> None:
    """A power cut may lose the marker, and what the reader saw must not become invisible again."""
    log = bench.open()
    say(log, A, 0, b"a0")
    log.commit()
    beside = reader(bench.files)
    assert beside.last_stable_offset == 0
    end_transaction(log, A, committed=True)
    assert (log.last_stable_offset, beside.last_stable_offset) == (1, 0)
    assert committed_values(beside) == []
    log.commit()
    assert committed_values(beside) == [b"a0"]


@pytest.mark.parametrize("how", RESTARTS)
def test_the_log_start_may_pass_an_open_transaction(bench: Bench, how: str) -> None:
    """Retention does not wait for a transaction; it stays open until it ends."""
    log = bench.open()
    say(log, A, 0, b"a0")
    bench.put(b"after")
    log.advance_log_start(1)
    log.roll()
    bench.put(b"x" * 500)
    log.roll()
    bench.data.maintenance.maintain_all()
    for _ in range(2):
        assert log.last_stable_offset == log.log_start_offset == 1
        assert [each.producer_id for each in log.open_transactions()] == [A]
        log = bench.restart(how)
    end_transaction(log, A, committed=False)
    log.commit()
    assert committed_values(log) == [b"after", b"x" * 500]


# --- the shared log alone -------------------------------------------------------------------------------


def pair(files: Files | None = None, clock: ManualClock | None = None) -> tuple[Files, DataDirectory]:
    """Open two tenants' topics of the same name, created if they are not there."""
    files = MemoryFiles() if files is None else files
    data = open_data(files, clock)
    create(data, *(name for name in PAIR if name not in data.topics))
    return files, data


def test_a_log_without_transactions_is_as_before_and_an_older_version_refuses_one_with_them() -> None:
    """partition.json says so, durably, before the first frame of a transaction."""
    files, data = pair()
    put(virtual(data, "orders"), b"plain")
    directory = physical(data).directory
    assert (read_state(files, directory).format, read_state(files, directory).transactional) == (2, False)
    say(virtual(data, "orders"), A, 0, b"a0")
    assert (read_state(files, directory).format, read_state(files, directory).transactional) == (3, True)
    data.close()
    _, data = pair(files)
    assert read_state(files, directory).transactional
    data.close()


def test_only_partitions_with_transactions_have_state_of_them() -> None:
    files, data = pair()
    put(virtual(data, "orders"), b"plain")
    say(virtual(data, "orders@7"), A, 0, b"a0")
    data.close()
    _, data = pair(files)
    states = {part.owner.org: part.transactions is not None for part in shared_log(data).topics}
    assert states == {0: False, 7: True}
    data.close()


def test_the_index_says_the_role_of_each_frame_in_a_transaction() -> None:
    files, data = pair()
    log = virtual(data, "orders")
    put(log, b"plain")
    say(log, A, 5, b"a0", b"a1")
    log.append_marker(Marker(A, 3, committed=False, coordinator_epoch=17))
    log.append_marker(Marker(B, 0, committed=True, coordinator_epoch=18))
    data.close()
    (entries,) = index_files(files).values()
    found = [unpack_entry(entries, number) for number in range(len(entries) // ENTRY_SIZE)]
    assert [entry.role for entry in found] == [Role.NONE, Role.RECORDS, Role.ABORT, Role.COMMIT]
    assert [entry.stamp for entry in found] == [None, (A, 0, 5, 6, True), None, None]
    assert [entry.marker for entry in found] == [None, None, (A, 3, False, 17), (B, 0, True, 18)]


@pytest.mark.parametrize("how", RESTARTS)
def test_a_topic_that_is_deleted_takes_its_open_transaction_with_it(how: str) -> None:
    bench = Bench("shared")
    log = bench.open()
    say(log, A, 0, b"never")
    log.commit()
    bench.data.topics.delete("orders")
    log = bench.create()
    assert (log.open_transactions(), log.producers()) == ([], [])
    bench.put(b"new")
    for _ in range(2):
        assert (log.last_stable_offset, committed_values(log)) == (1, [b"new"])
        log = bench.restart(how)
    bench.data.close()


# --- damage ---------------------------------------------------------------------------------------------


@cache
def sound() -> tuple[Image, tuple[object, ...]]:
    """A closed directory with transactions in several segments, and what its topic holds."""
    bench = Bench("shared")
    bench.open()
    busy(bench)
    bench.log.advance_log_start(2)
    known = everything(bench.log)
    bench.data.close()
    return image(bench.files, DATA), known


def damaged_indexes() -> Iterator[tuple[str, str, bytes | None]]:
    """Yield (case, path, bytes) of an index that is gone, cut, or has a turned bit."""
    for path, data in index_files(disk_of(sound()[0])).items():
        yield "deleted", path, None
        for size in range(0, len(data), every(97)):
            yield "cut", path, data[:size]
        for bit in bits_of(data, 301):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            yield "turned", path, bytes(changed)
        for at in range(0, len(data), ENTRY_SIZE):
            # The byte of the role, each of its values.
            for role in range(5):
                changed = bytearray(data)
                changed[at + 69] = role
                yield "role", path, bytes(changed)


def test_whatever_happens_to_an_index_transactions_come_back_from_the_log() -> None:
    """R5, for a writer and for a reader beside it."""
    before, known = sound()
    counts = Counter[str]()
    indexes = index_files(disk_of(before))
    for case, path, data in damaged_indexes():
        disk = disk_of(before, gone=[path]) if data is None else disk_of(before, {path: data})
        counts[case] += 1
        if counts[case] % 5 == 1:
            beside = reader(disk)
            assert (beside.last_stable_offset, committed_values(beside)) == known[:2], case
        opened = open_data(disk)
        assert everything(virtual(opened, "orders")) == known, case
        opened.close()
        assert index_files(disk) == indexes, f"{case}: another index"
    print(f"{counts.total()} cases: {dict(counts)}")
    assert counts.total() >= 200


def served(log: Partition) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Return what a reader of committed records gets, and the ranges [start, end) that it is refused."""
    found: list[bytes] = []
    refused: list[tuple[int, int]] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        try:
            fetched = log.read(offset, 1 << 20, committed=True)
        except CorruptRange as error:
            refused.append((offset, error.resume_offset))
            offset = error.resume_offset
            continue
        for run in committed_runs(fetched.runs, fetched.aborted):
            found += [record.value or b"" for record in run.records() if record.offset >= offset]
        offset = fetched.next_offset
    return found, refused


@pytest.mark.parametrize("first_committed", [True, False])
def test_a_damaged_marker_whose_index_is_lost_makes_no_record_committed_or_aborted(
    first_committed: bool,
) -> None:
    """R6: what the marker may have ended is refused, and what follows is served."""
    bench = Bench("shared")
    log = bench.open()
    bench.put(b"p0")
    say(log, A, 0, b"a1")
    bench.put(b"p2")
    marker = end_transaction(log, A, committed=first_committed).base_offset
    say(log, A, 1, b"a4")
    end_transaction(log, A, committed=not first_committed)
    bench.put(b"p6")
    whole = [b"p0", b"a1", b"p2", b"p6"] if first_committed else [b"p0", b"p2", b"a4", b"p6"]
    log.commit()
    assert (marker, served(log)) == (3, (whole, []))
    bench.data.close()
    changed: dict[str, bytes] = {}
    for path, data in index_files(bench.files).items():
        for number in range(len(data) // ENTRY_SIZE):
            entry = unpack_entry(data, number)
            if entry.marker is not None and entry.first_offset == marker:
                store = bytearray(read_file(bench.files, path.replace(".oidx", ".log")))
                store[entry.position + entry.size - 1] ^= 1
                changed[path.replace(".oidx", ".log")] = bytes(store)
    assert len(changed) == 1
    left = image(bench.files, DATA)
    opened = open_data(disk_of(left, changed))
    assert served(virtual(opened, "orders")) == (whole, [(3, 4)]), "the index says what the marker said"
    opened.close()
    disk = disk_of(left, changed, gone=list(index_files(bench.files)))
    expected = ([b"p0", b"p6"] if first_committed else [b"p0", b"a4", b"p6"], [(1, 4)])
    assert served(reader(disk)) == expected
    for _ in range(2):
        opened = open_data(disk)
        assert served(virtual(opened, "orders")) == expected
        opened.close()


def serious(files: Files) -> list[str]:
    """Return what verify finds, without notes."""
    return [each.what for each in verify_directory(files, DATA).findings if each.severity != "note"]


def test_another_reader_finds_the_same_roles_in_log_and_index() -> None:
    disk, roles = disk_of(sound()[0]), Counter[int]()
    for path, data in index_files(disk).items():
        log = read_file(disk, path.replace(".oidx", ".log"))
        base = int(path[-25:-5])
        assert list(read_shared.frames_of_log(log, base)) == list(read_shared.frames_of_index(data, base))
        roles.update(frame["role"] for frame in read_shared.frames_of_index(data, base))
    print(dict(roles))
    assert min(roles[role] for role in range(4)) > 0


def test_an_index_that_is_made_again_offline_has_the_same_roles() -> None:
    before, known = sound()
    indexes = index_files(disk_of(before))
    for role in (0, 4):
        changed = {path: bytearray(data) for path, data in indexes.items()}
        for data in changed.values():
            data[69::ENTRY_SIZE] = bytes([role]) * (len(data) // ENTRY_SIZE)
        disk = disk_of(before, {path: bytes(data) for path, data in changed.items()})
        assert len(reindex(disk).rebuilt) == len(indexes)
        assert index_files(disk) == indexes
    opened = open_data(disk)
    assert everything(virtual(opened, "orders")) == known
    opened.close()


def test_verify_knows_the_roles_and_finds_a_wrong_one() -> None:
    before, _ = sound()
    assert serious(disk_of(before)) == []
    (path, *_), found = index_files(disk_of(before)), 0
    data = read_file(disk_of(before), path)
    for at in range(0, len(data), ENTRY_SIZE):
        changed = bytearray(data)
        changed[at + 69] ^= 1
        assert serious(disk_of(before, {path: bytes(changed)})) == ["owner index"]
        found += 1
    print(f"{found} wrong roles found")
    assert found


# --- space ----------------------------------------------------------------------------------------------


def test_a_marker_stays_as_long_as_a_batch_of_its_transaction() -> None:
    """Else the transaction would be open again after a restart, and hold its topic for ever."""
    files, data = pair()
    log, other = virtual(data, "orders"), virtual(data, "orders@7")
    put(other, b"alive" * 60)
    say(log, A, 0, b"a0")
    put(other, b"alive" * 60)
    physical(data).roll()
    put(log, b"x" * 600)
    end_transaction(log, A, committed=True)
    put(log, b"y")
    put(other, b"alive")
    physical(data).roll()
    put(log, b"live")
    log.advance_log_start(log.log_end_offset - 1)
    physical(data).roll()
    size = physical(data).size()
    assert data.maintenance.maintain_all().failures == ()
    assert physical(data).size() < size - 500, "nothing was copied forward"
    assert log.last_stable_offset == log.high_watermark
    opened = open_data(left_by(files, gone=index_files(files)))
    again = virtual(opened, "orders")
    assert (again.open_transactions(), again.last_stable_offset) == ([], again.high_watermark)
    assert committed_values(again) == [b"live"]
    report = data.maintenance.maintain_all()
    assert (report.failures, report.reclaimed.segments) == ((), 0), "a second pass has nothing to do"
    data.close()
    opened.close()


@pytest.mark.parametrize("how", RESTARTS)
def test_what_holds_of_producers_outlives_their_records(how: str) -> None:
    """X3: their batches and markers are below the start, and in segments that were copied forward."""
    bench = Bench("shared")
    log = bench.open()
    put(bench.neighbour, b"alive")
    say(log, A, 0, b"a0")
    say(log, B, 0, b"b0")
    end_transaction(log, A, committed=False, epoch=1)
    put(log, b"x" * 600)
    say(log, B, 1, b"b1")
    put(log, b"y" * 300)
    put(bench.neighbour, b"alive")
    log.roll()
    put(log, b"live")
    log.advance_log_start(log.log_end_offset - 1)
    log.roll()
    size = physical(bench.data).size()
    assert bench.data.maintenance.maintain_all().failures == ()
    assert physical(bench.data).size() < size - 800, "nothing was copied forward"
    known = log.open_transactions()[0][:3]
    assert known == (B, 0, 1)
    log = bench.restart(how)
    assert [each[:3] for each in log.open_transactions()] == [known]
    assert log.last_stable_offset == log.log_start_offset
    with pytest.raises(ProducerFenced):
        say(log, A, 1, b"a1")
    end_transaction(log, B, committed=True)
    log.commit()
    assert committed_values(log) == [b"live"]
    bench.data.close()


def test_transactions_below_the_start_go_with_their_markers() -> None:
    """A marker is not kept for its own sake."""
    files, data = pair()
    log, other = virtual(data, "orders"), virtual(data, "orders@7")
    for number in range(30):
        say(log, A, number, b"a" * 50)
        end_transaction(log, A, committed=number % 2 == 0)
        put(other, b"alive")
    put(log, b"live")
    log.advance_log_start(log.log_end_offset - 1)
    physical(data).roll()
    for _ in range(3):
        assert data.maintenance.maintain_all().failures == ()
    entries = b"".join(index_files(files).values())
    roles = Counter(unpack_entry(entries, number).role for number in range(len(entries) // ENTRY_SIZE))
    print(dict(roles))
    # The newest batch of the producer stays with its marker, and at most the last frame of a segment.
    assert roles[Role.RECORDS] + roles[Role.COMMIT] + roles[Role.ABORT] <= 2 + len(index_files(files))
    assert everything(virtual(open_data(left_by(files)), "orders")) == everything(log)
    data.close()


# --- a model --------------------------------------------------------------------------------------------


class Listed:
    """What a list says about one partition: every record with its producer's transaction."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes | None, object]] = []
        self.outcome: dict[object, bool] = {}
        self.open: dict[int, object] = {}
        self.start = 0
        self.sequences: dict[int, int] = {}

    def stable(self) -> int:
        open_ = set(map(id, self.open.values()))
        first = next((at for at, (_, t) in enumerate(self.rows) if id(t) in open_), len(self.rows))
        return max(first, self.start)

    def committed(self) -> list[bytes]:
        return [
            value
            for value, transaction in self.rows[self.start : self.stable()]
            if value is not None and (transaction is None or self.outcome[transaction])
        ]


STEPS = ("say", "plain", "commit", "abort", "restart", "kill", "roll", "advance", "maintain", "delete")
WEIGHTS = (10, 3, 4, 4, 1, 1, 2, 1, 2, 0.3)


def test_readers_of_committed_records_see_what_a_list_says_whatever_happens() -> None:
    """Two tenants, with restarts, lost indexes, moved starts, freed space and deleted topics."""
    counts = Counter[str]()
    for seed in seeds_from(1, 200 if FULL else 25):
        chance, lists = random.Random(seed), {name: Listed() for name in PAIR}
        files, data = pair()
        for number in range(chance.randrange(10, 70)):
            step, name = chance.choices(STEPS, WEIGHTS)[0], chance.choice(PAIR)
            listed, producer, value = lists[name], chance.randrange(1, 4), b"%d" % number * 20
            log = virtual(data, name)
            counts[step] += 1
            if step == "say":
                transaction = listed.open.setdefault(producer, object())
                sequence = listed.sequences.get(producer, 0)
                say(log, producer, sequence, value)
                listed.sequences[producer] = sequence + 1
                listed.rows.append((value, transaction))
            elif step == "plain":
                log.append([(None, value)])
                listed.rows.append((value, None))
            elif step in ("commit", "abort"):
                ended = listed.open.pop(producer, None)
                log.append_marker(Marker(producer, 0, step == "commit"))
                listed.rows.append((None, None))
                if ended is not None:
                    listed.outcome[ended] = step == "commit"
            elif step == "roll":
                physical(data).roll()
            elif step == "advance":
                log.commit()
                listed.start = chance.randint(listed.start, len(listed.rows))
                log.advance_log_start(listed.start)
            elif step == "maintain":
                physical(data).roll()
                report = data.maintenance.maintain_all()
                assert report.failures == ()
                counts["segments reclaimed"] += report.reclaimed.segments
            elif step == "delete":
                data.topics.delete(name)
                create(data, name)
                lists[name] = Listed()
            else:
                log.commit()
                if step == "restart":
                    data.close()
                gone = [p for p in image(files, DATA) if p.endswith(INDEXES) and chance.random() < 0.3]
                files, data = pair(left_by(files, gone=gone))
            shared_log(data).commit()
            for each, expected in lists.items():
                found = virtual(data, each)
                where = (seed, number, step, each)
                assert (found.last_stable_offset, found.log_end_offset) == (
                    expected.stable(),
                    len(expected.rows),
                ), where
                assert committed_values(found, 200) == expected.committed(), where
                assert {e.producer_id for e in found.open_transactions()} == set(expected.open), where
        for each, expected in lists.items():
            assert committed_values(reader(files, each), 200) == expected.committed(), seed
        data.close()
    print(dict(counts))
    assert counts["segments reclaimed"] > 5


def test_markers_are_no_records() -> None:
    """They have offsets, and neither values nor times that a lookup finds."""
    _, data = pair(clock=ManualClock())
    log = virtual(data, "orders")
    log.append_received(receive(Sent(A, 0, 0, (b"a0",))), admit=admitted)
    marker = end_transaction(log, B, committed=True).base_offset
    log.commit()
    assert (every_value(log), markers_of(log)) == ([b"a0"], [marker])
    assert (log.offset_at(1_001), log.newest()) == (None, (0, 1_000))
    data.close()
