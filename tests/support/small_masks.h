/* Masks that tests of algebra and storage share. The caller frees them; they fail the test if the library refuses. */
#ifndef FM_TESTS_SMALL_MASKS_H
#define FM_TESTS_SMALL_MASKS_H

#include "mask/writer.h"

/* Finishes and closes the writer. */
fm_status finish(fm_mask_writer *writer, fm_mask **out);

/* Everything visible. */
fm_mask *full_mask(int64_t batch, int64_t heads, int64_t rows, int64_t columns);

/* Rows 0, 2, 4, ... of one head: rows / 2 intervals a column, rounded up. */
fm_mask *striped_mask(int64_t rows, int64_t columns);

/* One head: `column` has `count` (up to 100) intervals of one row, at rows 0, 2, 4, ...; the other columns see rows 1 and 2. */
fm_mask *comb_mask(int64_t rows, int64_t columns, int64_t column, int64_t count);

#endif
