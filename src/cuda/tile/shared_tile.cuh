/* Tiles of halves in shared memory: [rows][DIM], 16-byte chunks swizzled so that the eight rows that ldmatrix reads at one chunk
 * column lie in different banks. */
#ifndef FM_CUDA_TILE_SHARED_TILE_CUH
#define FM_CUDA_TILE_SHARED_TILE_CUH

#include "cuda/launch.h"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/variant.cuh"

enum { CHUNK = 8 /* halves of 16 bytes */ };

/* Offset in halves of chunk `chunk` of row `row`. Rows of a multiple of 128 bytes turn within eight chunks; rows of 192 bytes
 * (DIM 96) start on alternate halves of the banks, so every second row turns within four. */
template <int DIM> static __device__ __forceinline__ int shared_chunk(int row, int chunk) {
    static_assert(DIM % 64 == 0 || DIM == 96 || DIM == 32, "no swizzle for this width");
    return row * DIM + CHUNK * (chunk ^ (DIM % 64 == 0 ? row & 7 : (row >> 1) & 3));
}

/* From the shared address of (row, chunk) to that of (row + r, chunk + c): r a multiple of 8, c without a bit in common with chunk.
 * Known r and c leave one instruction at most. The tile starts at a multiple of 128 bytes. */
template <int DIM> static __device__ __forceinline__ uint32_t shared_move(uint32_t address, int r, int c) {
    constexpr uint32_t SPAN = DIM % 64 == 0 ? 128 : 64, ROW = DIM * (uint32_t)sizeof(fm_half);
    const uint32_t bytes = (uint32_t)c * CHUNK * (uint32_t)sizeof(fm_half);
    return (address ^ bytes % SPAN) + bytes / SPAN * SPAN + (uint32_t)r * ROW;
}

/* threadIdx.x, read anew: what is computed from it is not kept in registers from one tile to the next. */
static __device__ __forceinline__ uint32_t thread_again(void) {
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

/* load_tile for tensors in_chunks, without a branch. Eight threads copy 128 bytes of a row, so that their stores meet no bank twice;
 * rows of 192 bytes (DIM 96) take four threads, and two rows fill the banks. */
template <int THREADS, int ROWS, int DIM>
static __device__ __forceinline__ void load_tile_chunks(fm_half *shared, const fm_cuda_tensor *tensor, const fm_half *head,
                                                        int row0, int rows, int dim) {
    constexpr int CHUNKS = DIM / CHUNK, LANES = CHUNKS % 8 == 0 ? 8 : 4, PASS = THREADS / LANES;
    static_assert(CHUNKS % LANES == 0 && ROWS % PASS == 0 && PASS % 8 == 0, "every thread copies the same number of chunks");
    const uint32_t thread = thread_again();
    const int row = (int)(thread / LANES), chunk = (int)(thread % LANES);
    const fm_half *from = head + (row0 + row) * tensor->stride[1] + chunk * CHUNK;
    const uint32_t to = ptx_shared_address(shared + shared_chunk<DIM>(row, chunk));
#pragma unroll
    for (int r = 0; r < ROWS; r += PASS) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c += LANES) {
            const bool valid = (uint32_t)row0 + (uint32_t)(row + r) < (uint32_t)rows && (chunk + c) * CHUNK < dim;
            ptx_cp_async_16(shared_move<DIM>(to, r, c), from + r * tensor->stride[1] + c * CHUNK, valid);
        }
    }
}

/* load_tile for any strides and alignment. */
template <int THREADS, int ROWS, int DIM>
static __device__ __forceinline__ void load_tile_elements(fm_half *shared, const fm_cuda_tensor *tensor, const fm_half *head,
                                                          int row0, int rows, int dim) {
#pragma unroll 1
    for (int i = (int)thread_again(); i < ROWS * DIM; i += THREADS) {
        const int row = i / DIM, at = i % DIM;
        const bool valid = (uint32_t)row0 + (uint32_t)row < (uint32_t)rows && at < dim;
        shared[shared_chunk<DIM>(row, at / CHUNK) + at % CHUNK] =
            valid ? head[(row0 + row) * tensor->stride[1] + at * tensor->stride[3]] : fm_half_from(0.0f);
    }
}

/* Copies ROWS rows from row0 on of one head into shared memory. Rows from `rows` on and dims from `dim` (a multiple of 8) on
 * become 0. The caller commits and waits: element-wise copies are ordinary stores, so the barrier after the wait covers both. */
template <int THREADS, int ROWS, int DIM>
static __device__ __forceinline__ void load_tile(fm_half *shared, const fm_cuda_tensor *tensor, const fm_half *head, int row0,
                                                 int rows, int dim) {
    if (tensor->in_chunks) {
        load_tile_chunks<THREADS, ROWS, DIM>(shared, tensor, head, row0, rows, dim);
    } else {
        load_tile_elements<THREADS, ROWS, DIM>(shared, tensor, head, row0, rows, dim);
    }
}

/* First element of (batch item, head). */
static __device__ __forceinline__ const fm_half *tensor_head(const fm_cuda_tensor *t, int32_t batch, int32_t head) {
    return static_cast<const fm_half *>(t->data) + batch * t->stride[0] + head * t->stride[2];
}

#endif
