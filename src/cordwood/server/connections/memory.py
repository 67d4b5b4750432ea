"""Memory that goes back to the system: what the allocator keeps for later, and buffers of large requests.

Batches come and go by the megabyte, and glibc keeps what they took: after a heavy load a server held ten
times what it used. Asking for every large block from the operating system instead cost a fifth of the
throughput; asking glibc now and then to let go costs nothing that can be measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
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


def map_buffer(size: int) -> mmap.mmap | None:
    """Return a writable buffer that takes memory page by page as it is filled, None if there is none.

    It is grown by its ``resize`` without a copy, and its memory goes back the moment that nobody uses it. The
    allocator would copy it to grow it, and keep what it took for a while.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):
            # A huge page would take two megabytes for the first byte.
            made.madvise(mmap.MADV_NOHUGEPAGE)
        return made
    return None
