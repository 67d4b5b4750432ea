"""A store that is reached over the network, through obstore."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from cordwood.bucket.ownership import Stored
from cordwood.bucket.stores.replies import FailedRequest, StoreOperation, failure_of, reply_in
from cordwood.errors import ObjectMissing, VersionChanged

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta, PutMode, PutResult, UpdateVersion
    from obstore.store import AzureStore, GCSStore, S3Store

    Connection: TypeAlias = S3Store | GCSStore | AzureStore

Result = TypeVar("Result")

#: How many keys a request lists: the most that S3 returns.
PAGE_KEYS = 1000
_RANGE_NOT_SATISFIABLE = 416


class ObjectVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a store needs to replace just this version; GCS needs the version, the others the ETag."""

    e_tag: str | None = None
    version: str | None = None


_DECODER = msgspec.json.Decoder(ObjectVersion)


class RemoteStore:
    """An `ObjectStore` over obstore; `open_store` makes one. Every method may be called from any thread.

    No request is repeated here, and each ends within the time that the connection was given. A process that
    forks must not use it in the child.
    """

    def __init__(self, connection: Connection, place: str, timeout_ms: int, lists_in_order: bool) -> None:
        """Use *connection*, which adds the prefix to keys; *place* is its URL, for sentences.

        *lists_in_order* says that keys are listed in order, and from any key on. Otherwise all keys of a
        folder are listed and sorted, which takes several requests.
        """
        self._connection = connection
        self._place = place
        self._timeout_ms = timeout_ms
        self._lists_in_order = lists_in_order

    def __repr__(self) -> str:
        return f"RemoteStore({self._place!r})"

    def get(self, key: str) -> Stored:
        """Return an object. Raises ObjectMissing."""

        def read() -> tuple[GetResult, bytes]:
            result = self._connection.get(key)
            return result, bytes(result.bytes())

        result, data = self._ask(StoreOperation.GET, key, read)
        return Stored(data, _version_of(result.meta))

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return *size* bytes from *start*, fewer where the object ends. Raises ObjectMissing."""
        assert start >= 0
        assert size > 0

        def read() -> bytes:
            try:
                return bytes(self._connection.get_range(key, start=start, length=size))
            except Exception as error:
                # The object is there and ends at *start* or before.
                if reply_in(str(error)).status == _RANGE_NOT_SATISFIABLE:
                    return b""
                raise

        return self._ask(StoreOperation.GET, key, read)

    def create(self, key: str, data: bytes) -> str:
        """Create an object and return its version. Raises ObjectExists, and nothing has changed."""
        return _version_of(self._ask(StoreOperation.CREATE, key, lambda: self._put(key, data, "create")))

    def replace(self, key: str, data: bytes, version: str) -> str:
        """Replace *version* of an object; return the new one. Raises VersionChanged: nothing has changed."""
        known = _update_of(version)
        if known is None:
            # A store without versions gave it, or it is not of this store: it cannot be the current one.
            raise VersionChanged(key)
        return _version_of(self._ask(StoreOperation.REPLACE, key, lambda: self._put(key, data, known)))

    def delete(self, key: str) -> None:
        """Delete an object; none there is no error."""
        try:
            self._ask(StoreOperation.DELETE, key, lambda: self._connection.delete(key))
        except ObjectMissing:
            return

    def list(self, prefix: str, after: str = "") -> builtins.list[str]:
        """Return keys with *prefix* that are greater than *after*, in order: all of them, or the first."""
        # obstore takes whole folders only.
        folder = prefix.rpartition("/")[0] or None

        def read() -> builtins.list[str]:
            found: builtins.list[str] = []
            for page in self._connection.list(folder, offset=after or None, chunk_size=PAGE_KEYS):
                found += [key for each in page if (key := each["path"]).startswith(prefix) and key > after]
                if found and self._lists_in_order:
                    break
            return sorted(found)

        return self._ask(StoreOperation.LIST, prefix, read)

    def _put(self, key: str, data: bytes, mode: PutMode) -> PutResult:
        # Only a single PUT is conditional, whatever its size.
        return self._connection.put(key, data, mode=mode, use_multipart=False)

    def _ask(self, operation: StoreOperation, key: str, request: Callable[[], Result]) -> Result:
        """Return the result of *request*; raises what its failure means."""
        try:
            return request()
        except Exception as error:
            failed = FailedRequest(operation, key, self._place, self._timeout_ms)
            failure = failure_of(failed, error)
        # Raised here, so that it does not refer to the exception of obstore, whose text may have a secret.
        raise failure


def _version_of(result: PutResult | ObjectMeta) -> str:
    return msgspec.json.encode(ObjectVersion(result["e_tag"], result["version"])).decode()


def _update_of(version: str) -> UpdateVersion | None:
    """Return the condition that *version* is the current one; None if there is no such condition."""
    try:
        known = _DECODER.decode(version)
    except msgspec.DecodeError:
        return None
    # obstore refuses None for either of them.
    condition: UpdateVersion = {}
    if known.e_tag is not None:
        condition["e_tag"] = known.e_tag
    if known.version is not None:
        condition["version"] = known.version
    return condition or None
