"""R6: damage that may hide the end of a transaction never makes its records committed, nor aborted ones.

What is derived from the log is lost in these tests as well: else it says what the damaged frame said.
"""

from __future__ import annotations

import struct

import pytest
from support.disks import image
from support.producing import DATA, DIRECTORY, Bench, Sent
from support.transactions import end_transaction, send_in_transaction

from cordwood.config.loading import load_broker_config
from cordwood.disk import read_file
from cordwood.errors import CorruptRange
from cordwood.storage.log import Partition, PartitionLog, committed_runs
from cordwood.storage.readonly import ReadOnlyDirectory

A, B = 1, 2
BIG = {"segment.bytes": "100000", "index.interval.bytes": "100"}
_HEAD = struct.Struct(">qi")


def say(log: PartitionLog, producer: int, sequence: int, value: bytes) -> int:
    return send_in_transaction(log, Sent(producer, 0, sequence, (value,))).base_offset


def end(log: PartitionLog, producer: int, *, committed: bool) -> int:
    return end_transaction(log, producer, committed=committed).base_offset


def damaged(bench: Bench, offset: int) -> dict[str, bytes]:
    """Return the store in which the frame at *offset* is, with its last byte flipped."""
    for path in derived(bench, ".log"):
        data, position = read_file(bench.files, path), 0
        while path.startswith(f"{DIRECTORY}/segments/") and position + _HEAD.size <= len(data):
            base, length = _HEAD.unpack_from(data, position)
            position += _HEAD.size + length
            if base == offset and length:
                return {path: data[: position - 1] + bytes([data[position - 1] ^ 1]) + data[position:]}
    raise AssertionError(f"no frame begins at {offset}")


def derived(bench: Bench, *suffixes: str) -> tuple[str, ...]:
    return tuple(path for path in image(bench.files, DATA) if path.endswith(suffixes))


def served(log: Partition) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Return what a reader of committed records gets, and the ranges [start, end) that it is refused."""
    found: list[bytes] = []
    refused: list[tuple[int, int]] = []
    offset = 0
    while offset < log.last_stable_offset:
        try:
            fetched = log.read(offset, 1 << 20, committed=True)
        except CorruptRange as error:
            refused.append((error.offset, error.resume_offset))
            offset = error.resume_offset
            continue
        for run in committed_runs(fetched.runs, fetched.aborted):
            found += [record.value or b"" for record in run.records() if record.offset >= offset]
        offset = fetched.next_offset
    return found, refused


def write(log: PartitionLog, *, first_committed: bool, second_committed: bool) -> None:
    """Write two transactions of a producer at offsets 1 and 4, with markers at 3 and 5."""
    log.append([(b"k", b"p0")])
    assert say(log, A, 0, b"a1") == 1
    log.append([(b"k", b"p2")])
    assert end(log, A, committed=first_committed) == 3
    assert say(log, A, 1, b"a4") == 4
    assert end(log, A, committed=second_committed) == 5
    log.append([(b"k", b"p6")])
    log.commit()


# --- a sealed segment ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first_committed", [True, False])
def test_a_lost_index_is_not_made_again_from_a_log_whose_marker_is_damaged(first_committed: bool) -> None:
    """What follows the damage is served, and what the marker may have ended is refused."""
    bench = Bench(settings=BIG)
    log = bench.open()
    write(log, first_committed=first_committed, second_committed=not first_committed)
    log.roll()
    bench.close()
    whole = [b"p0", b"a1", b"p2", b"p6"] if first_committed else [b"p0", b"p2", b"a4", b"p6"]
    lost = derived(bench, ".txnindex", "producers.json")
    assert served(bench.left(gone=lost).open()) == (whole, [])
    left = bench.left(damaged(bench, 3), lost)
    expected = ([b"p0", b"p6"] if first_committed else [b"p0", b"a4", b"p6"], [(1, 4)])
    assert served(reader(left)) == expected
    for _ in range(2):
        assert served(left.open()) == expected
        left.close()
    # With the index, the damage is that of the marker alone.
    left = bench.left(damaged(bench, 3))
    assert served(left.open()) == (whole, [(3, 4)])


@pytest.mark.parametrize("offset", [0, 2, 6])
def test_a_lost_index_is_made_again_beside_damage_that_hides_no_marker(offset: int) -> None:
    """The result is compared with what was sealed."""
    bench = Bench(settings=BIG)
    log = bench.open()
    write(log, first_committed=False, second_committed=True)
    log.roll()
    bench.close()
    values = [value for value in (b"p0", b"p2", b"a4", b"p6") if value != b"p%d" % offset]
    lost = derived(bench, ".txnindex", "producers.json")
    left = bench.left(damaged(bench, offset), lost)
    assert served(left.open()) == (values, [(offset, offset + 1)])
    assert derived(left, ".txnindex") == derived(bench, ".txnindex")


# --- the active segment -------------------------------------------------------------------------------


@pytest.mark.parametrize("first_committed", [True, False])
def test_after_a_crash_the_file_says_what_a_damaged_marker_said(first_committed: bool) -> None:
    bench = Bench(settings=BIG)
    log = bench.open()
    write(log, first_committed=first_committed, second_committed=not first_committed)
    left = bench.left(damaged(bench, 3), derived(bench, "producers.json"))
    whole = [b"p0", b"a1", b"p2", b"p6"] if first_committed else [b"p0", b"p2", b"a4", b"p6"]
    assert served(left.open()) == (whole, [(3, 4)])


def test_after_a_crash_a_transaction_that_ended_in_damage_is_not_open_again() -> None:
    """O4: the last stable offset that was shown does not go back."""
    bench = Bench(settings=BIG)
    log = bench.open()
    log.append([(b"k", b"p0")])
    say(log, A, 0, b"a1")
    assert end(log, A, committed=False) == 2
    log.append([(b"k", b"p3")])
    log.commit()
    again = bench.left(damaged(bench, 2), derived(bench, "producers.json")).open()
    assert again.open_transactions() == []
    assert served(again) == ([b"p0", b"p3"], [(2, 3)])


def test_after_a_crash_without_the_file_the_range_is_refused_and_stays_refused() -> None:
    """Through snapshots, restarts and the seal of the segment."""
    bench = Bench(settings=BIG)
    log = bench.open()
    write(log, first_committed=False, second_committed=True)
    left = bench.left(damaged(bench, 3), derived(bench, "producers.json", ".txnindex"))
    expected = ([b"p0", b"a4", b"p6"], [(1, 4)])
    log = left.open()
    assert served(log) == expected
    left.close()
    log = left.open()
    assert served(log) == expected
    assert served(reader(left)) == expected
    say(log, B, 0, b"b7")
    end(log, B, committed=False)
    log.commit()
    log.roll()
    assert served(log) == expected
    left.close()
    assert served(left.open()) == expected


def test_an_open_transaction_that_may_have_ended_in_damage_can_be_aborted() -> None:
    """X4: it holds no reader back for ever; its records before the damage are refused from then on."""
    bench = Bench(settings=BIG)
    log = bench.open()
    assert say(log, B, 0, b"b0") == 0
    assert say(log, A, 0, b"a1") == 1
    log.append([(b"k", b"p2")])
    assert end(log, A, committed=True) == 3
    log.append([(b"k", b"p4")])
    log.commit()
    left = bench.left(damaged(bench, 3), derived(bench, "producers.json", ".txnindex"))
    log = left.open()
    assert [each.producer_id for each in log.open_transactions()] == [B, A]
    log.roll()
    for producer in (A, B):
        end(log, producer, committed=False)
    log.commit()
    # The damaged marker may be that of either.
    expected = ([b"p4"], [(0, 4)])
    assert served(log) == expected
    left.close()
    assert served(left.open()) == expected


def reader(bench: Bench) -> Partition:
    """Return the partition as another process reads it."""
    config = load_broker_config(environment={})[0]
    directory = ReadOnlyDirectory(bench.files, DATA, config, mapped=False)
    return directory.readable("orders", 0, directory.topics["orders"])
