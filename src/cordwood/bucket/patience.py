"""A store that may refuse for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cordwood.bucket.ownership import ObjectStore, Stored
from cordwood.disk import Names
from cordwood.errors import BucketRefused, StoreUnavailable

Result = TypeVar("Result")


class PatientStore:
    """A store whose refusals are no end: permissions and buckets come back, and until then there is only lag.

    Any thread may call any method.
    """

    def __init__(self, inner: ObjectStore, warn: Callable[[str], None]) -> None:
        self._inner = inner
        self._warn = warn
        #: The last refusal, until the store answers again.
        self.refusal: BucketRefused | None = None

    def get(self, key: str) -> Stored:
        """See `ObjectStore.get`."""
        return self._patiently(lambda: self._inner.get(key))

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """See `ObjectStore.get_range`."""
        return self._patiently(lambda: self._inner.get_range(key, start, size))

    def create(self, key: str, data: bytes) -> str:
        """See `ObjectStore.create`."""
        return self._patiently(lambda: self._inner.create(key, data))

    def replace(self, key: str, data: bytes, version: str) -> str:
        """See `ObjectStore.replace`."""
        return self._patiently(lambda: self._inner.replace(key, data, version))

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self._patiently(lambda: self._inner.delete(key))

    def list(self, prefix: str, after: str = "") -> Names:
        """See `ObjectStore.list`."""
        return self._patiently(lambda: self._inner.list(prefix, after))

    def _patiently(self, request: Callable[[], Result]) -> Result:
        try:
            result = request()
        except BucketRefused as error:
            if self.refusal is None:
                self._warn(f"the store refuses to serve the bucket: {error}")
            self.refusal = error
            raise StoreUnavailable(str(error)) from error
        self.refusal = None
        return result
