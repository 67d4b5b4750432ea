"""Exceptions about a log in object storage."""

from __future__ import annotations

from cordwood.errors.general import CordwoodError


class BucketError(CordwoodError):
    """The base of all exceptions about object storage."""


class StoreUnavailable(BucketError):
    """The store did not answer, so it is not known whether the request took effect.

    A request that changes something may even take effect later.
    """


class ObjectMissing(BucketError):
    """There is no object under this key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key}")
        self.key = key


class ObjectExists(BucketError):
    """An object under this key exists already; nothing was written."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the object {key} exists already")
        self.key = key


class VersionChanged(BucketError):
    """The object is no longer the version that was to be replaced; nothing was written."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the object {key} was replaced meanwhile")
        self.key = key


class BucketRefused(BucketError):
    """The store, or what is in it, cannot be used: the sentence says why. Nothing was changed."""


class BucketDamaged(BucketError):
    """An object is not what was written. ``position`` is where in it the damage is, if that is known."""

    def __init__(self, key: str, what: str, position: int | None = None) -> None:
        place = key if position is None else f"{key} at byte {position}"
        super().__init__(f"{place}: {what}")
        self.key = key
        self.position = position


class OwnerFenced(BucketError):
    """Another process owns the log in the bucket, or claims it; this one must acknowledge nothing more."""

    def __init__(self, epoch: int, by: int) -> None:
        super().__init__(
            f"the log in the bucket was taken over: this process owned it in epoch {epoch}, now it is {by}"
        )
        self.epoch = epoch
        self.by = by


class LeaseExpired(BucketError):
    """The owner could not reach the bucket for longer than its lease, so a standby may have taken over.

    The records are synced here. They are acknowledged if they are sent again once the bucket is back.
    """

    def __init__(self) -> None:
        super().__init__(
            "the bucket was away for longer than the lease, so a standby may have taken over: try again"
        )
