/* Where a lane points ldmatrix inside a swizzled tile. A 16 x 16 block is four 8 x 8 matrices; the order in which lanes name them
 * decides which operand of ptx_mma comes out:
 *
 *   by rows     0 2   plain: a of rows x dims (Q). Transposed: b of two blocks of 8 dims, {r0, r1} and {r2, r3} (V)
 *               1 3
 *   by columns  0 1   plain: b of two blocks of 8 keys, {r0, r1} and {r2, r3} (K)
 *               2 3
 */
#ifndef FM_CUDA_TILE_FRAGMENT_CUH
#define FM_CUDA_TILE_FRAGMENT_CUH

#include "cuda/ptx/mma.cuh"
#include "cuda/tile/shared_tile.cuh"

/* Bytes from the start of a tile to this lane's row of its first 16 x 16 block. Computed anew at every call: cheaper than a
 * register over the whole loop. */
template <int DIM> static __device__ __forceinline__ uint32_t fragment_by_rows(void) {
    const uint32_t lane = thread_again() % 32;
    return (uint32_t)sizeof(fm_half) * (uint32_t)shared_chunk<DIM>((int)(lane % 16), (int)(lane / 16));
}
template <int DIM> static __device__ __forceinline__ uint32_t fragment_by_columns(void) {
    const uint32_t lane = thread_again() % 32;
    return (uint32_t)sizeof(fm_half) * (uint32_t)shared_chunk<DIM>((int)(lane % 8 + lane / 16 * 8), (int)(lane / 8 % 2));
}

/* The block of rows 16 r and dims 16 d from the lane's address of block (0, 0). */
template <int DIM> static __device__ __forceinline__ uint32_t fragment_at(uint32_t address, int r, int d) {
    return shared_move<DIM>(address, 16 * r, 2 * d);
}

#endif
