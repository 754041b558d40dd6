/* The CPU backend and inputs that nobody sees, extreme inputs and degenerate ones, under every instruction set. */
#include "cpu_cases.h"

#include <flashmask/masks.h>
#include <math.h>
#include <string.h>

#include "support/cmocka_all.h"

/* ---- things that nobody sees -------------------------------------------------------------------------------------- */

/* Two documents whose border (row and key 100) cuts a tile, then padding; one batch item, square. */
enum { FIRST = 100, SECOND = 70, PADDING = 30, ALL = FIRST + SECOND + PADDING };

static attention_case two_documents(test_random *random) {
    const int64_t lengths[] = {FIRST, SECOND};
    attention_case c = draw_case(random);
    c.batch = 1;
    c.rows = c.columns = ALL;
    assert_int_equal(fm_mask_documents(2, lengths, random_chance(random, 0.5), PADDING, (fm_mask **)&c.mask), FM_OK);
    return c;
}

static void poison(const test_tensor *t, test_random *random, int64_t first, int64_t count) {
    const double values[] = {NAN, INFINITY, -INFINITY};
    for (int64_t i = first; i < first + count; i++) {
        for (int64_t h = 0; h < t->view.shape[2]; h++) {
            const int64_t d = random_integer(random, 0, t->view.shape[3] - 1);
            fm_tensor_store(&t->view, fm_tensor_offset(&t->view, 0, i, h, d), values[random_integer(random, 0, 2)]);
        }
    }
}

static void assert_same_part(const attention_case *c, const attention_results *a, const attention_results *b, int64_t first,
                             int64_t count) {
    for (int i = 0; i < RESULT_COUNT - 1; i++) {
        const test_tensor *all_a = result_at(a, i), *all_b = result_at(b, i);
        if (all_a == &a->lse) {
            for (int64_t h = 0; h < c->heads; h++) {
                const size_t offset = (size_t)(h * c->rows + first);
                assert_memory_equal((float *)all_a->buffer + offset, (float *)all_b->buffer + offset,
                                    (size_t)count * sizeof(float));
            }
            continue;
        }
        const test_tensor part_a = test_tensor_rows(all_a, first, count), part_b = test_tensor_rows(all_b, first, count);
        if (!test_tensor_same(&part_a, &part_b)) {
            fail_msg("%s: %s differs", getenv("FLASHMASK_CPU_ISA"), result_names[i]);
        }
    }
}

/* Poisons [first, first + count) of the chosen inputs and asserts that [kept, kept + kept_count) keeps its bits. */
typedef struct poisoning {
    int64_t first, count;
    bool keys, rows;
    int64_t kept, kept_count;
} poisoning;

static void poison_and_compare(test_random *random, poisoning p) {
    const attention_case c = two_documents(random);
    attention_inputs in = attention_inputs_make(&c, random);
    attention_results clean = run_cpu(&c, &in, 1, false);
    if (p.keys) {
        poison(&in.key, random, p.first, p.count);
        poison(&in.value, random, p.first, p.count);
    }
    if (p.rows) {
        poison(&in.query, random, p.first, p.count);
        poison(&in.grad_output, random, p.first, p.count);
    }
    attention_results skipped = run_cpu(&c, &in, 1, false), visited = run_cpu(&c, &in, 2, true);
    assert_same_part(&c, &clean, &skipped, p.kept, p.kept_count);
    assert_same_part(&c, &clean, &visited, p.kept, p.kept_count);
    if (p.keys && p.first < FIRST + SECOND) { /* whoever sees them shows it */
        const test_tensor spoiled = test_tensor_rows(&skipped.output, p.first + p.count - 1, 1);
        assert_true(isinf(test_tensor_distance(&spoiled, &spoiled)) || isinf(fm_tensor_load(&spoiled.view, 0)));
    }
    attention_results_free(&clean);
    attention_results_free(&skipped);
    attention_results_free(&visited);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

static void hidden_of_one_isa(test_random *random) {
    for (int i = 0; i < 8; i++) {
        poison_and_compare(
            random, (poisoning){.first = FIRST - 3, .count = 3, .keys = true, .kept = FIRST, .kept_count = SECOND + PADDING});
        poison_and_compare(
            random, (poisoning){.first = FIRST, .count = SECOND, .keys = true, .rows = true, .kept = 0, .kept_count = FIRST});
    }
}

static void what_a_row_does_not_see_may_hold_anything(void **state) {
    (void)state;
    for_each_isa(hidden_of_one_isa);
}

static void empty_of_one_isa(test_random *random) {
    for (int i = 0; i < 8; i++) {
        poison_and_compare(
            random,
            (poisoning){.first = FIRST + SECOND, .count = PADDING, .keys = true, .rows = true, .kept = 0, .kept_count = ALL});
    }
}

/* All results keep their bits, those of the padding included: output and gradients 0, lse -inf. */
static void empty_rows_and_unseen_keys_may_hold_anything(void **state) {
    (void)state;
    for_each_isa(empty_of_one_isa);
}

/* ---- extreme and degenerate inputs -------------------------------------------------------------------------------- */

static void fill_with(const test_tensor *t, double value) {
    const int64_t *n = t->view.shape;
    for (int64_t e = 0; e < n[0] * n[1] * n[2] * n[3]; e++) {
        fm_tensor_store(&t->view,
                        fm_tensor_offset(&t->view, e / n[3] / n[2] / n[1], e / n[3] / n[2] % n[1], e / n[3] % n[2], e % n[3]),
                        value);
    }
}

static attention_inputs constant_inputs(const attention_case *c, test_random *random, double value, double grad_output) {
    attention_inputs in = attention_inputs_make(c, random);
    fill_with(&in.query, value);
    fill_with(&in.key, value);
    fill_with(&in.value, value);
    fill_with(&in.grad_output, grad_output);
    return in;
}

static void assert_finite(const test_tensor *t) { assert_true(isfinite(test_tensor_distance(t, t))); }

/* https://github.com/pytorch/pytorch/issues/121558: bf16 133120 everywhere; one key, and two of which one is visible. */
static void huge_of_one_isa(test_random *random) {
    for (int64_t keys = 1; keys <= 2; keys++) {
        const attention_case c = {.batch = 1,
                                  .rows = 1,
                                  .columns = keys,
                                  .heads = 1,
                                  .heads_kv = 1,
                                  .head_dim = 64,
                                  .head_dim_v = 64,
                                  .dtype = FM_BF16,
                                  .window_left = -1,
                                  .window_right = keys == 1 ? -1 : 0,
                                  .scale = NAN};
        attention_inputs in = constant_inputs(&c, random, 133120.0, 1.0);
        attention_results r = run_cpu(&c, &in, 1, false);
        for (int64_t d = 0; d < c.head_dim_v; d++) {
            assert_true(fm_tensor_load(&r.output.view, d) == 133120.0);
        }
        assert_finite(&r.grad_query);
        assert_finite(&r.grad_key);
        assert_finite(&r.grad_value);
        attention_results_free(&r);
        attention_inputs_free(&in);
    }
}

static void huge_inputs_give_the_value(void **state) {
    (void)state;
    for_each_isa(huge_of_one_isa);
}

/* https://github.com/Dao-AILab/flash-attention/issues/41: constant 1000 in bf16, causal and not. */
static void constant_of_one_isa(test_random *random) {
    for (int causal = 0; causal < 2; causal++) {
        const attention_case c = {.batch = 1,
                                  .rows = 512,
                                  .columns = 512,
                                  .heads = 8,
                                  .heads_kv = 8,
                                  .head_dim = 32,
                                  .head_dim_v = 32,
                                  .dtype = FM_BF16,
                                  .causal = causal == 1,
                                  .window_left = -1,
                                  .window_right = -1,
                                  .scale = NAN};
        attention_inputs in = constant_inputs(&c, random, 1000.0, 1.0 / 512);
        attention_results r = run_cpu(&c, &in, 2, false);
        assert_true(test_tensor_largest(&r.output) == 1000.0);
        assert_finite(&r.grad_query);
        assert_finite(&r.grad_key);
        assert_finite(&r.grad_value);
        attention_results_free(&r);
        attention_inputs_free(&in);
    }
}

static void constant_inputs_have_finite_gradients(void **state) {
    (void)state;
    for_each_isa(constant_of_one_isa);
}

static void single_key_of_one_isa(test_random *random) {
    for (fm_dtype dtype = FM_F32; dtype <= FM_BF16; dtype++) {
        const attention_case c = {.batch = 1,
                                  .rows = 70,
                                  .columns = 70,
                                  .heads = 4,
                                  .heads_kv = 2,
                                  .head_dim = 40,
                                  .head_dim_v = 72,
                                  .dtype = dtype,
                                  .window_left = 0,
                                  .window_right = 0,
                                  .scale = NAN};
        attention_inputs in = attention_inputs_make(&c, random);
        attention_results r = run_cpu(&c, &in, 1, false);
        for (int64_t h = 0; h < c.heads; h++) {
            for (int64_t at = 0; at < c.rows * c.head_dim_v; at++) {
                const int64_t i = at / c.head_dim_v, d = at % c.head_dim_v;
                assert_true(fm_tensor_load(&r.output.view, fm_tensor_offset(&r.output.view, 0, i, h, d)) ==
                            fm_tensor_load(&in.value.view, fm_tensor_offset(&in.value.view, 0, i, h / 2, d)));
            }
        }
        assert_true(test_tensor_largest(&r.grad_query) == 0.0);
        assert_true(test_tensor_largest(&r.grad_key) == 0.0);
        attention_results_free(&r);
        attention_inputs_free(&in);
    }
}

static void a_row_with_one_key_copies_its_value_and_has_no_gradient(void **state) {
    (void)state;
    for_each_isa(single_key_of_one_isa);
}

/* https://github.com/Dao-AILab/flash-attention/issues/355: grad_output expanded from one element (stride 0). */
static void expanded_of_one_isa(test_random *random) {
    attention_case c = draw_case(random);
    c.causal = true;
    c.f32_results = false;
    attention_inputs in = attention_inputs_make(&c, random);
    fill_with(&in.grad_output, 1.0);
    attention_results full = run_cpu(&c, &in, 1, false);
    attention_inputs expanded = in;
    memset(expanded.grad_output.view.stride, 0, sizeof expanded.grad_output.view.stride);
    attention_results ours = run_cpu(&c, &expanded, 1, false);
    attention_assert_same_bits(&full, &ours);
    attention_results_free(&full);
    attention_results_free(&ours);
    attention_inputs_free(&in);
}

static void an_expanded_gradient_is_read_by_its_strides(void **state) {
    (void)state;
    for_each_isa(expanded_of_one_isa);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_row_does_not_see_may_hold_anything),
        cmocka_unit_test(empty_rows_and_unseen_keys_may_hold_anything),
        cmocka_unit_test(huge_inputs_give_the_value),
        cmocka_unit_test(constant_inputs_have_finite_gradients),
        cmocka_unit_test(a_row_with_one_key_copies_its_value_and_has_no_gradient),
        cmocka_unit_test(an_expanded_gradient_is_read_by_its_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
