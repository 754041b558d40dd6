/* Which pairs of a partial tile are visible: intervals of the plan, and bits where a stripe is a bitmap. */
#ifndef FM_CUDA_TILE_MASK_TILE_CUH
#define FM_CUDA_TILE_MASK_TILE_CUH

#include "cuda/launch.h"

/* The mask around one 128 x 128 stripe block: what a tile inside it needs. */
typedef struct tile_mask {
    const fm_interval *bounds; /* [M, stride] of the plane */
    int32_t stride, intervals;
    const uint64_t *bits; /* word [2 * (row % 128) + key % 128 / 64]; NULL: intervals decide alone */
    bool is_hidden;       /* a bitmap stripe's block without a visible pair */
} tile_mask;

/* Of the block that holds (row, key). The same for all threads of a tile. */
static __device__ __forceinline__ tile_mask tile_mask_at(const fm_device_plan *plan, int64_t plane, int32_t row, int32_t key) {
    tile_mask mask = {plan->bounds + plane * plan->intervals * plan->bounds_stride, plan->bounds_stride, plan->intervals, NULL,
                      false};
    if (plan->stripe_slot != NULL) {
        const int32_t slot = plan->stripe_slot[plane * plan->stripes + key / FM_PLAN_GROUP];
        if (slot >= 0) {
            const int32_t block = plan->block_index[(int64_t)slot * plan->row_blocks + row / FM_PLAN_GROUP];
            mask.is_hidden = block == -1;
            mask.bits = block >= 0 ? plan->blocks + (int64_t)block * (FM_PLAN_GROUP * FM_PLAN_GROUP / 64) : NULL;
        }
    }
    return mask;
}

/* Pairs of an accumulator fragment column: rows row + 8 i (i < ROWS) and keys key, key + 1 (key even). Bit 2 i + e: (row + 8 i,
 * key + e) is visible. Rows past the last and keys past the last are not. */
template <int ROWS> static __device__ __forceinline__ uint32_t tile_mask_pairs(const tile_mask *mask, int32_t row, int32_t key) {
    uint32_t visible = 0;
    if (mask->is_hidden) {
        return 0;
    }
    for (int m = 0; m < mask->intervals; m++) {
        const int4 b = __ldg(reinterpret_cast<const int4 *>(mask->bounds + (int64_t)m * mask->stride + key));
        const uint32_t length0 = (uint32_t)(b.y - b.x), length1 = (uint32_t)(b.w - b.z);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            visible |= (uint32_t)((uint32_t)(row + 8 * i - b.x) < length0) << (2 * i);
            visible |= (uint32_t)((uint32_t)(row + 8 * i - b.z) < length1) << (2 * i + 1);
        }
    }
    if (mask->bits != NULL) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int32_t r = (row + 8 * i) % FM_PLAN_GROUP, k = key % FM_PLAN_GROUP;
            const uint32_t pair =
                (uint32_t)(__ldg(reinterpret_cast<const unsigned long long *>(mask->bits) + 2 * r + k / 64) >> (k % 64)) & 3;
            visible &= pair << (2 * i) | ~(3u << (2 * i));
        }
    }
    return visible;
}

#endif
