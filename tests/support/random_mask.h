/* Masks and their dense truth, drawn at random. */
#ifndef FM_TESTS_RANDOM_MASK_H
#define FM_TESTS_RANDOM_MASK_H

#include <flashmask/flashmask.h>

#include "support/random.h"

/* A mask whose columns have up to `intervals` visible intervals; above FM_MAX_INTERVALS some stripes become bitmaps. Empty
 * rows and empty columns occur. dense, if not NULL, receives the truth [batch, heads, rows, columns], 1 = visible, built
 * without the library. Fails the test if the library refuses. */
fm_mask *random_mask(test_random *random, fm_mask_shape shape, int32_t intervals, uint8_t *dense);

#endif
