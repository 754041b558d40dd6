/* Where two lists of intervals differ: what a sweep over rows or columns does between neighbours. */
#ifndef FM_MASK_INTERVAL_DIFFERENCE_H
#define FM_MASK_INTERVAL_DIFFERENCE_H

#include "core/status.h"

/* Where exactly one of two ascending, separated lists has an element: ascending, into out[0 .. na + nb); returns how many. */
int64_t fm_interval_difference(const fm_interval *a, int64_t na, const fm_interval *b, int64_t nb, fm_interval *out);

#endif
