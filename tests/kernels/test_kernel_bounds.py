"""The compiled kernels never read past their buffer: here its next byte is unreadable, so one that did
would end the test process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import Row, batches, mutations, outcome, row_lists
from support.columns import BUFFERS, buffer_at, columns_of, int64s, with_buffer

from cordwood import kernels
from cordwood.kernels import ITEM_SIZE, SALT_SIZE, Want
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


# --- hashing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("portable", [False, True], ids=["instructions", "portable"])
def test_no_hash_reads_past_a_value_of_any_size(edge: CliffEdge, portable: bool) -> None:
    """Blocks of a value are read where they are, so the last one may end at the cliff."""
    from cordwood.kernels import _hash

    _hash._use_portable(portable)
    try:
        for size in range(260):
            for way in (("key", "data"), ("value", "data"), ("headers", "values", "data")):
                part = bytes(size)
                columns = columns_of([(part, part, [("n", part)], None)])
                expected = outcome(kernels.hash_records, columns, bytes(SALT_SIZE))
                moved = with_buffer(columns, way, edge.place(part))
                assert outcome(kernels.hash_records, moved, bytes(SALT_SIZE)) == expected
    finally:
        _hash._use_portable(False)


@settings(max_examples=500)
@given(row_lists, st.sampled_from(BUFFERS), st.data())
def test_no_hash_reads_past_any_buffer_of_damaged_columns(
    edge: CliffEdge, rows: list[Row], way: tuple[str, ...], data: st.DataObject
) -> None:
    """Each buffer ends at the cliff in turn, whole or cut, and offsets in it or in another one lie."""
    columns = columns_of(rows)
    if data.draw(st.booleans()):
        lying = data.draw(st.sampled_from([each for each in BUFFERS if each[-1] == "offsets"]))
        offsets = bytearray(buffer_at(columns, lying) or b"")
        at = data.draw(st.integers(0, len(offsets) - 1))
        offsets[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
        columns = with_buffer(columns, lying, bytes(offsets))
    whole = bytes(buffer_at(columns, way) or b"")
    cut = whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole
    expected = outcome(kernels.hash_records, with_buffer(columns, way, cut), bytes(SALT_SIZE))
    moved = with_buffer(columns, way, edge.place(cut))
    assert outcome(kernels.hash_records, moved, bytes(SALT_SIZE)) == expected


@pytest.mark.parametrize("count", range(20))
def test_no_root_reads_past_its_items_offsets_or_counts(edge: CliffEdge, count: int) -> None:
    items, offsets, counts = bytes(count * ITEM_SIZE), int64s(range(count)), int64s([count])
    for cut in range(min(len(items), 10) + 1):
        run_roots(edge, [items[: len(items) - cut], offsets, counts])
        run_roots(edge, [items, offsets[: max(len(offsets) - cut, 0)], counts])
        run_roots(edge, [items, offsets, counts[: max(len(counts) - cut, 0)]])
        run_roots(edge, [items, offsets, int64s([count + cut - 5])])


def run_roots(edge: CliffEdge, arguments: list[bytes]) -> None:
    """Compute roots with each of the three buffers at the cliff in turn."""
    expected = outcome(kernels.list_roots, *arguments)
    for i, argument in enumerate(arguments):
        moved = [*arguments[:i], edge.place(argument), *arguments[i + 1 :]]
        assert outcome(kernels.list_roots, *moved) == expected


def test_no_salt_is_read_past_its_end(edge: CliffEdge) -> None:
    columns = columns_of([(b"k", b"v", [], None)])
    for size in (SALT_SIZE - 1, SALT_SIZE):
        expected = outcome(kernels.hash_records, columns, bytes(size))
        assert outcome(kernels.hash_records, columns, edge.place(bytes(size))) == expected
