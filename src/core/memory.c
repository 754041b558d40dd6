#include "core/memory.h"

#include <stdlib.h>

_Static_assert(SIZE_MAX >= INT64_MAX, "a size that fits in int64_t fits in size_t");

int64_t fm_multiply(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? -1 : product;
}

static fm_status out_of_memory(const char *what, int64_t count, size_t element_bytes) {
    FM_CHECK(count >= 0, FM_ERROR_OUT_OF_MEMORY, "%s: no memory for 2^63 or more elements of %zu bytes", what, element_bytes);
    return fm_fail(FM_ERROR_OUT_OF_MEMORY, "%s: no memory for %lld elements of %zu bytes", what, (long long)count, element_bytes);
}

fm_status fm_allocate(const char *what, int64_t count, size_t element_bytes, void **out) {
    const int64_t bytes = fm_multiply(count, (int64_t)element_bytes);
    *out = bytes < 0 ? NULL : calloc(bytes > 0 ? (size_t)bytes : 1, 1);
    return *out != NULL ? FM_OK : out_of_memory(what, count, element_bytes);
}

fm_status fm_allocate_aligned(const char *what, int64_t count, size_t element_bytes, void **out) {
    const int64_t bytes = fm_multiply(count, (int64_t)element_bytes);
    *out = NULL;
    if (bytes >= 0 && bytes <= INT64_MAX - FM_ALIGNMENT) {
        const size_t rounded = ((size_t)bytes + FM_ALIGNMENT - 1) / FM_ALIGNMENT * FM_ALIGNMENT;
        *out = aligned_alloc(FM_ALIGNMENT, rounded > 0 ? rounded : FM_ALIGNMENT);
    }
    return *out != NULL ? FM_OK : out_of_memory(what, count, element_bytes);
}

fm_status fm_grow(const char *what, int64_t needed, size_t element_bytes, void **array, int64_t *capacity) {
    if (needed <= *capacity) {
        return FM_OK;
    }
    const int64_t doubled = *capacity > INT64_MAX / 2 ? needed : 2 * *capacity;
    const int64_t wanted = needed > doubled ? needed : doubled;
    const int64_t bytes = fm_multiply(wanted, (int64_t)element_bytes);
    void *grown = bytes < 0 ? NULL : realloc(*array, (size_t)bytes);
    if (grown == NULL) {
        return out_of_memory(what, wanted, element_bytes);
    }
    *array = grown;
    *capacity = wanted;
    return FM_OK;
}
