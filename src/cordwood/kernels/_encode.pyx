# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled kernels for encoding. `reference` has the same functions in plain Python, with documentation."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from cordwood.kernels._memory cimport Growing, Held, allocate, reserve
from cordwood.errors import RecordRefused

# --- encoding ------------------------------------------------------------------------------------------

cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)

cdef inline int varint_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = zigzag(value)
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size

cdef inline uint8_t* put_varint(uint8_t* p, int64_t value) noexcept nogil:
    cdef uint64_t raw = zigzag(value)
    while raw >= 0x80:
        p[0] = <uint8_t>(raw | 0x80)
        raw >>= 7
        p += 1
    p[0] = <uint8_t>raw
    return p + 1

cdef inline uint8_t* put_sized(uint8_t* p, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    p = put_varint(p, size)
    if size > 0:
        memcpy(p, data, size)
        p += size
    return p

cdef class Output:
    """The encoded bytes, after zeros for a header."""
    cdef Growing bytes

    def __cinit__(self, Py_ssize_t headroom, Py_ssize_t estimate):
        allocate(&self.bytes, headroom + estimate)
        memset(self.bytes.memory, 0, headroom)
        self.bytes.size = headroom

    def __dealloc__(self):
        free(self.bytes.memory)

    cdef bytearray finish(self):
        return PyByteArray_FromStringAndSize(<char*>self.bytes.memory, self.bytes.size)


cdef inline int put_record_start(Growing* out, int64_t timestamp_delta, int64_t offset_delta, Py_ssize_t key_size, Py_ssize_t value_size, int64_t header_count, Py_ssize_t headers_size) noexcept nogil:
    """Reserve room for a whole record and write the fields before its key."""
    cdef int64_t body = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
    cdef uint8_t* p
    body += varint_size(key_size) + varint_size(value_size) + varint_size(header_count) + headers_size
    body += (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0)
    if out.size + body + 10 > INT32_MAX:
        return TOO_LARGE
    if reserve(out, body + 10) < 0:
        return NO_MEMORY
    p = put_varint(out.memory + out.size, body)
    p[0] = 0
    p = put_varint(p + 1, timestamp_delta)
    p = put_varint(p, offset_delta)
    out.size = p - out.memory
    return OK

cdef int raise_for(int status, Py_ssize_t row) except -1:
    if status == NO_MEMORY:
        raise MemoryError()
    if status == TOO_LARGE:
        raise RecordRefused("the records of one batch exceed 2 GiB")
    if status == LYING_OFFSETS:
        raise ValueError(f"row {row}: the offsets of a column do not lie within its data")
    if status == OFFSETS_DO_NOT_RISE:
        raise ValueError(f"row {row}: offsets must rise, by less than 2**31 within a batch")
    if status == TIMESTAMP_TOO_FAR:
        raise RecordRefused(f"row {row}: its timestamp is too far from the first of the batch")
    return 0


cdef inline bint delta_fits(int64_t base, int64_t timestamp) noexcept nogil:
    """Whether timestamp - base is an int64."""
    if base >= 0:
        return timestamp >= INT64_MIN + base
    return timestamp <= INT64_MAX + base


cdef class Source:
    """A byte-string column to encode. Every offset is checked before it is used."""

    def __cinit__(self, column):
        validity, offsets, data, _ = column
        self.offsets_held = Held(offsets)
        self.data_held = Held(data)
        self.offsets = <const int32_t*>self.offsets_held.start
        self.data = self.data_held.start
        self.size = self.data_held.size
        self.rows = self.offsets_held.size // 4 - 1
        self.validity = NULL
        if self.rows < 0:
            raise ValueError("a byte-string column needs at least one offset")
        if validity is not None:
            self.validity_held = Held(validity)
            self.validity = self.validity_held.start
            if self.validity_held.size * 8 < self.rows:
                raise ValueError("the validity bitmap is shorter than its column")

    cdef int get(self, Py_ssize_t i, const uint8_t** data, Py_ssize_t* size) noexcept nogil:
        """Set *data* and *size* to value *i*, size -1 for null; LYING_OFFSETS if its offsets are invalid."""
        cdef int32_t first = self.offsets[i], after = self.offsets[i + 1]
        if self.validity != NULL and not (self.validity[i >> 3] >> (i & 7)) & 1:
            size[0] = -1
            return OK
        if first < 0 or after < first or after > self.size:
            return LYING_OFFSETS
        data[0] = self.data + first
        size[0] = after - first
        return OK


cdef class Lists:
    """A column of header lists to encode from."""

    def __cinit__(self, column, Py_ssize_t rows):
        lists, names, values = column
        self.offsets_held = Held(lists)
        self.offsets = <const int32_t*>self.offsets_held.start
        self.names = Source(names)
        self.values = Source(values)
        self.rows = min(self.names.rows, self.values.rows)
        if self.offsets_held.size // 4 <= rows:
            raise ValueError("the header lists are shorter than the columns")


cdef int headers_size(Lists lists, Source names, Source values, Py_ssize_t row, Py_ssize_t* first, Py_ssize_t* after, Py_ssize_t* total) noexcept nogil:
    """Find the headers of *row* and their size in bytes; check every offset."""
    cdef Py_ssize_t h, size = 0
    cdef const uint8_t* data = NULL
    first[0] = lists.offsets[row]
    after[0] = lists.offsets[row + 1]
    if first[0] < 0 or after[0] < first[0] or after[0] > lists.rows:
        return LYING_OFFSETS
    total[0] = 0
    for h in range(first[0], after[0]):
        if names.get(h, &data, &size) or size < 0:
            return LYING_OFFSETS
        total[0] += varint_size(size) + size
        if values.get(h, &data, &size):
            return LYING_OFFSETS
        total[0] += varint_size(size) + (size if size > 0 else 0)
    return OK


def encode_columns(columns, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t headroom):
    """See reference.encode_columns."""
    cdef Py_ssize_t rows = columns.rows, i = start, h, size = 0, key_size, value_size = 0, headers_bytes = 0
    cdef Py_ssize_t first_header = 0, after_header = 0
    if not 0 <= start < stop <= rows:
        raise IndexError(f"rows [{start}, {stop}) are not within {rows}")
    cdef Held timestamps_held = Held(columns.timestamp)
    cdef Held offsets_held = None if columns.offset is None else Held(columns.offset)
    cdef Source values = Source(columns.value)
    cdef Source keys = None if columns.key is None else Source(columns.key)
    cdef Lists lists = None if columns.headers is None else Lists(columns.headers, rows)
    cdef Source names = None if lists is None else lists.names
    cdef Source header_values = None if lists is None else lists.values
    cdef const int64_t* timestamps = <const int64_t*>timestamps_held.start
    cdef const int64_t* offsets = NULL
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef const uint8_t* data = NULL
    cdef uint8_t* p
    cdef int status = OK
    cdef int64_t base_timestamp, max_timestamp, base_offset = 0, offset_delta, last_delta = -1
    cdef bint short = timestamps_held.size // 8 < rows or values.rows < rows or (keys is not None and keys.rows < rows)
    if short or (offsets_held is not None and offsets_held.size // 8 < rows):
        raise ValueError(f"a column is shorter than {rows} rows")
    if offsets_held is not None:
        offsets = <const int64_t*>offsets_held.start
        base_offset = offsets[start]
    # The data of the columns and about twenty bytes per record; grown if headers need more.
    size = values.offsets[stop] - values.offsets[start] if values.offsets[stop] > values.offsets[start] else 0
    if keys is not None and keys.offsets[stop] > keys.offsets[start]:
        size += keys.offsets[stop] - keys.offsets[start]
    cdef Output output = Output(headroom, size + (stop - start) * 20)
    cdef Growing* out = &output.bytes
    base_timestamp = max_timestamp = timestamps[start]
    with nogil:
        for i in range(start, stop):
            key_size = -1
            if keys is not None:
                status = keys.get(i, &key, &key_size)
                if status:
                    break
            status = values.get(i, &value, &value_size)
            if status:
                break
            if lists is not None:
                status = headers_size(lists, names, header_values, i, &first_header, &after_header, &headers_bytes)
                if status:
                    break
            offset_delta = i - start
            if offsets != NULL:
                # Unsigned, because the difference of two int64 values may not be an int64.
                if offsets[i] < base_offset or <uint64_t>offsets[i] - <uint64_t>base_offset > INT32_MAX:
                    status = OFFSETS_DO_NOT_RISE
                    break
                offset_delta = offsets[i] - base_offset
            if offset_delta <= last_delta:
                status = OFFSETS_DO_NOT_RISE
                break
            last_delta = offset_delta
            if not delta_fits(base_timestamp, timestamps[i]):
                status = TIMESTAMP_TOO_FAR
                break
            if timestamps[i] > max_timestamp:
                max_timestamp = timestamps[i]
            status = put_record_start(out, timestamps[i] - base_timestamp, offset_delta, key_size, value_size, after_header - first_header, headers_bytes)
            if status:
                break
            p = put_sized(out.memory + out.size, key, key_size)
            p = put_sized(p, value, value_size)
            p = put_varint(p, after_header - first_header)
            for h in range(first_header, after_header):
                names.get(h, &data, &size)
                p = put_sized(p, data, size)
                header_values.get(h, &data, &size)
                p = put_sized(p, data, size)
            out.size = p - out.memory
    if status:
        raise_for(status, i)
    return output.finish(), base_timestamp, max_timestamp, last_delta


cdef inline object as_bytes(object data, str what):
    """Return *data* as bytes; refuse anything except a buffer or None, naming *what*."""
    if PyBytes_CheckExact(data):
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise RecordRefused(f"{what} must be bytes or None, not {type(data).__name__}")


def encode_rows(rows, int64_t default_timestamp, Py_ssize_t headroom):
    """See reference.encode_rows."""
    cdef Output output = Output(headroom, 256)
    cdef Growing* out = &output.bytes
    cdef int64_t base_timestamp = 0, max_timestamp = 0, timestamp, offset_delta = 0
    cdef Py_ssize_t key_size, value_size, headers_bytes
    cdef uint8_t* p
    cdef bytes data
    cdef list encoded
    for row in rows:
        fields = len(row)
        if not 2 <= fields <= 4:
            raise RecordRefused(f"row {offset_delta} has {fields} fields; a row is (key, value[, headers[, timestamp]])")
        key = row[0]
        value = row[1]
        key_size = value_size = -1
        if key is not None:
            key = as_bytes(key, "key")
            key_size = PyBytes_GET_SIZE(key)
        if value is not None:
            value = as_bytes(value, "value")
            value_size = PyBytes_GET_SIZE(value)
        encoded = None
        headers_bytes = 0
        if fields > 2 and row[2]:
            encoded = []
            for header in row[2]:
                try:
                    name, content = header
                except (TypeError, ValueError):
                    raise RecordRefused(f"a header is (name, value), not {header!r}") from None
                if not isinstance(name, str):
                    raise RecordRefused(f"header name must be str, not {type(name).__name__}")
                try:
                    data = name.encode()
                except UnicodeEncodeError:
                    raise RecordRefused(f"header name {name!r} has no UTF-8 form") from None
                encoded.append(data)
                headers_bytes += varint_size(len(data)) + len(data)
                if content is None:
                    headers_bytes += 1
                    encoded.append(None)
                else:
                    data = as_bytes(content, "header value")
                    headers_bytes += varint_size(len(data)) + len(data)
                    encoded.append(data)
        timestamp = default_timestamp
        if fields > 3 and row[3] is not None:
            try:
                if not isinstance(row[3], int):
                    raise TypeError
                timestamp = row[3]
            except (OverflowError, TypeError):
                raise RecordRefused(f"timestamp must be milliseconds as a 64-bit integer, not {row[3]!r}") from None
        if offset_delta == 0:
            base_timestamp = timestamp
            max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        if not delta_fits(base_timestamp, timestamp):
            raise_for(TIMESTAMP_TOO_FAR, offset_delta)
        raise_for(put_record_start(out, timestamp - base_timestamp, offset_delta, key_size, value_size, 0 if encoded is None else len(encoded) // 2, headers_bytes), offset_delta)
        p = out.memory + out.size
        p = put_sized(p, <const uint8_t*>PyBytes_AS_STRING(key) if key_size >= 0 else NULL, key_size)
        p = put_sized(p, <const uint8_t*>PyBytes_AS_STRING(value) if value_size >= 0 else NULL, value_size)
        if encoded is None:
            p = put_varint(p, 0)
        else:
            p = put_varint(p, len(encoded) // 2)
            for content in encoded:
                if content is None:
                    p = put_varint(p, -1)
                else:
                    p = put_sized(p, <const uint8_t*>PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content))
        out.size = p - out.memory
        offset_delta += 1
    return output.finish(), base_timestamp, max_timestamp, offset_delta - 1


# --- partitioning --------------------------------------------------------------------------------------

cdef inline uint32_t hash_key(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995u, h = 0x9747B28Cu ^ <uint32_t>size, k
    cdef Py_ssize_t i = 0, whole = size & ~3
    while i < whole:
        k = data[i] | <uint32_t>data[i + 1] << 8 | <uint32_t>data[i + 2] << 16 | <uint32_t>data[i + 3] << 24
        k *= m
        k = (k ^ (k >> 24)) * m
        h = (h * m) ^ k
        i += 4
    if i < size:
        k = data[i]
        if i + 1 < size:
            k |= <uint32_t>data[i + 1] << 8
        if i + 2 < size:
            k |= <uint32_t>data[i + 2] << 16
        h = (h ^ k) * m
    h = (h ^ (h >> 13)) * m
    return h ^ (h >> 15)


def murmur2(data):
    """See reference.murmur2."""
    cdef Held held = Held(data)
    return hash_key(held.start, held.size)


def partition_keys(column, Py_ssize_t rows, int32_t partitions, int32_t keyless):
    """See reference.partition_keys."""
    cdef Source keys = Source(column)
    cdef bytearray out = PyByteArray_FromStringAndSize(NULL, rows * 4)
    cdef int32_t* found = <int32_t*>PyByteArray_AS_STRING(out)
    cdef const uint8_t* key = NULL
    cdef Py_ssize_t i = 0, size = 0
    cdef int status = OK
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    if keys.rows < rows:
        raise ValueError(f"a column is shorter than {rows} rows")
    with nogil:
        for i in range(rows):
            status = keys.get(i, &key, &size)
            if status:
                break
            found[i] = keyless if size < 0 else <int32_t>((hash_key(key, size) & 0x7FFFFFFFu) % <uint32_t>partitions)
    if status:
        raise_for(status, i)
    return out
