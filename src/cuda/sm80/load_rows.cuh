/* Copies of tiles inside a loop that has no register to spare: one address a thread, all else constant offsets.
 *
 * Thread t looks after chunk t % 8 (of eight neighbours, or of four where the width is no multiple of 64) of row t / 8, and after
 * every further chunk at the same place of its neighbours. */
#ifndef FM_CUDA_SM80_LOAD_ROWS_CUH
#define FM_CUDA_SM80_LOAD_ROWS_CUH

#include "cuda/tile/shared_tile.cuh"

/* One head's rows of a tensor of halves, or of floats that are rounded to halves on the way. */
typedef struct row_source {
    const void *head; /* row 0 of the head */
    int64_t row_stride, dim_stride;
    int32_t rows, dim; /* what lies beyond is copied as 0 */
    bool in_chunks, is_f32;
} row_source;

static __device__ __forceinline__ row_source row_source_of(const fm_cuda_tensor *t, int32_t batch, int32_t head, int32_t rows,
                                                           int32_t dim, bool is_f32) {
    const int64_t offset = batch * t->stride[0] + head * t->stride[2];
    row_source source = {static_cast<const char *>(t->data) + offset * (is_f32 ? 4 : 2),
                         t->stride[1],
                         t->stride[3],
                         rows,
                         dim,
                         t->in_chunks,
                         is_f32};
    return source;
}

/* Element by element, by ordinary stores. */
template <int THREADS, int ROWS, int DIM>
static __device__ __forceinline__ void load_elements(fm_half *shared, const row_source *from, int32_t row0, int thread) {
    const int64_t dim_stride = from->dim_stride;
#pragma unroll 1
    for (int i = thread; i < ROWS * DIM; i += THREADS) {
        const int row = i / DIM, d = i % DIM;
        const bool valid = row0 + row < from->rows && d < from->dim;
        const int64_t at = (row0 + row) * from->row_stride + d * dim_stride;
        float x = 0.0f;
        if (valid) {
            x = from->is_f32 ? static_cast<const float *>(from->head)[at]
                             : fm_half_to(static_cast<const fm_half *>(from->head)[at]);
        }
        shared[shared_chunk<DIM>(row, d / CHUNK) + d % CHUNK] = fm_half_from(x);
    }
}

/* Rows row0 .. row0 + ROWS into a tile, by THREADS threads numbered `thread`. The caller commits, waits and holds a barrier. */
template <int THREADS, int ROWS, int DIM>
static __device__ __forceinline__ void load_rows(fm_half *shared, const row_source *from, int32_t row0, int thread) {
    constexpr int COLUMNS = DIM % 64 == 0 ? 8 : 4, PASS = THREADS / COLUMNS;
    static_assert(ROWS % PASS == 0 && PASS % 8 == 0, "a pass is whole turns of the swizzle");
    asm volatile("" : "+r"(thread)); /* computed here, not kept in registers through the caller's loop */
    if (!from->in_chunks || from->is_f32) {
        load_elements<THREADS, ROWS, DIM>(shared, from, row0, thread);
        return;
    }
    const int row = (int)((uint32_t)thread / COLUMNS), chunk = (int)((uint32_t)thread % COLUMNS);
    const uint32_t to = ptx_shared_address(shared) + 2 * (uint32_t)shared_chunk<DIM>(row, chunk);
    const fm_half *head = static_cast<const fm_half *>(from->head);
    const fm_half *at = head + (row0 + row) * from->row_stride + chunk * CHUNK;
#pragma unroll
    for (int r = 0; r < ROWS; r += PASS) {
        const bool row_is_valid = row0 + row + r < from->rows;
#pragma unroll
        for (int c = 0; c < DIM / CHUNK; c += COLUMNS) {
            const bool valid = row_is_valid && (chunk + c) * CHUNK < from->dim;
            ptx_cp_async_16(to + 2 * (uint32_t)(r * DIM + c * CHUNK), valid ? at + c * CHUNK : head, valid);
        }
        at += PASS * from->row_stride;
    }
}

#endif
