"""The log in object storage: shipped as pieces, restored, taken over by a second machine."""

from cordwood.bucket import probe
from cordwood.bucket.bucket_files import BucketFiles, ObjectReader
from cordwood.bucket.following import FellBehind, Piece, Reading
from cordwood.bucket.founding import BucketIdentity, found, read_identity
from cordwood.bucket.manifest import LogOwner, Manifest, PageRef
from cordwood.bucket.objects import ObjectStore, Request, Steps, Stored, perform
from cordwood.bucket.opening import ShippedDirectory
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
from cordwood.bucket.session import BucketOptions, options_of
from cordwood.bucket.shipping import ShippingLimits, ShippingStatus

__all__ = [
    "BucketFiles",
    "BucketIdentity",
    "BucketOptions",
    "FellBehind",
    "LogOwner",
    "Manifest",
    "ObjectReader",
    "ObjectStore",
    "Ownership",
    "PageRef",
    "Piece",
    "Reading",
    "Request",
    "ShippedDirectory",
    "ShippingLimits",
    "ShippingStatus",
    "Steps",
    "Stored",
    "add_piece",
    "collect",
    "confirm",
    "forget_collected",
    "found",
    "move_floor",
    "options_of",
    "perform",
    "probe",
    "read_identity",
    "read_manifest",
    "take_over",
]
