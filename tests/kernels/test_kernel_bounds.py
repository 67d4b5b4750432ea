"""The compiled kernels never read past their buffer: here its next byte is unreadable, so one that did
would end the test process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batches, mutations, outcome

from cordwood import kernels
from cordwood.kernels import Want
from cordwood.kernels.layout import HEADER_SIZE, INT64_MAX, INT64_MIN

pytestmark = pytest.mark.skipif(
    not kernels.COMPILED, reason="no compiler at installation: the plain kernels cannot over-read"
)

PAGES = 4
PROT_NONE, PROT_READ_WRITE = 0, 3


class CliffEdge:
    """Memory whose end is the end of what the process may read."""

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, (PAGES + 1) * mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.cliff = address + PAGES * mmap.PAGESIZE
        self.libc = ctypes.CDLL(None, use_errno=True)
        assert self.protect(PROT_NONE) == 0

    def protect(self, protection: int) -> int:
        arguments = (ctypes.c_void_p(self.cliff), ctypes.c_size_t(mmap.PAGESIZE), protection)
        return int(self.libc.mprotect(*arguments))

    def place(self, data: bytes) -> memoryview:
        """Return a view of *data* that ends at the cliff."""
        end = PAGES * mmap.PAGESIZE
        assert len(data) <= end
        view = memoryview(self.map)[end - len(data) : end]
        view[:] = data
        return view


@pytest.fixture(scope="module")
def edge() -> Iterator[CliffEdge]:
    cliff = CliffEdge()
    yield cliff
    cliff.protect(PROT_READ_WRITE)


def run_all(data: memoryview) -> None:
    table, _, _ = kernels.scan_headers(data, 0, len(data), 1 << 24, INT64_MIN, False, INT64_MIN, INT64_MAX)
    outcome(kernels.decode_columns, data, table, [None] * (len(table) // 104), Want.ALL)
    records = data[HEADER_SIZE:]
    for count in (1, 3, 20):
        outcome(kernels.walk_records, records, 0, len(records), count, 30, 0, False, -1)
        outcome(
            kernels.decode_rows, lambda *row: row, records, 0, len(records), count, 0, 30, 0, 0, False, -1
        )


def test_the_cliff_is_real(edge: CliffEdge) -> None:
    """Reading one byte past the view fails, so the tests below can fail."""
    view = edge.place(b"x")
    assert bytes(view) == b"x"
    read_fd, write_fd = __import__("os").pipe()
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    written = edge.libc.write(write_fd, ctypes.c_void_p(address + 1), ctypes.c_size_t(1))
    assert written == -1, "the byte after the view was readable"
    for fd in (read_fd, write_fd):
        __import__("os").close(fd)


@settings(max_examples=500)
@given(mutations(batches()))
def test_no_kernel_reads_past_a_damaged_batch(edge: CliffEdge, data: bytes) -> None:
    run_all(edge.place(data))


def test_no_kernel_reads_past_a_batch_cut_at_any_byte(edge: CliffEdge) -> None:
    from cordwood.formats import batch

    rows = [(b"key%d" % i, b"v" * i * 9, [("name", b"value"), ("ünï", None)]) for i in range(6)]
    encoded = bytes(batch.encode_records(rows, 5))
    for size in range(len(encoded) + 1):
        run_all(edge.place(encoded[:size]))
    print(f"cut at {len(encoded) + 1} places")


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_a_readonly_view_is_exactly_its_bytes(edge: CliffEdge, data: bytes, start: int, stop: int) -> None:
    view = edge.place(data)
    result = outcome(kernels.readonly, view, start, stop)
    if 0 <= start <= stop <= len(data):
        assert result == ("returned", data[start:stop])
    else:
        assert result[:2] == ("raised", IndexError)
