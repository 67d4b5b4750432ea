"""Ship what becomes durable in a data directory to a bucket, as its owner.

`Shipper` is driven by one thread. Each `ship` is one piece: what the journal noted since the last one. The
tree of the shipper is the state that the bucket has. `condense` writes it into pages now and then, so that
readers need only the pieces since.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from cordwood.bucket.loading import BucketState, apply_piece, is_continued_by, read_state
from cordwood.bucket.ownership import (
    KEEP_MS,
    LogPiece,
    ObjectStore,
    OwnerLease,
    Ownership,
    PageRef,
    add_piece,
    collect,
    confirm,
    create_object,
    decode_piece,
    forget_collected,
    hash_of,
    list_all,
    move_floor,
    perform,
    piece_key,
    renew_claim,
    take_over,
)
from cordwood.bucket.patience import PatientStore
from cordwood.bucket.state import (
    PAGE_BYTES_MAX,
    BodyBuilder,
    Disturbed,
    Tree,
    bundle,
    make_pages,
    page_of,
)
from cordwood.bucket.versions import read_version, write_version
from cordwood.disk import DiskJournal, Files, changed_bytes
from cordwood.errors import LogClosed, OwnerFenced, StoreUnavailable
from cordwood.host import Host, awake_and_asleep_ms

Result = TypeVar("Result")
#: The first wait after a request failed, and the longest one.
BACKOFF_MS = 100
BACKOFF_MAX_MS = 10_000
#: How often those that wait look whether they still may.
WAIT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ShippingLimits:
    """When the state is written into pages: the bytes, pieces and milliseconds since the last time."""

    bytes_max: int = 64 << 20
    pieces_max: int = 1_000
    age_ms: int = 600_000
    keep_ms: int = KEEP_MS


class ShippingStatus(NamedTuple):
    """How far the bucket is behind. Replaced whole, so any thread may read it."""

    seq: int
    pieces: int
    #: The bytes of files in those pieces.
    bytes: int
    retries: int
    #: When, by the monotonic clock, the oldest change that is not in the bucket can have been made.
    behind_since_ns: int
    fenced: bool = False


class Shipper:
    """The owner of a log in a bucket. Used by one thread; `status`, `wait`, `stop` by any."""

    def __init__(
        self,
        store: ObjectStore,
        files: Files,
        root: str,
        journal: DiskJournal,
        host: Host,
        nonce: str,
        limits: ShippingLimits | None = None,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._store = PatientStore(store, warn)
        self._journal = journal
        self._clock = clock = host.clock
        self._nonce = nonce
        self._limits = limits or ShippingLimits()
        self._objects = 0
        #: Objects that were created for the body that is being built, and those that nothing names.
        self._created: list[str] = []
        self._orphans: list[str] = []
        self._owner: Ownership | None = None
        self._lease = OwnerLease(0, 0)
        self._tree = Tree()
        self._pieces: dict[str, bytes] = {}
        self._unbundled = 0
        self._condensed_ms = clock.now_ms()
        self._files, self._root = files, root
        #: The version that was written down last; see `versions`.
        self._version = 0
        self._builder = BodyBuilder(files, root, journal, self._new_key, self._create)
        self._stopped = host.new_event()
        self._shipped = host.new_condition()
        self._shipped_number = 0
        self._failure: BaseException | None = None
        self._give_up_ns: int | None = None
        self._give_up_seconds: float | None = None
        self._in_flight = 0
        self._state: BucketState | None = None
        self.status = ShippingStatus(0, 0, 0, 0, clock.monotonic_ns())

    # --- taking over ------------------------------------------------------------------------------

    def take_over(self, lease_ms: int | None = None) -> Tree:
        """Become the owner, and return the state that the bucket has.

        Raises:
            OwnerFenced: If another process claimed the log meanwhile.
            ObjectMissing: If there is no log in the bucket.
            BucketDamaged: If the state cannot be read.
        """
        pieces: list[LogPiece] = []
        sent_ms = awake_and_asleep_ms(self._clock)
        current, tree, reading, pieces = read_state(self._store, self.pause)
        owner = perform(self._store, take_over(self._nonce, lease_ms, reading, pieces.append), self.pause)
        held = [piece for piece in pieces if piece.body]
        for piece in pieces:
            apply_piece(tree, piece)
        by_key = {piece_key(piece.header.seq): piece.data for piece in held}
        changed_by = [piece.header.nonce for piece in held]
        return self.adopt(owner, BucketState(current.manifest, tree, by_key, changed_by), sent_ms)

    def adopt(self, owner: Ownership, state: BucketState, sent_ms: int) -> Tree:
        """Go on as *owner*, which took the log over in *state*, and return the state that the bucket has.

        The takeover began at *sent_ms*, from when its lease counts.
        """
        self._owner, self._state = owner, state
        self._version = read_version(self._files, self._root)
        self._lease = OwnerLease(owner.current.manifest.lease_ms, sent_ms)
        self._tree, self._pieces = state.tree, dict(state.pieces)
        self._unbundled = sum(map(len, self._pieces.values()))
        self._orphans = self._find_orphans()
        self.status = self.status._replace(seq=owner.next_seq - 1)
        return state.tree

    def is_continued_by(self, nonces: Container[str]) -> bool:
        """Return whether only owners with *nonces* changed anything; see `is_continued_by`.

        Those before the takeover are meant.
        """
        assert self._state is not None, "nothing is known of earlier owners before the takeover"
        return is_continued_by(self._state.manifest, self._state.changed_by, nonces)

    def is_preceded_by(self, nonces: Sequence[str]) -> bool:
        """Return whether nobody but owners with *nonces* owned the log since the first of these did.

        Those before the takeover are meant, also owners that shipped nothing.
        """
        assert self._state is not None, "nothing is known of earlier owners before the takeover"
        for owner in reversed(self._state.manifest.owners):
            if owner.nonce not in nonces:
                return False
            if owner.nonce == nonces[0]:
                break
        return True

    def _fold(self, piece: LogPiece) -> None:
        apply_piece(self._tree, piece)
        if piece.body:
            self._pieces[piece_key(piece.header.seq)] = piece.data
            self._unbundled += len(piece.data)

    @property
    def epoch(self) -> int:
        """The epoch of the ownership."""
        return self._owned().epoch

    @property
    def lease_ms(self) -> int:
        """The lease of the log; see `LogManifest.lease_ms`."""
        return self._owned().current.manifest.lease_ms

    # --- shipping ---------------------------------------------------------------------------------

    def ship(self, *, keep_alive: bool = False) -> bool:
        """Create a piece with everything that became durable since the last one; return whether there is one.

        On return it counts, whoever owns the log next. With *keep_alive* it may be empty.

        Raises:
            OwnerFenced: If another process owns the log. Ship nothing more.
            LogClosed: If `stop` was called.
        """
        owner, cut_ns = self._owned(), self._clock.monotonic_ns()
        cut = self._journal.cut()
        if not (cut.files or cut.removed or cut.directories or keep_alive):
            self._journal.settle(cut)
            self.status = self.status._replace(behind_since_ns=cut_ns)
            self._note_shipped(cut.number)
            return False
        self._in_flight = changed_bytes(cut)
        while True:
            self._created.clear()
            try:
                # Larger than any before, whatever the clock says.
                version = max(self._clock.now_ms(), self._tree.at_ms + 1, self._version + 1)
                body = self._builder.build(cut, version)
            except Disturbed:
                # The changes since are durable too, and belong to the same piece.
                self._orphans += self._created
                cut_ns = self._clock.monotonic_ns()
                cut = self._journal.extend(cut)
                continue
            break
        self._journal.settle(cut)
        write_version(self._files, self._root, version)
        self._version = version
        seq = self._add(body.data)
        data = owner.last_piece
        header, view = decode_piece(piece_key(seq), data)
        self._fold(LogPiece(header, view, owner.previous, data))
        before = self.status
        self.status = before._replace(
            seq=seq, pieces=before.pieces + 1, bytes=before.bytes + body.content_bytes, behind_since_ns=cut_ns
        )
        self._in_flight = 0
        self._note_shipped(cut.number)
        return True

    def may_acknowledge(self) -> bool:
        """Return whether the lease lasts: no other process can have taken the log over. Any thread."""
        lease = self._lease
        return not lease.lease_ms or lease.may_acknowledge(awake_and_asleep_ms(self._clock))

    def _add(self, body: bytes) -> int:
        """Create a piece that counts, and renew the lease; return its number."""
        owner, sent_ms = self._owned(), awake_and_asleep_ms(self._clock)
        seq = perform(self._store, add_piece(owner, body), self.pause)
        perform(self._store, confirm(owner), self.pause)
        if not self._lease.renew(sent_ms, awake_and_asleep_ms(self._clock)):
            sent_ms = awake_and_asleep_ms(self._clock)
            perform(self._store, renew_claim(owner), self.pause)
            self._lease.restart(sent_ms)
        return seq

    def condense_if_due(self) -> bool:
        """Write the state into pages if enough happened since the last time; return whether it was done.

        Raises:
            OwnerFenced: If another process owns the log.
        """
        owner, limits = self._owned(), self._limits
        waiting = owner.next_seq - owner.current.manifest.floor
        aged = self._clock.now_ms() - self._condensed_ms >= limits.age_ms and self._pieces
        if self._unbundled < limits.bytes_max and waiting < limits.pieces_max and not aged:
            return False
        self.condense()
        return True

    def condense(self) -> None:
        """Write the state into pages, so that no piece up to now is needed any more, and delete what is due.

        Raises:
            OwnerFenced: If another process owns the log.
        """
        owner, tree, now_ms = self._owned(), self._tree, self._clock.now_ms()
        bundle(tree, self._pieces, self._new_key, self._create)
        before = owner.current.manifest.pages
        count = _page_count(len(before), before)
        changed = tree.touched | tree.gone
        wanted = set(range(count)) if count != len(before) else {page_of(path, count) for path in changed}
        pages = list(before) if count == len(before) else [PageRef("", "", 0)] * count
        for number, data in make_pages(tree, count, wanted).items():
            key = self._new_key("m")
            self._create(key, data)
            pages[number] = PageRef(key, hash_of(data), len(data))
        departed = [*tree.forget_objects(), *self._orphans]
        steps = move_floor(owner, pages, owner.next_seq, owner.previous, departed, now_ms)
        perform(self._store, steps, self.pause)
        tree.touched.clear()
        tree.gone.clear()
        self._pieces.clear()
        self._orphans.clear()
        self._unbundled, self._condensed_ms = 0, now_ms
        perform(self._store, collect(owner, now_ms, self._limits.keep_ms), self.pause)
        perform(self._store, forget_collected(owner, now_ms, self._limits.keep_ms), self.pause)

    # --- any thread -------------------------------------------------------------------------------

    def wait(self, number: int) -> None:
        """Return once every change up to *number* of the journal is in the bucket.

        Raises:
            LogClosed: If shipping was stopped before.
            OwnerFenced: If another process took the log over.
        """
        with self._shipped:
            while self._shipped_number < number and self._failure is None:
                # Now and then, because the time for it may be limited meanwhile.
                self._shipped.wait(WAIT_SECONDS)
                self._check_time()
            # Several may wait, and each notice wakes one of them.
            self._shipped.notify()
            if self._shipped_number < number and self._failure is not None:
                raise self._failure

    def fail(self, error: BaseException) -> None:
        """Let every thread that waits know that nothing more is shipped, because of *error*."""
        if isinstance(error, OwnerFenced):
            self.status = self.status._replace(fenced=True)
        with self._shipped:
            self._failure = self._failure or error
            self._shipped.notify()

    def waiting_bytes(self) -> int:
        """Return the bytes of files that are durable here and not in the bucket."""
        return self._in_flight + self._journal.waiting_bytes()

    def give_up_after(self, seconds: float | None) -> None:
        """Let requests fail that get no answer within *seconds* from now, or never."""
        now_ns = self._clock.monotonic_ns()
        self._give_up_seconds = seconds
        self._give_up_ns = None if seconds is None else now_ns + int(seconds * 1e9)

    def stop(self) -> None:
        """End shipping: the call under way raises LogClosed before its next try."""
        self._stopped.set()
        self.fail(LogClosed("shipping to the bucket was stopped"))

    def pause(self, attempt: int) -> None:
        """Wait before the next try of a request.

        Raises:
            LogClosed: If shipping was stopped.
            StoreUnavailable: If the store did not answer for as long as `give_up_after` says.
        """
        self._check_time()
        self.status = self.status._replace(retries=self.status.retries + 1)
        # With a lease, clients wait for the store to be back.
        longest_ms = max(self._lease.lease_ms // 6, BACKOFF_MS) if self._lease.lease_ms else BACKOFF_MAX_MS
        wait_ms = min(BACKOFF_MS << min(attempt, 16), longest_ms, BACKOFF_MAX_MS)
        if self._stopped.wait(wait_ms / 1000):
            raise LogClosed("shipping to the bucket was stopped")

    # --- inside -----------------------------------------------------------------------------------

    def _check_time(self) -> None:
        """Raise StoreUnavailable, or the last refusal, if the time that `give_up_after` gave is over."""
        if self._give_up_ns is not None and self._clock.monotonic_ns() > self._give_up_ns:
            if self._store.refusal is not None:
                raise self._store.refusal
            raise StoreUnavailable(f"the store of the bucket did not answer for {self._give_up_seconds:g} s")

    def _owned(self) -> Ownership:
        assert self._owner is not None, "nothing is shipped before the takeover"
        return self._owner

    def _find_orphans(self) -> list[str]:
        """Return the objects that earlier owners created and nothing names."""
        manifest = self._owned().current.manifest
        named = {page.key for page in manifest.pages} | {each.key for each in manifest.departed}
        keys = [key for kind in ("b/", "m/") for key in perform(self._store, list_all(kind), self.pause)]
        return [key for key in keys if key not in named and key not in self._tree.objects]

    def _note_shipped(self, number: int) -> None:
        with self._shipped:
            self._shipped_number = max(self._shipped_number, number)
            self._shipped.notify()

    def _new_key(self, kind: str = "b") -> str:
        """Return a key that no other process, and this one only once, ever uses."""
        self._objects += 1
        return f"{kind}/{self._owned().epoch}-{self._nonce}-{self._objects}"

    def _create(self, key: str, data: bytes) -> None:
        self._created.append(key)
        perform(self._store, create_object(key, data), self.pause)
        if self._lease.is_due(awake_and_asleep_ms(self._clock)):
            # Many objects take longer than a lease. The piece changes nothing, so it may come before them.
            self._add(b"")


def _page_count(count: int, pages: tuple[PageRef, ...]) -> int:
    """Return how many pages there are to be, by the sizes of those before."""
    if not count:
        return 1
    return count * 2 if sum(page.size for page in pages) > count * PAGE_BYTES_MAX else count
