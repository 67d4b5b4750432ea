"""Compaction of transactions: committed records stay as in any topic, aborted ones go, markers follow."""

from __future__ import annotations

import random

import pytest
from support.clocks import ManualClock
from support.disks import image
from support.producing import DATA, Bench, Sent
from support.seeds import seeds_from
from support.transactions import Row, admitted, committed_records, end_transaction, every_value, send_rows

from cordwood.errors import ProducerFenced
from cordwood.formats import Marker, ProducerStamp, batch
from cordwood.formats.batch import BatchOptions
from cordwood.formats.format import ReceivedFrame
from cordwood.records import Record
from cordwood.storage.log import PartitionLog
from cordwood.storage.maintenance import MaintenanceReport
from cordwood.verify import verify_directory

A, B = 1, 2
HOUR = 3_600_000
COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": "600",
    "index.interval.bytes": "100",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": str(HOUR),
}
#: Markers may go: no evidence is kept of them.
PLAIN = {**COMPACT, "cordwood.chain": "false", "segment.bytes": "100000"}


def bench() -> Bench:
    return Bench(settings=COMPACT)


def say(log: PartitionLog, producer: int, sequence: int, *rows: Row) -> int:
    """Append a batch of a transaction; return its first offset."""
    return send_rows(log, Sent(producer, 0, sequence, ()), list(rows)).base_offset


def compact(at: Bench) -> MaintenanceReport:
    report = at.data.maintenance.maintain_all(force=True)
    assert report.failures == ()
    return report


def pairs(log: PartitionLog) -> list[Row]:
    return [(record.key, record.value) for record in committed_records(log)]


def markers(log: PartitionLog) -> list[int]:
    """Return the offsets of the markers in the log."""
    found, offset = [], log.log_start_offset
    while offset < log.high_watermark:
        fetched = log.read(offset, 1 << 20)
        for run in fetched.runs:
            for frame in range(run.first, run.last + 1):
                if run.table.marker(frame) is not None:
                    found.append(run.table.base_offset(frame))
        offset = fetched.next_offset
    return found


def check_sound(at: Bench) -> None:
    report = verify_directory(at.files, DATA)
    assert report.sound, report.findings


# --- records ------------------------------------------------------------------------------------------


def test_an_aborted_record_makes_no_committed_one_go() -> None:
    at = bench()
    log = at.open()
    log.append([(b"k", b"committed")])
    say(log, A, 0, (b"k", b"aborted"), (b"other", b"aborted"))
    end_transaction(log, A, committed=False)
    log.roll()
    log.append([(b"end", b"")])
    log.commit()
    compact(at)
    assert pairs(log) == [(b"k", b"committed"), (b"end", b"")]
    assert b"aborted" not in every_value(log), "records of an aborted transaction are dropped"
    assert log.aborted(0, log.high_watermark), "the entry stays with its marker"
    check_sound(at)
    assert pairs(at.left().open()) == pairs(log)


def test_a_committed_record_makes_older_ones_go_as_any_record_does() -> None:
    at = bench()
    log = at.open()
    log.append([(b"k", b"old")])
    say(log, A, 0, (b"k", b"new"))
    end_transaction(log, A, committed=True)
    log.roll()
    compact(at)
    assert every_value(log) == [b"new"]


def test_nothing_past_the_last_stable_offset_is_compacted() -> None:
    """An open transaction may still be aborted: it must not make a committed record go."""
    at = bench()
    log = at.open()
    log.append([(b"k", b"first")])
    log.append([(b"k", b"second")])
    log.roll()
    log.append([(b"k", b"third")])
    say(log, A, 0, (b"k", b"open"))
    log.append([(b"k", b"after")])
    log.roll()
    log.append([(b"k", b"active")])
    log.commit()
    (report,) = compact(at).compacted
    assert report.cleaned_offset == 2, "only the segment that ends below the open transaction"
    assert every_value(log) == [b"second", b"third", b"open", b"after", b"active"]
    assert pairs(log) == [(b"k", b"second"), (b"k", b"third")]
    end_transaction(log, A, committed=False)
    log.roll()
    compact(at)
    assert pairs(log) == [(b"k", b"active")]
    check_sound(at)


def test_only_markers_below_a_sync_count_for_compaction() -> None:
    """A marker that a power cut could lose is synced before its outcome decides what is dropped."""
    at = bench()
    log = at.open()
    say(log, A, 0, (b"k", b"aborted"))
    log.roll()
    log.commit()
    end_transaction(log, A, committed=False)
    assert log.high_watermark < log.log_end_offset
    compact(at)
    assert log.high_watermark == log.log_end_offset


# --- markers ------------------------------------------------------------------------------------------


def test_a_marker_stays_while_a_frame_of_its_transaction_does_and_waits_as_tombstones_do() -> None:
    at = Bench(settings=PLAIN)
    log = at.open()
    say(log, A, 0, (b"k", b"one"))
    first = end_transaction(log, A, committed=True).base_offset
    say(log, B, 0, (b"stays", b"for ever"))
    kept = end_transaction(log, B, committed=True).base_offset
    say(log, A, 1, (b"k", b"two"))
    second = end_transaction(log, A, committed=True).base_offset
    log.append([(b"last", b"of the segment")])
    log.roll()
    log.append([(b"active", b"")])
    log.commit()
    expected = pairs(log)[1:]
    compact(at)
    assert pairs(log) == expected
    assert markers(log) == [first, kept, second], "freed now, and it waits"
    at.clock.advance(HOUR - 1)
    compact(at)
    assert markers(log) == [first, kept, second]
    at.clock.advance(1)
    compact(at)
    assert markers(log) == [kept, second]
    assert pairs(log) == expected
    assert pairs(at.left().open()) == expected
    assert at.left().open().open_transactions() == []
    check_sound(at)


def end_segment(log: PartitionLog, name: bytes) -> None:
    """End the segment with a record that stays, and is too large for segments to be merged."""
    log.append([(name, bytes(60_000))])
    log.roll()


def test_a_marker_waits_from_the_pass_on_that_freed_it_whatever_waited_before_it() -> None:
    """A reader that has passed the records and not the marker would keep their transaction open for ever."""
    at = Bench(settings=PLAIN)
    log = at.open()
    say(log, A, 0, (b"k", b"one"))
    say(log, B, 0, (b"l", b"one"))
    end_segment(log, b"first")
    waiting = end_transaction(log, A, committed=True).base_offset
    freed_later = end_transaction(log, B, committed=True).base_offset
    end_segment(log, b"second")
    log.append([(b"k", b"two")])
    for producer in (A, B):
        # The last batch of a producer stays, so another one follows.
        say(log, producer, 1, (b"of %d" % producer, b"stays"))
        end_transaction(log, producer, committed=True)
    end_segment(log, b"third")
    compact(at)
    assert markers(log)[:2] == [waiting, freed_later], "the first waits from now on"
    at.clock.advance(HOUR)
    log.append([(b"l", b"two")])
    end_segment(log, b"fourth")
    compact(at)
    assert markers(log)[0] == freed_later, "the first has waited, and the second is free from now on"
    at.clock.advance(HOUR - 1)
    compact(at)
    assert markers(log)[0] == freed_later
    at.clock.advance(1)
    compact(at)
    assert markers(log)[0] > freed_later
    assert at.left().open().open_transactions() == []
    check_sound(at)


def test_a_marker_that_waits_stays_when_its_segment_is_written_again() -> None:
    """Its time is not over because another record of the segment goes."""
    at = Bench(settings=PLAIN)
    log = at.open()
    say(log, A, 0, (b"k", b"one"))
    end_segment(log, b"first")
    marker = end_transaction(log, A, committed=True).base_offset
    log.append([(b"beside", b"one")])
    end_segment(log, b"second")
    log.append([(b"k", b"two")])
    say(log, A, 1, (b"a", b"stays"))
    end_transaction(log, A, committed=True)
    end_segment(log, b"third")
    compact(at)
    at.clock.advance(HOUR - 1)
    log.append([(b"beside", b"two")])
    end_segment(log, b"fourth")
    compact(at)
    assert (b"beside", b"one") not in pairs(log)
    assert markers(log)[0] == marker
    at.clock.advance(1)
    compact(at)
    assert markers(log)[0] > marker
    check_sound(at)


def test_the_entry_of_an_aborted_transaction_goes_with_its_marker() -> None:
    at = Bench(settings=PLAIN)
    log = at.open()
    say(log, A, 0, (b"k", b"aborted"))
    end_transaction(log, A, committed=False)
    say(log, A, 1, (b"k", b"committed"))
    end_transaction(log, A, committed=True)
    log.roll()
    log.append([(b"active", b"")])
    log.commit()
    compact(at)
    assert len(log.aborted(0, log.high_watermark)) == 1
    at.clock.advance(HOUR)
    compact(at)
    compact(at)
    assert log.aborted(0, log.high_watermark) == []
    assert log.state.sealed[0].aborted_count == 0
    assert pairs(log) == [(b"k", b"committed"), (b"active", b"")]
    check_sound(at)


def test_a_log_without_markers_left_to_drop_is_not_compacted_again_and_again() -> None:
    at = Bench(settings=PLAIN)
    log = at.open()
    for number in range(4):
        say(log, A, number, (b"k%d" % number, b"committed"))
        end_transaction(log, A, committed=True)
    log.roll()
    log.append([(b"active", b"")])
    log.commit()
    for _ in range(2):
        at.clock.advance(10 * HOUR)
        # The segment that takes appends is sealed when it is idle.
        compact(at)
    at.clock.advance(10 * HOUR)
    assert at.data.maintenance.maintain_all(force=True).compacted == ()


def test_markers_stay_where_evidence_is_kept() -> None:
    """The marker in the log proves that the records which compaction dropped were aborted."""
    at = bench()
    log = at.open()
    say(log, A, 0, (b"k", b"aborted"))
    marker = end_transaction(log, A, committed=False).base_offset
    log.append([(b"k", b"committed")])
    log.roll()
    for _ in range(3):
        compact(at)
        at.clock.advance(HOUR)
    assert markers(log) == [marker]
    check_sound(at)


def test_the_epoch_that_fences_a_producer_survives_compaction() -> None:
    """X3: the marker with the newest epoch of a producer stays, because nothing else has the epoch."""
    at = Bench(settings=PLAIN)
    log = at.open()
    say(log, A, 0, (b"k", b"aborted"))
    end_transaction(log, A, committed=False, epoch=1)
    log.append([(b"k", b"later")])
    log.roll()
    log.append([(b"active", b"")])
    log.commit()
    for _ in range(3):
        compact(at)
        at.clock.advance(HOUR)
    again = at.left()
    log = again.open()
    with pytest.raises(ProducerFenced):
        say(log, A, 1, (b"k", b"zombie"))


def test_a_duplicate_of_a_compacted_transaction_is_still_known() -> None:
    at = Bench(settings=PLAIN)
    log = at.open()
    first = send_rows(log, Sent(A, 0, 0, ()), [(b"k", b"aborted")])
    end_transaction(log, A, committed=False)
    log.append([(b"k", b"later")])
    log.roll()
    log.commit()
    for _ in range(3):
        compact(at)
        at.clock.advance(HOUR)
    log = at.left().open()
    assert log.open_transactions() == []
    assert send_rows(log, Sent(A, 0, 0, ()), [(b"k", b"aborted")]) == first


# --- batches of the broker itself ----------------------------------------------------------------------


def send_offsets(log: PartitionLog, producer: int, *rows: Row) -> int:
    """Append a batch without sequence numbers, as the coordinator of groups does."""
    options = BatchOptions(producer_id=producer, producer_epoch=0, attributes=batch.TRANSACTIONAL)
    data = memoryview(batch.encode_records(list(rows), 1_000, options))
    stamp = ProducerStamp(producer, 0, batch.NO_SEQUENCE, batch.NO_SEQUENCE, transactional=True)
    frame = ReceivedFrame(data, len(rows), 1_000, stamp)
    return log.append_received(frame, admit=admitted).base_offset


def test_offsets_of_open_and_aborted_transactions_do_not_survive_wrongly() -> None:
    """X5: in `__consumer_offsets` an aborted commit neither survives nor removes the one before it."""
    at = Bench(settings=PLAIN)
    log = at.open()
    send_offsets(log, A, (b"group", b"1"))
    end_transaction(log, A, committed=True)
    send_offsets(log, A, (b"group", b"2"))
    end_transaction(log, A, committed=False)
    log.roll()
    send_offsets(log, A, (b"group", b"3"))
    log.roll()
    log.append([(b"another", b"9")])
    log.commit()
    compact(at)
    assert pairs(log) == [(b"group", b"1")]
    end_transaction(log, A, committed=True)
    log.roll()
    compact(at)
    assert pairs(log) == [(b"group", b"3"), (b"another", b"9")]
    assert pairs(at.left().open()) == pairs(log)


def test_markers_of_a_producer_without_sequences_do_not_gather() -> None:
    """Only its newest marker is kept for its epoch."""
    at = Bench(settings=PLAIN)
    log = at.open()
    for number in range(50):
        send_offsets(log, A, (b"group", b"%d" % number))
        end_transaction(log, A, committed=True)
    log.roll()
    log.append([(b"active", b"")])
    log.commit()
    for _ in range(3):
        compact(at)
        at.clock.advance(HOUR)
    assert len(markers(log)) <= 2
    assert pairs(log) == [(b"group", b"49"), (b"active", b"")]


# --- the index ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["lost", "damaged"])
def test_the_index_of_a_rewritten_segment_may_be_lost(change: str) -> None:
    at = bench()
    log = at.open()
    for number in range(6):
        say(log, A, number, (b"a%d" % number, b"aborted"))
        say(log, B, number, (b"b%d" % (number % 2), b"committed %d" % number))
        end_transaction(log, A, committed=False)
        end_transaction(log, B, committed=True)
    log.roll()
    log.append([(b"active", b"")])
    log.commit()
    compact(at)
    expected = pairs(log)
    found = [path for path in image(at.files, DATA) if path.endswith(".txnindex")]
    assert found
    for path in found:
        data = bytearray(image(at.files, DATA)[path] or b"")
        data[len(data) // 2] ^= 1
        left = at.left(gone=(path,)) if change == "lost" else at.left({path: bytes(data)})
        assert pairs(left.open()) == expected, path


# --- a model --------------------------------------------------------------------------------------------


class Model:
    """Every record that was appended, with the outcome of its transaction; None while it is open."""

    def __init__(self) -> None:
        self.rows: list[tuple[Row, dict[str, bool | None] | None]] = []
        self.open: dict[int, dict[str, bool | None]] = {}

    def stable(self) -> int:
        open_ = [id(each) for each in self.open.values()]
        return next((at for at, (_, t) in enumerate(self.rows) if id(t) in open_), len(self.rows))

    def committed(self) -> list[tuple[int, Row]]:
        return [
            (at, row)
            for at, (row, transaction) in enumerate(self.rows[: self.stable()])
            if row != (None, None) and (transaction is None or transaction["committed"])
        ]

    def check(self, found: list[Record]) -> None:
        """Check what is left: nothing but what was committed, and of each key the newest."""
        committed = self.committed()
        left = [(record.offset, (record.key, record.value)) for record in found]
        assert set(left) <= set(committed)
        assert left == sorted(left)
        newest = {row[0]: (at, row) for at, row in committed}
        gone = set(newest.values()) - set(left)
        assert all(row[1] is None for _, row in gone), f"gone: {gone}"


def test_what_is_left_of_random_transactions_is_what_a_list_says() -> None:
    dropped = 0
    for seed in seeds_from(1, 40):
        chance, model, clock = random.Random(seed), Model(), ManualClock()
        sizes = {"segment.bytes": str(chance.choice([200, 400, 2000]))}
        chained = {"cordwood.chain": chance.choice(["true", "false"])}
        at = Bench(settings={**COMPACT, **sizes, **chained}, clock=clock)
        log = at.open()
        sequences: dict[int, int] = {}
        for number in range(chance.randrange(20, 90)):
            producer = chance.randrange(1, 5)
            value = None if chance.random() < 0.1 else b"%d" % number
            row = (b"k%d" % chance.randrange(6), value)
            step = chance.choices(["say", "plain", "end", "roll", "compact", "again"], [9, 3, 6, 2, 2, 1])[0]
            if step == "say":
                transaction = model.open.setdefault(producer, {"committed": None})
                say(log, producer, sequences.get(producer, 0), row)
                sequences[producer] = sequences.get(producer, 0) + 1
                model.rows.append((row, transaction))
            elif step == "plain":
                log.append([row])
                model.rows.append((row, None))
            elif step == "end":
                committed = chance.random() < 0.5
                log.append_marker(Marker(producer, 0, committed))
                model.rows.append(((None, None), None))
                ended = model.open.pop(producer, None)
                if ended is not None:
                    ended["committed"] = committed
            elif step == "roll":
                log.roll()
            elif step == "compact":
                dropped += sum(each.records_dropped for each in compact(at).compacted)
                clock.advance(chance.randrange(HOUR))
            else:
                log.commit()
                at = at.left()
                log = at.open()
            log.commit()
            assert log.last_stable_offset == model.stable(), (seed, number)
            model.check(committed_records(log, 200))
        again = at.left()
        assert committed_records(again.open()) == committed_records(log), seed
        report = verify_directory(again.files, DATA)
        assert not report.findings, (seed, report.findings)
    print(f"{dropped} records dropped")
    assert dropped > 200
