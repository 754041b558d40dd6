/* The writer: column by column in any order, equal columns together, stripes flushed as they are complete. */
#include "mask/writer.h"

#include <stdlib.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/truth.h"

enum { DRAWS = 100, MOST_INTERVALS = 12, MOST_COLUMNS = 400 };

/* Groups of equal columns, some of which cross stripes; dense gets the truth. */
typedef struct group {
    int64_t plane, column, columns, count;
    fm_interval v[MOST_INTERVALS];
} group;

static int64_t draw_groups(test_random *r, fm_mask_shape s, group *groups, uint8_t *dense) {
    int64_t n = 0;
    for (int64_t plane = 0; plane < s.batch * s.heads; plane++) {
        for (int64_t column = 0; column < s.columns; column += groups[n++].columns) {
            group *g = &groups[n];
            const int64_t left = s.columns - column, wanted = random_chance(r, 0.2) ? 200 : random_integer(r, 1, 40);
            *g = (group){
                plane, column, wanted < left ? wanted : left, random_integer(r, 0, random_chance(r, 0.3) ? 12 : 4), {{0}}};
            for (int64_t k = 0; k < g->count; k++) {
                g->v[k].start = (int32_t)random_integer(r, -3, s.rows);
                g->v[k].end = g->v[k].start + (int32_t)random_integer(r, 0, random_chance(r, 0.1) ? s.rows + 6 : s.rows / 16 + 1);
            }
            for (int64_t k = 0; k < g->count * g->columns; k++) {
                const fm_interval v = g->v[k / g->columns];
                for (int64_t i = v.start < 0 ? 0 : v.start; i < v.end && i < s.rows; i++) {
                    dense[(plane * s.rows + i) * s.columns + column + k % g->columns] = 1;
                }
            }
        }
    }
    return n;
}

static fm_mask *write_groups(fm_mask_shape s, const group *groups, int64_t n, bool together, bool flush) {
    fm_mask_writer w;
    fm_mask *mask = NULL;
    succeed(fm_mask_writer_open(&w, s, INT32_MAX, NULL));
    for (int64_t g = 0; g < n; g++) {
        const group *x = &groups[g];
        const int64_t b = x->plane / s.heads, h = x->plane % s.heads;
        if (together) {
            succeed(fm_mask_writer_columns(&w, b, h, x->column, x->columns, x->v, x->count));
        }
        for (int64_t j = x->column; !together && j < x->column + x->columns; j++) {
            succeed(fm_mask_writer_column(&w, b, h, j, x->v, x->count));
            if (flush && (j + 1) % FM_STRIPE == 0) {
                succeed(fm_mask_writer_flush(&w));
            }
        }
        if (flush && (x->column + x->columns) % FM_STRIPE == 0) {
            succeed(fm_mask_writer_flush(&w));
        }
    }
    succeed(fm_mask_writer_finish(&w, &mask));
    fm_mask_writer_close(&w);
    return mask;
}

static void shuffle(test_random *r, int64_t *order, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t k = random_integer(r, 0, i);
        order[i] = i;
        order[i] = order[k];
        order[k] = i;
    }
}

/* Groups in random order, each together or column by column in random order too. */
static fm_mask *write_shuffled(test_random *r, fm_mask_shape s, const group *groups, int64_t n) {
    int64_t order[4 * MOST_COLUMNS], columns[MOST_COLUMNS];
    fm_mask_writer w;
    fm_mask *mask = NULL;
    succeed(fm_mask_writer_open(&w, s, INT32_MAX, NULL));
    shuffle(r, order, n);
    for (int64_t g = 0; g < n; g++) {
        const group *x = &groups[order[g]];
        const int64_t b = x->plane / s.heads, h = x->plane % s.heads;
        if (random_chance(r, 0.5)) {
            succeed(fm_mask_writer_columns(&w, b, h, x->column, x->columns, x->v, x->count));
            continue;
        }
        shuffle(r, columns, x->columns);
        for (int64_t k = 0; k < x->columns; k++) {
            succeed(fm_mask_writer_column(&w, b, h, x->column + columns[k], x->v, x->count));
        }
    }
    succeed(fm_mask_writer_finish(&w, &mask));
    fm_mask_writer_close(&w);
    return mask;
}

/* Stripes in random order, each flushed at once. */
static fm_mask *write_stripes(test_random *r, fm_mask_shape s, const group *groups, int64_t n) {
    const int64_t stripes = (s.columns + FM_STRIPE - 1) / FM_STRIPE;
    int64_t order[4 * MOST_COLUMNS / FM_STRIPE + 4];
    fm_mask_writer w;
    fm_mask *mask = NULL;
    succeed(fm_mask_writer_open(&w, s, INT32_MAX, NULL));
    shuffle(r, order, s.batch * s.heads * stripes);
    for (int64_t k = 0; k < s.batch * s.heads * stripes; k++) {
        const int64_t plane = order[k] / stripes, first = order[k] % stripes * FM_STRIPE, last = first + FM_STRIPE;
        for (int64_t g = 0; g < n; g++) {
            const group *x = &groups[g];
            const int64_t start = x->column > first ? x->column : first;
            const int64_t end = x->column + x->columns < last ? x->column + x->columns : last;
            if (x->plane == plane && start < end) {
                succeed(fm_mask_writer_columns(&w, plane / s.heads, plane % s.heads, start, end - start, x->v, x->count));
            }
        }
        succeed(fm_mask_writer_flush(&w));
    }
    succeed(fm_mask_writer_finish(&w, &mask));
    fm_mask_writer_close(&w);
    return mask;
}

static void ways_and_orders_of_writing_give_one_mask(void **state) {
    test_random r = {51};
    int bitmaps = 0;
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        const fm_mask_shape s = {random_integer(&r, 1, 2), random_integer(&r, 1, 2), random_integer(&r, 1, 400),
                                 random_integer(&r, 1, MOST_COLUMNS)};
        group *groups = malloc(4 * (MOST_COLUMNS + 1) * sizeof *groups);
        assert_non_null(groups);
        truth t = truth_make(s);
        const int64_t n = draw_groups(&r, s, groups, t.visible);
        fm_mask *masks[] = {write_groups(s, groups, n, false, false), write_groups(s, groups, n, false, true),
                            write_groups(s, groups, n, true, false),  write_groups(s, groups, n, true, true),
                            write_shuffled(&r, s, groups, n),         write_stripes(&r, s, groups, n)};
        truth_assert(&t, masks[0]);
        bitmaps += fm_mask_has_fallback(masks[0]);
        for (int way = 0; way < 6; way++) {
            assert_true(fm_mask_equal(masks[0], masks[way]));
            assert_true(fm_mask_hash(masks[0]) == fm_mask_hash(masks[way]));
        }
        for (int way = 0; way < 6; way++) {
            fm_mask_free(masks[way]);
        }
        free(groups);
        truth_free(&t);
    }
    assert_in_range(bitmaps, DRAWS / 4, DRAWS - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ways_and_orders_of_writing_give_one_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
