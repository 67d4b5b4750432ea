"""What the pieces of a log say: the files of a data directory, and where in the bucket their bytes are."""

from cordwood.bucket.state.body import BodyTable, FilePatch, StoredStretch, decode_body
from cordwood.bucket.state.bucket_files import BucketFiles, ObjectReader
from cordwood.bucket.state.building import BodyBuilder, Disturbed
from cordwood.bucket.state.bundling import bundle
from cordwood.bucket.state.mounting import MOUNT, MountedFiles
from cordwood.bucket.state.pages import PAGE_BYTES_MAX, make_pages, page_of, read_page
from cordwood.bucket.state.tree import BucketTreeFile, Extent, Tree, extent_of

__all__ = [
    "MOUNT",
    "PAGE_BYTES_MAX",
    "BodyBuilder",
    "BodyTable",
    "BucketFiles",
    "BucketTreeFile",
    "Disturbed",
    "Extent",
    "FilePatch",
    "MountedFiles",
    "ObjectReader",
    "StoredStretch",
    "Tree",
    "bundle",
    "decode_body",
    "extent_of",
    "make_pages",
    "page_of",
    "read_page",
]
