/* Known plans, plans of long sequences, and the plan's size. */
#include <flashmask/flashmask.h>

#include "plan/plan.h"
#include "support/cmocka_all.h"
#include "support/small_masks.h"

#include <stdlib.h>

/* Documents of the given lengths over and over, up to n tokens. */
static fm_mask *document_mask(int64_t n, const int64_t *lengths, int64_t count, bool causal) {
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, n, n}, 1, NULL), FM_OK);
    int64_t start = 0;
    for (int64_t d = 0; start < n; start += lengths[d++ % count]) {
        const int64_t end = start + lengths[d % count] < n ? start + lengths[d % count] : n;
        for (int64_t j = start; j < end; j++) {
            assert_int_equal(fm_mask_writer_interval(&writer, 0, 0, j, causal ? j : start, end), FM_OK);
        }
    }
    assert_int_equal(fm_mask_writer_finish(&writer, &mask), FM_OK);
    fm_mask_writer_close(&writer);
    return mask;
}

static fm_plan_stats plan_stats(const fm_mask *mask, const fm_plan_options *options) {
    fm_plan_stats stats = FM_PLAN_STATS_INIT;
    fm_plan *plan = NULL;
    assert_int_equal(fm_plan_create(mask, options, &plan), FM_OK);
    assert_int_equal(fm_plan_get_stats(plan, &stats), FM_OK);
    fm_plan_free(plan);
    return stats;
}

/* The method's worked example. */
static void four_causal_documents_have_the_known_tiles(void **state) {
    (void)state;
    const int64_t lengths[] = {1024, 512, 1536, 1024};
    fm_mask *mask = document_mask(4096, lengths, 4, true);
    const fm_plan_stats s = plan_stats(mask, NULL);
    assert_int_equal(s.block_m, 64);
    assert_int_equal(s.block_n, 64);
    assert_int_equal(s.tiles, 4096);
    assert_int_equal(s.skipped, 3488);
    assert_int_equal(s.full, 544);
    assert_int_equal(s.partial, 64);
    assert_int_equal(s.dense_bytes, 16 << 20);
    assert_int_equal(s.visible_pairs, (1024 * 1025 + 512 * 513 + 1536 * 1537 + 1024 * 1025) / 2);
    fm_mask_free(mask);
}

typedef struct long_mask {
    const char *name;
    const int64_t *lengths;
    int64_t count;
    bool causal_flag;
    int64_t window_left;
} long_mask;

static fm_plan_stats long_plan(const long_mask *m, int64_t n) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.causal = m->causal_flag;
    options.window_left = m->window_left;
    fm_mask *mask = m->lengths != NULL ? document_mask(n, m->lengths, m->count, true) : full_mask(1, 1, n, n);
    const fm_plan_stats s = plan_stats(mask, &options);
    fm_mask_free(mask);
    print_message("%-20s N = %7lld: plan %8lld bytes, %.4f s\n", m->name, (long long)n, (long long)s.plan_bytes, s.build_seconds);
    return s;
}

static void plan_bytes_grow_with_the_sequence_not_its_square(void **state) {
    (void)state;
    static const int64_t lengths[] = {1531, 977, 64, 4099, 313, 2048, 1, 8191};
    const long_mask masks[] = {
        {"causal", NULL, 0, true, -1}, {"causal documents", lengths, 8, false, -1}, {"sliding window 4096", NULL, 0, true, 4095}};
    for (int i = 0; i < 3; i++) {
        const fm_plan_stats small = long_plan(&masks[i], 131072), large = long_plan(&masks[i], 1048576);
        assert_true(large.plan_bytes <= 9 * small.plan_bytes);
        assert_int_equal(large.tiles, 64 * small.tiles);
    }
}

static void causal_counts_at_a_million_tokens_are_exact(void **state) {
    (void)state;
    const int64_t n = 1048576, tiles = n / 64;
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.causal = true;
    fm_mask *mask = full_mask(1, 1, n, n);
    const fm_plan_stats s = plan_stats(mask, &options);
    assert_int_equal(s.partial, tiles);
    assert_int_equal(s.full, tiles * (tiles - 1) / 2);
    assert_int_equal(s.skipped, tiles * (tiles - 1) / 2);
    assert_int_equal(s.visible_pairs, n * (n + 1) / 2);
    assert_int_equal(s.dense_bytes, n * n);
    fm_mask_free(mask);
}

/* 2^31 - 1 rows over 5 keys, causal from the bottom right: the last 5 rows see 1, 2, 3, 4, 5 keys. */
static void the_largest_row_count_does_not_overflow(void **state) {
    (void)state;
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.block_m = 1 << 20;
    options.block_n = 5;
    fm_mask *mask = full_mask(1, 1, INT32_MAX, 5);
    fm_plan_stats s = plan_stats(mask, &options);
    assert_int_equal(s.tiles, 2048);
    assert_int_equal(s.full, 2048);
    assert_int_equal(s.visible_pairs, 5 * (int64_t)INT32_MAX);
    options.causal = true;
    s = plan_stats(mask, &options);
    assert_int_equal(s.full, 0);
    assert_int_equal(s.partial, 1);
    assert_int_equal(s.visible_pairs, 15);
    fm_mask_free(mask);
}

/* Of a mask that shows everything. The plan keeps its mask. */
static fm_plan *plan_work(fm_mask_shape s, bool causal, const fm_work **work, int64_t *count) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    fm_mask *mask = full_mask(s.batch, s.heads, s.rows, s.columns);
    fm_plan *plan = NULL;
    options.causal = causal;
    assert_int_equal(fm_plan_create(mask, &options, &plan), FM_OK);
    assert_int_equal(fm_plan_order(plan, work, count), FM_OK);
    fm_mask_free(mask);
    return plan;
}

static void equal_work_is_ordered_by_batch_head_row(void **state) {
    (void)state;
    const fm_work *work;
    int64_t count;
    fm_plan *plan = plan_work((fm_mask_shape){2, 3, 130, 70}, false, &work, &count);
    assert_int_equal(count, 2 * 3 * 3);
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(work[i].batch, i / 9);
        assert_int_equal(work[i].head, i / 3 % 3);
        assert_int_equal(work[i].tile_row, i % 3);
    }
    fm_plan_free(plan);
}

static void causal_rows_come_longest_first(void **state) {
    (void)state;
    const fm_work *work;
    int64_t count;
    fm_plan *plan = plan_work((fm_mask_shape){1, 1, 640, 640}, true, &work, &count);
    assert_int_equal(count, 10);
    for (int32_t i = 0; i < 10; i++) {
        assert_int_equal(work[i].tile_row, 9 - i);
        assert_int_equal(plan->column_order[i], i);
    }
    fm_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_causal_documents_have_the_known_tiles),
        cmocka_unit_test(plan_bytes_grow_with_the_sequence_not_its_square),
        cmocka_unit_test(causal_counts_at_a_million_tokens_are_exact),
        cmocka_unit_test(the_largest_row_count_does_not_overflow),
        cmocka_unit_test(equal_work_is_ordered_by_batch_head_row),
        cmocka_unit_test(causal_rows_come_longest_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
