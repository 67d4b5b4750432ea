"""A store in memory: the twin of a real one, for tests and for models."""

from __future__ import annotations

import builtins
from threading import Lock

from cordwood.bucket.ownership import Stored
from cordwood.errors import ObjectExists, ObjectMissing, VersionChanged

#: How many keys a list returns at most, as in S3.
PAGE_KEYS = 1000


class MemoryStore:
    """An `ObjectStore` that is strongly consistent and never fails.

    Every method may be called from any thread. A version is never given twice, also not to an object that was
    deleted and created again.
    """

    def __init__(self, page_keys: int = PAGE_KEYS) -> None:
        """Make an empty store, which lists *page_keys* keys at a time."""
        assert page_keys > 0
        self._page_keys = page_keys
        self._lock = Lock()
        self._objects: dict[str, Stored] = {}
        self._versions = 0

    def get(self, key: str) -> Stored:
        """Return an object. Raises ObjectMissing."""
        with self._lock:
            stored = self._objects.get(key)
        if stored is None:
            raise ObjectMissing(key)
        return stored

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return *size* bytes from *start*, fewer where the object ends. Raises ObjectMissing."""
        assert start >= 0
        assert size > 0
        return self.get(key).data[start : start + size]

    def create(self, key: str, data: bytes) -> str:
        """Create an object and return its version. Raises ObjectExists, and nothing has changed."""
        with self._lock:
            if key in self._objects:
                raise ObjectExists(key)
            return self._put(key, data)

    def replace(self, key: str, data: bytes, version: str) -> str:
        """Replace *version* of an object; return the new one. Raises VersionChanged: nothing has changed."""
        with self._lock:
            stored = self._objects.get(key)
            if stored is None or stored.version != version:
                raise VersionChanged(key)
            return self._put(key, data)

    def delete(self, key: str) -> None:
        """Delete an object; none there is no error."""
        with self._lock:
            self._objects.pop(key, None)

    def list(self, prefix: str, after: str = "") -> builtins.list[str]:
        """Return the first keys with *prefix* that are greater than *after*, in order."""
        with self._lock:
            found = [key for key in self._objects if key.startswith(prefix) and key > after]
        return sorted(found)[: self._page_keys]

    def _put(self, key: str, data: bytes) -> str:
        self._versions += 1
        version = str(self._versions)
        self._objects[key] = Stored(bytes(data), version)
        return version
