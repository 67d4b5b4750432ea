"""Listening sockets, and accepting connections even when file handles run out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from cordwood.config import Endpoint
from cordwood.errors import ListenFailed
from cordwood.host import process

BACKLOG = 1024
#: With port 0, the port that the system picks for the first address must be free at the others too.
_PORT_TRIES = 20
_ACCEPTS_AT_ONCE = 64
#: The file handles that are reserved for files: a quarter of all, and at most this many.
_FOR_FILES_MAX = 256
_NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
_NO_HANDLES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def listen(endpoint: Endpoint) -> list[socket.socket]:
    """Return sockets that listen at every address of *endpoint*, IPv4 and IPv6, all at one port.

    Raises:
        ListenFailed: If one of the addresses is in use or not local.
    """
    for _ in range(_PORT_TRIES):
        try:
            return _listen_once(endpoint)
        except OSError as error:
            if endpoint.port or error.errno != errno.EADDRINUSE:
                raise ListenFailed(endpoint, error.strerror or str(error)) from error
    raise ListenFailed(endpoint, "no port is free at all of its addresses")


def check_free(endpoints: Iterable[Endpoint]) -> None:
    """Check that a server can listen on all *endpoints* now. Those with port 0 are not checked.

    Raises:
        ListenFailed: If an address is in use or not local.
    """
    for endpoint in endpoints:
        for made in listen(endpoint) if endpoint.port else ():
            made.close()


def _listen_once(endpoint: Endpoint) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    port = endpoint.port
    try:
        for family, address in _addresses(endpoint.host):
            try:
                sockets.append(_bound(family, (address[0], port, *address[2:])))
            except OSError as error:
                if family == socket.AF_INET6 and sockets and error.errno in _NO_SUCH_ADDRESS:
                    # The name may resolve to an IPv6 address that the machine does not have.
                    continue
                raise
            port = sockets[-1].getsockname()[1]
    except OSError:
        for made in sockets:
            made.close()
        raise
    return sockets


def _addresses(host: str) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the addresses of *host*, IPv4 first: the port of the first one is shown."""
    if host == "localhost":
        # Some hosts files have only one of them, and clients may use the other.
        return [(socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0, 0, 0))]
    found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return sorted({(family, address) for family, _, _, _, address in found}, key=lambda one: one[0])


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


class Acceptor:
    """Accepts connections on sockets. Used on the loop only.

    Some file handles are reserved for files, so that a connected client is served even if its record needs a
    new segment. If only those are left, *make_room* closes files; if it cannot, the new connection is closed.
    One spare handle is kept for that case: it is released to accept the next connection and close it. The
    client learns of the refusal at once instead of waiting in the backlog, and the listening socket does not
    keep the loop busy.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Sequence[tuple[socket.socket, str]],
        make: Callable[[str], asyncio.BaseProtocol | None],
        warn: Callable[[str], None],
        make_room: Callable[[], int] = lambda: 0,
        evict: Callable[[], bool] = lambda: False,
    ) -> None:
        """Accept connections on *sockets*, each with the name of its listener.

        *make* returns the protocol of a new connection, or None to close it. *warn* logs that one is closed,
        which strangers can cause at any rate. *make_room* closes files and returns their number. *evict*
        closes a connection that is worth less than a new one, if there is any.
        """
        self._loop = loop
        self._sockets = sockets
        self._make = make
        self._warn = warn
        self._make_room = make_room
        self._evict = evict
        self._reserve = _open_reserve()
        self._tasks: set[asyncio.Task[object]] = set()
        for listening, name in sockets:
            loop.add_reader(listening.fileno(), self._accept, listening, name)

    def _accept(self, listening: socket.socket, name: str) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:
                if error.errno in _NO_HANDLES:
                    if not self._make_room():
                        self._turn_away(listening)
                        return
                    continue
                raise
            if _is_for_files(accepted) and not (self._make_room() or self._evict()):
                self._warn("the remaining file handles are for files; a new connection is closed")
                accepted.close()
                return
            self._begin(accepted, name)

    def _begin(self, accepted: socket.socket, name: str) -> None:
        protocol = self._make(name)
        if protocol is None:
            accepted.close()
            return
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connecting = self._loop.connect_accepted_socket(lambda: protocol, accepted)
        task: asyncio.Task[object] = self._loop.create_task(connecting)
        self._tasks.add(task)
        task.add_done_callback(partial(self._begun, protocol))

    def _begun(self, protocol: asyncio.BaseProtocol, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._warn(f"a connection could not be set up: {task.exception()}")
            protocol.connection_lost(None)

    def _turn_away(self, listening: socket.socket) -> None:
        """Accept one connection with the spare handle, and close it."""
        self._warn("no file handles are left; a new connection is closed")
        if self._reserve is not None:
            os.close(self._reserve)
        with contextlib.suppress(OSError):
            listening.accept()[0].close()
        self._reserve = _open_reserve()

    def close(self) -> None:
        """Stop listening."""
        for listening, _ in self._sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None


def _is_for_files(accepted: socket.socket) -> bool:
    """Return whether only the handles that are reserved for files are left.

    The system assigns the lowest free number: all numbers below the newest one are in use.
    """
    limit = process.handle_limit()
    return accepted.fileno() >= limit - min(limit // 4, _FOR_FILES_MAX)


def _open_reserve() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
