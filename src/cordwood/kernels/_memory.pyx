# cython: language_level=3
"""Memory shared by the compiled kernels; _memory.pxd has the inline functions."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport free, malloc, realloc

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX


cdef class Held:
    def __cinit__(self, source, Py_ssize_t start=0, Py_ssize_t stop=PY_SSIZE_T_MAX):
        PyObject_GetBuffer(source, &self.held, PyBUF_SIMPLE)
        if stop == PY_SSIZE_T_MAX:
            stop = self.held.len
        if not 0 <= start <= stop <= self.held.len:
            raise IndexError(f"[{start}, {stop}) is not within {self.held.len} bytes")
        self.start = <const uint8_t*>self.held.buf + start
        self.size = stop - start

    def __dealloc__(self):
        PyBuffer_Release(&self.held)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.start, self.size, 1, flags)

    def __len__(self):
        return self.size


cdef class Block:
    def __dealloc__(self):
        free(self.bytes.memory)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.bytes.memory, self.bytes.size, 1, flags)

    def __len__(self):
        return self.bytes.size


cdef int allocate(Growing* g, Py_ssize_t capacity) except -1:
    """Allocate the first memory of *g*, which must have none yet."""
    g.size = 0
    g.capacity = capacity if capacity > 64 else 64
    g.memory = <uint8_t*>malloc(g.capacity)
    if g.memory == NULL:
        raise MemoryError()
    return 0


cdef Block release(Growing* g):
    """Move the memory of *g* to a Block, and free its unused part if that is more than half.

    A smaller part is not freed: if large blocks shrink before they are freed, an allocator requests new
    pages from the operating system each time, which costs more than filling them.
    """
    cdef Block block = Block()
    cdef Py_ssize_t needed = g.size if g.size > 64 else 64
    cdef uint8_t* memory
    if needed < g.capacity // 2:
        memory = <uint8_t*>realloc(g.memory, needed)
        if memory != NULL:
            g.memory = memory
            g.capacity = needed
    block.bytes = g[0]
    g.memory = NULL
    g.size = g.capacity = 0
    return block


def readonly(source, Py_ssize_t start, Py_ssize_t stop):
    """See reference.readonly."""
    return Held(source, start, stop)
