"""A second machine that follows the log in a bucket with a full local copy, and takes over.

`Standby.run` holds the lock of the local directory. It first makes the directory a copy of the bucket, then
applies every piece to it, and returns when it owns the log: when the owner gave no sign for one and a half
leases. Then `ShippedDirectory` opens the directory, which needs no comparison any more.

A directory that owned the log last is left as it is, with what was not shipped, until another process changes
the log: nobody has anything newer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.bucket.attaching import (
    Attachment,
    BucketRecord,
    CopiedUpTo,
    note_attached,
    note_copied,
    note_nonce,
    read_record,
)
from cordwood.bucket.copying import CopyDisturbed, LocalCopy
from cordwood.bucket.loading import BucketState
from cordwood.bucket.ownership import (
    BucketIdentity,
    FellBehind,
    LogManifest,
    LogPiece,
    ObjectStore,
    Ownership,
    StandbyLease,
    VersionedManifest,
    perform,
    read_identity,
    read_manifest,
)
from cordwood.bucket.patience import PatientStore
from cordwood.bucket.replica import Replica, ignore
from cordwood.bucket.shipping import BACKOFF_MAX_MS, BACKOFF_MS
from cordwood.bucket.state import BodyTable, BucketFiles, ObjectReader
from cordwood.bucket.versions import write_version
from cordwood.disk import Files, Lock, join
from cordwood.errors import BucketRefused, LogClosed, ObjectMissing, OwnerFenced
from cordwood.host import Host, awake_and_asleep_ms
from cordwood.storage.meta import check_regular_directory, identity


class Standing(NamedTuple):
    """The log was taken over, for the directory that `Standby` followed with."""

    owner: Ownership
    state: BucketState
    #: When the takeover began, by `awake_and_asleep_ms`.
    sent_ms: int
    #: Whether the directory is what the bucket says. Otherwise it continues that, and is compared.
    is_copy: bool


@dataclass(frozen=True, slots=True)
class StandbyOptions:
    """How a standby follows."""

    #: The milliseconds between two looks at the bucket, at the most.
    interval_ms: int = 1_000
    #: The lease of the log after a takeover. None keeps what the log has.
    lease_ms: int | None = None
    #: Shown to processes that find the directory locked.
    holder: str = "a standby"


class Standby:
    """Follows the log in *store* with the directory *data*. One thread calls `run`; any may call `stop`."""

    def __init__(
        self,
        store: ObjectStore,
        files: Files,
        data: str,
        host: Host,
        new_nonce: Callable[[], str],
        options: StandbyOptions | None = None,
        warn: Callable[[str], None] = lambda sentence: None,
        on_caught_up: Callable[[int], None] = lambda seq: None,
    ) -> None:
        """*warn* is told what an operator should know, *on_caught_up* the piece that it is at, once."""
        self._refusing = store
        self._store = PatientStore(store, warn)
        self._files = files
        self._data = data
        self._host = host
        self._new_nonce = new_nonce
        self._options = options or StandbyOptions()
        self._warn = warn
        self._on_caught_up = on_caught_up
        self._is_caught_up = False
        self._said: str | None = None
        self._stopped = host.new_event()
        self._replica = Replica(self._store, self.pause)
        self._broker_id = ""
        #: The nonces under which this directory owned the log, if it continues the log; else it is a copy.
        self._own: tuple[str, ...] | None = None
        self._copy = self._new_copy()
        self._lease = StandbyLease((0, 0), 0, 0)

    @property
    def next_seq(self) -> int:
        """The first piece that was not read."""
        return self._replica.reading.next_seq

    def stop(self) -> None:
        """Let `run` return None soon."""
        self._stopped.set()

    def run(self) -> Standing | None:
        """Follow until the log is taken over, or return None after `stop`. The lock is released on return.

        Raises:
            DirectoryLocked: If another process writes the directory.
            BucketRefused: If the bucket cannot be used, or has the log of another broker.
            BucketDamaged: If the state in the bucket cannot be read.
            StorageError: If the directory cannot be read, or is none of ours.
        """
        try:
            known = self._find_log()
            lock = self._lock_directory(known)
            try:
                return self._follow()
            finally:
                lock.release()
        except LogClosed:
            return None

    def pause(self, attempt: int) -> None:
        """Wait before the next try of a request. Raises LogClosed after `stop`."""
        self._wait(min(BACKOFF_MS << min(attempt, 16), BACKOFF_MAX_MS))

    # --- beginning --------------------------------------------------------------------------------

    def _find_log(self) -> BucketIdentity:
        while True:
            # Without patience: what is refused at the start is a mistake in the settings.
            known = perform(self._refusing, read_identity(), self.pause)
            if known is not None:
                return known
            self._say_once("there is no log in the bucket yet: start one server without --standby")
            self._wait(self._options.interval_ms)

    def _lock_directory(self, known: BucketIdentity) -> Lock:
        files, data = self._files, self._data
        check_regular_directory(files, data)
        # Refused before anything is written to it.
        self._check_identity(known)
        files.make_directories(join(data, "meta"))
        lock = files.lock(join(data, "meta", "lock"), self._options.holder)
        try:
            self._check_identity(known)
            self._broker_id = known.broker_id
            self._begin()
        except BaseException:
            lock.release()
            raise
        return lock

    def _check_identity(self, known: BucketIdentity) -> None:
        """Refuse a directory that is of another log, or none of ours."""
        files, data = self._files, self._data
        record = read_record(files, data)
        if record is not None:
            broker_id = record.broker_id
        elif identity.is_first_boot(files, data):
            return
        else:
            broker_id = identity.read_identity(files, data).uuid
        if broker_id != known.broker_id:
            raise BucketRefused(
                f"the bucket has the log of broker {known.broker_id}, {data} is of broker {broker_id}"
            )

    def _begin(self) -> None:
        """Find out what the directory has, and let it be a copy unless it continues the log itself."""
        record = read_record(self._files, self._data)
        if record is None and identity.is_first_boot(self._files, self._data):
            note_copied(self._files, self._data, self._broker_id, CopiedUpTo())
        self._replica.load()
        if record is not None and record.attached:
            self._pass_all()
            if self._replica.is_continued_by(record.nonces):
                self._own = record.nonces
                return
        elif record is not None and self._is_copy(record) and self._go_on(record.copied or CopiedUpTo()):
            return
        self._fetch()

    def _is_copy(self, record: BucketRecord) -> bool:
        """Return whether all that the directory has comes from the bucket."""
        # Who opened it without its bucket may have appended to it.
        written = identity.was_closed_cleanly(self._files, self._data)
        return not record.attached and record.copied is not None and not written

    def _pass_all(self) -> None:
        while True:
            try:
                if not self._replica.look():
                    return
            except FellBehind:
                self._replica.load()

    def _go_on(self, copied: CopiedUpTo) -> bool:
        """Apply what follows *copied*; return False if the directory must be compared with the bucket."""
        replica = self._replica
        if copied.next_seq < replica.reading.next_seq:
            return False
        self._copy = self._new_copy()
        previous = replica.reading.previous

        def apply(piece: LogPiece, table: BodyTable, content_at: int) -> None:
            nonlocal previous
            if piece.header.seq >= copied.next_seq:
                if previous != copied.previous:
                    raise CopyDisturbed
                self._copy.apply(replica.tree, piece, table, content_at)
                previous = copied.previous
            else:
                previous = piece.sha256

        try:
            while replica.look(apply):
                if replica.reading.next_seq > copied.next_seq:
                    self._settle()
        except (CopyDisturbed, FellBehind, ObjectMissing):
            return False
        if replica.reading.next_seq < copied.next_seq or previous != copied.previous:
            return False
        self._copy.redone()
        return True

    def _fetch(self) -> None:
        """Compare the directory with the bucket, and make it a copy. Durable on return."""
        self._own = None
        record = read_record(self._files, self._data)
        is_copy = record is not None and self._is_copy(record)
        note_copied(self._files, self._data, self._broker_id, CopiedUpTo() if is_copy else None)
        identity.mark_unclean(self._files, self._data)
        while True:
            self._replica.load()
            self._pass_all()
            tree = self._replica.tree
            source = BucketFiles(tree, ObjectReader(self._store, self.pause))
            attachment = Attachment(self._files, self._data, tree, source)
            try:
                attachment.fetch_differences(is_copy=is_copy, progress=lambda size: self._wait(0))
            except ObjectMissing:
                # It took so long that the owner deleted what it needed. What is there already is not
                # fetched again.
                continue
            break
        for path in attachment.report.quarantined:
            self._warn(f"the bucket lacks records that this directory had; they are kept in {path}")
        self._copy = self._new_copy()
        self._copy.redone()
        self._settle()

    def _new_copy(self) -> LocalCopy:
        return LocalCopy(self._files, self._data, ObjectReader(self._store, self.pause))

    def _settle(self) -> None:
        """Make the copy durable, and note how far it is."""
        self._copy.sync()
        reading = self._replica.reading
        copied = CopiedUpTo(reading.next_seq, reading.previous)
        note_copied(self._files, self._data, self._broker_id, copied)

    # --- following --------------------------------------------------------------------------------

    def _follow(self) -> Standing | None:
        now_ms = self._now_ms()
        self._lease = StandbyLease(self._position(), now_ms, now_ms)
        while True:
            standing, passed = self._look()
            if standing is not None:
                return standing
            if not passed:
                if not self._is_caught_up:
                    self._is_caught_up = True
                    self._on_caught_up(self.next_seq - 1)
                self._wait(self._interval_ms())

    def _look(self) -> tuple[Standing | None, int]:
        """Look at the bucket once; return the takeover, if it was one, and how many pieces were passed."""
        asked_ms, manifest = self._now_ms(), self._replica.manifest
        lease_ms = manifest.lease_ms
        self._warn_without_lease(manifest)
        is_quiet = lease_ms > 0 and (asked_ms - self._lease.since_ms) * 2 >= lease_ms * 3
        # Read before the look: the claim replaces this one.
        before = perform(self._store, read_manifest(), self.pause) if is_quiet else None
        try:
            passed = self._pass_some()
        except (CopyDisturbed, FellBehind, ObjectMissing) as error:
            self._warn(f"the copy of the bucket is compared with it again: {str(error) or 'it fell behind'}")
            self._fetch()
            passed = 1
        self._lease.look(self._position(), asked_ms, self._now_ms())
        if before is None or passed or before.manifest.revision != self._replica.manifest.revision:
            return None, passed
        if self._replica.floor != before.manifest.floor or not self._lease.has_run_out(lease_ms):
            return None, passed
        sent_ms = self._now_ms()
        try:
            owner, state = self._claim_with(before)
        except (OwnerFenced, FellBehind) as error:
            self._warn(f"this standby was not the first to take over: {str(error) or 'the floor moved'}")
            return None, 1
        return Standing(owner, state, sent_ms, is_copy=self._own is None), passed

    def _pass_some(self) -> int:
        replica = self._replica
        if self._own is None:
            passed = replica.look(self._apply)
            if passed:
                self._settle()
            return passed
        passed = replica.look(ignore)
        if not replica.is_continued_by(self._own):
            # Another process took over and changed the log, so the bucket is right.
            self._fetch()
        return passed

    def _apply(self, piece: LogPiece, table: BodyTable, content_at: int) -> None:
        self._copy.apply(self._replica.tree, piece, table, content_at)

    def _claim_with(self, before: VersionedManifest) -> tuple[Ownership, BucketState]:
        files, data = self._files, self._data
        nonce = self._new_nonce()
        note_nonce(files, data, self._broker_id, nonce, attached=False)
        on_piece = ignore if self._own is not None else self._apply
        taken = self._replica.claim(nonce, self._options.lease_ms, before, on_piece)
        if self._own is None:
            self._copy.sync()
            write_version(files, data, self._replica.tree.at_ms)
            note_attached(files, data, taken[0].epoch)
        return taken

    # --- waiting ----------------------------------------------------------------------------------

    def _position(self) -> tuple[int, int]:
        return self._replica.reading.next_seq, self._replica.manifest.revision

    def _interval_ms(self) -> int:
        interval_ms, lease_ms = self._options.interval_ms, self._replica.manifest.lease_ms
        return min(interval_ms, max(lease_ms // 8, 1)) if lease_ms else interval_ms

    def _warn_without_lease(self, manifest: LogManifest) -> None:
        if manifest.lease_ms == 0:
            self._say_once(
                "the owner of the log has no lease, so this standby follows and never takes over by itself: "
                "set cordwood.bucket.lease.ms of the owner"
            )

    def _say_once(self, sentence: str) -> None:
        if self._said != sentence:
            self._said = sentence
            self._warn(sentence)

    def _wait(self, milliseconds: int) -> None:
        if self._stopped.wait(milliseconds / 1000):
            raise LogClosed("the standby was stopped")

    def _now_ms(self) -> int:
        return awake_and_asleep_ms(self._host.clock)
