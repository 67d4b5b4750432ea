"""The identity, random values and limits of this process."""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import socket
import uuid


def host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def user() -> str:
    """Return the name of the user that this process runs as; the number if it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def holder() -> str:
    """Return the text for a lock file, shown to processes that find it locked."""
    return f"pid {os.getpid()} on {host()}"


def new_secret() -> bytes:
    """Return 16 random bytes, suitable as a secret."""
    return os.urandom(16)


def new_session_id() -> int:
    """Return an unpredictable number from 0 to 2**31 - 1."""
    return int.from_bytes(os.urandom(4), "big") >> 1


def new_seed() -> bytes:
    """Return 32 random bytes, suitable as the seed of a key."""
    return os.urandom(32)


def new_nonce() -> str:
    """Return 40 unpredictable printable characters that are never returned again."""
    return os.urandom(20).hex()


def new_id() -> str:
    """Return a unique id."""
    return str(uuid.uuid4())


def handle_limit() -> int:
    """Return the limit of open files and connections of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_handle_limit() -> int:
    """Raise the limit of open files and connections to the allowed maximum; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems report no limit and then refuse more than this.
    for limit in (hard, 1 << 20, 10_240):
        if limit > soft or limit == resource.RLIM_INFINITY:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                break
    return handle_limit()
