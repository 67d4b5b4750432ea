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
from cordwood.bucket.stores import store_at
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
    ) -> None:
        """*bucket* is a URL, or a store. *opening* says how to open the directory without a bucket.

        *on_failure* is told why nothing more is shipped, and *warn* what an operator should know.

        Raises:
            BucketRefused: If the URL cannot be opened.
        """
        self.store = store_at(bucket) if isinstance(bucket, str) else bucket
        nonce, options = process.new_nonce()[:NONCE_DIGITS], options_of(opening.config)
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
        self._is_probed = not isinstance(bucket, str)
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
            crew = Crew("probe", RACERS, self._host)
            try:
                probe(self.store, process.new_nonce(), crew, self.session.shipper.pause)
            finally:
                crew.close()
        self.session.attach()

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

    def _finish(self) -> None:
        """Ship what is left, for a limited time, and stop. With the lock of the directory held."""
        if self.thread is not None:
            self.thread.close()
        self.session.shipper.stop()
