/* What bench measures and how it finds wrong results. */
#include "bench_check.h"

#include "call.h"
#include "support/cmocka_all.h"

#include <flashmask/masks.h>
#include <stdlib.h>

enum { N = 200 };

typedef struct fixture {
    fm_mask *mask;
    fm_bench_settings settings;
    fm_trial_inputs inputs;
    fm_trial_results results;
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->settings = (fm_bench_settings){.shape = {1, N, N, 4, 2, 16, 8, FM_F32}, .runs = 4, .threads = 1};
    assert_int_equal(fm_mask_sink_window(N, N, 2, 30, &f->mask), FM_OK);
    assert_true(fm_trial_inputs_make(&f->settings.shape, 1, &f->inputs));
    const fm_trial_call call = {.mask = f->mask, .backend = FM_BACKEND_CPU, .threads = 1};
    assert_true(fm_trial_run(&f->inputs, &call, &f->results));
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    fm_trial_results_free(&f->results);
    fm_trial_inputs_free(&f->inputs);
    fm_mask_free(f->mask);
    free(f);
    return 0;
}

static fm_bench_result check(const fixture *f) {
    const fm_bench_checked checked = {f->mask, &f->inputs, &f->results, &f->settings};
    fm_bench_result result = {0};
    assert_true(fm_bench_check(&checked, &result));
    return result;
}

static void right_results_agree(void **state) {
    const fm_bench_result result = check(*state);
    assert_true(result.agrees);
    assert_int_equal(result.checked_rows, 48);
    assert_int_equal(result.checked_keys, 48);
    for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
        assert_true(result.errors[i].agrees);
        assert_true(result.errors[i].error > 0); /* f32 is not exact: something was compared */
    }
}

/* The last element of each result belongs to a row or key that is always checked. */
static void one_wrong_value_is_found_in_each_result(void **state) {
    fixture *f = *state;
    for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
        const int64_t *shape = f->results.result[i].shape;
        float *last = (float *)f->results.result[i].data + shape[0] * shape[1] * shape[2] * shape[3] - 1;
        const float right = *last;
        *last = right + 1;
        const fm_bench_result result = check(f);
        assert_false(result.agrees);
        assert_false(result.errors[i].agrees);
        *last = right;
    }
}

static void a_measured_case_has_ordered_times_and_exact_operations(void **state) {
    const fixture *f = *state;
    fm_bench_case c = {.name = "sink window", .sample = -1, .mask = f->mask};
    fm_bench_result r;
    fm_progress progress = fm_progress_start(FM_BENCH_STEPS);
    int64_t pairs = 0;
    assert_true(fm_bench_measure(&c, &f->settings, &progress, &r));
    assert_int_equal(progress.done, FM_BENCH_STEPS);
    assert_true(r.agrees);
    assert_int_equal(fm_mask_visible_pairs(f->mask, &pairs), FM_OK);
    assert_true(r.forward.flops == 2.0 * (16 + 8) * (double)pairs * 4);
    assert_true(r.backward.flops == 2.5 * r.forward.flops);
    const fm_bench_times *times[] = {&r.forward, &r.backward};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(times[i]->runs, 4);
        assert_true(0 < times[i]->p10 && times[i]->p10 <= times[i]->median && times[i]->median <= times[i]->p90);
    }
    assert_int_equal(r.plans.common.block_m, 128);
    assert_int_equal(r.plans.own.visible_pairs, pairs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(right_results_agree, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_wrong_value_is_found_in_each_result, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_measured_case_has_ordered_times_and_exact_operations, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
