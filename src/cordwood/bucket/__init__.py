"""The log in object storage: shipped as pieces, restored, taken over by a second machine."""

from cordwood.bucket.following import FellBehind, LogPiece, Reading
from cordwood.bucket.founding import BucketIdentity, found, read_identity
from cordwood.bucket.manifest import LogManifest, LogOwner, PageRef
from cordwood.bucket.objects import ObjectStore, Request, Steps, Stored, perform
from cordwood.bucket.owning import (
    Ownership,
    add_piece,
    collect,
    confirm,
    forget_collected,
    move_floor,
    read_manifest,
    take_over,
)

__all__ = [
    "BucketIdentity",
    "FellBehind",
    "LogManifest",
    "LogOwner",
    "LogPiece",
    "ObjectStore",
    "Ownership",
    "PageRef",
    "Reading",
    "Request",
    "Steps",
    "Stored",
    "add_piece",
    "collect",
    "confirm",
    "forget_collected",
    "found",
    "move_floor",
    "perform",
    "read_identity",
    "read_manifest",
    "take_over",
]
