/* Every allocation of mask algebra and packing fails once: the status says so, nothing is written and nothing leaks (the
 * last under the address sanitizer). */
#include "mask/writer.h"
#include "support/failing_allocation.h"
#include "support/truth.h"

#include <flashmask/masks.h>

typedef struct operands {
    const fm_mask *a, *b;
} operands;

static fm_status combine_and(const void *context, fm_mask **out) {
    const operands *o = context;
    return fm_mask_and(o->a, o->b, NULL, out);
}
static fm_status combine_or(const void *context, fm_mask **out) {
    const operands *o = context;
    return fm_mask_or(o->a, o->b, NULL, out);
}
static fm_status shift(const void *context, fm_mask **out) {
    const operands *o = context;
    return fm_mask_shift(o->a, 3, 5, NULL, out);
}
static fm_status slice(const void *context, fm_mask **out) {
    const operands *o = context;
    return fm_mask_slice(o->a, 3, 250, 5, 250, NULL, out);
}
static fm_status slice_batch(const void *context, fm_mask **out) {
    const operands *o = context;
    return fm_mask_slice_batch(o->a, 0, 1, out);
}
static fm_status repeat(const void *context, fm_mask **out) {
    const operands *o = context;
    return fm_mask_repeat_heads(o->a, 4, out);
}
static fm_status stack_heads(const void *context, fm_mask **out) {
    const operands *o = context;
    return fm_mask_stack_heads((const fm_mask *const[]){o->a, o->b}, 2, out);
}
static fm_status stack_batch(const void *context, fm_mask **out) {
    const operands *o = context;
    return fm_mask_stack_batch((const fm_mask *const[]){o->a, o->b}, 2, out);
}

/* Column by column: the lists of columns that do not fit. */
static fm_status write_columns(const void *context, fm_mask **out) {
    const fm_mask_view *v = &((const operands *)context)->a->view;
    fm_stripe_columns columns = {0};
    fm_mask_writer writer;
    fm_status status;
    FM_TRY(fm_mask_writer_open(&writer, v->shape, FM_MAX_INTERVALS + 1, NULL));
    for (int64_t k = 0; k < v->shape.heads * v->shape.columns; k++) {
        const int64_t h = k / v->shape.columns, j = k % v->shape.columns, c = j % FM_STRIPE;
        FM_TRY_DONE(fm_mask_read_stripe(v, 0, h, j / FM_STRIPE, &columns));
        FM_TRY_DONE(fm_mask_writer_column(&writer, 0, h, j, columns.intervals + columns.first[c],
                                          columns.first[c + 1] - columns.first[c]));
    }
    FM_TRY_DONE(fm_mask_writer_finish(&writer, out));
done:
    fm_mask_writer_close(&writer);
    fm_stripe_columns_free(&columns);
    return status;
}

static void algebra_survives_every_failed_allocation(void **state) {
    (void)state;
    static const mask_maker operations[] = {combine_and, combine_or,  shift,       slice,        slice_batch,
                                            repeat,      stack_heads, stack_batch, write_columns};
    static const double densities[] = {0.5, 0.001}; /* bitmaps, intervals */
    test_random random = {1};
    for (int d = 0; d < 2; d++) {
        truth ta = truth_random(&random, (fm_mask_shape){1, 2, 260, 260}, densities[d]);
        truth tb = truth_random(&random, (fm_mask_shape){1, 2, 260, 260}, densities[d]);
        const operands o = {truth_mask(&ta, NULL), truth_mask(&tb, NULL)};
        assert_true(fm_mask_has_fallback(o.a) == (d == 0));
        for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
            fail_each_allocation(operations[i], &o);
        }
        fm_mask_free((fm_mask *)o.a);
        fm_mask_free((fm_mask *)o.b);
        truth_free(&ta);
        truth_free(&tb);
    }
}

static void packing_survives_every_failed_allocation(void **state) {
    (void)state;
    static const int64_t lengths[] = {5, 0, 9, 30, 2, 7};
    for (int policy = FM_PACK_BEST_FIT; policy <= FM_PACK_ARRIVAL; policy++) {
        int64_t failures = 0;
        for (fm_status status = FM_ERROR_OUT_OF_MEMORY; status != FM_OK; failures++) {
            fm_packing *packing = NULL;
            allowed = failures;
            status = fm_pack_lengths(6, lengths, 10, (fm_pack_policy)policy, FM_PACK_SPLIT, &packing);
            allowed = INT64_MAX;
            assert_true(status == FM_OK || (status == FM_ERROR_OUT_OF_MEMORY && packing == NULL));
            fm_packing_free(packing);
        }
        assert_int_equal(failures, policy == FM_PACK_BEST_FIT ? 8 : 6); /* that many allocations, and a run without failure */
    }
}

static fm_status pack_and_mask(const void *context, fm_mask **out) {
    static const int64_t answers[] = {2, 3};
    static const fm_question questions[] = {{3, 2, answers}, {9, 0, NULL}, {0, 2, answers}};
    fm_packing *packing = NULL;
    (void)context;
    FM_TRY(fm_pack_questions(3, questions, 10, FM_PACK_BEST_FIT, &packing));
    const fm_status status = fm_packing_mask(packing, 0, 2, true, out);
    fm_packing_free(packing);
    return status;
}

static void packing_of_questions_survives_every_failed_allocation(void **state) {
    (void)state;
    fail_each_allocation(pack_and_mask, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(algebra_survives_every_failed_allocation),
        cmocka_unit_test(packing_survives_every_failed_allocation),
        cmocka_unit_test(packing_of_questions_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
