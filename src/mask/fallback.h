/* The bitmap fallback while it is built: stripes of 128 keys as shared 128 x 128-bit blocks. Layout in mask.h. */
#ifndef FM_MASK_FALLBACK_H
#define FM_MASK_FALLBACK_H

#include "mask/stripe.h"

typedef struct fm_bitmap_stripe {
    int64_t plane, stripe; /* plane: b * Hm + h */
    int64_t slot;          /* where it was added */
} fm_bitmap_stripe;

/* All zeros, but for shape and limit, is an empty one. */
typedef struct fm_fallback {
    fm_mask_shape shape;
    int64_t limit;             /* bytes */
    fm_bitmap_stripe *stripes; /* [slots] */
    int32_t *block_index;      /* [slots, row_blocks] */
    uint64_t *blocks;          /* [block_count, FM_BLOCK_WORDS] */
    int64_t slots, block_count;
    int64_t visible_pairs; /* of the bitmap stripes */
    /* Past the limit nothing is stored any more, only counted, so that the error can say how much would be needed; blocks
     * with equal hashes pass for equal then. The count ends at 4 GiB, as does the work. */
    bool past_limit;
    uint64_t *hashes; /* [block_count] */
    int32_t *table;   /* open addressing by hash: a block or -1 */
    int64_t table_size, stripe_capacity, index_capacity, block_capacity, hash_capacity;
} fm_fallback;

/* Adds a stripe as a bitmap. Stripes come in any order, each once. FM_ERROR_LIMIT once both the limit and 4 GiB are passed. */
fm_status fm_fallback_add(fm_fallback *fallback, int64_t plane, int64_t stripe, const fm_stripe_blocks *blocks);

/* Puts slots in (plane, stripe) order and blocks in order of first use, so that equal masks are stored alike, and yields
 * stripe_slot [Bm, Hm, stripes]. FM_ERROR_LIMIT, naming the bytes, if the limit was passed, FM_ERROR_INTERNAL if
 * a stripe was added twice. */
fm_status fm_fallback_finish(fm_fallback *fallback, int32_t **stripe_slot);
void fm_fallback_free(fm_fallback *fallback);

/* Bytes of a fallback of a mask of this shape. */
int64_t fm_fallback_bytes(fm_mask_shape shape, int64_t slots, int64_t block_count);

#endif
