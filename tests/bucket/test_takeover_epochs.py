"""Leader epochs after a takeover: no (offset, leader epoch) has two contents, and clients notice. Rule 8."""

from __future__ import annotations

import pytest
from support.machines import CONFIG, DATA, Machine, contents_agree, frames
from support.shipped import never, new_nonce, restored

import cordwood
from cordwood.broker.leader_epochs import NO_EPOCH
from cordwood.broker.node import Node
from cordwood.bucket import perform, take_over
from cordwood.bucket.stores import MemoryStore
from cordwood.disk import Files, MemoryFiles, read_file
from cordwood.errors import LeaderEpochFenced
from cordwood.storage.backup.create import back_up
from cordwood.storage.backup.restoring import Point, restore_directory
from cordwood.storage.backup.transfer import Transfer
from cordwood.storage.log import PartitionLog, current_epoch, first_epoch, new_state
from cordwood.storage.log.state import EPOCHS_PER_TAKEOVER
from cordwood.verify import verify_directory

SETTINGS = {"segment.bytes": "2000", "index.interval.bytes": "200"}


def owned(settings: dict[str, str] | None = None) -> tuple[MemoryStore, Machine]:
    """Return a bucket with two records of ``t``, and its owner."""
    store = MemoryStore()
    old = Machine(store)
    old.start().topics.create("t", "0" * 31 + "1", 2, SETTINGS if settings is None else settings)
    old.append(b"a", b"b")
    old.ship()
    return store, old


def test_a_client_of_the_old_owner_finds_out_that_its_suffix_is_not_there() -> None:
    """It read up to 4, of which the new owner has 2: its epoch ends at 2, and its requests are fenced."""
    store, old = owned()
    before = Node(old.start(), CONFIG)
    old.append(b"c", b"d")
    (known,) = {epoch for _, epoch, _ in frames(old.log())}
    assert before.epoch_end("t", 0, known, known) == (known, 4)
    new = Machine(store)
    after = Node(new.start(), CONFIG)
    # At once, so that nobody reads on below the first append either.
    (current, _) = after.topics.epochs.find(after.directory.topics["t"])
    assert current > known
    for _ in range(2):
        with pytest.raises(LeaderEpochFenced):
            after.epoch_end("t", 0, known, known)
        with pytest.raises(LeaderEpochFenced):
            after.find_offset("t", 0, 0, known)
        assert after.epoch_end("t", 0, known, current) == (known, 2)
        assert after.epoch_end("t", 0, known, NO_EPOCH) == (known, 2)
        if new.log().log_end_offset == 2:
            assert after.epoch_end("t", 0, current, current) == (current, 2)
            new.append(b"x", b"y", b"z")
    assert after.epoch_end("t", 0, current, current) == (current, 5)
    assert [epoch for _, epoch, _ in frames(new.log())] == [known, known, current, current, current]
    contents_agree(frames(old.log()), frames(new.log()))


def test_the_epoch_that_clients_are_told_is_that_of_the_next_record() -> None:
    store, _ = owned()
    new = Machine(store)
    directory = new.start()
    for partition in (0, 1):
        told = directory.partitions.leader_epoch("t", partition)
        assert directory.partitions.readable("t", partition).leader_epoch == told
        assert directory.partitions.readable("t", partition).epochs[-1].epoch == told
        new.append(b"x", partition=partition)
        assert new.log(partition=partition).leader_epoch == told
        assert frames(new.log(partition=partition))[-1][1] == told


def test_partitions_without_appends_are_not_touched() -> None:
    store, old = owned()
    old.append(b"other", partition=1)
    old.ship()
    new = Machine(store)
    new.start()
    path = f"{DATA}/topics/t/1/partition.json"
    state = read_file(new.files, path)
    new.append(b"x")
    assert read_file(new.files, path) == state == read_file(old.files, path)


def test_a_restart_before_the_first_append_of_a_partition_raises_its_epoch_later() -> None:
    """With the bucket or without it: the number of the takeover is in the directory."""
    store, old = owned()
    known = old.log().leader_epoch
    new = Machine(store)
    told = new.start().partitions.leader_epoch("t", 0)
    for bucket in (True, False):
        assert new.start(bucket=bucket).partitions.leader_epoch("t", 0) == told > known
    new.append(b"x")
    assert new.log().leader_epoch == told
    # The same machine began it already: it goes on with it.
    for bucket in (True, False):
        new.start(bucket=bucket)
        new.append(b"y")
        assert new.log().leader_epoch == told


def test_a_restart_of_the_owner_begins_no_epoch() -> None:
    store, old = owned()
    known = old.log().leader_epoch
    for _ in range(3):
        old.append(b"not shipped")
        old.start()
        old.append(b"c")
        assert old.log().leader_epoch == known
    assert len(frames(old.log())) == 8
    assert len(store.list("")) > 0


def test_two_machines_that_take_over_from_the_same_state_begin_different_epochs() -> None:
    """Each appends what it never ships, and one truncates: the machine after it knows nothing of that."""
    store, old = owned()
    logs = [frames(old.log())]
    for number in range(4):
        new = Machine(store)
        new.start()
        new.append(*(b"%d-%d" % (number, n) for n in range(4)))
        if number % 2:
            logs.append(frames(new.log()))
            new.log().truncate(3)
            new.append(b"%d after the truncation" % number)
        logs.append(frames(new.log()))
    contents_agree(*logs)


def test_a_partition_that_only_the_old_owner_had_begins_another_epoch() -> None:
    store, old = owned()
    old.append(b"not shipped", partition=1)
    new = Machine(store)
    new.start()
    new.append(b"another", partition=1)
    contents_agree(frames(old.log(partition=1)), frames(new.log(partition=1)))
    assert len(frames(new.log(partition=1))) == 1


def test_an_owner_in_between_that_shipped_nothing_counts_too() -> None:
    """Its clients read what it appended. The first machine goes on with its own log and has none of it."""
    store, old = owned()
    old.append(b"of the first")
    between = Machine(store)
    between.start()
    between.append(b"of the second", b"and more")
    seen = frames(between.log())
    old.start()
    old.append(b"again")
    contents_agree(seen, frames(old.log()))
    assert old.log().leader_epoch > between.log().leader_epoch


def test_an_owner_in_between_that_made_no_piece_counts_too() -> None:
    """The directory continues the log, but somebody else may have answered clients meanwhile."""
    store, old = owned()
    known = old.log().leader_epoch
    old.append(b"not shipped")
    perform(store, take_over(new_nonce()), never)
    old.start()
    old.append(b"again")
    assert [epoch == known for _, epoch, _ in frames(old.log())] == [True, True, True, False]


def test_a_truncation_before_the_first_append_begins_a_later_epoch() -> None:
    """Clients know the epoch of the takeover already, which for them ends where the log ended."""
    store, _ = owned()
    new = Machine(store)
    told = new.start().partitions.leader_epoch("t", 0)
    new.log().truncate(1)
    assert new.log().leader_epoch > told
    new.append(b"x")
    assert [offset for offset, _, _ in frames(new.log())] == [0, 1]
    assert frames(new.log())[-1][1] > told


def test_partitions_of_the_shared_log_begin_an_epoch_too() -> None:
    store, old = owned({"cordwood.storage": "shared"})
    known = old.log().leader_epoch
    old.append(b"c", b"d")
    assert old.log().high_watermark == 4
    new = Machine(store)
    node = Node(new.start(), CONFIG)
    current = node.directory.partitions.leader_epoch("t", 0)
    assert current > known
    assert node.epoch_end("t", 0, known, current) == (known, 2)
    new.append(b"x", b"y", b"z")
    assert node.epoch_end("t", 0, known, current) == (known, 2)
    assert node.epoch_end("t", 0, current, current) == (current, 5)
    contents_agree(frames(old.log()), frames(new.log()))


@pytest.mark.parametrize("format_", ["batch", "kimberlite", "rustlog", "laminarmq", "frame"])
def test_every_format_goes_on_after_a_takeover(format_: str) -> None:
    """What was there is read, what is appended too, and recovery after a kill finds both."""
    store, _ = owned({"cordwood.format": format_, "segment.bytes": "2000"})
    expected = [b"a", b"b", *(b"%d" % n * 60 for n in range(60))]
    new = Machine(store)
    new.start()
    new.append(*expected[2:])
    for _ in range(2):
        new.start()
        records = contents(new.files)
        assert records == expected


def contents(files: Files, data: str = DATA) -> list[bytes | None]:
    with cordwood.open(data, files=files, read_only=True) as log:
        return [record.value for record in log.topic("t").read(0)]


@pytest.mark.parametrize("storage", ["own", "shared"])
def test_verify_and_the_chain_accept_what_a_takeover_leaves(storage: str) -> None:
    store, old = owned({"cordwood.storage": storage, "cordwood.chain": "true"})
    assert old.directory is not None
    old.directory.chains.follow_changed()
    old.ship()
    new = Machine(store)
    directory = new.start()
    new.append(b"x", b"y")
    directory.chains.follow_changed()
    new.append(b"z")
    directory.chains.follow_changed()
    directory.close()
    report = verify_directory(new.files, DATA)
    assert report.sound, list(report.findings)


def test_backups_go_on_over_a_takeover_and_are_restored() -> None:
    """The second backup has the appends from before and after; the restored log begins another epoch."""
    store, _ = owned()
    new = Machine(store)
    new.start().close()
    transfer = Transfer(new.files, DATA, "/backup", CONFIG, clock=new.clock, uuid="backup")
    back_up(transfer)
    new.start()
    new.append(*(b"%d" % n * 100 for n in range(30)))
    epoch = new.log().leader_epoch
    back_up(transfer)
    new.append(b"later")
    back_up(transfer)
    restore_directory(Transfer(new.files, "/backup", "/restored", CONFIG, clock=new.clock), Point())
    for data in ("/backup", "/restored"):
        assert contents(new.files, data) == contents(new.files)
        report = verify_directory(new.files, data)
        assert report.sound, list(report.findings)
    with cordwood.open("/restored", files=new.files, clock=new.clock) as log:
        assert log.data_directory.partitions.leader_epoch("t", 0) > epoch


def test_the_newest_takeover_survives_in_the_directory_for_the_next_bucket() -> None:
    """The epochs of another bucket go on above those of this one, and so do the numbers of takeovers."""
    store, old = owned()
    machine = Machine(store)
    for _ in range(3):
        machine.start()
        machine = Machine(store)
    machine.start()
    machine.append(b"x")
    first = machine.log().leader_epoch
    machine.ship()
    machine.kill()
    other = MemoryStore()
    # Only the log moves on: the record of the bucket does not come with a restore.
    moved = Machine(other, restored(store))
    moved.start()
    moved.append(b"y")
    moved.ship()
    later = Machine(other)
    later.start()
    later.append(b"z")
    assert later.log().leader_epoch > first
    assert [epoch for _, epoch, _ in frames(later.log())][-1] == later.log().leader_epoch
    assert old.log().leader_epoch == 0


def test_numbers_of_takeovers_never_leave_what_a_frame_can_hold() -> None:
    state = new_state("t", "id", 0, initial_offset=0, index_interval_bytes=4096)
    for takeover in (1, 2, 1 << 25, 1 << 31, 1 << 62):
        assert state.leader_epoch < current_epoch(state, takeover) < 1 << 31
        assert first_epoch(takeover) == current_epoch(state, takeover)
    assert current_epoch(state, 2) - current_epoch(state, 1) == EPOCHS_PER_TAKEOVER
    assert current_epoch(state, 0) == 0


def test_an_embedded_log_with_a_bucket_raises_epochs_by_itself() -> None:
    store, old = owned()
    old.kill()
    files = MemoryFiles()
    with cordwood.open(DATA, files=files, bucket=store, clock=old.clock) as log:
        log.topic("t").append(b"x", partition=0)
        partition = log.data_directory.partitions.own("t", 0)
        assert isinstance(partition, PartitionLog)
        assert [each.epoch > 0 for each in partition.epochs] == [False, True]
