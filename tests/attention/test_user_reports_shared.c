/* A prompt shared by several answers, [P | A1 | A2 ...], gives what a run for each answer, [P | Ak], gives.
 * https://github.com/huggingface/trl/issues/3549, https://github.com/linkedin/Liger-Kernel/issues/476,
 * https://github.com/frankxwang/dpo-prefix-sharing/issues/2 */
#include <flashmask/masks.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/simple_case.h"

enum { MOST_ANSWERS = 3, D = 8 };

typedef struct sharing {
    int64_t prompt, answers, lengths[MOST_ANSWERS];
} sharing;

static int64_t total(const sharing *s) {
    int64_t sum = s->prompt;
    for (int64_t k = 0; k < s->answers; k++) {
        sum += s->lengths[k];
    }
    return sum;
}

static void copy_rows(const test_tensor *to, int64_t at, const test_tensor *from, int64_t first, int64_t count) {
    const test_tensor target = test_tensor_rows(to, at, count), source = test_tensor_rows(from, first, count);
    test_tensor_copy(&target, &source);
}

/* The prompt's rows and those of the answer at `first`; the gradient of the prompt's output counts in the first run only. */
static attention_inputs inputs_of_answer(const attention_case *c, const sharing *s, const attention_inputs *all, int64_t first,
                                         bool with_prompt_gradient) {
    test_random random = {1};
    attention_inputs in = attention_inputs_make(c, &random);
    const test_tensor *to[] = {&in.query, &in.key, &in.value, &in.grad_output};
    const test_tensor *from[] = {&all->query, &all->key, &all->value, &all->grad_output};
    for (int t = 0; t < 4; t++) {
        copy_rows(to[t], 0, from[t], 0, s->prompt);
        copy_rows(to[t], s->prompt, from[t], first, c->rows - s->prompt);
    }
    for (int64_t i = 0; i < s->prompt && !with_prompt_gradient; i++) {
        set_row(&in.grad_output, 0, i, 0.0);
    }
    return in;
}

static void add_rows(const test_tensor *sum, const test_tensor *t, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        for (int64_t k = 0; k < sum->view.shape[2] * D; k++) {
            const int64_t at = fm_tensor_offset(&sum->view, 0, i, k / D, k % D);
            fm_tensor_store(&sum->view, at, fm_tensor_load(&sum->view, at) + element_at(t, 0, i, k / D, k % D));
        }
    }
}

static void assert_same_rows(const test_tensor *a, int64_t first_a, const test_tensor *b, int64_t first_b, int64_t count) {
    const test_tensor x = test_tensor_rows(a, first_a, count), y = test_tensor_rows(b, first_b, count);
    assert_true(test_tensor_distance(&x, &y) <= 1e-12);
}

/* Output and query gradient of each answer, key and value gradients of each answer, and gradients of the prompt as sums. */
static void assert_runs_agree(const sharing *s, const attention_case *c, const attention_inputs *in,
                              const attention_results *all) {
    test_tensor sums[3];
    const test_tensor *gradients[] = {&all->grad_query, &all->grad_key, &all->grad_value};
    for (int t = 0; t < 3; t++) {
        sums[t] = test_tensor_make(LAYOUT_CONTIGUOUS, FM_F64, 1, s->prompt, t == 0 ? c->heads : c->heads_kv, D);
        for (int64_t i = 0; i < s->prompt; i++) {
            set_row(&sums[t], 0, i, 0.0);
        }
    }
    for (int64_t k = 0, first = s->prompt; k < s->answers; first += s->lengths[k++]) {
        attention_case alone = *c;
        alone.rows = alone.columns = s->prompt + s->lengths[k];
        alone.mask = NULL;
        alone.causal = true;
        attention_inputs own = inputs_of_answer(&alone, s, in, first, k == 0);
        attention_results r = run_on(FM_BACKEND_REFERENCE, &alone, &own);
        const test_tensor *own_gradients[] = {&r.grad_query, &r.grad_key, &r.grad_value};
        assert_same_rows(&all->output, 0, &r.output, 0, s->prompt);
        assert_same_rows(&all->output, first, &r.output, s->prompt, s->lengths[k]);
        for (int t = 0; t < 3; t++) {
            assert_same_rows(gradients[t], first, own_gradients[t], s->prompt, s->lengths[k]);
            add_rows(&sums[t], own_gradients[t], s->prompt);
        }
        attention_results_free(&r);
        attention_inputs_free(&own);
    }
    for (int t = 0; t < 3; t++) {
        assert_same_rows(gradients[t], 0, &sums[t], 0, s->prompt);
        test_tensor_free(&sums[t]);
    }
}

static void a_shared_prompt_equals_a_run_for_each_answer(void **state) {
    (void)state;
    const sharing table[] = {{3, 2, {2, 4}}, {3, 2, {0, 4}}, {0, 2, {2, 4}}, {3, 3, {2, 4, 1}}, {70, 3, {65, 1, 130}}};
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        const sharing *s = &table[k];
        attention_case c = simple_case(1, total(s), total(s), 2, 1, D);
        test_random random = {30 + k};
        attention_inputs in = attention_inputs_make(&c, &random), wide = attention_inputs_widen(&c, &in);
        const fm_question question = {s->prompt, s->answers, s->lengths};
        succeed(fm_mask_share_question(1, &question, false, 0, (fm_mask **)&c.mask));
        attention_case f64 = c;
        f64.dtype = FM_F64;
        attention_results all = run_on(FM_BACKEND_REFERENCE, &f64, &wide);
        assert_runs_agree(s, &f64, &wide, &all);
        for (int i = 0; i < BACKENDS; i++) {
            attention_results r = run_on(backends[i], &c, &in);
            assert_like_oracle(&c, &in, &r);
            attention_results_free(&r);
        }
        attention_results_free(&all);
        attention_inputs_free(&in);
        attention_inputs_free(&wide);
        fm_mask_free((fm_mask *)c.mask);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_prompt_equals_a_run_for_each_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
