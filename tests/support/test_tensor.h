/* Tensors for tests: owned buffers in three layouts, filled, copied and compared through doubles. */
#ifndef FM_TESTS_TEST_TENSOR_H
#define FM_TESTS_TEST_TENSOR_H

#include "core/tensor.h"
#include "support/random.h"

typedef enum test_layout {
    LAYOUT_CONTIGUOUS, /* [B, S, H, D] */
    LAYOUT_TRANSPOSED, /* view of [B, H, S, D] */
    LAYOUT_SLICED,     /* every second element of the head dim, of a buffer with a longer sequence and one more head */
    LAYOUT_COUNT
} test_layout;

typedef struct test_tensor {
    fm_tensor view;
    void *buffer;
    size_t bytes;
} test_tensor;

/* Every byte of the buffer is 0xff (NaN in all dtypes) until it is written. */
test_tensor test_tensor_make(test_layout layout, fm_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3);
void test_tensor_free(test_tensor *tensor);

void test_tensor_fill(const test_tensor *tensor, test_random *random, double scale); /* normal */
/* Same extents; rounds to the target's dtype. */
void test_tensor_copy(const test_tensor *target, const test_tensor *source);

/* Largest |a - b| and |a|; a NaN in a or b, or an infinity in only one, gives infinity. */
double test_tensor_distance(const test_tensor *a, const test_tensor *b);
double test_tensor_largest(const test_tensor *a);

/* Same values bit for bit, but for -0 and +0. */
bool test_tensor_same(const test_tensor *a, const test_tensor *b);

/* True if every byte of the buffer that belongs to no element is 0xff still. */
bool test_tensor_gaps_are_poisoned(const test_tensor *tensor);

/* The view of positions first .. first + count - 1 of the sequence; owns nothing. */
test_tensor test_tensor_rows(const test_tensor *tensor, int64_t first, int64_t count);

/* The view of one batch item; owns nothing. */
test_tensor test_tensor_item(const test_tensor *tensor, int64_t item);

#endif
