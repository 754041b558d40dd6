/* What a call may leave out, share or lay out as it likes. */
#include "support/cmocka_all.h"
#include "support/simple_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    fm_attention_forward_args forward;
    fm_attention_backward_args backward;
} call;

/* The arguments of a case's two calls, results into r. */
static call make_call(const attention_case *c, const attention_inputs *in, const attention_results *r, fm_backend_id backend) {
    call x = {FM_ATTENTION_FORWARD_ARGS_INIT, FM_ATTENTION_BACKWARD_ARGS_INIT};
    x.forward.query = in->query.view;
    x.forward.key = in->key.view;
    x.forward.value = in->value.view;
    x.forward.mask = c->mask;
    x.forward.causal = c->causal;
    x.forward.sinks = in->sinks;
    x.forward.output = r->output.view;
    x.forward.lse = r->lse.buffer;
    x.forward.backend = backend;
    x.backward.grad_output = in->grad_output.view;
    x.backward.grad_query = r->grad_query.view;
    x.backward.grad_key = r->grad_key.view;
    x.backward.grad_value = r->grad_value.view;
    x.backward.grad_sinks = in->sinks != NULL ? r->grad_sinks.buffer : NULL;
    return x;
}

static attention_case grouped_case(void) {
    attention_case c = simple_case(2, 30, 70, 4, 2, 16);
    c.causal = c.with_sinks = true;
    return c;
}

/* Any subset of the gradients has the bits of the whole; the others stay as they were; none at all is fine. */
static void gradients_that_are_not_wanted_are_left_out(void **state) {
    (void)state;
    const attention_case c = grouped_case();
    test_random random = {1};
    attention_inputs in = attention_inputs_make(&c, &random);
    for (int k = 0; k < 16 * BACKENDS; k++) {
        const int wanted = k / BACKENDS;
        attention_results all = run_on(backends[k % BACKENDS], &c, &in), some = run_on(backends[k % BACKENDS], &c, &in);
        call x = make_call(&c, &in, &some, backends[k % BACKENDS]);
        x.backward.forward = &x.forward;
        for (int i = 2; i < RESULT_COUNT; i++) {
            memset(result_at(&some, i)->buffer, 0xff, result_at(&some, i)->bytes);
        }
        x.backward.grad_query.data = wanted & 1 ? x.backward.grad_query.data : NULL;
        x.backward.grad_key = wanted & 2 ? x.backward.grad_key : (fm_tensor){0};
        x.backward.grad_value.data = wanted & 4 ? x.backward.grad_value.data : NULL;
        x.backward.grad_sinks = wanted & 8 ? x.backward.grad_sinks : NULL;
        assert_int_equal(fm_attention_backward(&x.backward), FM_OK);
        for (int i = 2; i < RESULT_COUNT; i++) {
            const test_tensor *t = result_at(&some, i);
            if (wanted >> (i - 2) & 1) {
                assert_memory_equal(t->buffer, result_at(&all, i)->buffer, t->bytes);
            } else {
                assert_true(isnan(element_at(t, 0, 0, 0, 0)));
            }
        }
        attention_results_free(&all);
        attention_results_free(&some);
    }
    attention_inputs_free(&in);
}

/* Query, key and value interleaved in one buffer [B, S, 3, H, D], their gradients in another of the same layout. */
static void a_packed_projection_and_its_gradient_are_views_of_one_buffer(void **state) {
    (void)state;
    enum { B = 2, S = 40, H = 2, D = 8, ROW = 3 * H * D };
    const attention_case c = simple_case(B, S, S, H, H, D);
    test_random random = {2};
    attention_inputs in = attention_inputs_make(&c, &random);
    float *packed = malloc(2 * B * S * ROW * sizeof *packed);
    assert_non_null(packed);
    fm_tensor view[6];
    for (int i = 0; i < 6; i++) {
        view[i] = fm_tensor_contiguous(packed + i / 3 * B * S * ROW + i % 3 * H * D, FM_F32, B, S, H, D);
        view[i].stride[0] = S * ROW;
        view[i].stride[1] = ROW;
    }
    test_tensor inputs[3] = {{.view = view[0]}, {.view = view[1]}, {.view = view[2]}};
    test_tensor_copy(&inputs[0], &in.query);
    test_tensor_copy(&inputs[1], &in.key);
    test_tensor_copy(&inputs[2], &in.value);
    for (int i = 0; i < BACKENDS; i++) {
        attention_results apart = run_on(backends[i], &c, &in), r = run_on(backends[i], &c, &in);
        call x = make_call(&c, &in, &r, backends[i]);
        x.backward.forward = &x.forward;
        x.forward.query = view[0];
        x.forward.key = view[1];
        x.forward.value = view[2];
        x.backward.grad_query = view[3];
        x.backward.grad_key = view[4];
        x.backward.grad_value = view[5];
        assert_int_equal(fm_attention_forward(&x.forward), FM_OK);
        assert_int_equal(fm_attention_backward(&x.backward), FM_OK);
        assert_true(test_tensor_same(&apart.output, &r.output));
        assert_true(test_tensor_same(&apart.grad_query, &(test_tensor){.view = view[3]}));
        assert_true(test_tensor_same(&apart.grad_key, &(test_tensor){.view = view[4]}));
        assert_true(test_tensor_same(&apart.grad_value, &(test_tensor){.view = view[5]}));
        x.backward.grad_key.data = (float *)view[4].data - 1; /* its heads reach into those of grad_query */
        assert_int_equal(fm_attention_backward(&x.backward), FM_ERROR_ARGUMENT);
        attention_results_free(&apart);
        attention_results_free(&r);
    }
    free(packed);
    attention_inputs_free(&in);
}

static fm_mask *causal_mask(const attention_case *c) {
    return mask_by_rule((fm_mask_shape){1, 1, c->rows, c->columns}, rule_causal);
}

/* A plan stands for its mask and flags: the call may name neither, either or both, the mask also as an equal one. */
static void a_plan_brings_its_mask_and_flags(void **state) {
    (void)state;
    attention_case c = grouped_case();
    test_random random = {3};
    attention_inputs in = attention_inputs_make(&c, &random);
    fm_mask *mask = causal_mask(&c), *equal = causal_mask(&c);
    fm_plan *plan = NULL;
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.causal = true;
    options.window_left = 9;
    assert_int_equal(fm_plan_create(mask, &options, &plan), FM_OK);
    fm_mask_free(mask); /* the plan keeps it */
    for (int i = 0; i < BACKENDS; i++) {
        c.mask = equal;
        c.causal = true;
        c.window_left = 9;
        attention_results wanted = run_on(backends[i], &c, &in);
        for (int k = 0; k < 4; k++) {
            c.mask = k & 1 ? equal : NULL;
            c.causal = (k & 2) != 0;
            c.window_left = c.causal ? 9 : -1;
            attention_results r = attention_run(&c, &in, (attention_run_options){.backend = backends[i], .plan = plan});
            attention_assert_same_bits(&wanted, &r);
            attention_results_free(&r);
        }
        attention_results_free(&wanted);
    }
    fm_plan_free(plan);
    fm_mask_free(equal);
    attention_inputs_free(&in);
}

/* With f64 tensors lse may be left out of backward; given, it is good to f32. */
static void the_oracle_recomputes_lse(void **state) {
    (void)state;
    attention_case c = grouped_case();
    c.dtype = FM_F64;
    test_random random = {4};
    attention_inputs in = attention_inputs_make(&c, &random);
    attention_results without = run_on(FM_BACKEND_REFERENCE, &c, &in), with = run_on(FM_BACKEND_REFERENCE, &c, &in);
    call x = make_call(&c, &in, &with, FM_BACKEND_REFERENCE);
    x.backward.forward = &x.forward;
    assert_int_equal(fm_attention_backward(&x.backward), FM_OK);
    for (int i = 2; i < RESULT_COUNT; i++) {
        const double distance = test_tensor_distance(result_at(&with, i), result_at(&without, i));
        assert_true(distance < 1e-5 && distance > 0);
    }
    attention_results_free(&without);
    attention_results_free(&with);
    attention_inputs_free(&in);
}

/* Extents of 2^31 - 1 beside a zero hold no element: nothing to do, and nothing is looped over. */
static void huge_extents_without_elements_return_at_once(void **state) {
    (void)state;
    for (int i = 0; i < BACKENDS; i++) {
        call x = {FM_ATTENTION_FORWARD_ARGS_INIT, FM_ATTENTION_BACKWARD_ARGS_INIT};
        float lse;
        x.forward.query = fm_tensor_contiguous(NULL, FM_F32, INT32_MAX, 0, INT32_MAX, 8);
        x.forward.query.stride[0] = x.forward.query.stride[2] = 1;
        x.forward.key = x.forward.value = x.forward.output = x.forward.query;
        x.forward.lse = &lse;
        x.forward.backend = backends[i];
        x.backward.forward = &x.forward;
        x.backward.grad_output = x.forward.output;
        x.backward.grad_query = x.backward.grad_key = x.backward.grad_value = x.forward.query;
        x.backward.grad_query.data = &lse;
        assert_int_equal(fm_attention_forward(&x.forward), FM_OK);
        assert_int_equal(fm_attention_backward(&x.backward), FM_OK);
    }
}

static void null_arguments_are_refused(void **state) {
    (void)state;
    const attention_case c = grouped_case();
    test_random random = {5};
    attention_inputs in = attention_inputs_make(&c, &random);
    attention_results r = run_on(FM_BACKEND_REFERENCE, &c, &in);
    call x = make_call(&c, &in, &r, FM_BACKEND_AUTO);
    x.backward.forward = &x.forward;
    size_t bytes = 1;
    assert_int_equal(fm_attention_forward(NULL), FM_ERROR_ARGUMENT);
    assert_string_equal(fm_error_message(), "args: is NULL");
    assert_int_equal(fm_attention_backward(NULL), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_attention_forward_workspace(NULL, &bytes), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_attention_backward_workspace(NULL, &bytes), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_attention_forward_workspace(&x.forward, NULL), FM_ERROR_ARGUMENT);
    assert_string_equal(fm_error_message(), "bytes: is NULL");
    assert_int_equal(fm_attention_backward_workspace(&x.backward, NULL), FM_ERROR_ARGUMENT);
    x.forward.key.shape[3]--;
    assert_int_equal(fm_attention_forward_workspace(&x.forward, &bytes), FM_ERROR_SHAPE);
    assert_int_equal(fm_attention_backward_workspace(&x.backward, &bytes), FM_ERROR_SHAPE);
    assert_int_equal(bytes, 1);
    x.forward.key.shape[3]++;
    assert_int_equal(fm_attention_forward(&x.forward), FM_OK);
    assert_string_equal(fm_error_message(), "");
    attention_results_free(&r);
    attention_inputs_free(&in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_that_are_not_wanted_are_left_out),
        cmocka_unit_test(a_packed_projection_and_its_gradient_are_views_of_one_buffer),
        cmocka_unit_test(a_plan_brings_its_mask_and_flags),
        cmocka_unit_test(the_oracle_recomputes_lse),
        cmocka_unit_test(huge_extents_without_elements_return_at_once),
        cmocka_unit_test(null_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
