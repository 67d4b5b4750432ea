"""Open the bucket of a data directory: by its URL, checked, and with the thread that ships."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from cordwood.bucket.looping import CLOSE_SECONDS, ShippingThread
from cordwood.bucket.ownership import NONCE_DIGITS, ObjectStore
from cordwood.bucket.probe import RACERS, probe
from cordwood.bucket.session import BucketSession, options_of
from cordwood.bucket.shipping import ShippingStatus
from cordwood.bucket.standby import Standby, StandbyOptions, Standing
from cordwood.bucket.stores import store_at
from cordwood.bucket.viewing import waiting
from cordwood.config import BrokerConfig
from cordwood.disk import Files
from cordwood.errors import CordwoodError
from cordwood.host import Crew, Host, process
from cordwood.storage.directory import Opening
from cordwood.storage.meta import identity

#: How long a start waits for a store that does not answer.
START_SECONDS = 60.0


class BucketLag(NamedTuple):
    """For how long something that is durable here is not in the bucket, and how many bytes that are."""

    seconds: float
    bytes: int


def probe_store(store: ObjectStore, host: Host, pause: Callable[[int], None]) -> None:
    """Refuse a store that loses writes. *pause* waits between tries.

    Raises:
        BucketRefused: If it does.
    """
    crew = Crew("probe", RACERS, host)
    try:
        probe(store, process.new_nonce(), crew, pause)
    finally:
        crew.close()


def open_standby(
    url: str,
    files: Files,
    data: str,
    config: BrokerConfig,
    host: Host,
    warn: Callable[[str], None],
    on_caught_up: Callable[[int], None],
) -> Standby:
    """Return a standby of the log at *url* in the directory *data*, which it does not touch before `run`.

    Raises:
        BucketRefused: If the URL cannot be opened, or the store loses writes.
        StoreUnavailable: If the store does not answer for a while.
    """
    store = store_at(url)
    probe_store(store, host, waiting(host, START_SECONDS))
    options = options_of(config)
    holder = f"{process.holder()}, standby of {url}"
    following = StandbyOptions(options.interval_ms, options.lease_ms, holder)
    return Standby(store, files, data, host, _new_nonce, following, warn, on_caught_up)


def _new_nonce() -> str:
    return process.new_nonce()[:NONCE_DIGITS]


class ShippedDirectory:
    """What opens and closes the bucket of one data directory. Give its parts to `Opening`.

    Open the directory with ``opening``, and call `start` once it is open.
    """

    def __init__(
        self,
        bucket: str | ObjectStore,
        opening: Opening,
        host: Host,
        on_failure: Callable[[CordwoodError], None] = lambda error: None,
        warn: Callable[[str], None] = lambda sentence: None,
        standing: Standing | None = None,
    ) -> None:
        """*bucket* is a URL, or a store. *opening* says how to open the directory without a bucket.

        *on_failure* is told why nothing more is shipped, and *warn* what an operator should know. *standing*
        has taken the log over for this directory already; see `Standby`.

        Raises:
            BucketRefused: If the URL cannot be opened.
        """
        self.store = store_at(bucket) if isinstance(bucket, str) else bucket
        nonce = _new_nonce() if standing is None else standing.owner.nonce
        options = options_of(opening.config)
        self.session = BucketSession(opening.files, opening.path, self.store, host, nonce, options, warn)
        self.opening = replace(
            opening,
            files=self.session.files,
            remote=self.session.journal,
            prepare=self._prepare,
            closing=self.closing,
            finish=self._finish,
        )
        self.thread: ShippingThread | None = None
        self._standing = standing
        self._is_probed = standing is not None or not isinstance(bucket, str)
        self._host = host
        self._on_failure = on_failure
        self._warn = warn

    def _prepare(self) -> None:
        """Check the store, and bring directory and bucket together. With the lock of the directory held.

        Raises:
            StoreUnavailable: If the store does not answer for a while.
            BucketRefused: If the store loses records, or has the log of another broker.
            BucketDamaged: If the state in the bucket cannot be read.
            OwnerFenced: If another process claims the log at the same time.
        """
        self.session.shipper.give_up_after(START_SECONDS)
        if not self._is_probed:
            probe_store(self.store, self._host, self.session.shipper.pause)
        self.session.attach(self._standing)

    def start(self, owned: identity.Identity) -> None:
        """Ship the directory, whose identity is *owned*, from now on. Raises as opening it does."""
        self.session.begin(owned)
        self.session.shipper.give_up_after(None)
        self.session.journal.wait_for = self.session.shipper.wait
        self.thread = ShippingThread(self.session, self._host, self._on_failure, self._warn)
        self.thread.start()

    def lag(self) -> BucketLag:
        """Return how far the bucket is behind: what a takeover at this moment would lose at most."""
        waiting, now_ns = self.session.shipper.waiting_bytes(), self._host.clock.monotonic_ns()
        seconds = (now_ns - self.status.behind_since_ns) / 1e9 if waiting else 0.0
        return BucketLag(seconds, waiting)

    @property
    def status(self) -> ShippingStatus:
        """How far the bucket is behind."""
        return self.session.shipper.status

    def closing(self) -> None:
        """Limit how long anything waits for the bucket from now on: the directory is about to be closed."""
        self.session.shipper.give_up_after(CLOSE_SECONDS)

    def may_acknowledge(self) -> bool:
        """Return whether no other process can have taken the log over: the lease lasts, or there is none."""
        return self.session.shipper.may_acknowledge()

    def _finish(self) -> None:
        """Ship what is left, for a limited time, and stop. With the lock of the directory held."""
        if self.thread is not None:
            self.thread.close()
        self.session.shipper.stop()
