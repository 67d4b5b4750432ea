# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled kernels that hash records. `reference` says in plain Python what each of them does."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from cordwood.kernels._encode cimport LYING_OFFSETS, OK, Lists, Source, raise_for
from cordwood.kernels._memory cimport Growing, Held, allocate

from cordwood.kernels import layout

cdef extern from "_sha256.h" nogil:
    ctypedef struct sha256_stream:
        uint8_t* block

    int sha256_choose(int portable) noexcept
    void sha256_init(sha256_stream* s) noexcept
    void sha256_update(sha256_stream* s, const uint8_t* data, size_t size) noexcept
    void sha256_final(sha256_stream* s, uint8_t* digest) noexcept
    void sha256_pad_two(uint8_t* blocks, size_t size) noexcept
    void sha256_of_two(const uint8_t* blocks, uint8_t* digest) noexcept
    void sha256_put32(uint8_t* p, uint32_t value) noexcept
    void sha256_put64(uint8_t* p, uint64_t value) noexcept

cdef enum:
    HASH = 32
    SALT = 32
    ITEM = 1 + 2 * HASH
    ENTRY = 1 + 8 + ITEM  # what is hashed for a leaf of a list: a zero byte, the offset, the item
    NODE = 1 + 2 * HASH  # what is hashed for a node: a one byte and two hashes
    NO_KEY = 1
    NO_VALUE = 2

assert (ITEM, SALT, NO_KEY, NO_VALUE) == (layout.ITEM_SIZE, layout.SALT_SIZE, layout.NO_KEY, layout.NO_VALUE)

sha256_choose(False)


def _use_portable(bint portable):
    """Hash without instructions of the processor, or with them again; return whether they are used. For tests."""
    return bool(sha256_choose(portable))


cdef inline int64_t number_at(const uint8_t* numbers, Py_ssize_t i) noexcept nogil:
    """Return an int64 of a buffer, which begins at any address."""
    cdef int64_t number
    memcpy(&number, numbers + 8 * i, 8)
    return number


# --- records -------------------------------------------------------------------------------------------

cdef inline void hash_sized(sha256_stream* hashed, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Hash a byte string after its size, which is -1 for null."""
    cdef uint8_t[4] length
    sha256_put32(length, <uint32_t>size)
    sha256_update(hashed, length, 4)
    if size > 0:
        sha256_update(hashed, data, size)


cdef int hash_headers(sha256_stream* hashed, Lists lists, Source names, Source values, Py_ssize_t row) noexcept nogil:
    """Hash the headers of *row* after their number, checking every offset."""
    cdef Py_ssize_t first = lists.offsets[row], after = lists.offsets[row + 1], h, size = 0
    cdef const uint8_t* data = NULL
    cdef uint8_t[4] count
    if first < 0 or after < first or after > lists.rows:
        return LYING_OFFSETS
    sha256_put32(count, <uint32_t>(after - first))
    sha256_update(hashed, count, 4)
    for h in range(first, after):
        if names.get(h, &data, &size) or size < 0:
            return LYING_OFFSETS
        hash_sized(hashed, data, size)
        if values.get(h, &data, &size):
            return LYING_OFFSETS
        hash_sized(hashed, data, size)
    return OK


def hash_records(columns, salt):
    """See reference.hash_records."""
    cdef Held salt_held = Held(salt)
    if salt_held.size != SALT:
        raise ValueError(f"a salt of {salt_held.size} bytes, not {SALT}")
    if columns.key is None or columns.value is None or columns.headers is None or columns.timestamp is None:
        raise ValueError("a column is missing")
    cdef Py_ssize_t rows = columns.rows, i = 0, key_size = 0, value_size = 0
    cdef Source keys = Source(columns.key)
    cdef Source values = Source(columns.value)
    cdef Lists lists = Lists(columns.headers, rows)
    cdef Source names = lists.names
    cdef Source header_values = lists.values
    cdef Held timestamps = Held(columns.timestamp)
    if keys.rows < rows or values.rows < rows or timestamps.size // 8 < rows:
        raise ValueError(f"a column is shorter than {rows} rows")
    cdef bytearray items = PyByteArray_FromStringAndSize(NULL, rows * ITEM if rows > 0 else 0)
    cdef uint8_t* out = <uint8_t*>PyByteArray_AS_STRING(items)
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef uint8_t[1 + SALT] key_start
    cdef uint8_t[1 + 8] rest_start
    cdef sha256_stream hashed
    cdef int status = OK
    key_start[0] = 1
    memcpy(key_start + 1, salt_held.start, SALT)
    rest_start[0] = 2
    with nogil:
        for i in range(rows):
            status = keys.get(i, &key, &key_size) or values.get(i, &value, &value_size)
            if status:
                break
            out[0] = (NO_KEY if key_size < 0 else 0) | (NO_VALUE if value_size < 0 else 0)
            sha256_init(&hashed)
            sha256_update(&hashed, key_start, 1 + SALT)
            if key_size > 0:
                sha256_update(&hashed, key, key_size)
            sha256_final(&hashed, out + 1)
            sha256_put64(rest_start + 1, <uint64_t>number_at(timestamps.start, i))
            sha256_init(&hashed)
            sha256_update(&hashed, rest_start, 1 + 8)
            hash_sized(&hashed, value, value_size)
            status = hash_headers(&hashed, lists, names, header_values, i)
            if status:
                break
            sha256_final(&hashed, out + 1 + HASH)
            out += ITEM
    if status:
        raise_for(status, i)
    return items


# --- lists ---------------------------------------------------------------------------------------------

cdef enum:
    MESSAGE = 128  # an entry or a node, with its padding
    # Messages that are put together before the first of them is hashed. Bytes that were just written in pieces of
    # other sizes are read late, and a processor that waits for them does not begin with the next message.
    GROUP = 8

cdef void hash_entries(uint8_t* messages, const uint8_t* offsets, const uint8_t* items, Py_ssize_t count, uint8_t* hashes) noexcept nogil:
    """Hash the entries of *count* records; *messages* are padded for entries."""
    cdef Py_ssize_t i, group
    while count > 0:
        group = count if count < GROUP else GROUP
        for i in range(group):
            sha256_put64(messages + i * MESSAGE + 1, <uint64_t>number_at(offsets, i))
            memcpy(messages + i * MESSAGE + 9, items + i * ITEM, ITEM)
        for i in range(group):
            sha256_of_two(messages + i * MESSAGE, hashes + i * HASH)
        offsets += group * 8
        items += group * ITEM
        hashes += group * HASH
        count -= group


cdef void hash_pairs(uint8_t* messages, const uint8_t* hashes, Py_ssize_t pairs, uint8_t* nodes) noexcept nogil:
    """Hash *pairs* of hashes, two after two; *nodes* may begin where *hashes* does."""
    cdef Py_ssize_t i, group
    while pairs > 0:
        group = pairs if pairs < GROUP else GROUP
        for i in range(group):
            memcpy(messages + i * MESSAGE + 1, hashes + i * 2 * HASH, 2 * HASH)
        for i in range(group):
            sha256_of_two(messages + i * MESSAGE, nodes + i * HASH)
        hashes += group * 2 * HASH
        nodes += group * HASH
        pairs -= group


cdef void hash_nodes(uint8_t* messages, uint8_t* hashes, Py_ssize_t count) noexcept nogil:
    """Leave the root over *count* hashes in the place of the first; *messages* are padded for nodes."""
    cdef Py_ssize_t pairs
    while count > 1:
        pairs = count // 2
        hash_pairs(messages, hashes, pairs, hashes)
        if count & 1:
            # A node without a sibling is passed up unchanged.
            memcpy(hashes + pairs * HASH, hashes + (count - 1) * HASH, HASH)
        count -= pairs


cdef Py_ssize_t longest_list(Held counts, Py_ssize_t rows) noexcept nogil:
    """Return the largest count; -1 where one is negative or they do not add up to *rows*."""
    cdef Py_ssize_t i, longest = 0
    cdef int64_t count
    for i in range(counts.size // 8):
        count = number_at(counts.start, i)
        if count < 0 or count > rows:
            return -1
        rows -= count
        if count > longest:
            longest = count
    return longest if rows == 0 else -1


def list_roots(items, offsets, counts):
    """See reference.list_roots."""
    cdef Held each = Held(offsets)
    cdef Held lengths = Held(counts)
    cdef Held data = Held(items)
    cdef Py_ssize_t lists = lengths.size // 8, longest = longest_list(lengths, data.size // ITEM)
    cdef Py_ssize_t i, row = 0, count
    if longest < 0 or data.size % ITEM or each.size // 8 < data.size // ITEM:
        rows = sum([number_at(lengths.start, i) for i in range(lists)])
        raise ValueError(f"{data.size} bytes of items and {each.size // 8} offsets for lists of {rows} records")
    cdef bytearray roots = PyByteArray_FromStringAndSize(NULL, lists * HASH)
    cdef uint8_t* out = <uint8_t*>PyByteArray_AS_STRING(roots)
    cdef uint8_t[GROUP * MESSAGE] entries
    cdef uint8_t[GROUP * MESSAGE] nodes
    cdef sha256_stream empty
    cdef Growing hashes
    allocate(&hashes, longest * HASH)
    for i in range(GROUP):
        entries[i * MESSAGE] = 0
        sha256_pad_two(entries + i * MESSAGE, ENTRY)
        nodes[i * MESSAGE] = 1
        sha256_pad_two(nodes + i * MESSAGE, NODE)
    with nogil:
        for i in range(lists):
            count = number_at(lengths.start, i)
            if count == 0:
                sha256_init(&empty)
                sha256_final(&empty, out)
            else:
                hash_entries(entries, each.start + 8 * row, data.start + row * ITEM, count, hashes.memory)
                hash_nodes(nodes, hashes.memory, count)
                memcpy(out, hashes.memory, HASH)
            out += HASH
            row += count
    free(hashes.memory)
    return roots
