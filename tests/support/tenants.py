"""Topics of several tenants in the shared log: what each was promised, and whether what is left keeps it.

Every value says whose it is: topic, which one of that name, and number. So nothing of one tenant, and nothing
of a deleted topic, can show in another without being seen. Used where disks fail and where the power does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files, read_file
from cordwood.errors import CordwoodError, CorruptRange, OutOfSequence
from cordwood.storage.directory.data_directory import DataDirectory
from cordwood.storage.log.reading import REINDEX_WINDOW_BYTES, Window, walk
from cordwood.storage.meta.catalogue import SHARED_TOPIC
from cordwood.storage.readonly import ReadOnlyDirectory
from cordwood.storage.shared.owner_index import entries_of, index_path
from cordwood.storage.shared.virtual_log import VirtualLog
from support.clocks import ManualClock
from support.producing import Sent, send
from support.shared import DATA, SHARED, SMALL, Held, contents, held, open_data, physical, virtual
from support.transactions import committed_values, end_transaction, every_value, send_in_transaction


class Creating(NamedTuple):
    """From here on there may be the *life*-th topic of this name."""

    name: str
    life: int


class Created(NamedTuple):
    """That topic exists."""

    name: str
    life: int


class Deleting(NamedTuple):
    """From here on there may be no topic of this name."""

    name: str


class Deleted(NamedTuple):
    """There is none, nor ever again the one that there was."""

    name: str


class Writing(NamedTuple):
    """These records may be there from here on, by a producer if there is a batch of one."""

    name: str
    life: int
    base: int
    values: tuple[bytes, ...]
    sent: Sent | None = None


class Stored(NamedTuple):
    """They were acknowledged as durable at this offset."""

    name: str
    life: int
    base: int
    values: tuple[bytes, ...]
    sent: Sent | None = None


class InTransaction(NamedTuple):
    """These records are part of the open transaction of this number, which begins at the first offset."""

    name: str
    life: int
    number: int
    base: int
    values: tuple[bytes, ...]


class Ending(NamedTuple):
    """From here on the transaction may have ended so."""

    name: str
    life: int
    number: int
    committed: bool


class Ended(NamedTuple):
    """Its end was acknowledged as durable."""

    name: str
    life: int
    number: int
    committed: bool


class MovingStart(NamedTuple):
    """From here on records below the offset may be gone."""

    name: str
    life: int
    offset: int


class MovedStart(NamedTuple):
    """Records below the offset are not served any more."""

    name: str
    life: int
    offset: int


class Tenants:
    """Topics in the shared log of a disk; *say* hears of each promise as it is made."""

    def __init__(
        self,
        files: Files,
        say: Callable[[object], None],
        clock: ManualClock | None = None,
        broker: dict[str, str] | None = None,
    ) -> None:
        self.files = files
        self.say = say
        self.clock = clock or ManualClock()
        self.broker = {**SMALL, **(broker or {})}
        self.lives: dict[str, int] = {}
        self.written = 0
        self.sequences: dict[tuple[str, int], int] = {}
        self.transactions: dict[tuple[str, int], int] = {}
        self.begun = 0
        self.open()

    def open(self) -> None:
        """Open the directory."""
        self.data = open_data(self.files, self.clock, self.broker)

    def log(self, name: str) -> VirtualLog:
        """Return the partition of a topic."""
        return virtual(self.data, name)

    def create(self, *names: str) -> None:
        """Create topics, the next ones of their names."""
        for name in names:
            life = self.lives[name] = self.lives.get(name, 0) + 1
            self.say(Creating(name, life))
            self.data.topics.create(name, f"id-{name}-{life}", 1, dict(SHARED))
            self.say(Created(name, life))

    def delete(self, name: str) -> None:
        """Delete a topic."""
        self.say(Deleting(name))
        self.data.topics.delete(name)
        self.say(Deleted(name))
        self.sequences = {key: at for key, at in self.sequences.items() if key[0] != name}
        self.transactions = {key: at for key, at in self.transactions.items() if key[0] != name}

    def values(self, name: str, count: int, size: int) -> tuple[bytes, ...]:
        """Return values that say whose they are, all of one length: frames may take each other's place."""
        self.written += count
        numbers = range(self.written - count, self.written)
        whose = (b"%s#%d:%d " % (name.encode(), self.lives[name], number) for number in numbers)
        return tuple(value.ljust(20, b".") + b"." * size for value in whose)

    def write(self, name: str, count: int = 1, size: int = 10) -> Stored:
        """Append a batch, not durable yet; return what may be said once it is."""
        log, values = self.log(name), self.values(name, count, size)
        stored = Stored(name, self.lives[name], log.log_end_offset, values)
        self.say(Writing(*stored))
        log.append([(None, value) for value in values])
        return stored

    def append(self, name: str, count: int = 1, size: int = 10) -> None:
        """Append a batch, durable on return."""
        stored = self.write(name, count, size)
        self.log(name).commit(stored.base + count)
        self.say(stored)

    def produce(self, name: str, producer: int = 9, count: int = 1, size: int = 10) -> Stored:
        """Have an idempotent producer send a batch, twice, and be answered."""
        sequence = self.sequences.get((name, producer), 0)
        sent = Sent(producer, 0, sequence, self.values(name, count, size))
        log = self.log(name)
        stored = Stored(name, self.lives[name], log.log_end_offset, sent.values, sent)
        self.say(Writing(*stored))
        self.sequences[name, producer] = sent.next_sequence
        for _ in range(2):
            base, next_offset = send(log, sent)
            assert base == stored.base, "O6: a retry was stored again"
        log.commit(next_offset)
        self.say(stored)
        return stored

    def transact(self, name: str, producer: int, count: int = 1, size: int = 10) -> None:
        """Append a batch of a producer's transaction, begun if none is open. Durable on return."""
        if (name, producer) not in self.transactions:
            self.begun += 1
            self.transactions[name, producer] = self.begun
        sequence = self.sequences.get((name, producer), 0)
        sent = Sent(producer, 0, sequence, self.values(name, count, size))
        self.sequences[name, producer] = sent.next_sequence
        log, number = self.log(name), self.transactions[name, producer]
        stored = Stored(name, self.lives[name], log.log_end_offset, sent.values)
        self.say(Writing(*stored))
        self.say(InTransaction(name, stored.life, number, stored.base, sent.values))
        log.commit(send_in_transaction(log, sent).next_offset)
        self.say(stored)

    def end(self, name: str, producer: int, *, committed: bool, durable: bool = True) -> None:
        """Append the marker of a producer's transaction."""
        said = Ending(name, self.lives[name], self.transactions.pop((name, producer)), committed)
        self.say(said)
        appended = end_transaction(self.log(name), producer, committed=committed)
        if durable:
            self.log(name).commit(appended.next_offset)
            self.say(Ended(*said))

    def advance(self, name: str, offset: int) -> None:
        """Move the start of a topic."""
        said = MovingStart(name, self.lives[name], offset)
        self.say(said)
        self.log(name).advance_log_start(offset)
        self.say(MovedStart(*said))

    def roll(self) -> None:
        """Seal the segment that takes appends."""
        physical(self.data).roll()

    def maintain(self) -> None:
        """Do a pass of upkeep, which must not change anything that can be read."""
        before = contents(self.data)
        report = self.data.maintenance.maintain_all()
        if report.failures:
            raise CordwoodError(str(report.failures))
        assert contents(self.data) == before, "C3: reclaiming changed what can be read"

    def close(self) -> None:
        """Close the directory."""
        self.data.close()

    def kill(self) -> None:
        """End the process as kill -9 does, its unsynced bytes still in the cache, and open again."""
        self.data.abandon()
        self.open()


@dataclass
class Transaction:
    """One transaction: the offset of each of its values, and whether it may be open, committed or aborted."""

    offsets: dict[bytes, int] = field(default_factory=dict)
    may_be: set[bool | None] = field(default_factory=lambda: {None})


@dataclass
class Life:
    """What one topic of a name was promised."""

    certain: dict[int, bytes] = field(default_factory=dict)
    possible: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    start_low: int = 0
    start_high: int = 0
    #: What producers sent, in order, and where they were told that it is.
    sent: dict[Sent, None] = field(default_factory=dict)
    answered: dict[Sent, int] = field(default_factory=dict)
    transactions: dict[int, Transaction] = field(default_factory=lambda: defaultdict(Transaction))


@dataclass
class Promise:
    """What must, and what may, be there."""

    may_be: dict[str, set[int | None]] = field(default_factory=lambda: defaultdict(lambda: {None}))
    lives: dict[tuple[str, int], Life] = field(default_factory=lambda: defaultdict(Life))

    @classmethod
    def of(cls, said: tuple[object, ...] | list[object]) -> Promise:
        """Add up what was said."""
        promise = cls()
        for what in said:
            promise.add(what)
        return promise

    def add(self, what: object) -> None:
        """Take one more promise into account."""
        match what:
            case Creating(name, life):
                self.may_be[name].add(life)
            case Created(name, life):
                self.may_be[name] = {life}
            case Deleting(name):
                self.may_be[name].add(None)
            case Deleted(name):
                self.may_be[name] = {None}
            case Writing(name, life, base, values, sent):
                mine = self.lives[name, life]
                for at, value in enumerate(values, base):
                    mine.possible[at].add(value)
                if sent is not None:
                    mine.sent[sent] = None
            case Stored(name, life, base, values, sent):
                mine = self.lives[name, life]
                mine.certain |= dict(enumerate(values, base))
                if sent is not None:
                    mine.answered[sent] = base
            case InTransaction(name, life, number, base, values):
                mine = self.lives[name, life]
                mine.transactions[number].offsets |= {value: base + at for at, value in enumerate(values)}
            case Ending(name, life, number, committed):
                self.lives[name, life].transactions[number].may_be.add(committed)
            case Ended(name, life, number, committed):
                self.lives[name, life].transactions[number].may_be = {committed}
            case MovingStart(name, life, offset):
                mine = self.lives[name, life]
                mine.start_high = max(mine.start_high, offset)
            case MovedStart(name, life, offset):
                self.lives[name, life].start_low = offset


def check_tenants(
    files: Files, promise: Promise, broker: dict[str, str] | None = None, *, upkeep: bool = True
) -> None:
    """Open what is left, hold it to *promise*, use it, and open it again; errors begin with the invariant.

    With *upkeep* that goes on there too, and all is looked at once more after a clean end.
    """
    settings = {**SMALL, **(broker or {})}
    data = open_data(files, ManualClock(), settings)
    before = check_contents(data, promise)
    check_whole_index(data)
    # R3: what is appended now is there next time, with everything from before; and offsets go on (O1).
    for name in promise.may_be:
        if name not in data.topics:
            data.topics.create(name, f"id-{name}-99", 1, dict(SHARED))
            assert held(virtual(data, name)) == (0, 0, 0, ()), "R2: a new topic has records of another one"
        log = virtual(data, name)
        end = log.log_end_offset
        appended = log.append([(None, b"after the cut")])
        assert appended.base_offset == end, (
            f"O1: the next offset of {name} is {appended.base_offset}, not {end}"
        )
        log.commit()
    check_producers(data, promise)
    used = contents(data)
    for key, was in before.items():
        now = used[key]
        kept = now.records[: len(was.records)]
        assert (now.start, kept) == (was.start, was.records), "O3: appending changed what was there"
    data.abandon()
    data = open_data(files, ManualClock(), settings)
    assert contents(data) == used, "R3: recovering again changed the log"
    if not upkeep:
        return
    # It goes on from here, and changes nothing that can be read.
    if SHARED_TOPIC in data.topics:
        physical(data).roll()
    report = data.maintenance.maintain_all()
    assert report.failures == (), f"R3: {report.failures}"
    assert contents(data) == used, "C3: reclaiming changed what can be read"
    data.close()
    data = open_data(files, ManualClock(), settings)
    assert contents(data) == used, "R3: closing changed the log"
    check_whole_index(data)
    data.close()


def check_contents(data: DataDirectory, promise: Promise) -> dict[tuple[str, int], Held]:
    """Hold what can be read to the promise, and return it."""
    try:
        found = contents(data)
    except CorruptRange as error:
        raise AssertionError(f"R2: what no crash can damage is called corrupt: {error}") from error
    for name, may_be in promise.may_be.items():
        entry = data.topics.get(name)
        life = None if entry is None else int(entry.id.rpartition("-")[2])
        assert life in may_be, f"D1: of {name} there is {life}, and may be {may_be}"
        if life is not None:
            check_life(name, life, found[name, 0], promise.lives[name, life])
            check_transactions(data, name, promise.lives[name, life])
    return found


def check_transactions(data: DataDirectory, name: str, promise: Life) -> None:
    """Hold the transactions of one topic to what it was promised (X1, X2), also beside the writer."""
    log = virtual(data, name)
    start, stable, end = log.log_start_offset, log.last_stable_offset, log.high_watermark
    known = {each.first_offset for each in log.open_transactions()}
    assert stable == max(start, min([end, *known])), f"X1: {name} is stable up to {stable}, open are {known}"
    shown = committed_values(log)
    if promise.transactions:
        config = load_broker_config(environment={}, overrides=dict(SMALL))[0]
        beside = ReadOnlyDirectory(data.files, DATA, config, mapped=False)
        seen = committed_values(beside.readable(name, 0, beside.topics[name]))
        assert seen == shown, f"X1: a reader beside the writer of {name} sees {seen}, not {shown}"
    for number, transaction in promise.transactions.items():
        may_be, offsets = transaction.may_be, transaction.offsets
        first = min(offsets.values())
        # Another cut may have taken records that were not acknowledged, and others have their offsets.
        readable = offsets.keys() & set(every_value(log))
        here = {value for value in readable if offsets[value] < stable}
        found = here & set(shown)
        what = f"transaction {number} of {name}, which may be {may_be}"
        assert True in may_be or not found, f"X1: records of {what} are shown"
        assert not found or found == readable, f"X1: half of {what} is shown"
        assert may_be != {True} or found == here, f"X2: records of {what} are missing"
        if may_be == {None} and readable:
            assert first in known, f"X2: {what} is not open"
        if None not in may_be:
            assert first not in known, f"X2: {what} is open"


def check_life(name: str, life: int, found: Held, promise: Life) -> None:
    """Hold one topic to what it was promised."""
    whose = b"%s#%d:" % (name.encode(), life)
    records = {record.offset: record.value or b"" for record in found.records}
    strangers = [value for value in records.values() if not value.startswith(whose)]
    assert not strangers, f"T1: {name} of life {life} shows {strangers[:3]}"
    allowed = range(promise.start_low, max(promise.start_low, promise.start_high) + 1)
    assert found.start in allowed, f"O4: {name} starts at {found.start}, not in {allowed}"
    for offset, value in promise.certain.items():
        assert offset < found.start or offset in records, (
            f"D1: acknowledged record {offset} of {name} is gone"
        )
        assert offset < found.start or records[offset] == value, f"O3: offset {offset} of {name} has changed"
    for offset, value in records.items():
        assert value in promise.possible.get(offset, ()), f"R2: offset {offset} of {name} was never appended"


def check_producers(data: DataDirectory, promise: Promise) -> None:
    """Have every producer send its last answered batch, and what it does not know of, again (O6)."""
    for name, may_be in promise.may_be.items():
        entry = data.topics[name]
        life = int(entry.id.rpartition("-")[2])
        if life not in may_be:
            continue
        mine, log = promise.lives[name, life], virtual(data, name)
        for producer in dict.fromkeys(sent.producer for sent in mine.sent):
            batches = [sent for sent in mine.sent if sent.producer == producer]
            answered = [sent for sent in batches if sent in mine.answered]
            for sent in [*answered[-1:], *(sent for sent in batches if sent not in mine.answered)]:
                try:
                    base, _ = send(log, sent)
                except OutOfSequence as error:
                    raise AssertionError(f"O6: {sent} is stored or next, but refused: {error}") from error
                told = mine.answered.get(sent, base)
                assert base == told, f"O6: {sent} of {name} is at {base}, not at {told} as was said"
        log.commit()
        values = [record.value for record in held(log).records]
        for sent in mine.sent:
            for value in sent.values:
                assert values.count(value) <= 1, f"O6: {value!r} is stored {values.count(value)} times"


def check_whole_index(data: DataDirectory) -> None:
    """R5: what the index files of sealed segments say is what the log says, byte for byte."""
    if SHARED_TOPIC not in data.topics:
        return
    log = data.partitions.shared.log().log
    view = log.view
    for at, segment in enumerate(view.segments[:-1]):
        saved = read_file(data.files, index_path(log.directory, segment.base))
        made = b""
        for found in walk(segment, view.bounds(at), (segment.base, 0), REINDEX_WINDOW_BYTES, None):
            assert isinstance(found, Window), f"R2: segment {segment.base} is damaged"
            made += b"".join(entries_of(found, segment.base))
        assert saved == made, f"R5: the index of segment {segment.base} is not what its log says"
