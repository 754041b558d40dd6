/* Sampled rows and keys of a long case against the f64 reference. */
#ifndef FM_CLI_BENCH_CHECK_H
#define FM_CLI_BENCH_CHECK_H

#include "bench_case.h"

typedef struct fm_bench_checked {
    const fm_mask *mask;
    const fm_trial_inputs *inputs;
    const fm_trial_results *results;
    const fm_bench_settings *settings;
} fm_bench_checked;

/* O, LSE and dQ of three groups of rows, each with all keys; dK and dV of three groups of keys, each with all rows: the first,
 * the last, and one drawn from the seed. dK and dV of some keys need the whole softmax of every row that sees them, which the
 * results' O and LSE bring; these are what the rows check. Fills in the errors and counts of out. */
bool fm_bench_check(const fm_bench_checked *checked, fm_bench_result *out);

#endif
