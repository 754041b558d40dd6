/* Block masks and BigBird, against the words of their contracts. */
#include <flashmask/masks.h>

#include <stdlib.h>

#include "support/cmocka_all.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/truth.h"

enum { DRAWS = 200 };

static int64_t blocks_of(int64_t extent, int64_t block) { return (extent + block - 1) / block; }

typedef struct block_mask {
    fm_mask_shape shape;
    int64_t block;
    uint8_t *keep;
} block_mask;

static bool blocks_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const block_mask *m = v;
    const int64_t rows = blocks_of(m->shape.rows, m->block), columns = blocks_of(m->shape.columns, m->block);
    return m->keep[((b * m->shape.heads + h) * rows + i / m->block) * columns + j / m->block] != 0;
}

/* Sparse and dense ones, blocks that divide a stripe of 128 keys and blocks that do not, intervals and bitmaps. */
static void block_masks_show_what_they_keep(void **state) {
    test_random r = {31};
    int bitmaps = 0;
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        const bool is_wide = k % 10 == 0; /* more than 64 columns of blocks */
        block_mask m = {.shape = {random_integer(&r, 1, 2), random_integer(&r, 1, 2), random_integer(&r, 1, is_wide ? 40 : 300),
                                  is_wide ? random_integer(&r, 1000, 2200) : random_integer(&r, 1, 300)},
                        .block = 16 * random_integer(&r, 1, random_chance(&r, 0.6) ? 2 : 9)};
        const double density = random_chance(&r, 0.5) ? 0.5 : 0.9;
        const int64_t n = m.shape.batch * m.shape.heads * blocks_of(m.shape.rows, m.block) * blocks_of(m.shape.columns, m.block);
        m.keep = malloc((size_t)n);
        for (int64_t i = 0; i < n; i++) {
            m.keep[i] = random_chance(&r, density) ? (uint8_t)random_integer(&r, 1, 255) : 0;
        }
        fm_mask *mask = NULL;
        succeed(fm_mask_blocks(m.shape, m.block, m.keep, NULL, &mask));
        bitmaps += fm_mask_has_fallback(mask);
        assert_mask_follows(mask, blocks_rule, &m);
        free(m.keep);
    }
    assert_in_range(bitmaps, 10, DRAWS - 10);
}

typedef struct bigbird {
    int64_t Sq, Sk, block, global, window, random, rows, columns;
    uint8_t seen[64 * 64]; /* [rows, columns], read from the mask's first pair of each block */
} bigbird;

static bool seen_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const bigbird *m = v;
    (void)b, (void)h;
    return m->seen[i / m->block * m->columns + j / m->block];
}

static void read_seen(bigbird *m, const fm_mask *mask) {
    uint8_t *visible = malloc((size_t)(m->Sq * m->Sk));
    dense_of_mask(mask, visible);
    for (int64_t r = 0; r < m->rows; r++) {
        for (int64_t c = 0; c < m->columns; c++) {
            m->seen[r * m->columns + c] = visible[r * m->block * m->Sk + c * m->block];
        }
    }
    free(visible);
}

static void assert_row_of_blocks(const bigbird *m, int64_t r) {
    const int64_t diagonal = r + m->columns - m->rows;
    int64_t others = 0, drawn = 0;
    for (int64_t c = 0; c < m->columns; c++) {
        const bool fixed = r < m->global || c < m->global || llabs(c - diagonal) <= m->window;
        const uint8_t seen = m->seen[r * m->columns + c];
        assert_true(seen || !fixed);
        others += !fixed;
        drawn += !fixed && seen;
    }
    assert_int_equal(drawn, others < m->random ? others : m->random);
}

static void bigbird_shows_global_window_and_random_blocks(void **state) {
    test_random r = {32};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        bigbird m = {.Sq = random_integer(&r, 1, 400), .Sk = random_integer(&r, 1, 400), .block = 16 * random_integer(&r, 1, 4)};
        fm_mask *mask = NULL;
        m.global = random_integer(&r, 0, 3);
        m.window = random_integer(&r, 0, 3);
        m.random = random_chance(&r, 0.1) ? 1000 : random_integer(&r, 0, 4);
        m.rows = blocks_of(m.Sq, m.block);
        m.columns = blocks_of(m.Sk, m.block);
        succeed(fm_mask_bigbird(m.Sq, m.Sk, m.block, m.global, m.window, m.random, random_bits(&r), NULL, &mask));
        read_seen(&m, mask);
        for (int64_t row = 0; row < m.rows; row++) {
            assert_row_of_blocks(&m, row);
        }
        assert_mask_follows(mask, seen_rule, &m); /* blocks are whole */
    }
}

/* Row 9 of 10 draws 2 of the 7 blocks 1 .. 7: over 3,500 seeds each is near 1,000; 5 standard deviations are 134. */
static void bigbird_draws_uniformly(void **state) {
    int hits[10] = {0};
    (void)state;
    for (uint64_t seed = 0; seed < 3500; seed++) {
        bigbird m = {.Sq = 160, .Sk = 160, .block = 16, .rows = 10, .columns = 10};
        fm_mask *mask = NULL;
        succeed(fm_mask_bigbird(160, 160, 16, 1, 1, 2, seed, NULL, &mask));
        read_seen(&m, mask);
        for (int c = 0; c < 10; c++) {
            hits[c] += m.seen[9 * 10 + c];
        }
        fm_mask_free(mask);
    }
    for (int c = 1; c <= 7; c++) {
        assert_in_range(hits[c], 1000 - 134, 1000 + 134);
    }
}

/* Without random blocks it is a global window in units of blocks; everything random is everything. */
static void bigbird_without_draws_is_a_global_window(void **state) {
    fm_mask *bird = NULL, *full = NULL, *everything = NULL;
    (void)state;
    succeed(fm_mask_bigbird(320, 320, 16, 2, 1, 0, 9, NULL, &bird));
    assert_false(fm_mask_has_fallback(bird));
    assert_true(fm_mask_interval_count(bird) <= 2);
    succeed(fm_mask_full(320, 320, &full));
    succeed(fm_mask_bigbird(320, 320, 16, 0, 0, INT64_MAX, 9, NULL, &everything));
    assert_true(fm_mask_equal(full, everything));
    fm_mask_free(everything);
    succeed(fm_mask_bigbird(320, 320, 16, 0, INT64_MAX, 3, 9, NULL, &everything));
    assert_true(fm_mask_equal(full, everything));
    fm_mask_free(everything);
    succeed(fm_mask_bigbird(320, 320, 16, INT64_MAX, 0, 3, 9, NULL, &everything));
    assert_true(fm_mask_equal(full, everything));
    fm_mask_free(everything);
    fm_mask_free(bird);
    fm_mask_free(full);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_masks_show_what_they_keep),
        cmocka_unit_test(bigbird_shows_global_window_and_random_blocks),
        cmocka_unit_test(bigbird_draws_uniformly),
        cmocka_unit_test(bigbird_without_draws_is_a_global_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
