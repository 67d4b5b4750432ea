"""A TLS client that does what Python's ssl cannot: renew its keys, and ask for another handshake."""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_UPDATE_REQUESTED = 1
_TLS_1_2, _SET_MAXIMUM = 0x0303, 124


@cache
def _library() -> Any:
    """Return OpenSSL's library.

    Raises:
        OSError: If there is none, or it is too old for TLS 1.3.
    """
    name = ctypes.util.find_library("ssl")
    if name is None:
        raise OSError("OpenSSL is not installed as a library of its own")
    library, pointer = ctypes.CDLL(name), ctypes.c_void_p
    try:
        for function, result, arguments in (
            ("TLS_client_method", pointer, []),
            ("SSL_CTX_new", pointer, [pointer]),
            ("SSL_CTX_ctrl", ctypes.c_long, [pointer, ctypes.c_int, ctypes.c_long, pointer]),
            ("SSL_CTX_free", None, [pointer]),
            ("SSL_new", pointer, [pointer]),
            ("SSL_free", None, [pointer]),
            ("SSL_set_fd", ctypes.c_int, [pointer, ctypes.c_int]),
            ("SSL_connect", ctypes.c_int, [pointer]),
            ("SSL_do_handshake", ctypes.c_int, [pointer]),
            ("SSL_key_update", ctypes.c_int, [pointer, ctypes.c_int]),
            ("SSL_renegotiate", ctypes.c_int, [pointer]),
            ("SSL_write", ctypes.c_int, [pointer, ctypes.c_char_p, ctypes.c_int]),
            ("SSL_read", ctypes.c_int, [pointer, ctypes.c_char_p, ctypes.c_int]),
        ):
            found = getattr(library, function)
            found.restype, found.argtypes = result, arguments
    except AttributeError as error:
        raise OSError(f"OpenSSL is too old: {error}") from error
    return library


class OpensslClient:
    """A client that trusts every server. Calls return whether they succeeded."""

    def __init__(self, library: Any, tls: int) -> None:
        self._library = library
        self._tls = tls

    def renew_key(self) -> bool:
        """Encrypt with a new key from now on, and ask the server to do so too."""
        asked: bool = self._library.SSL_key_update(self._tls, _UPDATE_REQUESTED) == 1
        return asked and self._shake()

    def renegotiate(self) -> bool:
        """Ask for another handshake, and finish it."""
        return self._library.SSL_renegotiate(self._tls) == 1 and self._shake()

    def _shake(self) -> bool:
        return bool(self._library.SSL_do_handshake(self._tls) == 1)

    def write(self, data: bytes) -> bool:
        """Send *data*."""
        return bool(self._library.SSL_write(self._tls, data, len(data)) == len(data))

    def read(self, size: int) -> bytes:
        """Return up to *size* received bytes; none at the end."""
        buffer = ctypes.create_string_buffer(size)
        count = self._library.SSL_read(self._tls, buffer, size)
        return buffer.raw[: max(count, 0)]


@contextmanager
def openssl_client(address: tuple[str, int], *, old: bool = False) -> Iterator[OpensslClient]:
    """Connect and finish the handshake, with TLS 1.2 if *old*.

    Raises:
        OSError: If OpenSSL cannot be called from here.
    """
    library = _library()
    context = library.SSL_CTX_new(library.TLS_client_method())
    if old:
        library.SSL_CTX_ctrl(context, _SET_MAXIMUM, _TLS_1_2, None)
    tls = library.SSL_new(context)
    try:
        with socket.create_connection(address) as connected:
            library.SSL_set_fd(tls, connected.fileno())
            assert library.SSL_connect(tls) == 1
            yield OpensslClient(library, tls)
    finally:
        library.SSL_free(tls)
        library.SSL_CTX_free(context)
