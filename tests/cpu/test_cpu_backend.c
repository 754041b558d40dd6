/* The CPU backend agrees with the oracle under every instruction set, and gives the same bits for any threads, batch
 * neighbours and no_skip. */
#include "cpu_cases.h"
#include "support/mask_kinds.h"
#include "support/random_mask.h"

#include <flashmask/masks.h>
#include <math.h>
#include <string.h>

#include "support/cmocka_all.h"

/* ---- agreement ---------------------------------------------------------------------------------------------------- */

/* Looser than conformance, which runs over the best instruction set alone: what this finds is an instruction set that
 * computes something else. */
static void assert_near(const attention_results *ours, const attention_results *plain, const attention_results *oracle,
                        fm_dtype dtype) {
    const double unit = dtype == FM_F32 ? 0x1p-23 : dtype == FM_F16 ? 0x1p-10 : 0x1p-7;
    for (int i = 0; i < RESULT_COUNT; i++) {
        const test_tensor *truth = result_at(oracle, i);
        const double error = test_tensor_distance(result_at(ours, i), truth);
        const double tolerance =
            4 * test_tensor_distance(result_at(plain, i), truth) + 8 * unit * fmax(1.0, test_tensor_largest(truth));
        if (!(error <= tolerance)) {
            fail_msg("%s: %s: error %.3g, tolerance %.3g", getenv("FLASHMASK_CPU_ISA"), result_names[i], error, tolerance);
        }
    }
}

static void agreement_of_one_isa(test_random *random) {
    for (int i = 0; i < 24; i++) {
        attention_case c = draw_case(random);
        mask_kinds[random_integer(random, 0, mask_kind_count - 1)].make(random, &c);
        attention_inputs in = attention_inputs_make(&c, random), wide = attention_inputs_widen(&c, &in);
        attention_results oracle = attention_run(&c, &wide, (attention_run_options){.backend = FM_BACKEND_REFERENCE});
        attention_results plain = attention_run(&c, &in, (attention_run_options){.backend = FM_BACKEND_REFERENCE});
        attention_results ours = run_cpu(&c, &in, 1, false);
        assert_near(&ours, &plain, &oracle, c.dtype);
        attention_results_free(&oracle);
        attention_results_free(&plain);
        attention_results_free(&ours);
        attention_inputs_free(&in);
        attention_inputs_free(&wide);
        fm_mask_free((fm_mask *)c.mask);
    }
}

static void every_isa_agrees_with_the_oracle(void **state) {
    (void)state;
    for_each_isa(agreement_of_one_isa);
}

/* ---- equal bits --------------------------------------------------------------------------------------------------- */

/* A plan of the case's mask and flags. */
static fm_plan *plan_of(const attention_case *c) {
    fm_mask *full = NULL;
    fm_plan *plan = NULL;
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.causal = c->causal;
    options.window_left = c->window_left;
    options.window_right = c->window_right;
    assert_int_equal(fm_mask_full(c->rows, c->columns, &full), FM_OK);
    assert_int_equal(fm_plan_create(c->mask != NULL ? c->mask : full, &options, &plan), FM_OK);
    fm_mask_free(full);
    return plan;
}

/* One thread and no plan against the other ways to run the same call. */
static void assert_bits(const attention_case *c, const attention_inputs *in) {
    fm_plan *plan = plan_of(c);
    const attention_run_options others[] = {{.num_threads = 3},
                                            {.num_threads = 2, .no_skip = true},
                                            {.num_threads = 3, .plan = plan},
                                            {.plan = plan, .no_skip = true}};
    attention_results one = run_cpu(c, in, 1, false);
    for (int k = 0; k < 4; k++) {
        attention_run_options options = others[k];
        options.backend = FM_BACKEND_CPU;
        attention_results other = attention_run(c, in, options);
        attention_assert_same_bits(&one, &other);
        attention_results_free(&other);
    }
    attention_results_free(&one);
    fm_plan_free(plan);
}

static void bits_of_one_isa(test_random *random) {
    for (int kind = 0; kind < mask_kind_count; kind++) {
        attention_case c = draw_case(random);
        c.with_sinks = kind % 2 == 0;
        mask_kinds[kind].make(random, &c);
        attention_inputs in = attention_inputs_make(&c, random);
        assert_bits(&c, &in);
        attention_inputs_free(&in);
        fm_mask_free((fm_mask *)c.mask);
    }
}

static void threads_plans_and_no_skip_change_no_bit(void **state) {
    (void)state;
    for_each_isa(bits_of_one_isa);
}

static attention_inputs item_of(const attention_case *c, const attention_inputs *in, int64_t b) {
    return (attention_inputs){.query = test_tensor_item(&in->query, b),
                              .key = test_tensor_item(&in->key, b),
                              .value = test_tensor_item(&in->value, b),
                              .grad_output = test_tensor_item(&in->grad_output, b),
                              .sinks = in->sinks,
                              .grad_lse = in->grad_lse == NULL ? NULL : in->grad_lse + b * c->heads * c->rows};
}

/* Item b of a batch has the bits of the same item run alone under its own mask. */
static void assert_item(const attention_case *c, const attention_inputs *in, const attention_results *together, int64_t b,
                        const fm_mask *mask) {
    attention_case alone = *c;
    alone.batch = 1;
    alone.mask = mask;
    const attention_inputs item = item_of(c, in, b);
    attention_results single = run_cpu(&alone, &item, 1, false);
    const test_tensor *pairs[][2] = {{&together->output, &single.output},
                                     {&together->grad_query, &single.grad_query},
                                     {&together->grad_key, &single.grad_key},
                                     {&together->grad_value, &single.grad_value}};
    for (int k = 0; k < 4; k++) {
        const test_tensor ours = test_tensor_item(pairs[k][0], b);
        assert_true(test_tensor_same(&ours, pairs[k][1]));
    }
    assert_memory_equal((float *)together->lse.buffer + b * c->heads * c->rows, single.lse.buffer, single.lse.bytes);
    attention_results_free(&single);
}

static void batch_of_one_isa(test_random *random) {
    for (int i = 0; i < 12; i++) {
        attention_case c = draw_case(random);
        c.batch = 3;
        c.mask = random_mask(random, (fm_mask_shape){1, c.heads_kv, c.rows, c.columns}, 6, NULL);
        attention_inputs in = attention_inputs_make(&c, random);
        attention_results together = run_cpu(&c, &in, 2, false);
        for (int64_t b = 0; b < c.batch; b++) {
            assert_item(&c, &in, &together, b, c.mask);
        }
        attention_results_free(&together);
        attention_inputs_free(&in);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* Eight packed sequences, each with documents and padding of its own. */
static void packed_batch_of_one_isa(test_random *random) {
    enum { BATCH = 8, LENGTH = 200, DOCUMENTS = 4 };
    attention_case c = draw_case(random);
    fm_mask *items[BATCH];
    c.batch = BATCH;
    c.rows = c.columns = LENGTH;
    for (int b = 0; b < BATCH; b++) {
        int64_t lengths[DOCUMENTS], rest = LENGTH;
        for (int k = 0; k < DOCUMENTS; k++) {
            lengths[k] = random_integer(random, 0, rest);
            rest -= lengths[k];
        }
        assert_int_equal(fm_mask_documents(DOCUMENTS, lengths, true, rest, &items[b]), FM_OK);
    }
    assert_int_equal(fm_mask_stack_batch((const fm_mask *const *)items, BATCH, (fm_mask **)&c.mask), FM_OK);
    attention_inputs in = attention_inputs_make(&c, random);
    attention_results together = run_cpu(&c, &in, 2, false);
    for (int b = 0; b < BATCH; b++) {
        assert_item(&c, &in, &together, b, items[b]);
        fm_mask_free(items[b]);
    }
    attention_results_free(&together);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

/* https://github.com/Dao-AILab/flash-attention/issues/1897 */
static void an_item_alone_has_the_bits_it_has_in_a_batch(void **state) {
    (void)state;
    for_each_isa(batch_of_one_isa);
}

/* https://github.com/Dao-AILab/flash-attention/issues/1897, https://github.com/pytorch/pytorch/issues/157675 */
static void a_packed_item_alone_has_the_bits_it_has_in_a_batch_of_eight(void **state) {
    (void)state;
    for_each_isa(packed_batch_of_one_isa);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_isa_agrees_with_the_oracle),
        cmocka_unit_test(threads_plans_and_no_skip_change_no_bit),
        cmocka_unit_test(an_item_alone_has_the_bits_it_has_in_a_batch),
        cmocka_unit_test(a_packed_item_alone_has_the_bits_it_has_in_a_batch_of_eight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
