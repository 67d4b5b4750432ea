"""Giving memory back that the allocator keeps for later.

Batches come and go by the megabyte, and glibc keeps what they took: after a heavy load a server held ten
times what it used. Asking for every large block from the operating system instead cost a fifth of the
throughput; asking glibc now and then to let go costs nothing that can be measured.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable

#: How often the server asks.
TRIM_SECONDS = 5.0


def find_trim() -> Callable[[], None]:
    """Return a call that gives free memory back to the operating system; it does nothing without glibc."""
    # Other allocators have no such call, and give back by themselves.
    with contextlib.suppress(OSError, AttributeError):
        trim = ctypes.CDLL(None).malloc_trim
        return lambda: trim(0)
    return lambda: None
