"""The way to a bucket in memory, which can be closed: every URL of a bucket leads there."""

from __future__ import annotations

import threading

import pytest

from cordwood.bucket import opening
from cordwood.bucket.ownership import Request
from cordwood.bucket.stores import MemoryStore
from cordwood.disk import read_file
from cordwood.errors import StoreUnavailable
from support.bucket_faults import FaultyStore
from support.shipped import files_in

_LOG = "topics/{}/0/segments/00000000000000000000.log"


class Road:
    """The way to a store: while it is closed, no request gets there."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.open = threading.Event()
        self.open.set()
        self.store = FaultyStore(self.inner, before=self._pass)

    def _pass(self, number: int, request: Request) -> None:
        if not self.open.is_set():
            raise StoreUnavailable("the road is closed")

    def lead(self, patch: pytest.MonkeyPatch) -> None:
        """Let every URL of a bucket lead here."""
        patch.setattr(opening, "store_at", lambda url: self.store)
        patch.setattr(opening, "probe", lambda *arguments: None)

    def has(self, topic: str, value: bytes) -> bool:
        """Return whether the bucket has *value* in the log of *topic*."""
        files = files_in(self.inner)
        path = _LOG.format(topic)
        return files.exists(path) and value in read_file(files, path)
