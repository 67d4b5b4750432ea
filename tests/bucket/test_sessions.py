"""Sessions of ship, condense, restart and takeover, while requests of the store fail and machines crash."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from support.bucket_faults import FaultyStore, PlannedFault, StoreFault
from support.crashes import CrashCount, crash_images
from support.disks import RecordingFiles, image
from support.logs import disk_of
from support.machines import DATA, Machine, check_objects, values
from support.shipped import read_bucket
from support.sweeps import FULL, every

from cordwood.bucket import ObjectStore
from cordwood.bucket.attaching import is_ignored, note_fetching, read_record
from cordwood.bucket.stores import MemoryStore
from cordwood.disk import File, Files, MemoryFiles, join, read_file, write_all
from cordwood.errors import BucketRefused, DirectoryRefused, OwnerFenced, StoreUnavailable

SETTINGS = {"segment.bytes": "3000", "index.interval.bytes": "200"}
#: How many other requests pass before one that happens later does; None is at the very end.
PASSING = [0, 1, 5, None]
QUARANTINE = f"{DATA}/quarantine"


def create(machine: Machine, *, bucket: bool = True) -> None:
    machine.start(bucket=bucket).topics.create("t", "0" * 31 + "1", 1, SETTINGS)


def a_life(store: ObjectStore) -> tuple[Machine, list[bytes]]:
    """Ship, condense, restart and take over; return the last owner, and every record that was shipped."""
    numbers = itertools.count()
    shipped: list[bytes] = []

    def append(machine: Machine, size: int = 10) -> None:
        value = b"%d." % next(numbers) + b"v" * size
        machine.append(value)
        shipped.append(value)

    first = Machine(store)
    create(first)
    append(first)
    first.ship()
    append(first, 70_000)
    append(first)
    first.ship()
    first.condense()
    for _ in range(3):
        append(first, 900)
    # Not shipped before the end of the process, but in its directory.
    first.start()
    append(first)
    first.ship()
    second = Machine(store)
    second.start()
    append(second)
    second.ship()
    second.condense()
    append(second, 2_000)
    second.ship()
    first.append(b"of an owner that is none any more")
    with pytest.raises(OwnerFenced):
        first.ship()
    return second, shipped


def test_whatever_fails_in_the_store_no_shipped_record_is_lost() -> None:
    """Each request in turn does not happen, loses its answer, happens later or twice."""
    counting = FaultyStore(MemoryStore())
    last, shipped = a_life(counting)
    assert values(last.files) == shipped
    total, runs, objects = len(counting.journal), 0, 0
    for number in range(1, total + 1, every(4)):
        for fault in StoreFault:
            for passing in PASSING if fault is StoreFault.LATER else [None]:
                if not FULL and fault is StoreFault.LATER and (number // 4) % 4 != PASSING.index(passing):
                    continue
                faulty = FaultyStore(MemoryStore(), {number: PlannedFault(fault, passing)})
                place = f"request {number} of {total} {fault.value}, passing {passing}"
                try:
                    last, shipped = a_life(faulty)
                    assert values(last.files) == shipped
                    objects += check_after(faulty, shipped)
                except Exception as error:
                    raise AssertionError(f"{place}: {type(error).__name__}: {error}") from error
                runs += 1
    print(f"{runs} runs with a fault in one of {total} requests; {objects} objects were left, all needed")
    assert runs >= 80


def check_after(faulty: FaultyStore, shipped: list[bytes]) -> int:
    """Check that others find all records, also when everything has happened that was to happen later."""
    for _ in range(2):
        later = Machine(faulty.store)
        later.start()
        assert values(later.files) == shipped
        faulty.release()
    later.condense()
    after = Machine(faulty.store)
    after.start()
    assert values(after.files) == shipped
    after.condense()
    return check_objects(faulty.store)


class RememberedStore(MemoryStore):
    """A store that remembers what it had after each change, and how many operations the disk had seen."""

    def __init__(self, recording: RecordingFiles) -> None:
        super().__init__()
        self._recording = recording
        self.states: list[tuple[int, MemoryStore]] = []

    def _remember(self) -> None:
        self.states.append((len(self._recording.history), copied(self)))

    def create(self, key: str, data: bytes) -> str:
        version = super().create(key, data)
        self._remember()
        return version

    def replace(self, key: str, data: bytes, version: str) -> str:
        version = super().replace(key, data, version)
        self._remember()
        return version

    def delete(self, key: str) -> None:
        super().delete(key)
        self._remember()


def copied(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    copy._objects, copy._versions = dict(store._objects), store._versions
    return copy


def disk_before(kind: str, store: MemoryStore) -> MemoryFiles:
    """Return the disk of a machine that takes over, and ship more than it has."""
    owner = Machine(store)
    create(owner, bucket=kind != "never shipped")
    for number in range(12):
        owner.append(b"%d" % number * 300)
    if kind == "never shipped":
        owner.kill()
        return disk_of(image(owner.files, "/"))
    owner.ship()
    # What was there before, with a suffix that was never shipped.
    owner.append(b"not shipped", b"not shipped either")
    disk = MemoryFiles() if kind == "empty" else disk_of(image(owner.files, "/"))
    owner = Machine(store)
    owner.start()
    for number in range(12, 20):
        owner.append(b"%d" % number * 300)
    owner.ship()
    owner.condense()
    owner.append(b"the last one that counts")
    owner.ship()
    owner.kill()
    return disk


@pytest.mark.parametrize("kind", ["empty", "of an earlier owner", "never shipped"])
def test_a_machine_that_crashes_while_it_fetches_the_log_begins_again(kind: str) -> None:
    """What it has until then is never taken for the log; what it acknowledges afterwards is kept."""
    before = MemoryStore()
    disk = disk_before(kind, before)
    expected = values(disk if kind == "never shipped" else files_of_another(before))
    recording = RecordingFiles(disk, existing="/")
    recording.began = len(recording.history)
    store = RememberedStore(recording)
    store._objects, store._versions = dict(before._objects), before._versions
    store.states.append((0, copied(store)))
    machine = Machine(store, recording)
    machine.start()
    machine.append(b"x")
    recording.acknowledge(b"x")
    machine.append(b"y" * 4_000)
    recording.acknowledge(b"y" * 4_000)
    machine.ship()
    count, checked = CrashCount(), 0
    images = crash_images(recording, limit_per_prefix=None if FULL else 1, count=count)
    for number, crashed in enumerate(images):
        if crashed.prefix < recording.began or number % every(2):
            continue
        # A request that was made after the last operation on the disk has happened, or not.
        known = [state for length, state in store.states if length < crashed.prefix + number % 2]
        there = copied(known[-1])
        place = f"after {crashed.prefix} operations, {crashed.kind}"
        try:
            again = Machine(there, crashed.files)
            again.start()
            found = values(again.files)
            promised = [*expected, *crashed.acknowledged]
            assert found[: len(promised)] == promised
            assert found in ([*expected], [*expected, b"x"], [*expected, b"x", b"y" * 4_000])
            other = Machine(there)
            other.start()
            assert values(other.files) == found
        except Exception as error:
            raise AssertionError(f"{place}: {type(error).__name__}: {error}") from error
        checked += 1
    print(f"{checked} crashes")
    assert checked >= 20


def files_of_another(store: MemoryStore) -> Files:
    """Return the disk of a machine that takes the log over from a copy of *store*."""
    machine = Machine(copied(store))
    machine.start()
    return machine.files


@pytest.mark.parametrize("opened", ["as it was", "appended to without the bucket", "appended to for long"])
@pytest.mark.parametrize("since", ["appends", "rolls", "a topic", "a restart", "pages"])
def test_an_older_copy_of_the_directory_does_not_roll_the_bucket_back(since: str, opened: str) -> None:
    """For example the snapshot of a virtual machine, which knows the owner of the newest pieces."""
    store = MemoryStore()
    owner = Machine(store)
    create(owner)
    owner.append(b"a", b"b")
    owner.ship()
    older = disk_of(image(owner.files, "/"))
    match since:
        case "appends":
            owner.append(b"c")
        case "rolls":
            for number in range(5):
                owner.append(b"%d" % number * 2_000)
        case "a topic":
            assert owner.directory is not None
            owner.directory.topics.create("u", "0" * 31 + "2", 1, SETTINGS)
            owner.append(b"of u", topic="u")
        case "a restart":
            owner.start()
            owner.append(b"c")
        case "pages":
            owner.append(b"c")
            owner.ship()
            owner.condense()
    owner.ship()
    expected = values(owner.files)
    copy = Machine(store, older)
    if opened != "as it was":
        copy.start(bucket=False)
        for number in range(30 if opened == "appended to for long" else 1):
            copy.append(b"of the copy %d" % number * 30)
    copy.start()
    assert values(copy.files) == expected
    third = Machine(store)
    third.start()
    assert values(third.files) == expected
    if since == "a topic":
        assert values(third.files, "u") == [b"of u"]
    kept = older.exists(QUARANTINE) and older.list(QUARANTINE)
    assert bool(kept) == (opened != "as it was"), "what only the copy had is not in its quarantine"
    # Clients of the copy are told that its epoch is over.
    assert copy.log().leader_epoch > 0


def test_the_log_of_another_broker_is_refused_and_nothing_changes() -> None:
    store = MemoryStore()
    owner = Machine(store)
    create(owner)
    owner.append(b"a")
    owner.ship()
    other = Machine(MemoryStore(), uuid="another")
    create(other)
    other.append(b"b")
    other.ship()
    for shipped in (False, True):
        stranger = Machine(store, disk_of(image(other.files, "/")), uuid="another")
        if not shipped:
            stranger.files.unlink(f"{DATA}/meta/bucket.json")
        disk, objects = image(stranger.files, "/"), dict(store._objects)
        with pytest.raises(BucketRefused, match="another"):
            stranger.start()
        # The lock says who held it.
        lock = {f"{DATA}/meta/lock": b""}
        assert {**image(stranger.files, "/"), **lock} == {**disk, **lock}
        assert store._objects == objects
    owner.append(b"c")
    owner.ship()


def test_what_is_of_one_machine_is_never_shipped() -> None:
    """Keys, locks, markers, the reserve, temporary files, the quarantine, and the record of the bucket."""
    store = MemoryStore()
    machine = Machine(store)
    create(machine)
    secrets = {
        "meta/keys/checkpoint.key": b"a private key",
        "meta/keys/checkpoint.key.tmp": b"half of one",
        "tmp/0.spool": b"a stream",
        "tmp/sinks": b"not the sink's",
        "quarantine/torn": b"a torn tail",
    }
    assert machine.session is not None
    for files in (machine.files, machine.session.files):
        for path, data in secrets.items():
            place = join(DATA, path)
            files.make_directories(place.rpartition("/")[0])
            if not files.exists(place):
                put(files, place, data)
        machine.append(b"x")
        machine.ship()
    put(machine.session.files, f"{DATA}/meta/keys/checkpoint.pub", b"the public key")
    staged = f"{DATA}/tmp/sink/query/0"
    machine.session.files.make_directories(staged)
    put(machine.session.files, f"{staged}/1.share", b"staged")
    machine.ship()
    paths = {path for path, _ in read_bucket(store).files()}
    assert {"meta/keys/checkpoint.pub", "tmp/sink/query/0/1.share", "meta/broker.id"} <= paths
    names = {
        "lock",
        "clean",
        "reserve",
        "bucket.json",
        "shipped",
        "checkpoint.key",
        "0.spool",
        "torn",
        "sinks",
    }
    assert not {path for path in paths if path.rpartition("/")[2] in names}
    assert not any(is_ignored(path) for path in paths)
    everything = b"".join(stored.data for stored in store._objects.values())
    assert not any(secret in everything for secret in secrets.values())


def put(files: Files, path: str, data: bytes) -> None:
    file: File = files.open(path, "create")
    write_all(file, 0, data)
    file.sync()
    file.close()


def test_any_number_of_starts_may_fail_before_one_succeeds() -> None:
    """The directory is the owner's all the same: what it did not ship yet is shipped, not put aside."""
    refused = FaultyStore(MemoryStore())
    machine = Machine(refused)
    create(machine)
    machine.append(b"a")
    machine.ship()
    machine.append(b"not shipped yet")
    epoch = machine.log().leader_epoch

    def refuse(number: int, request: object) -> None:
        if type(request).__name__ == "Replace":
            raise StoreUnavailable("no permission to write")

    for _ in range(150):
        machine.kill()
        refused.before = refuse
        with pytest.raises(StoreUnavailable):
            machine.start(patient=False)
    refused.before = None
    machine.start()
    assert values(machine.files) == [b"a", b"not shipped yet"]
    assert machine.log().leader_epoch == epoch
    record = read_record(machine.files, DATA)
    assert record is not None
    assert len(record.nonces) == 1


def test_what_an_owner_created_for_nothing_is_deleted_by_the_next_one() -> None:
    """It ends within any request of writing pages, and the next owner with any other state of the bucket."""
    created = 0
    for number in itertools.count(1):
        store = FaultyStore(MemoryStore())
        create(owner := Machine(store))
        owner.append(b"a" * 5_000)
        owner.ship()
        assert owner.session is not None
        owner.session.shipper.give_up_after(-1)
        begun = len(store.journal)
        store.plan = dict.fromkeys(range(begun + number, begun + 1_000), PlannedFault(StoreFault.BEFORE))
        ended = False
        with contextlib.suppress(StoreUnavailable):
            owner.condense()
            ended = True
        store.plan = {}
        new = Machine(store)
        new.start()
        assert values(new.files) == [b"a" * 5_000]
        created += len(store.store.list("b/"))
        new.condense()
        new.condense()
        check_objects(store)
        if ended:
            break
    print(f"ended within {number} requests")
    assert number >= 5
    assert created >= 4


def test_a_directory_is_not_attached_while_files_are_fetched() -> None:
    """Also one that was attached before: it has the nonce of an owner by then, which must not be enough."""
    store = FaultyStore(MemoryStore())
    create(first := Machine(store))
    first.append(b"a")
    first.ship()
    second = Machine(store)
    second.start()
    second.append(*(b"%d" % number * 900 for number in range(9)))
    second.ship()
    second.condense()

    def refuse(number: int, request: object) -> None:
        if type(request).__name__ == "GetRange":
            raise StoreUnavailable("the answer is lost")

    store.before = refuse
    with pytest.raises(StoreUnavailable):
        first.start(patient=False)
    record = read_record(first.files, DATA)
    assert record is not None
    assert not record.attached
    store.before = None
    first.start()
    assert values(first.files) == values(second.files)


def test_a_directory_that_was_fetched_in_part_is_not_opened_without_its_bucket() -> None:
    """Its topics may lack segments, or be missing."""
    store = MemoryStore()
    create(owner := Machine(store))
    owner.append(b"a")
    owner.ship()
    new = Machine(store)
    new.start()
    new.kill()
    note_fetching(new.files, DATA)
    with pytest.raises(DirectoryRefused, match="open it with the bucket"):
        new.start(bucket=False)
    new.start()
    assert values(new.files) == [b"a"]


def test_an_existing_directory_is_kept_however_often_its_first_shipping_fails() -> None:
    """Nothing in the bucket is no reason to take the directory for an older one, whoever claimed the log."""
    machine = Machine(FaultyStore(MemoryStore()))
    create(machine, bucket=False)
    machine.append(b"a" * 5_000, b"b")
    for first in range(1, 40):
        for second in (3, 8, 12):
            store = FaultyStore(MemoryStore())
            again = Machine(store, disk_of(image(machine.files, "/")))
            for number in (first, second):
                store.plan = dict.fromkeys(
                    range(len(store.journal) + number, 1_000), PlannedFault(StoreFault.BEFORE)
                )
                with contextlib.suppress(StoreUnavailable):
                    again.start(patient=False)
            store.plan = {}
            again.start()
            assert values(again.files) == [b"a" * 5_000, b"b"]
            assert not again.files.exists(QUARANTINE)


def test_the_record_of_the_owners_before_is_as_small_as_it_can_be() -> None:
    store = MemoryStore()
    machine = Machine(store)
    create(machine)
    for _ in range(5):
        machine.start()
        record = read_record(machine.files, DATA)
        assert record is not None
        assert (len(record.nonces), record.attached, record.takeover) == (1, True, 0)
    assert read_file(machine.files, f"{DATA}/meta/shipped")
