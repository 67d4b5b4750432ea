"""Low-level queries and options of a connection's socket."""

from __future__ import annotations

import asyncio
import select
import socket
import struct


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Return whether the peer has closed the connection, also while reading is paused.

    False on systems that do not report it; there the next send fails.
    """
    connected = transport.get_extra_info("socket")
    if connected is None or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(connected.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def discard_unsent(transport: asyncio.Transport) -> None:
    """Make the system drop unsent bytes when the connection is closed.

    It would otherwise retry for minutes and hold megabytes for a client that was given up.
    """
    connected = transport.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def is_readable(transport: asyncio.Transport) -> bool:
    """Return whether received bytes wait, in the socket or encrypted; True if that cannot be determined."""
    if transport.get_extra_info("received"):
        return True
    connected = transport.get_extra_info("socket")
    if connected is None or not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(connected.fileno(), select.POLLIN)
    return bool(poll.poll(0))
