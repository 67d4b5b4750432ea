# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled kernels for decoding. `reference` has the same functions in plain Python, with documentation.

Every read is preceded by a comparison with the end of the readable range, so no input makes a kernel
read past its buffer. Loops over records use no Python object and release the GIL.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from cordwood.kernels._memory cimport Growing, Held, allocate, put, put32, put64, release, reserve
from cordwood.kernels.layout import BinaryBuffers, ColumnBuffers, HeaderBuffers, invalid_records

cdef enum:
    HEADER_SIZE = 61
    LENGTH_OVERHEAD = 12
    RECORD_SIZE_MIN = 7
    HEADER_COLUMNS = 13
    LOG_APPEND_TIME = 8

cdef enum:  # layout.HeaderColumn
    POSITION, SIZE, BASE_OFFSET, LEADER_EPOCH, CRC, ATTRIBUTES, LAST_OFFSET_DELTA
    BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, COUNT

cdef enum:  # layout.Stop
    END, SHORT, ZEROS, BAD_MAGIC, BAD_LENGTH, TOO_LARGE, BAD_OFFSET, BAD_EPOCH, BAD_COUNT

cdef enum:  # layout.Want
    WANT_OFFSET = 1
    WANT_TIMESTAMP = 2
    WANT_TIMESTAMP_TYPE = 4
    WANT_KEY = 8
    WANT_VALUE = 16
    WANT_HEADERS = 32

cdef enum:  # layout.Finding
    FOUND_NOTHING, CUT_OFF, VARINT_TOO_LONG, OUT_OF_RANGE, NOT_UTF8

cdef enum:  # layout.Field
    IN_COUNT, IN_LENGTH, IN_ATTRIBUTES, IN_TIMESTAMP_DELTA, IN_OFFSET_DELTA, IN_KEY, IN_VALUE
    IN_HEADER_COUNT, IN_HEADER_NAME, IN_HEADER_VALUE, IN_RECORD_END, IN_RECORDS_END


# --- big-endian loads -------------------------------------------------------------------------------

cdef inline uint32_t load32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]

cdef inline int64_t load64(const uint8_t* p) noexcept nogil:
    return <int64_t>((<uint64_t>load32(p) << 32) | load32(p + 4))

cdef inline int16_t load16(const uint8_t* p) noexcept nogil:
    return <int16_t>((p[0] << 8) | p[1])


# --- header scan ------------------------------------------------------------------------------------

cdef inline bint all_zero(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        if p[i] != 0:
            return False
    return True


cdef inline int read_header(const uint8_t* p, Py_ssize_t remaining, int64_t size_max, int64_t next_offset, bint dense, int64_t epoch_low, int64_t epoch_high, int64_t* row) noexcept nogil:
    """Fill *row*, except its position, from the header at *p*; return END, or the reason to stop."""
    # Fewer zero bytes than a header prove nothing: a base offset begins with some.
    if remaining < HEADER_SIZE:
        return SHORT
    if all_zero(p, HEADER_SIZE):
        return ZEROS
    if p[16] != 2:
        return BAD_MAGIC
    row[SIZE] = <int64_t>(<int32_t>load32(p + 8)) + LENGTH_OVERHEAD
    if row[SIZE] < HEADER_SIZE:
        return BAD_LENGTH
    if row[SIZE] > size_max:
        return TOO_LARGE
    row[BASE_OFFSET] = load64(p)
    row[LAST_OFFSET_DELTA] = <int32_t>load32(p + 23)
    if row[BASE_OFFSET] < next_offset or (dense and row[BASE_OFFSET] > next_offset) or row[LAST_OFFSET_DELTA] < 0 or row[BASE_OFFSET] > INT64_MAX - 1 - row[LAST_OFFSET_DELTA]:
        return BAD_OFFSET
    row[LEADER_EPOCH] = <int32_t>load32(p + 12)
    if row[LEADER_EPOCH] < epoch_low or row[LEADER_EPOCH] > epoch_high:
        return BAD_EPOCH
    row[COUNT] = <int32_t>load32(p + 57)
    if row[COUNT] < 0 or row[COUNT] > row[LAST_OFFSET_DELTA] + 1:
        return BAD_COUNT
    if row[SIZE] > remaining:
        return SHORT
    row[CRC] = load32(p + 17)
    row[ATTRIBUTES] = load16(p + 21)
    row[BASE_TIMESTAMP] = load64(p + 27)
    row[MAX_TIMESTAMP] = load64(p + 35)
    row[PRODUCER_ID] = load64(p + 43)
    row[PRODUCER_EPOCH] = load16(p + 51)
    row[BASE_SEQUENCE] = <int32_t>load32(p + 53)
    return END


def scan_headers(buffer, Py_ssize_t start, Py_ssize_t stop, int64_t size_max, int64_t next_offset, bint dense, int64_t epoch_low, int64_t epoch_high):
    """See reference.scan_headers."""
    cdef Held held = Held(buffer, start, stop)
    cdef Growing table
    cdef int64_t[HEADER_COLUMNS] row
    cdef Py_ssize_t position = 0
    cdef int reason = END, failed = 0
    allocate(&table, HEADER_COLUMNS * 8 * 16)
    with nogil:
        while position < held.size:
            reason = read_header(held.start + position, held.size - position, size_max, next_offset, dense, epoch_low, epoch_high, row)
            if reason != END:
                break
            row[POSITION] = start + position
            failed = put(&table, <const uint8_t*>row, HEADER_COLUMNS * 8)
            if failed:
                break
            next_offset = row[BASE_OFFSET] + row[LAST_OFFSET_DELTA] + 1
            epoch_low = row[LEADER_EPOCH]
            position += row[SIZE]
    rows = release(&table)
    if failed:
        raise MemoryError()
    return rows, start + position, reason


# --- records: one parser for the walk, the rows and the columns ----------------------------------------

cdef struct Trouble:
    int finding
    int field
    const uint8_t* at
    int64_t low
    int64_t high
    int64_t found

cdef struct Parsed:
    int64_t timestamp_delta
    int32_t offset_delta
    const uint8_t* key
    Py_ssize_t key_size
    const uint8_t* value
    Py_ssize_t value_size
    int32_t header_count
    const uint8_t* headers


cdef inline int trouble(Trouble* t, int finding, int field, const uint8_t* at, int64_t low, int64_t high, int64_t found) noexcept nogil:
    t.finding = finding
    t.field = field
    t.at = at
    t.low = low
    t.high = high
    t.found = found
    return finding


cdef inline int read_varint(const uint8_t** cursor, const uint8_t* end, int bits, int field, int64_t* value, Trouble* t) noexcept nogil:
    """Read a zig-zag varint of at most *bits* bits, strictly before *end*."""
    cdef const uint8_t* p = cursor[0]
    cdef uint64_t raw
    cdef uint8_t byte
    cdef int shift = 7
    if p >= end:
        return trouble(t, CUT_OFF, field, cursor[0], 0, 0, 0)
    raw = p[0]
    p += 1
    if raw & 0x80:
        raw &= 0x7F
        while True:
            if p >= end:
                return trouble(t, CUT_OFF, field, cursor[0], 0, 0, end - cursor[0])
            byte = p[0]
            p += 1
            # The last byte may only have the remaining bits, and must end the varint.
            if shift + 7 > bits and (byte >> (bits - shift)) != 0:
                return trouble(t, VARINT_TOO_LONG, field, cursor[0], 0, bits, 0)
            raw |= <uint64_t>(byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
    value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    cursor[0] = p
    return FOUND_NOTHING


cdef inline int read_sized(const uint8_t** cursor, const uint8_t* end, int field, int64_t low, const uint8_t** data, Py_ssize_t* size, Trouble* t) noexcept nogil:
    """Read a length of at least *low* and skip that many bytes."""
    cdef const uint8_t* at = cursor[0]
    cdef int64_t length
    if read_varint(cursor, end, 32, field, &length, t):
        return t.finding
    if length < low or length > end - cursor[0]:
        return trouble(t, OUT_OF_RANGE, field, at, low, end - cursor[0], length)
    data[0] = cursor[0]
    size[0] = <Py_ssize_t>length
    if length > 0:
        cursor[0] += length
    return FOUND_NOTHING


cdef int read_headers(Parsed* r, const uint8_t** cursor, const uint8_t* end, Trouble* t) noexcept nogil:
    """Walk the headers of a record and check that each is complete and its name is UTF-8."""
    cdef const uint8_t* name
    cdef const uint8_t* value
    cdef const uint8_t* at
    cdef Py_ssize_t name_size, value_size, i
    cdef int32_t n
    cdef bint ascii
    for n in range(r.header_count):
        at = cursor[0]
        if read_sized(cursor, end, IN_HEADER_NAME, 0, &name, &name_size, t):
            return t.finding
        ascii = True
        for i in range(name_size):
            if name[i] >= 0x80:
                ascii = False
                break
        if not ascii:
            with gil:
                try:
                    PyUnicode_DecodeUTF8(<const char*>name, name_size, NULL)
                except UnicodeDecodeError:
                    return trouble(t, NOT_UTF8, IN_HEADER_NAME, at, 0, 0, 0)
        if read_sized(cursor, end, IN_HEADER_VALUE, -1, &value, &value_size, t):
            return t.finding
    return FOUND_NOTHING


cdef inline int read_record(const uint8_t** cursor, const uint8_t* end, int64_t delta_low, int64_t delta_high, int64_t base_timestamp, Parsed* r, Trouble* t) noexcept nogil:
    """Read one record strictly before *end*; its offset delta must lie within [delta_low, delta_high]."""
    cdef const uint8_t* at = cursor[0]
    cdef const uint8_t* record_end
    cdef int64_t value
    if read_varint(cursor, end, 32, IN_LENGTH, &value, t):
        return t.finding
    if value < 0 or value > end - cursor[0]:
        return trouble(t, OUT_OF_RANGE, IN_LENGTH, at, 0, end - cursor[0], value)
    record_end = cursor[0] + value
    if cursor[0] >= record_end:
        return trouble(t, CUT_OFF, IN_ATTRIBUTES, cursor[0], 0, 0, 0)
    cursor[0] += 1
    at = cursor[0]
    if read_varint(cursor, record_end, 64, IN_TIMESTAMP_DELTA, &r.timestamp_delta, t):
        return t.finding
    if base_timestamp >= 0:
        if r.timestamp_delta > INT64_MAX - base_timestamp:
            return trouble(t, OUT_OF_RANGE, IN_TIMESTAMP_DELTA, at, INT64_MIN, INT64_MAX - base_timestamp, r.timestamp_delta)
    elif r.timestamp_delta < INT64_MIN - base_timestamp:
        return trouble(t, OUT_OF_RANGE, IN_TIMESTAMP_DELTA, at, INT64_MIN - base_timestamp, INT64_MAX, r.timestamp_delta)
    at = cursor[0]
    if read_varint(cursor, record_end, 32, IN_OFFSET_DELTA, &value, t):
        return t.finding
    if value < delta_low or value > delta_high:
        return trouble(t, OUT_OF_RANGE, IN_OFFSET_DELTA, at, delta_low, delta_high, value)
    r.offset_delta = <int32_t>value
    if read_sized(cursor, record_end, IN_KEY, -1, &r.key, &r.key_size, t):
        return t.finding
    if read_sized(cursor, record_end, IN_VALUE, -1, &r.value, &r.value_size, t):
        return t.finding
    at = cursor[0]
    if read_varint(cursor, record_end, 32, IN_HEADER_COUNT, &value, t):
        return t.finding
    if value < 0 or value > (record_end - cursor[0]) // 2:
        return trouble(t, OUT_OF_RANGE, IN_HEADER_COUNT, at, 0, (record_end - cursor[0]) // 2, value)
    r.header_count = <int32_t>value
    r.headers = cursor[0]
    if value > 0 and read_headers(r, cursor, record_end, t):
        return t.finding
    if cursor[0] != record_end:
        return trouble(t, OUT_OF_RANGE, IN_RECORD_END, cursor[0], 0, 0, record_end - cursor[0])
    return FOUND_NOTHING


cdef inline int count_fits(int64_t count, const uint8_t* start, const uint8_t* end, Trouble* t) noexcept nogil:
    t.finding = FOUND_NOTHING
    if count < 0 or count > (end - start) // RECORD_SIZE_MIN:
        return trouble(t, OUT_OF_RANGE, IN_COUNT, start, 0, (end - start) // RECORD_SIZE_MIN, count)
    return FOUND_NOTHING


cdef inline int at_end(const uint8_t* p, const uint8_t* end, Trouble* t) noexcept nogil:
    if p != end:
        return trouble(t, OUT_OF_RANGE, IN_RECORDS_END, p, 0, 0, end - p)
    return FOUND_NOTHING


cdef object error_from(Trouble* t, const uint8_t* base, int64_t compressed_at):
    return invalid_records(t.finding, t.field, t.at - base, t.low, t.high, t.found, compressed_at)


cdef inline object bytes_or_none(const uint8_t* data, Py_ssize_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>data, size)


def walk_records(buffer, Py_ssize_t start, Py_ssize_t stop, int64_t count, int64_t last_offset_delta, int64_t base_timestamp, bint dense, int64_t compressed_at):
    """See reference.walk_records."""
    cdef Held held = Held(buffer, start, stop)
    cdef Trouble t
    cdef Parsed r
    cdef const uint8_t* p = held.start
    cdef const uint8_t* end = held.start + held.size
    cdef const uint8_t* before
    cdef int64_t i, low = 0, delta_max = INT64_MIN, size_max = 0
    with nogil:
        if not count_fits(count, p, end, &t):
            for i in range(count):
                before = p
                if read_record(&p, end, low, i if dense else last_offset_delta, base_timestamp, &r, &t):
                    break
                if p - before > size_max:
                    size_max = p - before
                low = <int64_t>r.offset_delta + 1
                if r.timestamp_delta > delta_max:
                    delta_max = r.timestamp_delta
            if not t.finding:
                at_end(p, end, &t)
    if t.finding:
        raise error_from(&t, held.start - start, compressed_at)
    return base_timestamp + delta_max if count else -1, size_max


cdef tuple header_tuples(Parsed* r, const uint8_t* end):
    """Build the headers of a record that is already parsed and checked."""
    cdef const uint8_t* p = r.headers
    cdef const uint8_t* name
    cdef const uint8_t* value
    cdef Py_ssize_t name_size, value_size
    cdef Trouble t
    cdef list headers = []
    cdef int32_t i
    for i in range(r.header_count):
        read_sized(&p, end, IN_HEADER_NAME, 0, &name, &name_size, &t)
        read_sized(&p, end, IN_HEADER_VALUE, -1, &value, &value_size, &t)
        headers.append((PyUnicode_DecodeUTF8(<const char*>name, name_size, NULL), bytes_or_none(value, value_size)))
    return tuple(headers)


def decode_rows(make, buffer, Py_ssize_t start, Py_ssize_t stop, int64_t count, int64_t base_offset, int64_t last_offset_delta, int64_t base_timestamp, int64_t append_timestamp, bint log_append_time, int64_t compressed_at):
    """See reference.decode_rows."""
    cdef Held held = Held(buffer, start, stop)
    cdef Trouble t
    cdef Parsed r
    cdef const uint8_t* p = held.start
    cdef const uint8_t* end = held.start + held.size
    cdef int64_t i, low = 0
    cdef list rows = []
    if count_fits(count, p, end, &t):
        raise error_from(&t, held.start - start, compressed_at)
    for i in range(count):
        if read_record(&p, end, low, last_offset_delta, base_timestamp, &r, &t):
            raise error_from(&t, held.start - start, compressed_at)
        low = <int64_t>r.offset_delta + 1
        rows.append(make(
            base_offset + r.offset_delta,
            append_timestamp if log_append_time else base_timestamp + r.timestamp_delta,
            bytes_or_none(r.key, r.key_size),
            bytes_or_none(r.value, r.value_size),
            header_tuples(&r, end) if r.header_count else (),
        ))
    if at_end(p, end, &t):
        raise error_from(&t, held.start - start, compressed_at)
    return rows


# --- columns ----------------------------------------------------------------------------------------

cdef class Binary:
    """A byte-string column under construction: int32 offsets, data, and a bitmap of non-null values."""
    cdef Growing offsets
    cdef Growing data
    cdef Growing validity
    cdef Py_ssize_t rows
    cdef Py_ssize_t nulls

    def __cinit__(self, Py_ssize_t rows, Py_ssize_t size):
        allocate(&self.offsets, (rows + 1) * 4)
        allocate(&self.data, size)
        allocate(&self.validity, rows // 8 + 1)
        put32(&self.offsets, 0)

    def __dealloc__(self):
        free(self.offsets.memory)
        free(self.data.memory)
        free(self.validity.memory)

    cdef inline int add(self, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        cdef int bit = self.rows & 7
        if bit == 0:
            if reserve(&self.validity, 1) < 0:
                return -1
            self.validity.memory[self.validity.size] = 0
            self.validity.size += 1
        if size >= 0:
            self.validity.memory[self.validity.size - 1] |= <uint8_t>(1 << bit)
            if put(&self.data, data, size) < 0:
                return -1
        else:
            self.nulls += 1
        self.rows += 1
        return put32(&self.offsets, <int32_t>self.data.size)

    cdef object finish(self):
        return BinaryBuffers(
            release(&self.validity) if self.nulls else None, release(&self.offsets), release(&self.data), self.nulls
        )


cdef class Columns:
    """The requested columns of any number of batches, under construction."""
    cdef int want
    cdef Py_ssize_t rows
    cdef Growing offsets
    cdef Growing timestamps
    cdef Growing types
    cdef Growing lists
    cdef Binary keys
    cdef Binary values
    cdef Binary names
    cdef Binary header_values

    def __cinit__(self, int want, Py_ssize_t rows, Py_ssize_t size):
        self.want = want
        allocate(&self.offsets, rows * 8 if want & WANT_OFFSET else 0)
        allocate(&self.timestamps, rows * 8 if want & WANT_TIMESTAMP else 0)
        allocate(&self.types, rows * 4 if want & WANT_TIMESTAMP_TYPE else 0)
        allocate(&self.lists, (rows + 1) * 4 if want & WANT_HEADERS else 0)
        put32(&self.lists, 0)
        self.keys = Binary(rows, size // 8) if want & WANT_KEY else Binary(0, 0)
        self.values = Binary(rows, size) if want & WANT_VALUE else Binary(0, 0)
        self.names = Binary(0, 0)
        self.header_values = Binary(0, 0)

    def __dealloc__(self):
        free(self.offsets.memory)
        free(self.timestamps.memory)
        free(self.types.memory)
        free(self.lists.memory)

    cdef object finish(self):
        return ColumnBuffers(
            self.rows,
            release(&self.offsets) if self.want & WANT_OFFSET else None,
            release(&self.timestamps) if self.want & WANT_TIMESTAMP else None,
            release(&self.types) if self.want & WANT_TIMESTAMP_TYPE else None,
            self.keys.finish() if self.want & WANT_KEY else None,
            self.values.finish() if self.want & WANT_VALUE else None,
            HeaderBuffers(release(&self.lists), self.names.finish(), self.header_values.finish())
            if self.want & WANT_HEADERS else None,
        )


cdef int add_headers(Parsed* r, const uint8_t* end, Binary names, Binary values) noexcept nogil:
    """Append the headers of a record that is already parsed and checked."""
    cdef const uint8_t* p = r.headers
    cdef const uint8_t* name
    cdef const uint8_t* value
    cdef Py_ssize_t name_size, value_size
    cdef Trouble t
    cdef int32_t i
    for i in range(r.header_count):
        read_sized(&p, end, IN_HEADER_NAME, 0, &name, &name_size, &t)
        read_sized(&p, end, IN_HEADER_VALUE, -1, &value, &value_size, &t)
        if names.add(name, name_size) < 0 or values.add(value, value_size) < 0:
            return -1
    return 0


cdef int add_batch(Columns c, Binary keys, Binary values, Binary names, Binary header_values, const int64_t* row, const uint8_t* p, const uint8_t* end, Trouble* t) noexcept nogil:
    """Append the records of one batch; return -1 if memory is exhausted, else *t* has the finding."""
    cdef Parsed r
    cdef int64_t i, low = 0, base_offset = row[BASE_OFFSET], base_timestamp = row[BASE_TIMESTAMP]
    cdef int log_append_time = (row[ATTRIBUTES] & LOG_APPEND_TIME) != 0, want = c.want, failed = 0
    if count_fits(row[COUNT], p, end, t):
        return 0
    for i in range(row[COUNT]):
        if read_record(&p, end, low, row[LAST_OFFSET_DELTA], base_timestamp, &r, t):
            return 0
        low = <int64_t>r.offset_delta + 1
        if want & WANT_OFFSET:
            failed |= put64(&c.offsets, base_offset + r.offset_delta)
        if want & WANT_TIMESTAMP:
            failed |= put64(&c.timestamps, row[MAX_TIMESTAMP] if log_append_time else base_timestamp + r.timestamp_delta)
        if want & WANT_TIMESTAMP_TYPE:
            failed |= put32(&c.types, log_append_time)
        if want & WANT_KEY:
            failed |= keys.add(r.key, r.key_size)
        if want & WANT_VALUE:
            failed |= values.add(r.value, r.value_size)
        if want & WANT_HEADERS:
            if r.header_count:
                failed |= add_headers(&r, end, names, header_values)
            failed |= put32(&c.lists, <int32_t>names.rows)
        if failed:
            return -1
    c.rows += row[COUNT]
    at_end(p, end, t)
    return 0


def decode_columns(buffer, table, payloads, int want):
    """See reference.decode_columns."""
    cdef Held held = Held(buffer), header_table = Held(table), payload
    cdef Columns c
    cdef Binary keys, values, names, header_values
    cdef const int64_t* row = <const int64_t*>header_table.start
    cdef const uint8_t* start
    cdef const uint8_t* end
    cdef Py_ssize_t batches = header_table.size // (HEADER_COLUMNS * 8), b, rows = 0, size = 0
    cdef int failed
    cdef Trouble t
    if len(payloads) != batches:
        raise ValueError(f"{batches} batches need as many payloads, not {len(payloads)}")
    for b in range(batches):
        rows += row[b * HEADER_COLUMNS + COUNT]
        size += row[b * HEADER_COLUMNS + SIZE] if payloads[b] is None else len(payloads[b])
    if size > INT32_MAX:
        raise ValueError(f"decode at most {INT32_MAX} bytes of records at a time, not {size}")
    # A count may be wrong, so no more rows are reserved than the bytes can hold.
    c = Columns(want, min(rows, size // RECORD_SIZE_MIN), size)
    keys, values, names, header_values = c.keys, c.values, c.names, c.header_values
    for b in range(batches):
        if payloads[b] is None:
            if row[POSITION] < 0 or row[SIZE] < HEADER_SIZE or row[POSITION] + row[SIZE] > held.size:
                raise IndexError(f"batch {b} of the table is not within the buffer")
            payload = held
            start = held.start + row[POSITION] + HEADER_SIZE
            end = held.start + row[POSITION] + row[SIZE]
        else:
            payload = Held(payloads[b])
            start = payload.start
            end = payload.start + payload.size
        with nogil:
            failed = add_batch(c, keys, values, names, header_values, row, start, end, &t)
        if failed:
            raise MemoryError()
        if t.finding:
            raise error_from(&t, payload.start, -1 if payload is held else row[POSITION])
        row += HEADER_COLUMNS
    return c.finish()
