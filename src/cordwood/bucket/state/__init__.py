"""What the pieces of a log say: the files of a data directory, and where in the bucket their bytes are."""

from cordwood.bucket.state.body import decode_body
from cordwood.bucket.state.bucket_files import BucketFiles, ObjectReader
from cordwood.bucket.state.building import BodyBuilder, Disturbed
from cordwood.bucket.state.bundling import bundle
from cordwood.bucket.state.mounting import MOUNT, MountedFiles
from cordwood.bucket.state.pages import PAGE_BYTES_MAX, make_pages, page_of, read_page
from cordwood.bucket.state.tree import BucketTreeFile, Extent, Tree

__all__ = [
    "MOUNT",
    "PAGE_BYTES_MAX",
    "BodyBuilder",
    "BucketFiles",
    "BucketTreeFile",
    "Disturbed",
    "Extent",
    "MountedFiles",
    "ObjectReader",
    "Tree",
    "bundle",
    "decode_body",
    "make_pages",
    "page_of",
    "read_page",
]
