"""The public keys that sign bearer tokens, from a file or an https address; read again when they change."""

from __future__ import annotations

import logging
from threading import Lock
from urllib.parse import unquote, urlsplit

from cordwood.errors import CordwoodError, InvalidSetting
from cordwood.host import Clock
from cordwood.security import WebKeys

#: A set of keys is read again at most this often because a token names an unknown one.
_AGAIN_NS = 1_000_000_000
_BYTES_MAX = 1 << 20
_LOGGER = logging.getLogger("cordwood.server")


class KeysUnreadable(CordwoodError):
    """A JWK set could not be read."""


def read_keys(address: str) -> WebKeys:
    """Read the JWK set at a file: or https: address. Takes up to seconds.

    Raises:
        KeysUnreadable: If it cannot be read, or is none.
    """
    url = urlsplit(address)
    try:
        if url.scheme == "file":
            with open(unquote(url.path), "rb") as file:
                text = file.read(_BYTES_MAX + 1)
        else:
            # An HTTP client: most brokers never need one.
            from cordwood.server.security.https_keys import download

            text = download(address, _BYTES_MAX + 1)
        if len(text) > _BYTES_MAX:
            raise ValueError(f"it has more than {_BYTES_MAX} bytes")
        return WebKeys.parse(text)
    except (OSError, ValueError) as error:
        raise KeysUnreadable(f"the keys at {address} cannot be read: {error}") from error


class TokenKeys:
    """The current keys of one address. Every method may be called from any thread."""

    def __init__(self, address: str, clock: Clock) -> None:
        """Begin without keys: no token is accepted before `reload`."""
        self.address = address
        self._clock = clock
        self._lock = Lock()
        self._read_ns: int | None = None
        self._keys = WebKeys(())

    @property
    def keys(self) -> WebKeys:
        """The keys as they were read last."""
        return self._keys

    def reload(self, *, unless_recent: bool = False) -> None:
        """Read the keys again; takes up to seconds. Those of before stay if it fails.

        Raises:
            KeysUnreadable: If it fails.
        """
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if unless_recent and self._read_ns is not None and now_ns - self._read_ns < _AGAIN_NS:
                return
            try:
                self._keys = read_keys(self.address)
            finally:
                # Now, and not before: all who waited for an address that is slow share what it answered.
                self._read_ns = self._clock.monotonic_ns()

    def reload_quietly(self, *, unless_recent: bool = False) -> None:
        """Read the keys again as `reload` does; a failure is logged."""
        try:
            self.reload(unless_recent=unless_recent)
        except KeysUnreadable as error:
            _LOGGER.warning("%s; the keys of before are used", error)


def check_joserfc() -> None:
    """Check that tokens can be checked.

    Raises:
        InvalidSetting: If joserfc is not installed.
    """
    try:
        import joserfc  # noqa: F401
    except ImportError:
        raise InvalidSetting(
            "sasl.enabled.mechanisms", "OAUTHBEARER", "joserfc for it: pip install 'cordwood[oauth]'"
        ) from None
