/* One attention call, timed. */
#ifndef FM_CLI_CALL_H
#define FM_CLI_CALL_H

#include "error.h"

/* Seconds on a clock that never goes back. */
double fm_clock_seconds(void);

/* A CPU tensor over new zeroed memory, which the caller frees as out->data. */
bool fm_tensor_allocate(fm_tensor *out, fm_dtype dtype, const int64_t shape[4]);

/* Runs the call and says how long it took. Arguments without a workspace get one first, outside that time; it stays in them
 * for the next call, and the caller frees it. seconds may be NULL. */
bool fm_call_forward(fm_attention_forward_args *args, double *seconds);
bool fm_call_backward(fm_attention_backward_args *args, double *seconds);

#endif
