/* Allocation with checked sizes. Everything is released with free(). */
#ifndef FM_CORE_MEMORY_H
#define FM_CORE_MEMORY_H

#include "core/status.h"

/* Cache-line alignment of arrays that vector code reads. */
enum { FM_ALIGNMENT = 64 };

/* a * b, both >= 0, or -1 where that passes INT64_MAX. */
int64_t fm_multiply(int64_t a, int64_t b);

/* count * element_bytes bytes, zeroed, or FM_ERROR_OUT_OF_MEMORY naming `what` and the size. Never NULL on success, even for
 * 0 elements. count may be the -1 of fm_multiply, which no memory can hold. */
fm_status fm_allocate(const char *what, int64_t count, size_t element_bytes, void **out);

/* The same, aligned to FM_ALIGNMENT and not zeroed. */
fm_status fm_allocate_aligned(const char *what, int64_t count, size_t element_bytes, void **out);

/* Grows *array, if needed, so that it holds at least `needed` elements; *capacity follows, doubling. */
fm_status fm_grow(const char *what, int64_t needed, size_t element_bytes, void **array, int64_t *capacity);

#endif
