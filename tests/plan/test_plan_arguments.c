/* What the plan's functions refuse, what they accept at the edges, and that a failure writes nothing. */
#include <flashmask/flashmask.h>

#include "support/cmocka_all.h"
#include "support/small_masks.h"

#include <string.h>

static void refuse(const fm_mask *mask, const fm_plan_options *options, fm_status status, const char *name) {
    int place = 0;
    fm_plan *const untouched = (void *)&place;
    fm_plan *plan = untouched;
    assert_int_equal(fm_plan_create(mask, options, &plan), status);
    assert_ptr_equal(plan, untouched);
    assert_non_null(strstr(fm_error_message(), name));
}

static void bad_options_are_refused_by_name(void **state) {
    (void)state;
    fm_mask *mask = full_mask(1, 1, 10, 10);
    const fm_plan_options good = FM_PLAN_OPTIONS_INIT;
    fm_plan_options o = good;
    refuse(NULL, &o, FM_ERROR_ARGUMENT, "mask");
    o.size = 0;
    refuse(mask, &o, FM_ERROR_ARGUMENT, "size");
    o.size = sizeof o + 8;
    refuse(mask, &o, FM_ERROR_ARGUMENT, "size");
    o = good;
    o.backend = -1;
    refuse(mask, &o, FM_ERROR_ARGUMENT, "backend");
    o.backend = 99;
    refuse(mask, &o, FM_ERROR_ARGUMENT, "backend");
    o = good;
    o.block_m = -1;
    refuse(mask, &o, FM_ERROR_ARGUMENT, "block_m");
    o.block_m = (1 << 20) + 1;
    refuse(mask, &o, FM_ERROR_ARGUMENT, "block_m");
    o = good;
    o.block_n = INT32_MIN;
    refuse(mask, &o, FM_ERROR_ARGUMENT, "block_n");
    o.block_n = INT32_MAX;
    refuse(mask, &o, FM_ERROR_ARGUMENT, "block_n");
    o = good;
    o.window_left = -2;
    refuse(mask, &o, FM_ERROR_ARGUMENT, "window_left");
    o = good;
    o.window_right = INT64_MIN;
    refuse(mask, &o, FM_ERROR_ARGUMENT, "window_right");
    assert_int_equal(fm_plan_create(mask, &good, NULL), FM_ERROR_ARGUMENT);
    fm_mask_free(mask);
}

static void every_backend_takes_block_zero(void **state) {
    (void)state;
    fm_mask *mask = full_mask(1, 1, 10, 10);
    for (int32_t backend = FM_BACKEND_AUTO; backend <= FM_BACKEND_CPU; backend++) {
        fm_plan_options o = FM_PLAN_OPTIONS_INIT;
        fm_plan_stats stats = FM_PLAN_STATS_INIT;
        fm_plan *plan = NULL;
        o.backend = (fm_backend_id)backend;
        o.block_n = 1 << 20;
        assert_int_equal(fm_plan_create(mask, &o, &plan), FM_OK);
        assert_int_equal(fm_plan_get_stats(plan, &stats), FM_OK);
        assert_int_equal(stats.block_m, 64);
        assert_int_equal(stats.block_n, 1 << 20);
        fm_plan_free(plan);
    }
    fm_mask_free(mask);
}

static void a_window_past_the_matrix_hides_nothing(void **state) {
    (void)state;
    fm_mask *mask = full_mask(1, 1, 30, 10);
    fm_plan_options o = FM_PLAN_OPTIONS_INIT;
    fm_plan_stats stats = FM_PLAN_STATS_INIT;
    fm_plan *plan = NULL;
    o.window_left = o.window_right = INT64_MAX;
    assert_int_equal(fm_plan_create(mask, &o, &plan), FM_OK);
    assert_int_equal(fm_plan_get_stats(plan, &stats), FM_OK);
    assert_int_equal(stats.visible_pairs, 300);
    fm_plan_free(plan);
    fm_mask_free(mask);
}

static void too_many_lines_are_a_limit(void **state) {
    (void)state;
    fm_mask *mask = full_mask(1, 2, INT32_MAX, 0);
    fm_plan_options o = FM_PLAN_OPTIONS_INIT;
    o.block_m = 1;
    refuse(mask, &o, FM_ERROR_LIMIT, "rows of tiles");
    fm_mask_free(mask);
}

static void no_rows_or_no_columns_is_an_empty_plan(void **state) {
    (void)state;
    const fm_mask_shape shapes[] = {{1, 1, 0, 0}, {1, 1, 0, 200}, {1, 1, 200, 0}};
    for (int i = 0; i < 3; i++) {
        fm_mask *mask = full_mask(shapes[i].batch, shapes[i].heads, shapes[i].rows, shapes[i].columns);
        fm_plan_options o = FM_PLAN_OPTIONS_INIT;
        fm_plan_stats s = FM_PLAN_STATS_INIT;
        fm_plan *plan = NULL;
        const fm_work *work;
        const fm_tile_run *runs;
        int64_t count;
        o.causal = true;
        assert_int_equal(fm_plan_create(mask, &o, &plan), FM_OK);
        assert_int_equal(fm_plan_get_stats(plan, &s), FM_OK);
        assert_int_equal(s.tiles, 0);
        assert_int_equal(s.visible_pairs, 0);
        assert_int_equal(s.dense_bytes, 0);
        assert_true(s.density == 0 && s.tile_efficiency == 0);
        assert_int_equal(fm_plan_order(plan, &work, &count), FM_OK);
        assert_int_equal(count, (shapes[i].rows + 63) / 64);
        for (int64_t r = 0; r < (shapes[i].rows + 63) / 64; r++) {
            assert_int_equal(work[r].tile_row, r);
            assert_int_equal(fm_plan_row_runs(plan, 0, 0, r, &runs, &count), FM_OK);
            assert_int_equal(count, 0);
        }
        for (int64_t c = 0; c < (shapes[i].columns + 63) / 64; c++) {
            assert_int_equal(fm_plan_column_runs(plan, 0, 0, c, &runs, &count), FM_OK);
            assert_int_equal(count, 0);
        }
        fm_plan_free(plan);
        fm_mask_free(mask);
    }
}

static void a_plan_outlives_the_callers_mask(void **state) {
    (void)state;
    fm_mask *mask = full_mask(1, 1, 100, 100);
    fm_plan_stats stats = FM_PLAN_STATS_INIT;
    fm_plan *plan = NULL;
    assert_int_equal(fm_plan_create(mask, NULL, &plan), FM_OK);
    fm_mask_free(mask);
    assert_int_equal(fm_plan_get_stats(plan, &stats), FM_OK);
    assert_int_equal(stats.visible_pairs, 10000);
    fm_plan_free(plan);
}

static void questions_out_of_range_are_refused(void **state) {
    (void)state;
    fm_mask *mask = full_mask(1, 1, 100, 200);
    fm_plan *plan = NULL;
    const fm_tile_run *runs = NULL;
    int64_t count = -7;
    const struct {
        int64_t batch, head, tile;
        const char *name;
    } bad[] = {{-1, 0, 0, "batch"}, {1, 0, 0, "batch"}, {0, -1, 0, "head"},        {0, 1, 0, "head"},
               {0, 0, -1, "tile_"}, {0, 0, 4, "tile_"}, {0, 0, INT64_MAX, "tile_"}};
    assert_int_equal(fm_plan_create(mask, NULL, &plan), FM_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(fm_plan_row_runs(plan, bad[i].batch, bad[i].head, bad[i].tile, &runs, &count), FM_ERROR_ARGUMENT);
        assert_non_null(strstr(fm_error_message(), bad[i].name));
        assert_int_equal(fm_plan_column_runs(plan, bad[i].batch, bad[i].head, bad[i].tile, &runs, &count), FM_ERROR_ARGUMENT);
        assert_non_null(strstr(fm_error_message(), bad[i].name));
    }
    assert_int_equal(fm_plan_row_runs(plan, 0, 0, 2, &runs, &count), FM_ERROR_ARGUMENT); /* 100 rows: 2 rows of tiles */
    assert_null(runs);
    assert_int_equal(count, -7);
    fm_plan_free(plan);
    fm_mask_free(mask);
}

static void null_pointers_are_refused(void **state) {
    (void)state;
    fm_mask *mask = full_mask(1, 1, 1, 1);
    fm_plan *plan = NULL;
    fm_plan_stats stats = {.size = 1, .tiles = -7};
    const fm_work *work;
    const fm_tile_run *runs;
    int64_t count;
    assert_int_equal(fm_plan_create(mask, NULL, &plan), FM_OK);
    assert_int_equal(fm_plan_get_stats(plan, &stats), FM_ERROR_ARGUMENT);
    assert_non_null(strstr(fm_error_message(), "size"));
    assert_int_equal(stats.tiles, -7);
    assert_int_equal(fm_plan_get_stats(NULL, &stats), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_plan_get_stats(plan, NULL), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_plan_order(NULL, &work, &count), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_plan_order(plan, NULL, &count), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_plan_order(plan, &work, NULL), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_plan_row_runs(NULL, 0, 0, 0, &runs, &count), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_plan_row_runs(plan, 0, 0, 0, NULL, &count), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_plan_row_runs(plan, 0, 0, 0, &runs, NULL), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_plan_column_runs(NULL, 0, 0, 0, &runs, &count), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_plan_column_runs(plan, 0, 0, 0, NULL, &count), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_plan_column_runs(plan, 0, 0, 0, &runs, NULL), FM_ERROR_ARGUMENT);
    fm_plan_free(plan);
    fm_plan_free(NULL);
    fm_mask_free(mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_are_refused_by_name),        cmocka_unit_test(every_backend_takes_block_zero),
        cmocka_unit_test(a_window_past_the_matrix_hides_nothing), cmocka_unit_test(too_many_lines_are_a_limit),
        cmocka_unit_test(no_rows_or_no_columns_is_an_empty_plan), cmocka_unit_test(a_plan_outlives_the_callers_mask),
        cmocka_unit_test(questions_out_of_range_are_refused),     cmocka_unit_test(null_pointers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
