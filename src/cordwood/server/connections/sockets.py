"""What the socket of a connection tells and takes beside its bytes."""

from __future__ import annotations

import asyncio
import select
import socket
import struct


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Return whether the peer hung up, which nobody is told of a connection that is not read from.

    Known where the system tells: elsewhere it shows when something is sent.
    """
    connected = transport.get_extra_info("socket")
    if connected is None or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(connected.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def discard_unsent(transport: asyncio.Transport) -> None:
    """Have the system drop what it was to send when the connection is closed.

    It would go on trying for minutes, and hold megabytes for a client that we gave up.
    """
    connected = transport.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def is_readable(transport: asyncio.Transport) -> bool:
    """Return whether bytes wait in the socket of a connection; True where that cannot be told."""
    connected = transport.get_extra_info("socket")
    if connected is None or not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(connected.fileno(), select.POLLIN)
    return bool(poll.poll(0))
