"""Listening sockets, and accepting on them even where file handles run out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cordwood.config import Endpoint
from cordwood.errors import ListenFailed
from cordwood.host import process

BACKLOG = 1024
#: With port 0 the one the system picks for the first address must be free at the others too.
_PORT_TRIES = 20
_ACCEPTS_AT_ONCE = 64
#: The file handles that connections leave to files: a quarter of all, and no more than this.
_FOR_FILES_MAX = 256
_NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
_NO_HANDLES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_LOGGER = logging.getLogger("cordwood.server")


def listen(endpoint: Endpoint) -> list[socket.socket]:
    """Return sockets that listen at every address of *endpoint*, IPv4 and IPv6, all at one port.

    Raises:
        ListenFailed: If one of the addresses is taken or not ours.
    """
    for _ in range(_PORT_TRIES):
        try:
            return _listen_once(endpoint)
        except OSError as error:
            if endpoint.port or error.errno != errno.EADDRINUSE:
                raise ListenFailed(endpoint, error.strerror or str(error)) from error
    raise ListenFailed(endpoint, "no port is free at all of its addresses")


def _listen_once(endpoint: Endpoint) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    port = endpoint.port
    try:
        for family, address in _addresses(endpoint.host):
            try:
                sockets.append(_bound(family, (address[0], port, *address[2:])))
            except OSError as error:
                if family == socket.AF_INET6 and sockets and error.errno in _NO_SUCH_ADDRESS:
                    # A machine may know the name by an IPv6 address that it does not have.
                    continue
                raise
            port = sockets[-1].getsockname()[1]
    except OSError:
        for made in sockets:
            made.close()
        raise
    return sockets


def _addresses(host: str) -> list[tuple[int, tuple[Any, ...]]]:
    """Return what *host* stands for, IPv4 first: its port is the one that is shown."""
    if host == "localhost":
        # Many a hosts file has one of them only, and clients may still use the other.
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
    """Accepts on sockets. Used on the loop only.

    Connections leave some file handles to files: a client that is connected is served, though its record
    needs a new segment. Where only those are left, others are asked to give some back, and when nobody can,
    the client is turned away. One handle is kept in reserve for that: it is given up for long enough to take
    the next connection and close it. Its client learns that at once, instead of waiting in a queue that
    nobody serves, and the listening socket does not keep the loop busy.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Sequence[tuple[socket.socket, str]],
        make: Callable[[str], asyncio.BaseProtocol | None],
        make_room: Callable[[], int] = lambda: 0,
    ) -> None:
        """Begin to accept on *sockets*, each with its listener's name.

        *make* returns the protocol of a new connection, or None to turn it away. *make_room* gives file
        handles back and returns how many.
        """
        self._loop = loop
        self._sockets = sockets
        self._make = make
        self._make_room = make_room
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
            if _is_for_files(accepted) and not self._make_room():
                _LOGGER.warning("the file handles that are left are for files; a client is turned away")
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
            _LOGGER.warning("a connection could not be begun: %s", task.exception())
            protocol.connection_lost(None)

    def _turn_away(self, listening: socket.socket) -> None:
        """Take one connection with the handle in reserve, and close it."""
        _LOGGER.warning("no file handles are left; a client is turned away")
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
    """Return whether only the handles that files may need are left.

    The system gives out the lowest number that is free: all below that of the newest one are taken.
    """
    limit = process.handle_limit()
    return accepted.fileno() >= limit - min(limit // 4, _FOR_FILES_MAX)


def _open_reserve() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
