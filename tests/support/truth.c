#include "support/truth.h"

#include "mask/writer.h"
#include "support/cmocka_all.h"
#include "support/dense.h"
#include "support/expect.h"

#include <stdlib.h>

truth truth_make(fm_mask_shape shape) {
    truth t = {.shape = shape, .visible = calloc((size_t)truth_pairs(shape) + 1, 1)};
    assert_non_null(t.visible);
    return t;
}

truth truth_random(test_random *random, fm_mask_shape shape, double density) {
    truth t = truth_make(shape);
    for (int64_t i = 0; i < truth_pairs(shape); i++) {
        t.visible[i] = random_chance(random, density);
    }
    return t;
}

void truth_free(truth *t) {
    free(t->visible);
    *t = (truth){0};
}

uint8_t *truth_at(const truth *t, int64_t b, int64_t h, int64_t row, int64_t column) {
    const fm_mask_shape *s = &t->shape;
    if (row < 0 || row >= s->rows || column < 0 || column >= s->columns) {
        return NULL;
    }
    return &t->visible[((b * s->heads + h) * s->rows + row) * s->columns + column];
}

/* Runs of visible rows of one column; returns how many. */
static int64_t column_runs(const truth *t, int64_t b, int64_t h, int64_t column, fm_interval *runs) {
    int64_t count = 0, start = -1;
    for (int64_t row = 0; row <= t->shape.rows; row++) {
        const bool visible = row < t->shape.rows && *truth_at(t, b, h, row, column);
        if (visible && start < 0) {
            start = row;
        } else if (!visible && start >= 0) {
            runs[count++] = (fm_interval){(int32_t)start, (int32_t)row};
            start = -1;
        }
    }
    return count;
}

fm_mask *truth_mask(const truth *t, const fm_mask_options *options) {
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    fm_interval *runs = calloc((size_t)t->shape.rows + 1, sizeof *runs);
    assert_non_null(runs);
    assert_int_equal(fm_mask_writer_open(&writer, t->shape, FM_MAX_INTERVALS + 1, options), FM_OK);
    for (int64_t plane = 0; plane < t->shape.batch * t->shape.heads; plane++) {
        for (int64_t j = 0; j < t->shape.columns; j++) {
            const int64_t b = plane / t->shape.heads, h = plane % t->shape.heads, count = column_runs(t, b, h, j, runs);
            assert_int_equal(fm_mask_writer_column(&writer, b, h, j, runs, count), FM_OK);
        }
    }
    assert_int_equal(fm_mask_writer_finish(&writer, &mask), FM_OK);
    fm_mask_writer_close(&writer);
    free(runs);
    return mask;
}

/* Names the first pair that is wrong. */
static void assert_pairs(const truth *t, const fm_mask *mask) {
    const fm_mask_shape s = t->shape;
    uint8_t *visible = malloc((size_t)truth_pairs(s) + 1);
    assert_non_null(visible);
    dense_of_mask(mask, visible);
    for (int64_t i = 0; i < truth_pairs(s); i++) {
        if (visible[i] != t->visible[i]) {
            fail_msg("batch item %lld, head %lld, row %lld, key %lld of %lld x %lld: %s",
                     (long long)(i / s.columns / s.rows / s.heads), (long long)(i / s.columns / s.rows % s.heads),
                     (long long)(i / s.columns % s.rows), (long long)(i % s.columns), (long long)s.rows, (long long)s.columns,
                     visible[i] ? "visible, should be hidden" : "hidden, should be visible");
        }
    }
    free(visible);
}

static void assert_columns(const truth *t, const fm_mask *mask, int64_t b, int64_t h, fm_interval *runs,
                           fm_stripe_columns *columns) {
    for (int64_t j = 0; j < t->shape.columns; j++) {
        if (j % FM_STRIPE == 0) {
            assert_int_equal(fm_mask_read_stripe(&mask->view, b, h, j / FM_STRIPE, columns), FM_OK);
        }
        const int64_t first = columns->first[j % FM_STRIPE], count = columns->first[j % FM_STRIPE + 1] - first;
        assert_int_equal(count, column_runs(t, b, h, j, runs));
        if (count > 0) {
            assert_memory_equal(columns->intervals + first, runs, (size_t)count * sizeof *runs);
        }
    }
}

void truth_assert(const truth *t, const fm_mask *mask) {
    const fm_mask_shape shape = fm_mask_get_shape(mask);
    assert_memory_equal(&shape, &t->shape, sizeof shape);
    assert_pairs(t, mask);
    fm_stripe_columns columns = {0};
    fm_interval *runs = calloc((size_t)t->shape.rows + 1, sizeof *runs);
    assert_non_null(runs);
    for (int64_t plane = 0; plane < shape.batch * shape.heads; plane++) {
        assert_columns(t, mask, plane / shape.heads, plane % shape.heads, runs, &columns);
    }
    fm_stripe_columns_free(&columns);
    free(runs);
    int64_t expected = 0, pairs = -1;
    for (int64_t i = 0; i < truth_pairs(shape); i++) {
        expected += t->visible[i];
    }
    assert_int_equal(fm_mask_visible_pairs(mask, &pairs), FM_OK);
    assert_int_equal(pairs, expected);
    fm_mask *rebuilt = truth_mask(t, NULL);
    assert_true(fm_mask_equal(mask, rebuilt));
    assert_true(fm_mask_hash(mask) == fm_mask_hash(rebuilt));
    assert_int_equal(fm_mask_bytes(mask), fm_mask_bytes(rebuilt));
    fm_mask_free(rebuilt);
}

void assert_mask_follows(fm_mask *mask, visible_rule rule, const void *parameters) {
    truth t = truth_make(fm_mask_get_shape(mask));
    const fm_mask_shape s = t.shape;
    uint8_t *at = t.visible;
    for (int64_t plane = 0; plane < s.batch * s.heads; plane++) {
        for (int64_t i = 0; i < s.rows; i++) {
            for (int64_t j = 0; j < s.columns; j++) {
                *at++ = rule(parameters, plane / s.heads, plane % s.heads, i, j);
            }
        }
    }
    truth_assert(&t, mask);
    truth_free(&t);
    fm_mask_free(mask);
}

void assert_conversion(const fm_mask *mask, fm_mask_shape shape, const uint8_t *visible) {
    const truth t = {.shape = shape, .visible = (uint8_t *)visible}; /* only read */
    const int64_t count = truth_pairs(shape);
    truth_assert(&t, mask);
    uint8_t *dense = malloc((size_t)count + 1);
    assert_non_null(dense);
    succeed(fm_mask_to_dense(mask, dense, count));
    assert_memory_equal(dense, visible, (size_t)count);
    free(dense);
    fm_mask *again = NULL;
    succeed(fm_mask_from_dense(shape, visible, NULL, &again));
    assert_true(fm_mask_equal(mask, again));
    fm_mask_free(again);
}
