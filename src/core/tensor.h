/* Tensor views: checks that every entry point shares, and element access for code that need not be fast. */
#ifndef FM_CORE_TENSOR_H
#define FM_CORE_TENSOR_H

#include "core/half.h"
#include "core/status.h"

/* Rank 4, extents 0 .. 2^31 - 1, strides >= 0, known dtype, aligned data (non-NULL where it holds elements), no offset past
 * 2^62 bytes. `name` leads the message. The elements of an output also do not share memory, as far as strides tell: each
 * must pass what the narrower ones reach. */
fm_status fm_tensor_check(const char *name, const fm_tensor *tensor, bool is_output);

bool fm_tensor_is_empty(const fm_tensor *tensor);

/* True if a and b share a byte. Exact for nested strides, such as views interleaved in one buffer (query, key and value of a
 * packed projection) and slices of it; where strides are too unlike to tell cheaply, true if the spans meet. Assumes checked
 * tensors. */
bool fm_tensor_overlap(const fm_tensor *a, const fm_tensor *b);

static inline int64_t fm_tensor_offset(const fm_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2] + i3 * t->stride[3];
}

double fm_tensor_load(const fm_tensor *tensor, int64_t offset);
void fm_tensor_store(const fm_tensor *tensor, int64_t offset, double value); /* f32, f16, bf16: by way of f32 */

/* value rounded to dtype and back. */
double fm_round_to_dtype(fm_dtype dtype, double value);

const char *fm_dtype_name(fm_dtype dtype);

#endif
