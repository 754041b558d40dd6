#include "support/test_tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka_all.h"

test_tensor test_tensor_make(test_layout layout, fm_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    test_tensor t = {.view = fm_tensor_contiguous(NULL, dtype, n0, n1, n2, n3)};
    int64_t elements = n0 * n1 * n2 * n3;
    if (layout == LAYOUT_TRANSPOSED) {
        t.view.stride[1] = n3;
        t.view.stride[2] = n1 * n3;
    } else if (layout == LAYOUT_SLICED) {
        t.view.stride[3] = 2;
        t.view.stride[2] = 2 * n3 + 1;
        t.view.stride[1] = (n2 + 1) * t.view.stride[2];
        t.view.stride[0] = (n1 + 3) * t.view.stride[1];
        elements = n0 * t.view.stride[0];
    }
    t.bytes = (size_t)elements * fm_dtype_size(dtype);
    t.buffer = malloc(t.bytes + 1);
    assert_non_null(t.buffer);
    memset(t.buffer, 0xff, t.bytes);
    t.view.data = t.buffer;
    return t;
}

void test_tensor_free(test_tensor *t) {
    free(t->buffer);
    *t = (test_tensor){0};
}

static int64_t element_count(const test_tensor *t) {
    const int64_t *n = t->view.shape;
    return n[0] * n[1] * n[2] * n[3];
}

/* Offset in the buffer of element i in C order. */
static int64_t offset_of(const test_tensor *t, int64_t i) {
    const int64_t *n = t->view.shape;
    return fm_tensor_offset(&t->view, i / (n[3] * n[2] * n[1]), i / (n[3] * n[2]) % n[1], i / n[3] % n[2], i % n[3]);
}

static double load(const test_tensor *t, int64_t i) { return fm_tensor_load(&t->view, offset_of(t, i)); }

void test_tensor_fill(const test_tensor *t, test_random *random, double scale) {
    for (int64_t i = 0; i < element_count(t); i++) {
        fm_tensor_store(&t->view, offset_of(t, i), scale * (double)random_normal(random));
    }
}

void test_tensor_copy(const test_tensor *target, const test_tensor *source) {
    for (int64_t i = 0; i < element_count(target); i++) {
        fm_tensor_store(&target->view, offset_of(target, i), load(source, i));
    }
}

double test_tensor_distance(const test_tensor *a, const test_tensor *b) {
    double worst = 0.0;
    for (int64_t i = 0; i < element_count(a); i++) {
        const double x = load(a, i), y = load(b, i);
        const double distance = isinf(x) && x == y ? 0.0 : fabs(x - y);
        worst = isnan(distance) ? INFINITY : fmax(worst, distance);
    }
    return worst;
}

double test_tensor_largest(const test_tensor *a) {
    double largest = 0.0;
    for (int64_t i = 0; i < element_count(a); i++) {
        const double x = fabs(load(a, i));
        largest = isinf(x) ? largest : fmax(largest, x);
    }
    return largest;
}

bool test_tensor_same(const test_tensor *a, const test_tensor *b) {
    for (int64_t i = 0; i < element_count(a); i++) {
        const double x = load(a, i), y = load(b, i);
        if (x != y && !(isnan(x) && isnan(y))) {
            return false;
        }
    }
    return true;
}

bool test_tensor_gaps_are_poisoned(const test_tensor *t) {
    const size_t width = fm_dtype_size(t->view.dtype), slots = t->bytes / width;
    if (slots == (size_t)element_count(t)) {
        return true;
    }
    bool *taken = calloc(slots + 1, sizeof *taken), poisoned = true;
    assert_non_null(taken);
    for (int64_t i = 0; i < element_count(t); i++) {
        taken[offset_of(t, i)] = true;
    }
    for (size_t i = 0; i < t->bytes; i++) {
        poisoned = poisoned && (taken[i / width] || ((const unsigned char *)t->buffer)[i] == 0xff);
    }
    free(taken);
    return poisoned;
}

test_tensor test_tensor_rows(const test_tensor *t, int64_t first, int64_t count) {
    test_tensor some = *t;
    some.buffer = NULL;
    some.view.shape[1] = count;
    some.view.data = (char *)t->view.data + (size_t)(first * t->view.stride[1]) * fm_dtype_size(t->view.dtype);
    return some;
}

test_tensor test_tensor_item(const test_tensor *t, int64_t item) {
    test_tensor one = *t;
    one.buffer = NULL;
    one.view.shape[0] = 1;
    one.view.data = (char *)t->view.data + (size_t)(item * t->view.stride[0]) * fm_dtype_size(t->view.dtype);
    return one;
}
