/* Masks as dense matrices, read without the conversions that the library has for it, and as pictures. */
#ifndef FM_TESTS_DENSE_H
#define FM_TESTS_DENSE_H

#include <flashmask/flashmask.h>

/* visible: [batch, heads, rows, columns], 1 = visible. */
void dense_of_mask(const fm_mask *mask, uint8_t *visible);

/* One head as text: "x. / xx", rows parted by " / ". For masks of up to 16 x 16. */
enum { PICTURE_BYTES = 16 * 19 + 1 };
void picture_of_mask(const fm_mask *mask, int64_t batch, int64_t head, char picture[PICTURE_BYTES]);

#endif
