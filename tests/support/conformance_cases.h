/* The cases of every conformance program: all pairs of mask kind, rows, Sq against Sk, head dims, heads, dtype, layout and extras
 * against the f64 oracle. */
#ifndef FM_TESTS_CONFORMANCE_CASES_H
#define FM_TESTS_CONFORMANCE_CASES_H

#include "support/attention_case.h"

typedef struct conformance_subject {
    int64_t head_dim_step, most_head_dim; /* head dims are rounded up to a multiple and cut to the most */
    bool is_gpu;                          /* as in attention_case */
    int ways;                             /* ways to run a case, 0 .. ways - 1; each must agree */
    attention_results (*run)(const attention_case *c, const attention_inputs *inputs, int way);
} conformance_subject;

/* A program's main: without arguments the pairwise set; `draws FIRST COUNT`: that many random draws of the whole product, draw i
 * has seed i. The draws depend on nothing else. `small FIRST COUNT`: the same of short sequences, for slow tools, three of four of halves,
 * head dims and layouts such as a GPU's fast kernels take.
 * A last argument `forward` compares output and lse alone. */
int conformance_main(int argc, char **argv, const conformance_subject *subject);

#endif
