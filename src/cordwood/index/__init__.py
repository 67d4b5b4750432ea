"""Lookups over the bytes of an index file. Pure: the bytes in memory are the bytes of the file."""

from cordwood.index.aborted import ENTRY_SIZE as ABORTED_ENTRY_SIZE
from cordwood.index.aborted import AbortedEntry, AbortedIndex
from cordwood.index.dense import DenseIndex
from cordwood.index.sparse import SparseIndex
from cordwood.index.time import NO_TIMESTAMP, TimeIndex

__all__ = [
    "ABORTED_ENTRY_SIZE",
    "NO_TIMESTAMP",
    "AbortedEntry",
    "AbortedIndex",
    "DenseIndex",
    "SparseIndex",
    "TimeIndex",
]
