"""Return of memory to the operating system: free memory of the allocator, and buffers of large requests.

glibc keeps the memory of freed batches: after a heavy load a server held ten times the memory that it used.
Allocating every large block from the operating system cost a fifth of the throughput; calling malloc_trim
periodically has no measurable cost.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Callable

#: The interval between calls of malloc_trim.
TRIM_SECONDS = 5.0


def find_trim() -> Callable[[], None]:
    """Return a function that returns free memory to the operating system; without glibc it does nothing."""
    # Other allocators have no such function, and return memory by themselves.
    with contextlib.suppress(OSError, AttributeError):
        trim = ctypes.CDLL(None).malloc_trim
        return lambda: trim(0)
    return lambda: None


def map_buffer(size: int) -> mmap.mmap | None:
    """Return a writable buffer that takes memory page by page as it is filled, or None if mapping fails.

    ``resize`` grows it without a copy, and its memory is returned when the last reference is dropped. The
    allocator would copy a growing buffer and keep its memory for a while.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):
            # With huge pages the first byte would take two megabytes.
            made.madvise(mmap.MADV_NOHUGEPAGE)
        return made
    return None
