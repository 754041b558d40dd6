/* One attention call, forward and backward, on random data: what conformance and bit-equality tests run and compare. */
#ifndef FM_TESTS_ATTENTION_CASE_H
#define FM_TESTS_ATTENTION_CASE_H

#include "support/test_tensor.h"

typedef struct attention_case {
    int64_t batch, rows, columns, heads, heads_kv, head_dim, head_dim_v;
    fm_dtype dtype;
    test_layout layout;
    const fm_mask *mask; /* NULL: none */
    bool causal;
    int64_t window_left, window_right;
    float scale, softcap;
    bool with_sinks, with_grad_lse, f32_results;
    bool is_gpu;      /* the tolerance of a backend that rounds P and dS to dtype and sums dP and delta each in its own order */
    const char *name; /* for messages; may be NULL */
} attention_case;

typedef struct attention_inputs {
    test_tensor query, key, value, grad_output;
    float *sinks, *grad_lse; /* NULL: not used */
} attention_inputs;

typedef struct attention_results {
    test_tensor output, lse, grad_query, grad_key, grad_value, grad_sinks; /* lse [1, B, Hq, Sq], grad_sinks [1, 1, 1, Hq] */
} attention_results;

enum { RESULT_OUTPUT, RESULT_LSE, RESULT_GRAD_QUERY, RESULT_GRAD_KEY, RESULT_GRAD_VALUE, RESULT_GRAD_SINKS, RESULT_COUNT };
extern const char *const result_names[RESULT_COUNT];
const test_tensor *result_at(const attention_results *results, int i);

attention_inputs attention_inputs_make(const attention_case *c, test_random *random);
/* The same values as f64 tensors, contiguous: inputs of the oracle. */
attention_inputs attention_inputs_widen(const attention_case *c, const attention_inputs *inputs);
void attention_inputs_free(attention_inputs *inputs);

typedef struct attention_run_options {
    fm_backend_id backend;
    bool no_skip;
    int32_t num_threads;
    const fm_plan *plan;
} attention_run_options;

/* Forward and backward; fails the test if the library refuses. */
attention_results attention_run(const attention_case *c, const attention_inputs *inputs, attention_run_options options);
/* Its parts: results of the case's dtype and layout, every byte 0xff; the arguments of both calls, but for what
 * attention_run_options holds and the backward call's forward. */
attention_results attention_results_make(const attention_case *c);
fm_attention_forward_args attention_forward_arguments(const attention_case *c, const attention_inputs *inputs,
                                                      const attention_results *results);
fm_attention_backward_args attention_backward_arguments(const attention_inputs *inputs, const attention_results *results);
void attention_results_free(attention_results *results);

/* Asserts that ours is as close to the oracle as 2x what the plain same-dtype computation is, plus the floor of
 * docs/numerics.md: roundings of the result's dtype at the size of the largest value. One result of them, or all. */
void attention_assert_close(const attention_case *c, const attention_results *ours, const attention_results *plain,
                            const attention_results *oracle);
void attention_assert_result_close(const attention_case *c, const attention_results *ours, const attention_results *plain,
                                   const attention_results *oracle, int result);
void attention_assert_same_bits(const attention_results *a, const attention_results *b);

#endif
