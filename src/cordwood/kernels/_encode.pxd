"""The parts of the encoding kernels that other compiled kernels use."""

from libc.stdint cimport int32_t, uint8_t

from cordwood.kernels._memory cimport Held

cdef enum:
    OK, NO_MEMORY, TOO_LARGE, LYING_OFFSETS, OFFSETS_DO_NOT_RISE, TIMESTAMP_TOO_FAR


cdef class Source:
    cdef Held offsets_held, data_held, validity_held
    cdef const int32_t* offsets
    cdef const uint8_t* data
    cdef const uint8_t* validity
    cdef Py_ssize_t rows, size

    cdef int get(self, Py_ssize_t i, const uint8_t** data, Py_ssize_t* size) noexcept nogil


cdef class Lists:
    cdef Held offsets_held
    cdef const int32_t* offsets
    cdef Source names, values
    cdef Py_ssize_t rows


cdef int raise_for(int status, Py_ssize_t row) except -1
