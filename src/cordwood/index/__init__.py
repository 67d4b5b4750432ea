"""Lookups over the bytes of an index file. Pure: the bytes in memory are the bytes of the file."""

from cordwood.index.dense import DenseIndex
from cordwood.index.sparse import SparseIndex
from cordwood.index.time import NO_TIMESTAMP, TimeIndex

__all__ = [
    "NO_TIMESTAMP",
    "DenseIndex",
    "SparseIndex",
    "TimeIndex",
]
