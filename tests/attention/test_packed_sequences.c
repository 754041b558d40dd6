/* Packed sequences against their documents run alone: documents, and a prompt that two answers share. */
#include <flashmask/masks.h>

#include <math.h>

#include "support/cmocka_all.h"
#include "support/simple_case.h"

enum { HEADS = 4, HEADS_KV = 2, DIM = 24, POSITIONAL = 5 /* results with a sequence: all but grad_sinks */ };

static attention_case square_case(int64_t length) {
    attention_case c = simple_case(1, length, length, HEADS, HEADS_KV, DIM);
    c.with_grad_lse = true;
    return c;
}

static int sequence_axis(int result) { return result == 1 ? 3 : 1; } /* lse is [1, B, Hq, Sq] */

/* The view of positions start .. start + length - 1 of one result. */
static test_tensor part(const test_tensor *t, int axis, int64_t start, int64_t length) {
    test_tensor view = {.view = t->view};
    view.view.shape[axis] = length;
    view.view.data = (char *)t->view.data + (size_t)(start * t->view.stride[axis]) * fm_dtype_size(t->view.dtype);
    return view;
}

static attention_results part_of_results(const attention_results *r, int64_t start, int64_t length) {
    return (attention_results){.output = part(&r->output, 1, start, length),
                               .lse = part(&r->lse, 3, start, length),
                               .grad_query = part(&r->grad_query, 1, start, length),
                               .grad_key = part(&r->grad_key, 1, start, length),
                               .grad_value = part(&r->grad_value, 1, start, length),
                               .grad_sinks = r->grad_sinks};
}

/* Copies a part of t's sequence. */
static void copy_part(const test_tensor *to, int64_t to_start, const test_tensor *from, int64_t start, int64_t length) {
    const test_tensor target = part(to, 1, to_start, length), source = part(from, 1, start, length);
    test_tensor_copy(&target, &source);
}

static attention_inputs inputs_of_length(int64_t length) {
    const attention_case c = square_case(length);
    test_random random = {1};
    return attention_inputs_make(&c, &random);
}

/* Positions from[0] .. from[0] + length[0] - 1, then from[1] ..: the tokens of one document or of a prompt and an answer. */
static attention_inputs inputs_of_parts(const attention_inputs *in, const int64_t from[2], const int64_t length[2]) {
    const int64_t total = length[0] + length[1], rows = in->query.view.shape[1];
    attention_inputs own = inputs_of_length(total);
    for (int k = 0; k < 2; k++) {
        const int64_t to = k == 0 ? 0 : length[0];
        copy_part(&own.query, to, &in->query, from[k], length[k]);
        copy_part(&own.key, to, &in->key, from[k], length[k]);
        copy_part(&own.value, to, &in->value, from[k], length[k]);
        copy_part(&own.grad_output, to, &in->grad_output, from[k], length[k]);
        for (int64_t at = 0; at < HEADS * length[k]; at++) {
            const int64_t h = at / length[k], i = at % length[k];
            own.grad_lse[h * total + to + i] = in->grad_lse[h * rows + from[k] + i];
        }
    }
    return own;
}

/* Ours (CPU), plain and oracle of one call. */
typedef struct triple {
    attention_results of[3];
} triple;

static triple run_triple(const attention_case *c, const attention_inputs *in) {
    attention_inputs wide = attention_inputs_widen(c, in);
    const triple t = {
        {run_on(FM_BACKEND_CPU, c, in), run_on(FM_BACKEND_REFERENCE, c, in), run_on(FM_BACKEND_REFERENCE, c, &wide)}};
    attention_inputs_free(&wide);
    return t;
}

static void free_triple(triple *t) {
    for (int k = 0; k < 3; k++) {
        attention_results_free(&t->of[k]);
    }
}

/* Two f64 computations of the same: equal to f64 rounding; lse, rounded to f32, to a unit of it. */
static void assert_same_truth(const attention_results *a, const attention_results *b) {
    for (int k = 0; k < POSITIONAL; k++) {
        const test_tensor *truth = result_at(b, k);
        assert_true(test_tensor_distance(result_at(a, k), truth) <=
                    (k == 1 ? 0x1p-23 : 1e-13) * fmax(1, test_tensor_largest(truth)));
    }
}

/* ---- documents ---------------------------------------------------------------------------------------------------- */

static const int64_t lengths[] = {150, 1, 37, 0, 64, 129};
enum { DOCUMENTS = sizeof lengths / sizeof *lengths, TOTAL = 150 + 1 + 37 + 64 + 129, PADDING = 11, PACKED = TOTAL + PADDING };

static attention_case packed_case(void) {
    attention_case c = square_case(PACKED);
    assert_int_equal(fm_mask_documents(DOCUMENTS, lengths, true, PADDING, (fm_mask **)&c.mask), FM_OK);
    return c;
}

static void a_packed_document_is_the_document_alone(void **state) {
    (void)state;
    const attention_case c = packed_case();
    attention_inputs in = inputs_of_length(PACKED);
    triple packed = run_triple(&c, &in);
    int64_t start = 0;
    for (int d = 0; d < DOCUMENTS; start += lengths[d], d++) {
        if (lengths[d] == 0) {
            continue;
        }
        attention_case one = square_case(lengths[d]);
        one.causal = true;
        attention_inputs own = inputs_of_parts(&in, (int64_t[]){start, 0}, (int64_t[]){lengths[d], 0});
        triple alone = run_triple(&one, &own);
        const attention_results ours = part_of_results(&packed.of[0], start, lengths[d]);
        const attention_results truth = part_of_results(&packed.of[2], start, lengths[d]);
        attention_assert_close(&one, &ours, &alone.of[1], &alone.of[2]);
        attention_assert_close(&one, &alone.of[0], &alone.of[1], &alone.of[2]);
        assert_same_truth(&truth, &alone.of[2]);
        free_triple(&alone);
        attention_inputs_free(&own);
    }
    free_triple(&packed);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

/* Every input of document 0, whose border cuts a tile, is another: no bit of a later document changes, all of its own do. */
static void a_document_does_not_depend_on_its_neighbours(void **state) {
    (void)state;
    const attention_case c = packed_case();
    attention_inputs in = inputs_of_length(PACKED), other = inputs_of_length(PACKED);
    test_random random = {2};
    const test_tensor *const inputs[] = {&other.query, &other.key, &other.value, &other.grad_output};
    for (int k = 0; k < 4; k++) {
        const test_tensor document = part(inputs[k], 1, 0, lengths[0]);
        test_tensor_fill(&document, &random, 100.0);
    }
    for (int64_t i = 0; i < HEADS * lengths[0]; i++) {
        other.grad_lse[i / lengths[0] * PACKED + i % lengths[0]] = 7.0f;
    }
    for (int i = 0; i < BACKENDS; i++) {
        attention_results a = run_on(backends[i], &c, &in), b = run_on(backends[i], &c, &other);
        for (int k = 0; k < POSITIONAL; k++) {
            const int axis = sequence_axis(k);
            const test_tensor *const both[] = {result_at(&a, k), result_at(&b, k)};
            const test_tensor rest_a = part(both[0], axis, lengths[0], PACKED - lengths[0]);
            const test_tensor rest_b = part(both[1], axis, lengths[0], PACKED - lengths[0]);
            const test_tensor own_a = part(both[0], axis, 0, lengths[0]), own_b = part(both[1], axis, 0, lengths[0]);
            assert_true(test_tensor_same(&rest_a, &rest_b));
            assert_false(test_tensor_same(&own_a, &own_b));
        }
        attention_results_free(&a);
        attention_results_free(&b);
    }
    attention_inputs_free(&in);
    attention_inputs_free(&other);
    fm_mask_free((fm_mask *)c.mask);
}

/* ---- a shared prompt ---------------------------------------------------------------------------------------------- */

enum { PROMPT = 90, CHOSEN = 50, REJECTED = 75, SHARED = PROMPT + CHOSEN + REJECTED };

static void add_prompt(const test_tensor *sum, const test_tensor *other) {
    const int64_t *n = sum->view.shape;
    for (int64_t e = 0; e < PROMPT * n[2] * n[3]; e++) {
        const int64_t i = e / n[3] / n[2], h = e / n[3] % n[2], d = e % n[3], at = fm_tensor_offset(&sum->view, 0, i, h, d);
        fm_tensor_store(&sum->view, at, fm_tensor_load(&sum->view, at) + element_at(other, 0, i, h, d));
    }
}

/* What the results of [P|C|R] must be, from those of [P|C] and [P|R]: into `into`, whose own values are overwritten. The
 * prompt's gradients are sums; its output and lse are in both runs. */
static void combine(const attention_results *into, const attention_results *chosen, const attention_results *rejected) {
    for (int k = 0; k < POSITIONAL; k++) {
        const int axis = sequence_axis(k);
        const test_tensor *const sources[] = {result_at(chosen, k), result_at(rejected, k)};
        const test_tensor first = part(result_at(into, k), axis, 0, PROMPT + CHOSEN);
        const test_tensor second = part(result_at(into, k), axis, PROMPT + CHOSEN, REJECTED);
        const test_tensor answer = part(sources[1], axis, PROMPT, REJECTED);
        test_tensor_copy(&first, sources[0]);
        test_tensor_copy(&second, &answer);
        if (k < 2) {
            const test_tensor prompt_a = part(sources[0], axis, 0, PROMPT), prompt_b = part(sources[1], axis, 0, PROMPT);
            assert_true(test_tensor_same(&prompt_a, &prompt_b));
        } else {
            add_prompt(result_at(into, k), sources[1]);
        }
    }
}

/* The prompt's own rows have a loss once in the packed sequence, so in the first run only. */
static void forget_loss_of_prompt(const attention_inputs *in) {
    for (int64_t i = 0; i < PROMPT; i++) {
        set_row(&in->grad_output, 0, i, 0.0);
        for (int64_t h = 0; h < HEADS; h++) {
            in->grad_lse[h * in->query.view.shape[1] + i] = 0.0f;
        }
    }
}

static void a_shared_prompt_is_two_runs_whose_gradients_add_up(void **state) {
    (void)state;
    const int64_t answers[] = {CHOSEN, REJECTED};
    const fm_question question = {PROMPT, 2, answers};
    attention_case c = square_case(SHARED), with_chosen = square_case(PROMPT + CHOSEN),
                   with_rejected = square_case(PROMPT + REJECTED);
    with_chosen.causal = with_rejected.causal = true;
    assert_int_equal(fm_mask_share_question(1, &question, false, 0, (fm_mask **)&c.mask), FM_OK);
    attention_inputs in = inputs_of_length(SHARED);
    attention_inputs chosen = inputs_of_parts(&in, (int64_t[]){0, PROMPT}, (int64_t[]){PROMPT, CHOSEN});
    attention_inputs rejected = inputs_of_parts(&in, (int64_t[]){0, PROMPT + CHOSEN}, (int64_t[]){PROMPT, REJECTED});
    forget_loss_of_prompt(&rejected);
    triple packed = run_triple(&c, &in), combined = run_triple(&c, &in);
    triple a = run_triple(&with_chosen, &chosen), b = run_triple(&with_rejected, &rejected);
    for (int k = 0; k < 3; k++) {
        combine(&combined.of[k], &a.of[k], &b.of[k]);
    }
    assert_same_truth(&packed.of[2], &combined.of[2]);
    attention_assert_close(&c, &packed.of[0], &packed.of[1], &combined.of[2]);
    attention_assert_close(&c, &combined.of[0], &combined.of[1], &packed.of[2]);
    free_triple(&packed);
    free_triple(&combined);
    free_triple(&a);
    free_triple(&b);
    attention_inputs_free(&in);
    attention_inputs_free(&chosen);
    attention_inputs_free(&rejected);
    fm_mask_free((fm_mask *)c.mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packed_document_is_the_document_alone),
        cmocka_unit_test(a_document_does_not_depend_on_its_neighbours),
        cmocka_unit_test(a_shared_prompt_is_two_runs_whose_gradients_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
