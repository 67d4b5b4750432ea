"""The log in object storage: shipped as pieces, restored, taken over by a second machine."""

from cordwood.bucket.following import FellBehind, Piece, Reading
from cordwood.bucket.founding import BucketIdentity, found, read_identity
from cordwood.bucket.manifest import LogOwner, Manifest, PageRef
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
    "LogOwner",
    "Manifest",
    "ObjectStore",
    "Ownership",
    "PageRef",
    "Piece",
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
