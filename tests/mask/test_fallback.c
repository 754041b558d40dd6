#include "mask/visibility.h"
#include "mask/writer.h"
#include "support/cmocka_all.h"
#include "support/random_mask.h"
#include "support/small_masks.h"
#include "support/truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ODD_SIZES = 9 };
static const int64_t odd_sizes[ODD_SIZES] = {1, 2, 63, 64, 65, 127, 128, 129, 300};

static void a_stripe_is_a_bitmap_only_where_a_column_needs_five_intervals(void **state) {
    (void)state;
    fm_mask *four = comb_mask(40, 300, 200, 4), *five = comb_mask(40, 300, 200, 5);
    assert_false(fm_mask_has_fallback(four));
    assert_int_equal(fm_mask_interval_count(four), 4);
    assert_int_equal(fm_mask_fallback_bytes(four), 0);
    assert_int_equal(fm_mask_bytes(four), 4 * 8 * 300);
    assert_true(fm_mask_has_fallback(five));
    assert_int_equal(fm_mask_interval_count(five), 1); /* of the columns that are not bitmaps */
    assert_int_equal(five->view.slots, 1);
    for (int64_t stripe = 0; stripe < 3; stripe++) {
        assert_int_equal(fm_mask_slot(&five->view, 0, 0, stripe), stripe == 1 ? 0 : FM_NO_SLOT);
    }
    /* one interval a key, 3 stripe slots, 1 block index, 1 block */
    assert_int_equal(fm_mask_fallback_bytes(five), 4 * 4 + 2048);
    assert_int_equal(fm_mask_bytes(five), 8 * 300 + 4 * 4 + 2048);
    fm_mask_free(four);
    fm_mask_free(five);
}

static void a_column_in_a_bitmap_answers_where_it_fits(void **state) {
    (void)state;
    fm_mask *mask = comb_mask(40, 300, 200, 5);
    fm_interval v[FM_MAX_INTERVALS] = {{-1, -1}};
    int32_t count = -1;
    assert_int_equal(fm_mask_column(mask, 0, 0, 200, v, &count), FM_ERROR_CANNOT_EXPRESS);
    assert_string_equal(fm_error_message(), "column 200 has 5 visible intervals, more than 4");
    assert_int_equal(count, -1);
    assert_int_equal(v[0].start, -1);
    for (int64_t j = 199; j <= 201; j += 2) {
        assert_int_equal(fm_mask_column(mask, 0, 0, j, v, &count), FM_OK);
        assert_int_equal(count, 1);
        assert_int_equal(v[0].start, 1);
        assert_int_equal(v[0].end, 3);
    }
    fm_mask_free(mask);
}

/* Also reads the pairs of a mask as rows of a bitmap and as bits of a small piece, under a window. */
static void assert_bits(const truth *t, const fm_mask *mask, const fm_window *window) {
    const fm_mask_shape s = t->shape;
    uint64_t *bits = calloc((size_t)s.rows + 1, sizeof *bits);
    assert_non_null(bits);
    for (int64_t plane = 0; plane < s.batch * s.heads; plane++) {
        for (int64_t column0 = 0; column0 < s.columns; column0 += 64) {
            const int64_t b = plane / s.heads, h = plane % s.heads;
            const int64_t columns = s.columns - column0 < 64 ? s.columns - column0 : 64;
            fm_visible_bits(&mask->view, window, b, h, 0, s.rows, column0, columns, bits);
            for (int64_t i = 0; i < s.rows; i++) {
                uint64_t expected = 0;
                for (int64_t c = 0; c < columns; c++) {
                    const int64_t distance = column0 + c - (i + window->shift);
                    const bool inside = distance >= -window->left && distance <= window->right;
                    expected |= (uint64_t)(*truth_at(t, b, h, i, column0 + c) && inside) << c;
                }
                assert_true(bits[i] == expected);
            }
        }
    }
    free(bits);
}

static void every_pair_survives_the_bitmap(void **state) {
    (void)state;
    test_random random = {3};
    int64_t fallbacks = 0;
    for (int i = 0; i < 400; i++) {
        const int64_t rows = odd_sizes[random_integer(&random, 0, ODD_SIZES - 1)];
        const int64_t columns = odd_sizes[random_integer(&random, 0, ODD_SIZES - 1)];
        const fm_mask_shape shape = {random_integer(&random, 1, 2), random_integer(&random, 1, 2), rows, columns};
        static const double densities[] = {0.005, 0.02, 0.5, 0.98, 0.995};
        truth t = truth_random(&random, shape, densities[i % 5]);
        fm_mask *mask = truth_mask(&t, NULL);
        fallbacks += fm_mask_has_fallback(mask);
        truth_assert(&t, mask);
        const fm_window windows[] = {
            {.left = FM_UNLIMITED, .right = FM_UNLIMITED, .shift = columns - rows},
            {.left = random_integer(&random, 0, columns), .right = random_integer(&random, 0, columns), .shift = columns - rows}};
        assert_bits(&t, mask, &windows[0]);
        assert_bits(&t, mask, &windows[1]);
        fm_mask_free(mask);
        truth_free(&t);
    }
    assert_in_range(fallbacks, 100, 399);
}

static void rows_of_a_stripe_are_the_pairs_and_nothing_else(void **state) {
    (void)state;
    test_random random = {4};
    for (int i = 0; i < 300; i++) {
        const fm_mask_shape shape = {1, 2, odd_sizes[i % ODD_SIZES], random_integer(&random, 1, 300)};
        truth t = i % 3 == 0 ? truth_make(shape) : truth_random(&random, shape, i % 3 == 1 ? 0.5 : 0.01);
        fm_mask *mask = i % 3 == 0 ? random_mask(&random, shape, 4, t.visible) : truth_mask(&t, NULL);
        fm_stripe_blocks blocks;
        assert_int_equal(fm_stripe_blocks_open(&blocks, shape.rows), FM_OK);
        memset(blocks.words, 0xa5, (size_t)fm_stripe_words(shape.rows) * sizeof *blocks.words);
        for (int64_t stripe = -1; stripe <= mask->view.stripes; stripe++) {
            fm_mask_read_blocks(&mask->view, 0, 1, stripe, &blocks);
            for (int64_t row = 0; row < shape.rows; row++) {
                uint64_t bits[2];
                fm_stripe_row(&blocks, row, bits);
                for (int64_t c = 0; c < FM_STRIPE; c++) {
                    const uint8_t *pair = truth_at(&t, 0, 1, row, stripe * FM_STRIPE + c);
                    assert_int_equal(bits[c / 64] >> (c % 64) & 1, pair != NULL ? *pair : 0);
                }
            }
        }
        fm_stripe_blocks_close(&blocks);
        fm_mask_free(mask);
        truth_free(&t);
    }
}

/* All rows of one stripe as plain bits. */
static void read_bits(const fm_stripe_blocks *blocks, uint64_t *bits) {
    memset(bits, 0, (size_t)fm_stripe_words(blocks->rows) * sizeof *bits);
    for (int64_t row = 0; row < blocks->rows; row++) {
        fm_stripe_row(blocks, row, bits + 2 * row);
    }
}

typedef struct stripe_place {
    int64_t b, h, stripe;
} stripe_place;

/* Column by column from the right, or each run of equal columns at once. */
static void write_columns(fm_mask_writer *writer, const fm_mask_view *v, stripe_place at, bool runs) {
    fm_stripe_columns s = {0};
    assert_int_equal(fm_mask_read_stripe(v, at.b, at.h, at.stripe, &s), FM_OK);
    const int64_t left = v->shape.columns - at.stripe * FM_STRIPE;
    for (int64_t end = left < FM_STRIPE ? left : FM_STRIPE, c; end > 0; end = c) {
        c = end - 1;
        const int64_t count = s.first[end] - s.first[c];
        while (runs && c > 0 && s.first[c] - s.first[c - 1] == count &&
               (count == 0 || memcmp(s.intervals + s.first[c - 1], s.intervals + s.first[c], (size_t)count * 8) == 0)) {
            c--;
        }
        assert_int_equal(
            fm_mask_writer_columns(writer, at.b, at.h, at.stripe * FM_STRIPE + c, end - c, s.intervals + s.first[c], count),
            FM_OK);
    }
    fm_stripe_columns_free(&s);
}

/* Writes the stripes of a mask in random order, each in one of the ways that there are. */
static fm_mask *write_shuffled(test_random *random, const fm_mask *same) {
    const fm_mask_view *v = &same->view;
    const int64_t count = v->shape.batch * v->shape.heads * v->stripes;
    int64_t *order = calloc((size_t)count + 1, sizeof *order);
    uint64_t *bits = calloc((size_t)fm_stripe_words(v->shape.rows) + 1, sizeof *bits);
    fm_stripe_blocks blocks;
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_non_null(order);
    assert_non_null(bits);
    assert_int_equal(fm_stripe_blocks_open(&blocks, v->shape.rows), FM_OK);
    for (int64_t i = 0; i < count; i++) {
        const int64_t k = random_integer(random, 0, i);
        order[i] = order[k];
        order[k] = i;
    }
    assert_int_equal(fm_mask_writer_open(&writer, v->shape, FM_MAX_INTERVALS + 1, NULL), FM_OK);
    for (int64_t i = 0; i < count; i++) {
        const int64_t plane = order[i] / v->stripes, way = random_integer(random, 0, 4);
        const stripe_place at = {plane / v->shape.heads, plane % v->shape.heads, order[i] % v->stripes};
        fm_mask_read_blocks(v, at.b, at.h, at.stripe, &blocks);
        read_bits(&blocks, bits);
        if (way == 0) {
            assert_int_equal(fm_mask_writer_blocks(&writer, at.b, at.h, at.stripe, &blocks), FM_OK);
        } else if (way == 1) {
            assert_int_equal(fm_mask_writer_stripe(&writer, at.b, at.h, at.stripe, bits), FM_OK);
        } else {
            write_columns(&writer, v, at, way == 2);
        }
        if (way == 4) {
            assert_int_equal(fm_mask_writer_flush(&writer), FM_OK);
        }
    }
    assert_int_equal(finish(&writer, &mask), FM_OK);
    fm_stripe_blocks_close(&blocks);
    free(order);
    free(bits);
    return mask;
}

static void equal_masks_are_stored_alike_however_they_were_built(void **state) {
    (void)state;
    test_random random = {5};
    for (int i = 0; i < 100; i++) {
        const fm_mask_shape shape = {random_integer(&random, 1, 2), random_integer(&random, 1, 3),
                                     random_integer(&random, 1, 300), random_integer(&random, 1, 700)};
        truth t = truth_make(shape);
        /* blocks that repeat: a pair depends on its place in the block and on a few variants of it */
        const int64_t variants = random_integer(&random, 1, 3);
        for (int64_t k = 0; k < truth_pairs(shape); k++) {
            const int64_t column = k % shape.columns, row = k / shape.columns % shape.rows;
            const int64_t variant = (row / FM_STRIPE + column / FM_STRIPE) % variants;
            t.visible[k] = (row % FM_STRIPE * 7 + column % FM_STRIPE * 3 + variant * 5) % 11 < 2 + variant;
        }
        fm_mask *mask = truth_mask(&t, NULL), *shuffled = write_shuffled(&random, mask);
        truth_assert(&t, shuffled);
        assert_true(fm_mask_equal(mask, shuffled));
        assert_true(fm_mask_hash(mask) == fm_mask_hash(shuffled));
        fm_mask_free(mask);
        fm_mask_free(shuffled);
        truth_free(&t);
    }
}

static void equal_blocks_are_stored_once(void **state) {
    (void)state;
    truth t = truth_make((fm_mask_shape){1, 2, 1024, 1024});
    for (int64_t k = 0; k < truth_pairs(t.shape); k++) {
        t.visible[k] = (k / 1024 + k % 1024) % 2 == 0;
    }
    fm_mask *board = truth_mask(&t, NULL);
    assert_int_equal(board->view.slots, 16);
    assert_int_equal(board->view.block_count, 1);
    assert_int_equal(fm_mask_bytes(board), (16 + 16 * 8) * 4 + 2048); /* no intervals */
    assert_int_equal(fm_mask_interval_count(board), 0);
    truth_assert(&t, board);
    fm_mask_free(board);
    truth_free(&t);
}

/* Bands of 128 rows, visible and hidden in turn: a bitmap stripe without any block. */
static void uniform_blocks_take_no_room(void **state) {
    (void)state;
    for (int64_t columns = 127; columns <= 129; columns++) {
        truth t = truth_make((fm_mask_shape){1, 1, 10 * 128 + 5, columns});
        for (int64_t k = 0; k < truth_pairs(t.shape); k++) {
            t.visible[k] = k / columns / 128 % 2 == 0;
        }
        fm_mask *mask = truth_mask(&t, NULL), *again = truth_mask(&t, NULL);
        const int64_t stripes = columns > 128 ? 2 : 1;
        assert_int_equal(mask->view.block_count, 0);
        assert_int_equal(fm_mask_fallback_bytes(mask), (stripes + stripes * 11) * 4);
        assert_true(fm_mask_equal(mask, again));
        truth_assert(&t, mask);
        fm_mask_free(mask);
        fm_mask_free(again);
        truth_free(&t);
    }
}

static void the_limit_is_exact(void **state) {
    (void)state;
    test_random random = {7};
    truth t = truth_random(&random, (fm_mask_shape){1, 1, 260, 260}, 0.5);
    fm_mask *mask = truth_mask(&t, NULL);
    const int64_t bytes = (3 + 3 * 3) * 4 + 9 * 2048;
    assert_int_equal(fm_mask_fallback_bytes(mask), bytes);
    const int64_t limits[] = {0, 40, 3 * 2048, bytes - 2049, bytes - 1, bytes};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const int64_t limit = limits[i];
        const fm_mask_options options = {.size = sizeof options, .fallback_limit = limit};
        fm_mask_writer writer;
        fm_mask *limited = NULL;
        assert_int_equal(fm_mask_writer_open(&writer, t.shape, 5, &options), FM_OK);
        fm_stripe_blocks blocks;
        assert_int_equal(fm_stripe_blocks_open(&blocks, 260), FM_OK);
        for (int64_t stripe = 2; stripe >= 0; stripe--) {
            fm_mask_read_blocks(&mask->view, 0, 0, stripe, &blocks);
            assert_int_equal(fm_mask_writer_blocks(&writer, 0, 0, stripe, &blocks), FM_OK);
        }
        fm_stripe_blocks_close(&blocks);
        const fm_status status = finish(&writer, &limited);
        assert_int_equal(status, limit == bytes ? FM_OK : FM_ERROR_LIMIT);
        if (limit < bytes) {
            char message[200];
            snprintf(message, sizeof message,
                     "fallback: needs %lld bytes (3 stripes of 128 keys, 9 different 128 x 128 blocks), the limit is %lld",
                     (long long)bytes, (long long)limit);
            assert_string_equal(fm_error_message(), message);
            assert_null(limited);
        }
        fm_mask_free(limited);
    }
    fm_mask_free(mask);
    truth_free(&t);
}

static void a_stripe_that_goes_on_after_a_flush_is_an_internal_error(void **state) {
    (void)state;
    static const fm_interval five[] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}};
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, 12, 300}, 5, NULL), FM_OK);
    assert_int_equal(fm_mask_writer_column(&writer, 0, 0, 200, five, 5), FM_OK);
    assert_int_equal(fm_mask_writer_flush(&writer), FM_OK);
    assert_int_equal(fm_mask_writer_column(&writer, 0, 0, 201, five, 5), FM_OK);
    assert_int_equal(finish(&writer, &mask), FM_ERROR_INTERNAL);
    assert_string_equal(fm_error_message(), "stripe 1 of plane 0 was written twice");
    assert_null(mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stripe_is_a_bitmap_only_where_a_column_needs_five_intervals),
        cmocka_unit_test(a_column_in_a_bitmap_answers_where_it_fits),
        cmocka_unit_test(every_pair_survives_the_bitmap),
        cmocka_unit_test(rows_of_a_stripe_are_the_pairs_and_nothing_else),
        cmocka_unit_test(equal_masks_are_stored_alike_however_they_were_built),
        cmocka_unit_test(equal_blocks_are_stored_once),
        cmocka_unit_test(uniform_blocks_take_no_room),
        cmocka_unit_test(the_limit_is_exact),
        cmocka_unit_test(a_stripe_that_goes_on_after_a_flush_is_an_internal_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
