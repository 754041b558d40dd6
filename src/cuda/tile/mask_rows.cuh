/* Visibility of one warp's part of a partial tile, 32 rows x 64 keys (16 rows: the low half), as one word of rows for each key.
 * Lane l holds keys 2 l and 2 l + 1, so bounds are read once, 16 bytes a lane, and an accumulator fragment takes the words of
 * its columns by shuffles: testing an element costs the same whatever the number of intervals. */
#ifndef FM_CUDA_TILE_MASK_ROWS_CUH
#define FM_CUDA_TILE_MASK_ROWS_CUH

#include "cuda/tile/mask_tile.cuh"

typedef struct mask_rows {
    uint32_t even, odd; /* keys 2 lane, 2 lane + 1 of the tile; bit r: row0 + r sees the key */
} mask_rows;

/* Bits [start, end) that lie within 0 .. 31. PTX ISA, "bmsk". */
static __device__ __forceinline__ uint32_t mask_rows_between(int32_t start, int32_t end) {
    const int32_t first = max(start, 0);
    uint32_t bits;
    asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bits) : "r"(first), "r"(max(end - first, 0)));
    return bits;
}

/* Bits 8 n + at of 64 as bit n of a byte. */
static __device__ __forceinline__ uint32_t mask_rows_every_eighth(uint2 bits, uint32_t at) {
    const uint32_t low = bits.x >> at & 0x01010101, high = bits.y >> at & 0x01010101;
    return (low | high << 4) * 0x01020408u >> 24; /* the products of ones do not meet */
}

/* Turns words of 64 keys, lane r holding row r's, into words of rows. */
static __device__ __forceinline__ mask_rows mask_rows_transpose(uint64_t keys) {
    mask_rows rows = {0, 0};
#pragma unroll 4
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t even = __ballot_sync(0xffffffffu, keys >> (2 * i) & 1);
        const uint32_t odd = __ballot_sync(0xffffffffu, keys >> (2 * i + 1) & 1);
        if (threadIdx.x % 32 == i) {
            rows.even = even;
            rows.odd = odd;
        }
    }
    return rows;
}

/* Of rows row0 .. row0 + 31 and keys key0 .. key0 + 63 (key0 a multiple of 64); the whole warp calls it. */
static __device__ __forceinline__ mask_rows mask_rows_read(const tile_mask *mask, int32_t row0, int32_t key0) {
    mask_rows rows = {0, 0};
    if (mask->is_hidden) {
        return rows;
    }
    const int32_t lane = (int32_t)threadIdx.x % 32;
    for (int m = 0; m < mask->intervals; m++) {
        const int4 b = __ldg(reinterpret_cast<const int4 *>(mask->bounds + (int64_t)m * mask->stride + key0 + 2 * lane));
        rows.even |= mask_rows_between(b.x - row0, b.y - row0);
        rows.odd |= mask_rows_between(b.z - row0, b.w - row0);
    }
    if (mask->bits != NULL) {
        const int32_t word = 2 * ((row0 + lane) % FM_PLAN_GROUP) + key0 % FM_PLAN_GROUP / 64;
        const mask_rows bits = mask_rows_transpose(__ldg(reinterpret_cast<const unsigned long long *>(mask->bits) + word));
        rows.even &= bits.even;
        rows.odd &= bits.odd;
    }
    return rows;
}

/* Hidden scores of 16-row fragments become -inf. S[f][n]: rows 16 f .., keys 8 (first + n) .. of the 64, laid out as ptx_mma's c. */
template <int FRAGMENTS, int KEY_BLOCKS>
static __device__ __forceinline__ void mask_rows_hide(float (&S)[FRAGMENTS][KEY_BLOCKS][4], mask_rows rows, int first) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < KEY_BLOCKS; n++) {
        const uint32_t even = __shfl_sync(0xffffffffu, rows.even, 4 * (first + n) + (int)t) >> g;
        const uint32_t odd = __shfl_sync(0xffffffffu, rows.odd, 4 * (first + n) + (int)t) >> g;
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
            S[f][n][0] = even & 1u << (16 * f) ? S[f][n][0] : -INFINITY;
            S[f][n][1] = odd & 1u << (16 * f) ? S[f][n][1] : -INFINITY;
            S[f][n][2] = even & 1u << (16 * f + 8) ? S[f][n][2] : -INFINITY;
            S[f][n][3] = odd & 1u << (16 * f + 8) ? S[f][n][3] : -INFINITY;
        }
    }
}

#endif
