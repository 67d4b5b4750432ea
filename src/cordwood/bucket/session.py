"""One opening of a data directory that is shipped to a bucket: attach, own, ship, close."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cordwood.bucket.attaching import (
    Attachment,
    AttachReport,
    is_ignored,
    is_overwritten,
    note_attached,
    note_fetching,
    note_nonce,
    read_record,
)
from cordwood.bucket.ownership import BucketIdentity, ObjectStore, found, perform, read_identity
from cordwood.bucket.shipping import Shipper, ShippingLimits
from cordwood.bucket.standby import Standing
from cordwood.bucket.state import BucketFiles, ObjectReader, Tree
from cordwood.bucket.versions import write_version
from cordwood.bucket.viewing import check_no_log
from cordwood.config import BrokerConfig
from cordwood.disk import DiskJournal, Files, JournaledFiles
from cordwood.errors import BucketRefused
from cordwood.host import Host
from cordwood.storage.meta import identity, largest_takeover


@dataclass(frozen=True, slots=True)
class BucketOptions:
    """How a directory is shipped."""

    #: The milliseconds between two pieces, at the least.
    interval_ms: int = 1_000
    #: See `LogManifest.lease_ms`. None keeps what the log has.
    lease_ms: int | None = None
    limits: ShippingLimits = field(default_factory=ShippingLimits)


def options_of(config: BrokerConfig) -> BucketOptions:
    """Return how *config* says that a directory is shipped."""
    lease_ms = None if config.bucket_lease_ms < 0 else config.bucket_lease_ms
    return BucketOptions(config.bucket_interval_ms, lease_ms)


class BucketSession:
    """What an opener of a data directory does about its bucket. One thread until `begin` returns.

    Open the directory with ``files``; call `attach` with its lock held and before anything of it is read, and
    `begin` after that. From then on ``shipper`` is the owner of the log in the bucket.
    """

    def __init__(
        self,
        files: Files,
        data: str,
        store: ObjectStore,
        host: Host,
        nonce: str,
        options: BucketOptions | None = None,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.options = options or BucketOptions()
        self.store = store
        self.journal = DiskJournal(files, data, is_ignored)
        self.files = JournaledFiles(files, self.journal, at_once=is_overwritten)
        self.shipper = Shipper(store, files, data, self.journal, host, nonce, self.options.limits, warn)
        self.report = AttachReport()
        self._inner = files
        self._data = data
        self._nonce = nonce
        self._known: BucketIdentity | None = None

    def attach(self, standing: Standing | None = None) -> None:
        """Bring the directory and the bucket together. *standing* has taken the log over for it already.

        Raises:
            BucketRefused: If the bucket has the log of another broker. Nothing has changed.
            BucketDamaged: If the state in the bucket cannot be read.
            OwnerFenced: If another process claims the log at the same time.
        """
        broker_id = None
        if not identity.is_first_boot(self._inner, self._data):
            broker_id = identity.read_identity(self._inner, self._data).uuid
        known = self._known = perform(self.store, read_identity(), self.shipper.pause)
        if known is None:
            check_no_log(self.store, self.shipper.pause)
            # Everything that is there is shipped; what is made from now on is noted by the files.
            Attachment(self._inner, self._data, Tree(), self._source(Tree())).ship_differences(self.journal)
            return
        if broker_id is not None and broker_id != known.broker_id:
            raise BucketRefused(
                f"the bucket has the log of broker {known.broker_id}, {self._data} is broker {broker_id}: "
                "each log needs a prefix of its own"
            )
        record = read_record(self._inner, self._data)
        if standing is None:
            note_nonce(self._inner, self._data, known.broker_id, self._nonce, attached=False)
            tree = self.shipper.take_over(self.options.lease_ms)
        else:
            if record is None or record.nonces[-1:] != (self._nonce,) or not record.attached:
                raise BucketRefused(f"{self._data} was changed by another process during the takeover")
            tree = self.shipper.adopt(standing.owner, standing.state, standing.sent_ms)
            if standing.is_copy:
                return
        attachment = Attachment(self._inner, self._data, tree, self._source(tree))
        nonces = record.nonces if record is not None and record.attached else ()
        # Noted before anything can be appended: another owner may have appended what it never shipped.
        takeover = 0 if self.shipper.is_preceded_by(nonces) else self.shipper.epoch
        # Where nothing was shipped yet there is nothing to fetch, whatever became of the owners so far.
        continued = not tree.root or self.shipper.is_continued_by(nonces)
        complete = broker_id is not None and continued
        if complete and not attachment.is_behind():
            attachment.ship_differences(self.journal)
        else:
            note_fetching(self._inner, self._data)
            identity.mark_unclean(self._inner, self._data)
            attachment.fetch_differences()
            write_version(self._inner, self._data, tree.at_ms)
            takeover = self.shipper.epoch
        note_attached(self._inner, self._data, takeover)
        self.report = attachment.report

    def begin(self, owned: identity.Identity) -> None:
        """Ship the directory as it was opened, whose identity is *owned*; found its log first if need be.

        Raises as `attach` does.
        """
        if self._known is None:
            log = BucketIdentity(owned.uuid, owned.created_at)
            # Takeovers are numbered by epochs, and those of an earlier bucket must stay below.
            epoch = largest_takeover(self._inner, self._data)
            perform(self.store, found(log, self._nonce, epoch), self.shipper.pause)
            note_nonce(self._inner, self._data, owned.uuid, self._nonce, attached=True)
            self.shipper.take_over(self.options.lease_ms)
        self.shipper.ship()

    def _source(self, tree: Tree) -> BucketFiles:
        return BucketFiles(tree, ObjectReader(self.store, self.shipper.pause))
