/* Tiles of f32 for kernels without tensor cores. 128 threads hold a 64 x 64 result as 8 x 4 each; operands pass through shared
 * memory in slices, so that neither shared memory nor code grows with the head dim.
 *
 *   thread (ty, tx) = (threadIdx / 16, threadIdx % 16); warp w has ty = 2 w, 2 w + 1 and every tx
 *   scores       rows ty + 8 i (i < 8)                   keys 2 tx, 2 tx + 1, 2 tx + 32, 2 tx + 33
 *   by rows      rows ty + 8 i                           dims 4 tx .. 4 tx + 3 of a block of 64
 *   by keys      keys 4 ty .. + 3 and 32 + 4 ty .. + 3   dims likewise
 *
 * Every product reads 12 x 16 bytes of shared memory for 128 FMAs, and each element is one chain of FMAs over ascending index.
 * Chunks (16 bytes) are permuted within a row so that the addresses that a quarter warp reads at once lie in different banks. */
#ifndef FM_CUDA_TILE_F32_TILE_CUH
#define FM_CUDA_TILE_F32_TILE_CUH

#include "cuda/launch.h"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/tile/mask_tile.cuh"

#include <float.h>
#include <math.h>

enum {
    F32_THREADS = 128,
    F32_BLOCK = FM_PLAN_BLOCK,          /* rows, keys, and dims of a wide slice */
    F32_SLICE = 32,                     /* dims of a narrow slice */
    F32_NARROW = F32_BLOCK * F32_SLICE, /* floats */
    F32_WIDE = F32_BLOCK * F32_BLOCK,   /* floats of a wide slice, of a stage and of P or dS */
    F32_CHUNK = 4,                      /* floats of 16 bytes */
    F32_ROWS = 8,
    F32_COLUMNS = 4,
    /* Blocks that a multiprocessor must hold: 256 registers a thread. Three blocks, 168 registers, were 5% faster on an H200 where
     * the grid is large and 15% slower where it is not, and so tight that the compiler spills. */
    F32_BLOCKS_AT_ONCE = 2
};
static_assert(F32_ROWS * F32_COLUMNS * F32_THREADS == F32_BLOCK * F32_BLOCK, "every element has a thread");
static_assert(2 * F32_NARROW == F32_WIDE, "a stage holds two narrow slices or a wide one");

/* An accumulator of 128 dims, 64 registers, is all that leaves room for the rest: more dims are computed in two parts, by different
 * blocks (blockIdx.y), each from scores of its own. */
enum { F32_PART_BLOCKS = 2, F32_PART = F32_PART_BLOCKS * F32_BLOCK };
static __host__ __device__ __forceinline__ int f32_parts(int dims) { return (dims + F32_PART - 1) / F32_PART; }
/* Blocks of 64 dims from dim0 on, at most a part of them. */
static __device__ __forceinline__ int f32_blocks_of_part(int dims, int dim0) {
    return max(min((dims - dim0 + F32_BLOCK - 1) / F32_BLOCK, (int)F32_PART_BLOCKS), 0);
}

typedef float f32_fragment[F32_ROWS][F32_COLUMNS]; /* of a thread */

static __device__ __forceinline__ int f32_ty(void) { return (int)threadIdx.x / 16; }
static __device__ __forceinline__ int f32_tx(void) { return (int)threadIdx.x % 16; }

/* One head of a tensor: [rows, dims]. Strides stay with the tensor, in the kernel's parameters: registers are what is short. */
typedef struct f32_head {
    const fm_cuda_tensor *tensor;
    int32_t batch, head;
    int32_t rows, dims; /* dims: a multiple of 8 */
} f32_head;

/* Where a chunk of a row lies: narrow slices turn within a row's eight chunks by row / TURN. TURN 1: eight consecutive rows lie
 * in different banks, TURN 2: eight even ones do. Wide slices (TURN 0) are read along rows and do not turn. */
template <int DIMS, int TURN> static __device__ __forceinline__ int f32_chunk(int row, int chunk) {
    return row * DIMS + F32_CHUNK * (TURN == 0 ? chunk : chunk ^ (row / (TURN == 0 ? 1 : TURN) & 7));
}

/* Copies rows row0 .. row0 + 63, dims dim0 .. dim0 + DIMS - 1 into a slice; what is past the end becomes 0. The caller commits,
 * waits and has a barrier. Tensors that cannot be read 16 bytes at a time are copied 4 at a time. */
template <int DIMS, int TURN>
static __device__ __forceinline__ void f32_load(float *slice, const f32_head *head, int32_t row0, int32_t dim0) {
    constexpr int CHUNKS = DIMS / F32_CHUNK, STEP = F32_THREADS / CHUNKS;
    static_assert(TURN == 0 || STEP % (8 * TURN) == 0, "the rows of a thread turn alike");
    const fm_cuda_tensor *t = head->tensor;
    int thread = (int)threadIdx.x;
    int64_t stride = t->stride[1], batch = head->batch;
    /* Addresses are computed here each time: moved out of the tile loop they would take registers and spill. */
    asm volatile("" : "+r"(thread), "+l"(stride), "+l"(batch));
    const int chunk = thread % CHUNKS, first = thread / CHUNKS, dim = dim0 + chunk * F32_CHUNK;
    const int32_t rows = dim < head->dims ? head->rows - row0 - first : 0; /* real ones from the thread's first on */
    const float *from = static_cast<const float *>(t->data) + batch * t->stride[0] + head->head * t->stride[2] +
                        (int64_t)(row0 + first) * stride + dim * t->stride[3];
    const int64_t step = STEP * stride;
    const uint32_t to = ptx_shared_address(slice + f32_chunk<DIMS, TURN>(first, chunk));
    if (t->in_chunks) {
#pragma unroll
        for (int k = 0; k < F32_BLOCK / STEP; k++, from += step) {
            ptx_cp_async_16(to + k * STEP * DIMS * (int)sizeof(float), from, k * STEP < rows);
        }
        return;
    }
#pragma unroll 1
    for (int k = 0; k < F32_BLOCK / STEP; k++, from += step) {
#pragma unroll
        for (int e = 0; e < F32_CHUNK; e++) {
            ptx_cp_async_4(to + (k * STEP * DIMS + e) * (int)sizeof(float), from + e * t->stride[3], k * STEP < rows);
        }
    }
}

/* The two slices of a step of a score product: rows turn by 1, keys by 2. */
static __device__ __forceinline__ void f32_load_pair(float *stage, const f32_head *by_row, int32_t row0, const f32_head *by_key,
                                                     int32_t key0, int32_t dim0) {
    f32_load<F32_SLICE, 1>(stage, by_row, row0, dim0);
    f32_load<F32_SLICE, 2>(stage + F32_NARROW, by_key, key0, dim0);
}

/* acc[row][key] += rows . keys over the 32 dims of a stage of two narrow slices. */
static __device__ __forceinline__ void f32_add_scores(f32_fragment &acc, const float *stage) {
    const int ty = f32_ty(), tx = f32_tx();
#pragma unroll 2
    for (int chunk = 0; chunk < F32_SLICE / F32_CHUNK; chunk++) {
        const float *row = stage + f32_chunk<F32_SLICE, 1>(ty, chunk);
        const float *key = stage + F32_NARROW + f32_chunk<F32_SLICE, 2>(2 * tx, chunk);
        float4 b[F32_COLUMNS];
#pragma unroll
        for (int j = 0; j < F32_COLUMNS; j++) {
            b[j] = *reinterpret_cast<const float4 *>(key + (j % 2 + j / 2 * 32) * F32_SLICE);
        }
#pragma unroll
        for (int i = 0; i < F32_ROWS; i++) {
            const float4 a = *reinterpret_cast<const float4 *>(row + 8 * i * F32_SLICE);
#pragma unroll
            for (int j = 0; j < F32_COLUMNS; j++) {
                acc[i][j] = fmaf(a.x, b[j].x, acc[i][j]);
                acc[i][j] = fmaf(a.y, b[j].y, acc[i][j]);
                acc[i][j] = fmaf(a.z, b[j].z, acc[i][j]);
                acc[i][j] = fmaf(a.w, b[j].w, acc[i][j]);
            }
        }
    }
}

/* P (or dS) in shared memory: [row][key], chunk ^ row % 2, since a warp reads rows 2 w and 2 w + 1 at once. */
static __device__ __forceinline__ int f32_square(int row, int chunk) { return row * F32_BLOCK + F32_CHUNK * (chunk ^ (row & 1)); }

static __device__ __forceinline__ void f32_store_square(float *square, const f32_fragment &values) {
    const int tx = f32_tx();
#pragma unroll
    for (int i = 0; i < F32_ROWS; i++) {
        float *to = square + f32_square(f32_ty() + 8 * i, tx / 2) + tx % 2 * 2;
        *reinterpret_cast<float2 *>(to) = make_float2(values[i][0], values[i][1]);
        *reinterpret_cast<float2 *>(to + 32) = make_float2(values[i][2], values[i][3]);
    }
}

/* The elements that this thread stored. */
static __device__ __forceinline__ void f32_read_square(f32_fragment &values, const float *square) {
    const int tx = f32_tx();
#pragma unroll
    for (int i = 0; i < F32_ROWS; i++) {
        const float *from = square + f32_square(f32_ty() + 8 * i, tx / 2) + tx % 2 * 2;
        const float2 low = *reinterpret_cast<const float2 *>(from), high = *reinterpret_cast<const float2 *>(from + 32);
        values[i][0] = low.x;
        values[i][1] = low.y;
        values[i][2] = high.x;
        values[i][3] = high.y;
    }
}

static __device__ __forceinline__ void f32_add_outer(float (&acc)[F32_COLUMNS], float a, float4 b) {
    acc[0] = fmaf(a, b.x, acc[0]);
    acc[1] = fmaf(a, b.y, acc[1]);
    acc[2] = fmaf(a, b.z, acc[2]);
    acc[3] = fmaf(a, b.w, acc[3]);
}

/* acc[row][dim] += sum over keys of square[row][key] slice[key][dim]. */
static __device__ __forceinline__ void f32_add_by_rows(f32_fragment &acc, const float *square, const float *slice) {
    const int ty = f32_ty(), tx = f32_tx();
#pragma unroll 2
    for (int chunk = 0; chunk < F32_BLOCK / F32_CHUNK; chunk++) {
        float4 b[F32_CHUNK];
#pragma unroll
        for (int k = 0; k < F32_CHUNK; k++) {
            b[k] = *reinterpret_cast<const float4 *>(slice + (chunk * F32_CHUNK + k) * F32_BLOCK + tx * F32_CHUNK);
        }
#pragma unroll
        for (int i = 0; i < F32_ROWS; i++) {
            const float4 a = *reinterpret_cast<const float4 *>(square + f32_square(ty + 8 * i, chunk));
            f32_add_outer(acc[i], a.x, b[0]);
            f32_add_outer(acc[i], a.y, b[1]);
            f32_add_outer(acc[i], a.z, b[2]);
            f32_add_outer(acc[i], a.w, b[3]);
        }
    }
}

/* acc[key][dim] += sum over rows of square[row][key] slice[row][dim]. */
static __device__ __forceinline__ void f32_add_by_keys(f32_fragment &acc, const float *square, const float *slice) {
    const int ty = f32_ty(), tx = f32_tx();
#pragma unroll 4
    for (int row = 0; row < F32_BLOCK; row++) {
        const float4 low = *reinterpret_cast<const float4 *>(square + f32_square(row, ty));
        const float4 high = *reinterpret_cast<const float4 *>(square + f32_square(row, 8 + ty));
        const float4 b = *reinterpret_cast<const float4 *>(slice + row * F32_BLOCK + tx * F32_CHUNK);
        f32_add_outer(acc[0], low.x, b);
        f32_add_outer(acc[1], low.y, b);
        f32_add_outer(acc[2], low.z, b);
        f32_add_outer(acc[3], low.w, b);
        f32_add_outer(acc[4], high.x, b);
        f32_add_outer(acc[5], high.y, b);
        f32_add_outer(acc[6], high.z, b);
        f32_add_outer(acc[7], high.w, b);
    }
}

static __device__ __forceinline__ void f32_clear(f32_fragment &acc) {
#pragma unroll
    for (int i = 0; i < F32_ROWS * F32_COLUMNS; i++) {
        acc[i / F32_COLUMNS][i % F32_COLUMNS] = 0.0f;
    }
}

/* x, computed with here and not before the loop. */
static __device__ __forceinline__ float f32_opaque(float x) {
    asm volatile("" : "+f"(x));
    return x;
}

/* 1 / softcap, finite: a division for each score would be a call each. Off by 1 ulp of the argument of tanh; where it is
 * subnormal (softcap above 2^126) by 2^-22. */
static __device__ __forceinline__ float f32_inverse_softcap(float softcap) { return fminf(1.0f / softcap, FLT_MAX); }

/* Dot products to scores in natural units. The product with the scale is rounded alone, as the reference does. */
static __device__ __forceinline__ void f32_finish_scores(f32_fragment &S, float scale, float softcap) {
#pragma unroll
    for (int i = 0; i < F32_ROWS * F32_COLUMNS; i++) {
        S[i / F32_COLUMNS][i % F32_COLUMNS] *= scale;
    }
    if (softcap > 0.0f) {
        const float inverse = f32_inverse_softcap(f32_opaque(softcap));
#pragma unroll
        for (int i = 0; i < F32_ROWS * F32_COLUMNS; i++) {
            S[i / F32_COLUMNS][i % F32_COLUMNS] = softcap * tanhf(S[i / F32_COLUMNS][i % F32_COLUMNS] * inverse);
        }
    }
}

/* Over the 16 threads of a row. */
static __device__ __forceinline__ float f32_row_max(float x) {
#pragma unroll
    for (int lane = 1; lane < 16; lane *= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    }
    return x;
}
static __device__ __forceinline__ float f32_row_sum(float x) {
#pragma unroll
    for (int lane = 1; lane < 16; lane *= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, lane);
    }
    return x;
}

/* -inf where row0 + r does not see key0 + k. */
static __device__ __forceinline__ void f32_hide(f32_fragment &S, const fm_device_plan *plan, int64_t plane, int32_t row0,
                                                int32_t key0) {
    int thread = (int)threadIdx.x;
    asm volatile("" : "+r"(thread), "+l"(plane)); /* as in f32_load */
    const int ty = thread / 16, tx = thread % 16;
    const tile_mask mask = tile_mask_at(plan, plane, row0, key0);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t visible = tile_mask_pairs<F32_ROWS>(&mask, row0 + ty, key0 + 2 * tx + 32 * half);
#pragma unroll
        for (int i = 0; i < F32_ROWS; i++) {
            S[i][2 * half] = visible >> (2 * i) & 1 ? S[i][2 * half] : -INFINITY;
            S[i][2 * half + 1] = visible >> (2 * i + 1) & 1 ? S[i][2 * half + 1] : -INFINITY;
        }
    }
}

/* Writes factor * values to dims dim0 + 4 tx .. + 3 of one row of (batch, head), as far as they exist. */
static __device__ __forceinline__ void f32_store_row(const fm_cuda_tensor *t, int64_t head_offset, int32_t row, int32_t dim,
                                                     const float (&values)[F32_COLUMNS], float factor) {
    float *to = static_cast<float *>(t->data) + head_offset + row * t->stride[1] + dim * t->stride[3];
    if (t->in_chunks) {
        *reinterpret_cast<float4 *>(to) =
            make_float4(factor * values[0], factor * values[1], factor * values[2], factor * values[3]);
        return;
    }
#pragma unroll
    for (int e = 0; e < F32_COLUMNS; e++) {
        to[e * t->stride[3]] = factor * values[e];
    }
}

#endif
