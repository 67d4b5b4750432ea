"""The log in object storage: shipped as pieces, restored, taken over by a second machine."""

from cordwood.bucket import probe
from cordwood.bucket.opening import ShippedDirectory
from cordwood.bucket.ownership import (
    BucketIdentity,
    FellBehind,
    LogManifest,
    LogOwner,
    LogPiece,
    ObjectStore,
    Ownership,
    PageRef,
    Reading,
    Request,
    Steps,
    Stored,
    add_piece,
    collect,
    confirm,
    forget_collected,
    found,
    move_floor,
    perform,
    read_identity,
    read_manifest,
    take_over,
)
from cordwood.bucket.session import BucketOptions, options_of
from cordwood.bucket.shipping import ShippingLimits, ShippingStatus
from cordwood.bucket.state import MOUNT, BucketFiles, MountedFiles, ObjectReader
from cordwood.bucket.viewing import BucketView, view_bucket

__all__ = [
    "MOUNT",
    "BucketFiles",
    "BucketIdentity",
    "BucketOptions",
    "BucketView",
    "FellBehind",
    "LogManifest",
    "LogOwner",
    "LogPiece",
    "MountedFiles",
    "ObjectReader",
    "ObjectStore",
    "Ownership",
    "PageRef",
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
    "view_bucket",
]
