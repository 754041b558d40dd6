/* Attention on random data: tensors, one forward and backward call, and the comparison with an oracle. */
#ifndef FM_CLI_TRIAL_H
#define FM_CLI_TRIAL_H

#include "error.h"

typedef struct fm_trial_shape {
    int64_t batch, rows, columns, heads, heads_kv, head_dim, head_dim_v;
    fm_dtype dtype;
} fm_trial_shape;

typedef struct fm_trial_inputs {
    fm_tensor query, key, value, grad_output;
} fm_trial_inputs;

enum { FM_TRIAL_OUTPUT, FM_TRIAL_LSE, FM_TRIAL_GRAD_QUERY, FM_TRIAL_GRAD_KEY, FM_TRIAL_GRAD_VALUE, FM_TRIAL_RESULTS };
extern const char *const fm_trial_result_names[FM_TRIAL_RESULTS]; /* O, LSE, dQ, dK, dV */

/* result: in the order of the names; LSE is f32 [1, B, Hq, Sq]. */
typedef struct fm_trial_results {
    fm_tensor result[FM_TRIAL_RESULTS];
    double forward_seconds, backward_seconds;
} fm_trial_results;

/* Standard normal values, rounded to the dtype; equal seeds give equal values on one machine, close to equal on all. */
bool fm_trial_inputs_make(const fm_trial_shape *shape, uint64_t seed, fm_trial_inputs *out);
void fm_trial_inputs_free(fm_trial_inputs *inputs);

/* The same values as new f64 tensors. */
bool fm_tensor_widen(const fm_tensor *tensor, fm_tensor *out);
bool fm_trial_inputs_widen(const fm_trial_inputs *inputs, fm_trial_inputs *out);

/* Views of query rows [row0, row1) and keys [column0, column1); not to be freed. */
typedef struct fm_trial_range {
    int64_t row0, row1, column0, column1;
} fm_trial_range;
fm_trial_inputs fm_trial_inputs_slice(const fm_trial_inputs *inputs, fm_trial_range range);

typedef struct fm_trial_call {
    const fm_mask *mask;
    const fm_plan *plan; /* NULL: built inside the call */
    fm_backend_id backend;
    bool no_skip;
    int32_t threads;
} fm_trial_call;

/* Zeroed results of the shapes that the inputs ask for. */
bool fm_trial_results_make(const fm_trial_inputs *inputs, fm_trial_results *out);

bool fm_trial_run(const fm_trial_inputs *inputs, const fm_trial_call *call, fm_trial_results *out);
void fm_trial_results_free(fm_trial_results *results);

/* How far one result is from the oracle, and how far it may be: twice what a plain computation in the same dtype is off, plus
 * the floor of docs/numerics.md: roundings at the oracle's largest value. Equal infinities are equal; a NaN on either side is
 * an infinite error. Start from {0}, measure any number of pieces, then judge once. */
typedef struct fm_trial_error {
    double error, plain, largest; /* over all that was measured; largest: of the oracle's finite values */
    int64_t terms;                /* of the longest sum */
    double floor, tolerance;
    bool agrees;
} fm_trial_error;
/* terms: fm_trial_terms of the inputs behind the results. */
void fm_trial_measure(fm_trial_error *e, int64_t terms, const fm_tensor *ours, const fm_tensor *plain, const fm_tensor *oracle);
void fm_trial_judge(fm_trial_error *e, int result, fm_dtype dtype);

/* Terms of the longest sum in forward and backward. */
int64_t fm_trial_terms(const fm_trial_inputs *inputs);

/* True if all results are equal, -0 and +0 included. */
bool fm_trial_results_equal(const fm_trial_results *a, const fm_trial_results *b);

/* Elements [start, end) along one dimension, as a view. */
fm_tensor fm_tensor_range(const fm_tensor *tensor, int dimension, int64_t start, int64_t end);

/* Oracle and plain computation of inputs and mask by the reference backend; both to be freed. */
bool fm_trial_references(const fm_trial_inputs *inputs, const fm_mask *mask, int32_t threads, fm_trial_results *oracle,
                         fm_trial_results *plain);

#endif
