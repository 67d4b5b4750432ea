"""Memory shared by the compiled kernels: buffers held for a call, and memory that grows."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy


cdef struct Growing:
    uint8_t* memory
    Py_ssize_t size
    Py_ssize_t capacity


cdef inline int reserve(Growing* g, Py_ssize_t more) noexcept nogil:
    """Make room for *more* bytes; return -1 if memory is exhausted."""
    cdef Py_ssize_t capacity
    cdef uint8_t* memory
    if g.capacity - g.size >= more:
        return 0
    capacity = g.capacity * 2
    if capacity < g.size + more:
        capacity = g.size + more
    memory = <uint8_t*>realloc(g.memory, capacity)
    if memory == NULL:
        return -1
    g.memory = memory
    g.capacity = capacity
    return 0

cdef inline int put(Growing* g, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    if reserve(g, size) < 0:
        return -1
    memcpy(g.memory + g.size, data, size)
    g.size += size
    return 0

cdef inline int put32(Growing* g, int32_t value) noexcept nogil:
    return put(g, <const uint8_t*>&value, 4)

cdef inline int put64(Growing* g, int64_t value) noexcept nogil:
    return put(g, <const uint8_t*>&value, 8)


cdef class Held:
    """Part of a buffer, held while this object lives.

    To C functions it is as immutable as `bytes`: `google_crc32c.value` takes `bytes` but no
    memoryview, and this spares it the copy.
    """
    cdef Py_buffer held
    cdef const uint8_t* start
    cdef Py_ssize_t size


cdef class Block:
    """Memory that a kernel filled, exported through the buffer protocol without a copy."""
    cdef Growing bytes


cdef int allocate(Growing* g, Py_ssize_t capacity) except -1
cdef Block release(Growing* g)
