/* The CPU backend's two entry points, in forward.c and backward.c; contracts as in fm_backend. */
#ifndef FM_CPU_PASSES_H
#define FM_CPU_PASSES_H

#include "attention/problem.h"

/* One work item is 64 query rows of one head: for each tile of keys that the plan lists, scores, online softmax, and its
 * share of the output. */
fm_status fm_cpu_forward(const fm_problem *problem);

/* Passes that recompute P from lse, none of which adds to memory that another work item writes: the sums
 * grad_output . output of all rows (kept with the lse, 8 bytes a row, allocated by the call); grad_query by 64 query rows of
 * a head, over their tiles of keys; grad_key and grad_value by 64 keys of a key head, over the query heads that share it,
 * ascending, and their tiles of rows, ascending; grad_sinks by head. */
fm_status fm_cpu_backward(const fm_backward_problem *problem);

#endif
