/* The oracle against the definition written out over a dense matrix, and what the reference promises beside values. */
#include "support/attention_case.h"
#include "support/cmocka_all.h"
#include "support/random_mask.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct dense_mask {
    fm_mask_shape shape;
    uint8_t *visible;
} dense_mask;

static bool is_visible(const attention_case *c, const dense_mask *m, const int64_t at[4]) {
    const int64_t b = at[0], h = at[1], i = at[2], j = at[3], diagonal = i + c->columns - c->rows;
    if ((c->causal && j > diagonal) || (c->window_left >= 0 && j < diagonal - c->window_left) ||
        (c->window_right >= 0 && j > diagonal + c->window_right)) {
        return false;
    }
    const int64_t mask_batch = m->shape.batch == 1 ? 0 : b, mask_head = h * m->shape.heads / c->heads;
    return m->visible[((mask_batch * m->shape.heads + mask_head) * c->rows + i) * c->columns + j] != 0;
}

static double at(const test_tensor *t, int64_t b, int64_t i, int64_t h, int64_t d) {
    return fm_tensor_load(&t->view, fm_tensor_offset(&t->view, b, i, h, d));
}

static double score(const attention_case *c, const attention_inputs *in, const int64_t at4[4]) {
    double dot = 0.0;
    for (int64_t d = 0; d < c->head_dim; d++) {
        dot += at(&in->query, at4[0], at4[2], at4[1], d) * at(&in->key, at4[0], at4[3], at4[1] * c->heads_kv / c->heads, d);
    }
    const double scale = isnan(c->scale) ? (float)(1.0 / sqrt((double)c->head_dim)) : c->scale;
    return c->softcap > 0 ? c->softcap * tanh(scale * dot / c->softcap) : scale * dot;
}

/* One row by the definition: exp of raw scores, which are small here, without any maximum. */
static void assert_row(const attention_case *c, const dense_mask *m, const attention_inputs *in, const attention_results *r,
                       const int64_t row[3]) {
    const int64_t b = row[0], h = row[1], i = row[2];
    double sum = 0.0, output[256] = {0};
    for (int64_t j = 0; j < c->columns; j++) {
        const int64_t pair[4] = {b, h, i, j};
        if (is_visible(c, m, pair)) {
            const double e = exp(score(c, in, pair));
            sum += e;
            for (int64_t d = 0; d < c->head_dim_v; d++) {
                output[d] += e * at(&in->value, b, j, h * c->heads_kv / c->heads, d);
            }
        }
    }
    const double total = sum + (c->with_sinks ? exp((double)in->sinks[h]) : 0.0), lse = at(&r->lse, 0, b, h, i);
    for (int64_t d = 0; d < c->head_dim_v; d++) {
        assert_true(fabs(at(&r->output, b, i, h, d) - (sum > 0 ? output[d] / total : 0.0)) < 1e-12);
    }
    assert_true(sum > 0 ? fabs(lse - log(sum)) < 1e-6 : lse == -INFINITY);
}

/* Sizes, flags and a mask of up to 1, 2, 3, 4 or 9 intervals per column. */
static attention_case draw_case(test_random *r, dense_mask *m) {
    const int64_t heads_kv = random_integer(r, 1, 3);
    attention_case c = {.batch = random_integer(r, 1, 3),
                        .rows = random_integer(r, 1, 40),
                        .columns = random_integer(r, 1, random_chance(r, 0.2) ? 200 : 40),
                        .heads = heads_kv * random_integer(r, 1, 3),
                        .heads_kv = heads_kv,
                        .head_dim = random_integer(r, 1, 9),
                        .head_dim_v = random_integer(r, 1, 9),
                        .layout = (test_layout)random_integer(r, 0, LAYOUT_COUNT - 1),
                        .causal = random_chance(r, 0.3),
                        .window_left = random_chance(r, 0.3) ? random_integer(r, 0, 20) : -1,
                        .window_right = random_chance(r, 0.3) ? random_integer(r, 0, 20) : -1,
                        .scale = random_chance(r, 0.5) ? NAN : 0.3f * (float)random_integer(r, -1, 1),
                        .softcap = random_chance(r, 0.3) ? 1.5f : 0.0f,
                        .with_sinks = random_chance(r, 0.5),
                        .with_grad_lse = random_chance(r, 0.5)};
    static const int32_t intervals[] = {1, 2, 3, 4, 9};
    const int64_t mask_heads[] = {1, c.heads_kv, c.heads};
    m->shape = (fm_mask_shape){random_chance(r, 0.5) ? 1 : c.batch, mask_heads[random_integer(r, 0, 2)], c.rows, c.columns};
    m->visible = malloc((size_t)(m->shape.batch * m->shape.heads * c.rows * c.columns));
    assert_non_null(m->visible);
    c.mask = random_mask(r, m->shape, intervals[random_integer(r, 0, 4)], m->visible);
    return c;
}

static void drop_case(attention_case *c, dense_mask *m) {
    fm_mask_free((fm_mask *)c->mask);
    free(m->visible);
}

static const attention_run_options reference = {.backend = FM_BACKEND_REFERENCE};

static void oracle_is_the_softmax_of_the_definition(void **state) {
    (void)state;
    test_random random = {1};
    for (int n = 0; n < 200; n++) {
        dense_mask mask;
        attention_case c = draw_case(&random, &mask);
        c.dtype = FM_F64;
        attention_inputs in = attention_inputs_make(&c, &random);
        attention_results r = attention_run(&c, &in, reference);
        for (int64_t line = 0; line < c.batch * c.heads * c.rows; line++) {
            assert_row(&c, &mask, &in, &r, (int64_t[]){line / (c.heads * c.rows), line / c.rows % c.heads, line % c.rows});
        }
        attention_results_free(&r);
        attention_inputs_free(&in);
        drop_case(&c, &mask);
    }
}

/* P, dS and the results are each rounded once to the dtype: 8 of its units at the largest value. S, lse, dP and delta are f32
 * sums of about ten terms that gradients cancel against each other: 64 units of f32. */
static void plain_precision_is_a_few_roundings_from_the_oracle(void **state) {
    (void)state;
    test_random random = {2};
    const double units[] = {[FM_F32] = 0x1p-24, [FM_F16] = 0x1p-11, [FM_BF16] = 0x1p-8};
    for (int n = 0; n < 120; n++) {
        dense_mask mask;
        attention_case c = draw_case(&random, &mask);
        c.dtype = (fm_dtype[]){FM_F32, FM_F16, FM_BF16}[n % 3];
        c.f32_results = random_chance(&random, 0.5);
        attention_inputs in = attention_inputs_make(&c, &random), wide = attention_inputs_widen(&c, &in);
        attention_results plain = attention_run(&c, &in, reference), oracle = attention_run(&c, &wide, reference);
        for (int i = 0; i < RESULT_COUNT; i++) {
            const double largest = fmax(1.0, test_tensor_largest(result_at(&oracle, i)));
            const double error = test_tensor_distance(result_at(&plain, i), result_at(&oracle, i));
            if (!(error <= (8 * units[c.dtype] + 64 * 0x1p-24) * largest)) {
                fail_msg("%s: error %g, unit %g, largest %g", result_names[i], error, units[c.dtype], largest);
            }
        }
        attention_results_free(&plain);
        attention_results_free(&oracle);
        attention_inputs_free(&in);
        attention_inputs_free(&wide);
        drop_case(&c, &mask);
    }
}

static void results_do_not_depend_on_threads_or_plan(void **state) {
    (void)state;
    test_random random = {3};
    for (int n = 0; n < 30; n++) {
        dense_mask mask;
        attention_case c = draw_case(&random, &mask);
        c.dtype = FM_F32;
        attention_inputs in = attention_inputs_make(&c, &random);
        fm_plan *plan = NULL;
        fm_plan_options options = FM_PLAN_OPTIONS_INIT;
        options.causal = c.causal;
        options.window_left = c.window_left;
        options.window_right = c.window_right;
        options.block_m = 7; /* the reference looks at a plan's mask and flags only */
        assert_int_equal(fm_plan_create(c.mask, &options, &plan), FM_OK);
        attention_results one = attention_run(&c, &in, (attention_run_options){FM_BACKEND_REFERENCE, false, 1, NULL});
        attention_results four = attention_run(&c, &in, (attention_run_options){FM_BACKEND_REFERENCE, true, 4, NULL});
        const attention_case bare = c;
        c.mask = NULL;
        c.causal = false;
        c.window_left = c.window_right = -1;
        attention_results planned = attention_run(&c, &in, (attention_run_options){FM_BACKEND_REFERENCE, false, 0, plan});
        attention_assert_same_bits(&one, &four);
        attention_assert_same_bits(&one, &planned);
        attention_results_free(&one);
        attention_results_free(&four);
        attention_results_free(&planned);
        attention_inputs_free(&in);
        fm_plan_free(plan);
        c = bare;
        drop_case(&c, &mask);
    }
}

/* Visible pairs of column j of key head g, or, with rows, of row j of query head g. */
static int64_t count_visible(const attention_case *c, const dense_mask *m, int64_t b, int64_t g, int64_t j, bool of_row) {
    int64_t count = 0;
    if (of_row) {
        for (int64_t k = 0; k < c->columns; k++) {
            count += is_visible(c, m, (int64_t[]){b, g, j, k});
        }
        return count;
    }
    const int64_t group = c->heads / c->heads_kv;
    for (int64_t t = 0; t < group * c->rows; t++) {
        count += is_visible(c, m, (int64_t[]){b, g * group + t / c->rows, t % c->rows, j});
    }
    return count;
}

static void poison(const test_tensor *t, int64_t b, int64_t i, int64_t h) {
    for (int64_t d = 0; d < t->view.shape[3]; d++) {
        fm_tensor_store(&t->view, fm_tensor_offset(&t->view, b, i, h, d), NAN);
    }
}

/* Poisons every key and value that no row sees, and the query, output gradient and lse gradient of every empty row. */
static void poison_hidden(const attention_case *c, const dense_mask *m, attention_inputs *in) {
    for (int64_t b = 0; b < c->batch; b++) {
        for (int64_t t = 0; t < c->heads_kv * c->columns; t++) {
            if (count_visible(c, m, b, t / c->columns, t % c->columns, false) == 0) {
                poison(&in->key, b, t % c->columns, t / c->columns);
                poison(&in->value, b, t % c->columns, t / c->columns);
            }
        }
        for (int64_t t = 0; t < c->heads * c->rows; t++) {
            if (count_visible(c, m, b, t / c->rows, t % c->rows, true) == 0) {
                poison(&in->query, b, t % c->rows, t / c->rows);
                poison(&in->grad_output, b, t % c->rows, t / c->rows);
                if (in->grad_lse != NULL) {
                    in->grad_lse[b * c->heads * c->rows + t] = NAN;
                }
            }
        }
    }
}

static void hidden_values_may_be_anything(void **state) {
    (void)state;
    test_random random = {4};
    for (int n = 0; n < 60; n++) {
        dense_mask mask;
        attention_case c = draw_case(&random, &mask);
        c.dtype = n % 2 == 0 ? FM_F32 : FM_F64;
        attention_inputs in = attention_inputs_make(&c, &random);
        attention_results clean = attention_run(&c, &in, reference);
        poison_hidden(&c, &mask, &in);
        attention_results poisoned = attention_run(&c, &in, reference);
        attention_assert_same_bits(&clean, &poisoned);
        assert_true(isfinite(test_tensor_distance(&clean.grad_key, &poisoned.grad_key)));
        attention_results_free(&clean);
        attention_results_free(&poisoned);
        attention_inputs_free(&in);
        drop_case(&c, &mask);
    }
}

/* A NaN that a row does see reaches that row: it is not taken for an empty one. */
static void visible_nan_is_not_hidden(void **state) {
    (void)state;
    test_random random = {5};
    attention_case c = {.batch = 1,
                        .rows = 2,
                        .columns = 3,
                        .heads = 1,
                        .heads_kv = 1,
                        .head_dim = 4,
                        .head_dim_v = 4,
                        .dtype = FM_F32,
                        .causal = true,
                        .window_left = -1,
                        .window_right = -1,
                        .scale = NAN};
    attention_inputs in = attention_inputs_make(&c, &random);
    for (int j = 0; j < 2; j++) {
        poison(&in.key, 0, j, 0);
    }
    attention_results r = attention_run(&c, &in, reference);
    assert_true(isnan(at(&r.output, 0, 0, 0, 0)));
    assert_true(isnan(at(&r.lse, 0, 0, 0, 0)));
    attention_results_free(&r);
    attention_inputs_free(&in);
}

static void assert_all(const test_tensor *t, double value) {
    for (int64_t i = 0; i < t->view.shape[0] * t->view.shape[1] * t->view.shape[2] * t->view.shape[3]; i++) {
        assert_true(fm_tensor_load(&t->view, i) == value);
    }
}

/* Zero rows, keys, batch items or heads are legal, and everything is still written. */
static void zero_extents_are_legal(void **state) {
    (void)state;
    test_random random = {6};
    for (int zeros = 0; zeros < 32; zeros++) {
        for (int dtype = FM_F32; dtype <= FM_F64; dtype++) {
            attention_case c = {.batch = zeros & 1 ? 0 : 2,
                                .rows = zeros & 2 ? 0 : 3,
                                .columns = zeros & 4 ? 0 : 5,
                                .heads = zeros & 24 ? 0 : 4,
                                .heads_kv = zeros & 16 ? 0 : 2,
                                .head_dim = 4,
                                .head_dim_v = 3,
                                .dtype = (fm_dtype)dtype,
                                .causal = true,
                                .window_left = -1,
                                .window_right = -1,
                                .scale = NAN,
                                .with_sinks = true,
                                .with_grad_lse = true};
            attention_inputs in = attention_inputs_make(&c, &random);
            attention_results r = attention_run(&c, &in, reference);
            if (zeros != 0) {
                assert_all(&r.output, 0.0);
                assert_all(&r.lse, -INFINITY);
                assert_all(&r.grad_query, 0.0);
                assert_all(&r.grad_key, 0.0);
                assert_all(&r.grad_value, 0.0);
                assert_all(&r.grad_sinks, 0.0);
            }
            attention_results_free(&r);
            attention_inputs_free(&in);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_is_the_softmax_of_the_definition),
        cmocka_unit_test(plain_precision_is_a_few_roundings_from_the_oracle),
        cmocka_unit_test(results_do_not_depend_on_threads_or_plan),
        cmocka_unit_test(hidden_values_may_be_anything),
        cmocka_unit_test(visible_nan_is_not_hidden),
        cmocka_unit_test(zero_extents_are_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
