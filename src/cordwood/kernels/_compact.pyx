# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled kernels for compaction. `reference` has the same functions in plain Python, with documentation."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from cordwood.kernels._encode cimport OK, Source, raise_for
from cordwood.kernels._memory cimport Growing, Held, allocate, put, release

cdef struct Slot:
    uint64_t low, high  # the hash of a key; both 0 for an empty slot
    int64_t offset


# --- a keyed hash --------------------------------------------------------------------------------------

cdef inline uint64_t rotated(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))

cdef inline void mix(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[0] = rotated(v[0], 32)
    v[2] += v[3]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[2] = rotated(v[2], 32)

cdef void hash_key(const uint8_t* data, Py_ssize_t size, uint64_t k0, uint64_t k1, Slot* slot) noexcept nogil:
    """SipHash-2-4 of 128 bits: without the secret, collisions of keys cannot be constructed."""
    cdef uint64_t[4] v
    cdef uint64_t m
    cdef Py_ssize_t i, whole = size & ~7
    v[0] = k0 ^ 0x736F6D6570736575ULL
    v[1] = k1 ^ 0x646F72616E646F6DULL ^ 0xEE
    v[2] = k0 ^ 0x6C7967656E657261ULL
    v[3] = k1 ^ 0x7465646279746573ULL
    for i in range(0, whole, 8):
        memcpy(&m, data + i, 8)
        v[3] ^= m
        mix(v)
        mix(v)
        v[0] ^= m
    m = <uint64_t>(size & 0xFF) << 56
    for i in range(size - whole):
        m |= <uint64_t>data[whole + i] << (8 * i)
    v[3] ^= m
    mix(v)
    mix(v)
    v[0] ^= m
    v[2] ^= 0xEE
    for i in range(4):
        mix(v)
    slot.low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for i in range(4):
        mix(v)
    slot.high = v[0] ^ v[1] ^ v[2] ^ v[3]
    if slot.low == 0 and slot.high == 0:
        slot.high = 1


# --- the last offset of each key -----------------------------------------------------------------------

cdef class KeyMap:
    """See reference.KeyMap."""
    cdef Slot* slots
    cdef uint64_t mask
    cdef Py_ssize_t used, capacity
    cdef uint64_t k0, k1

    def __cinit__(self, Py_ssize_t capacity, bytes secret):
        cdef uint64_t count = 16
        if capacity < 1:
            raise ValueError(f"a map of {capacity} keys")
        if len(secret) != 16:
            raise ValueError(f"a secret of {len(secret)} bytes, not 16")
        # At most three quarters full, so that a lookup checks few slots.
        while count * 3 // 4 < <uint64_t>capacity:
            count *= 2
        self.slots = <Slot*>calloc(count, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError()
        self.mask = count - 1
        self.capacity = capacity
        self.used = 0
        self.k0 = int.from_bytes(secret[:8], "little")
        self.k1 = int.from_bytes(secret[8:], "little")

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return self.used

    cdef inline Slot* find(self, const uint8_t* key, Py_ssize_t size, Slot* wanted) noexcept nogil:
        """Return the slot of a key, or the empty slot for it."""
        cdef uint64_t at
        hash_key(key, size, self.k0, self.k1, wanted)
        at = wanted.low & self.mask
        while self.slots[at].low != wanted.low or self.slots[at].high != wanted.high:
            if self.slots[at].low == 0 and self.slots[at].high == 0:
                break
            at = (at + 1) & self.mask
        return &self.slots[at]

    def note(self, column, offsets, Py_ssize_t rows, Py_ssize_t start=0, bint known=False):
        """See reference.KeyMap.note."""
        cdef Source keys = Source(column)
        cdef Held held = Held(offsets)
        cdef const int64_t* each = <const int64_t*>held.start
        cdef const uint8_t* key = NULL
        cdef Py_ssize_t i = start, size = 0
        cdef int status = OK
        cdef Slot wanted
        cdef Slot* slot
        check_rows(keys, held, rows, start)
        with nogil:
            while i < rows:
                status = keys.get(i, &key, &size)
                if status:
                    break
                if size >= 0:
                    slot = self.find(key, size, &wanted)
                    if slot.low == 0 and slot.high == 0:
                        if not known:
                            if self.used >= self.capacity:
                                break
                            self.used += 1
                            slot.low = wanted.low
                            slot.high = wanted.high
                            slot.offset = each[i]
                    elif slot.offset < each[i]:
                        slot.offset = each[i]
                i += 1
        if status:
            raise_for(status, i)
        return i

    def superseded(self, column, offsets, Py_ssize_t rows):
        """See reference.KeyMap.superseded."""
        cdef Source keys = Source(column)
        cdef Held held = Held(offsets)
        cdef const int64_t* each = <const int64_t*>held.start
        cdef bytearray flags = PyByteArray_FromStringAndSize(NULL, rows)
        cdef uint8_t* out = <uint8_t*>PyByteArray_AS_STRING(flags)
        cdef const uint8_t* key = NULL
        cdef Py_ssize_t i = 0, size = 0
        cdef int status = OK
        cdef Slot wanted
        cdef Slot* slot
        check_rows(keys, held, rows, 0)
        memset(out, 0, rows)
        with nogil:
            for i in range(rows):
                status = keys.get(i, &key, &size)
                if status:
                    break
                if size >= 0:
                    slot = self.find(key, size, &wanted)
                    out[i] = (slot.low != 0 or slot.high != 0) and slot.offset > each[i]
        if status:
            raise_for(status, i)
        return flags


cdef int check_rows(Source keys, Held offsets, Py_ssize_t rows, Py_ssize_t start) except -1:
    if not 0 <= start <= rows or keys.rows < rows or offsets.size // 8 < rows:
        raise ValueError(f"a column is shorter than {rows} rows")
    return 0


# --- records that are kept -----------------------------------------------------------------------------

cdef inline const uint8_t* skip_varint(const uint8_t* p, const uint8_t* end, int64_t* value) noexcept nogil:
    """Read a zig-zag varint; return NULL if it is incomplete or too long."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    while p < end and shift < 64:
        raw |= <uint64_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            return p + 1
        p += 1
        shift += 7
    return NULL

def keep_records(buffer, Py_ssize_t start, Py_ssize_t stop, dropped, Py_ssize_t first, Py_ssize_t count):
    """See reference.keep_records."""
    cdef Held records = Held(buffer, start, stop)
    cdef Held flags = Held(dropped, first, first + count)
    cdef const uint8_t* p = records.start
    cdef const uint8_t* end = records.start + records.size
    cdef const uint8_t* begin
    cdef const uint8_t* body
    cdef int64_t length = 0, delta = 0, newest = 0
    cdef Py_ssize_t i, kept = 0
    cdef bint whole = True, memory = True
    cdef Growing out
    allocate(&out, records.size)
    with nogil:
        for i in range(count):
            begin = p
            body = skip_varint(p, end, &length)
            # The attributes, a byte, come before the timestamp.
            if body == NULL or length < 1 or length > end - body or skip_varint(body + 1, body + length, &delta) == NULL:
                whole = False
                break
            p = body + length
            if flags.start[i]:
                continue
            if put(&out, begin, p - begin) < 0:
                memory = False
                break
            if kept == 0 or delta > newest:
                newest = delta
            kept += 1
    if not whole or not memory or p != end:
        free(out.memory)
        if not memory:
            raise MemoryError()
        raise ValueError(f"there are not {count} whole records in [{start}, {stop})")
    return release(&out), kept, newest
