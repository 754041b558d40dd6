/* Device plans of host masks, and of no mask, equal host plans. Skips without a GPU. */
#include <flashmask/masks.h>

#include "device_plan_checks.h"
#include "support/mask_kinds.h"
#include "support/random_mask.h"

static void check_mask(const fm_mask *mask, fm_plan_options options) {
    options.fallback_blocks = fm_mask_has_fallback(mask) ? mask->view.block_count + 1 : mask->view.shape.rows % 2;
    device_plan d = open_plan(mask->view.shape, mask->view.intervals, &options);
    succeed(fm_plan_create_device(mask, &options, gpu, d.buffer, d.bytes, NULL, &d.plan));
    check_plan(&d, mask, options);
    close_plan(&d);
}

/* A plan of no mask, which attention calls without one make for themselves. */
static void check_no_mask(int64_t rows, int64_t columns, fm_plan_options options) {
    const fm_mask_shape shape = {1, 1, rows, columns};
    fm_mask *full = NULL;
    device_plan d = open_plan(shape, 1, &options);
    succeed(fm_device_plan_make(shape, 1, &options, gpu, NULL, d.buffer, &d.plan));
    succeed(fm_backend_cuda_sm80.build_plan(d.plan, &(fm_plan_source){NULL, NULL}, NULL));
    succeed(fm_mask_full(rows, columns, &full));
    check_plan(&d, full, options);
    fm_mask_free(full);
    close_plan(&d);
}

static fm_plan_options draw_flags(test_random *r, int64_t columns) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.causal = random_chance(r, 0.4);
    if (random_chance(r, 0.5)) {
        options.window_left = random_integer(r, -1, columns);
        options.window_right = random_integer(r, -1, columns);
    }
    return options;
}

static void check_kind(test_random *r, const mask_kind *kind, int64_t rows, int64_t columns) {
    attention_case c = {.batch = random_integer(r, 1, 3), .rows = rows, .columns = columns, .heads = 4, .heads_kv = 2};
    c.window_left = c.window_right = -1;
    kind->make(r, &c);
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.causal = c.causal;
    options.window_left = c.window_left;
    options.window_right = c.window_right;
    if (c.mask == NULL) {
        check_no_mask(rows, columns, options);
        check_no_mask(rows, columns, draw_flags(r, columns));
        return;
    }
    check_mask(c.mask, options);
    check_mask(c.mask, draw_flags(r, columns));
    fm_mask_free((fm_mask *)c.mask);
}

static void plans_of_every_kind_of_mask_equal_host_plans(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 17, 63, 64, 65, 127, 128, 129, 192, 300, 700};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    test_random random = {1};
    for (int k = 0; k < mask_kind_count; k++) {
        for (int draw = 0; draw < 12; draw++) {
            check_kind(&random, &mask_kinds[k], sizes[random_integer(&random, 0, SIZES - 1)],
                       sizes[random_integer(&random, 0, SIZES - 1)]);
        }
        check_kind(&random, &mask_kinds[k], 2049 + 100 * random_integer(&random, 0, 10), random_integer(&random, 1, 1000));
        check_kind(&random, &mask_kinds[k], random_integer(&random, 1, 1000), 2049 + 100 * random_integer(&random, 0, 10));
    }
}

/* More regions than the kernel has blocks for, and several chunks of groups to sort. */
static void plans_of_long_sequences_equal_host_plans(void **state) {
    (void)state;
    test_random random = {2};
    const int64_t lengths[] = {70000, 1, 333, 60000};
    fm_mask *documents = NULL, *intervals = random_mask(&random, (fm_mask_shape){1, 1, 150003, 100001}, 4, NULL);
    succeed(fm_mask_documents(4, lengths, true, 77, &documents));
    check_mask(documents, (fm_plan_options)FM_PLAN_OPTIONS_INIT);
    check_mask(intervals, (fm_plan_options)FM_PLAN_OPTIONS_INIT);
    check_no_mask(130001, 180000, draw_flags(&random, 180000));
    fm_mask_free(documents);
    fm_mask_free(intervals);
}

static void plans_without_rows_or_keys_are_empty(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        const fm_mask_shape shape = {2, 3, i == 1 ? 300 : 0, i == 2 ? 300 : 0};
        fm_mask *mask = NULL;
        succeed(fm_mask_from_intervals(shape, 0, NULL, &mask));
        check_mask(mask, (fm_plan_options)FM_PLAN_OPTIONS_INIT);
        fm_mask_free(mask);
        check_no_mask(shape.rows, shape.columns, (fm_plan_options)FM_PLAN_OPTIONS_INIT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_of_every_kind_of_mask_equal_host_plans),
        cmocka_unit_test(plans_of_long_sequences_equal_host_plans),
        cmocka_unit_test(plans_without_rows_or_keys_are_empty),
    };
    return gpu_is_present() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
}
