"""Who this process is, for others who meet what it holds."""

from __future__ import annotations

import os
import socket
import uuid


def host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def holder() -> str:
    """Return what is written into a lock, for whoever finds it taken."""
    return f"pid {os.getpid()} on {host()}"


def new_secret() -> bytes:
    """Return 16 bytes that nobody can guess."""
    return os.urandom(16)


def new_seed() -> bytes:
    """Return 32 bytes that nobody can guess, to make a key of."""
    return os.urandom(32)


def new_id() -> str:
    """Return an id that nobody else has."""
    return str(uuid.uuid4())
