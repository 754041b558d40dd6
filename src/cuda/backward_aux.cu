/* What surrounds the backward kernels: the terms of a row, the conversion of dQ's sum, the sinks' gradient. Bound by memory. */
#include "cuda/launch.h"
#include "cuda/launch_kernel.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum {
    CHUNK = 8,
    THREADS = 256,
    BLOCK_ROWS = FM_CUDA_ROW_BLOCK,
    ROW_LANES = THREADS / BLOCK_ROWS,
    TERM_ROWS = 2, /* a thread of row_terms: four take registers for which a multiprocessor has five blocks in place of six */
    SINK_THREADS = 1024
};
static_assert(FM_PLAN_BLOCK % (TERM_ROWS * BLOCK_ROWS) == 0, "a tile's first block of row_terms zeroes its turn");

static constexpr float LOG2E = 1.44269504f;

template <int DTYPE> static __device__ __forceinline__ float load_element(const void *data, int64_t at) {
    return DTYPE == FM_F32    ? static_cast<const float *>(data)[at]
           : DTYPE == FM_BF16 ? __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[at])
                              : __half2float(static_cast<const __half *>(data)[at]);
}

template <int DTYPE> static __device__ __forceinline__ void store_element(void *data, int64_t at, float x) {
    if (DTYPE == FM_F32) {
        static_cast<float *>(data)[at] = x;
    } else if (DTYPE == FM_BF16) {
        static_cast<__nv_bfloat16 *>(data)[at] = __float2bfloat16_rn(x);
    } else {
        static_cast<__half *>(data)[at] = __float2half_rn(x);
    }
}

/* Eight dims from d on of the row at `row`. IN_CHUNKS: O and dO are; if one is not, both are read by elements. */
template <int DTYPE, bool IN_CHUNKS>
static __device__ __forceinline__ void load_chunk(float (&x)[CHUNK], const fm_cuda_tensor *t, int64_t row, int32_t d) {
    if (!IN_CHUNKS) {
#pragma unroll
        for (int e = 0; e < CHUNK; e++) {
            x[e] = load_element<DTYPE>(t->data, row + (d + e) * t->stride[3]);
        }
    } else if (DTYPE == FM_F32) {
        const float4 *from = reinterpret_cast<const float4 *>(static_cast<const float *>(t->data) + row + d);
        const float4 low = from[0], high = from[1];
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    } else {
        const uint4 chunk = *reinterpret_cast<const uint4 *>(static_cast<const char *>(t->data) + 2 * (row + d));
#pragma unroll
        for (int e = 0; e < CHUNK; e++) {
            x[e] = load_element<DTYPE>(&chunk, e);
        }
    }
}

template <int DTYPE>
static __device__ __forceinline__ void store_chunk(const float (&x)[CHUNK], const fm_cuda_tensor *t, int64_t row, int32_t d) {
    if (t->in_chunks && DTYPE == FM_F32) {
        float4 *to = reinterpret_cast<float4 *>(static_cast<float *>(t->data) + row + d);
        to[0] = make_float4(x[0], x[1], x[2], x[3]);
        to[1] = make_float4(x[4], x[5], x[6], x[7]);
        return;
    }
    if (t->in_chunks) {
        uint4 chunk;
#pragma unroll
        for (int e = 0; e < CHUNK; e++) {
            store_element<DTYPE>(&chunk, e, x[e]);
        }
        *reinterpret_cast<uint4 *>(static_cast<char *>(t->data) + 2 * (row + d)) = chunk;
        return;
    }
#pragma unroll
    for (int e = 0; e < CHUNK; e++) {
        store_element<DTYPE>(t->data, row + (d + e) * t->stride[3], x[e]);
    }
}

/* A block's rows of one head; heads next to each other run together, for their rows lie next to each other in memory. */
typedef struct row_block {
    int32_t batch, head, row0;
} row_block;

/* rows: of a head, cut into blocks of `of_block`. */
static __device__ __forceinline__ row_block find_row_block(const fm_cuda_problem *p, int64_t rows, int32_t of_block) {
    const uint32_t heads = (uint32_t)p->heads, blocks = (uint32_t)((rows + of_block - 1) / of_block), block = blockIdx.x / heads;
    return row_block{(int32_t)(block / blocks), (int32_t)(blockIdx.x % heads), (int32_t)(block % blocks) * of_block};
}

static launch_shape row_block_shape(const fm_cuda_problem *p, int64_t rows, int32_t of_block) {
    return launch_shape{p->batch * (int64_t)p->heads * ((rows + of_block - 1) / of_block), 1, THREADS, 0};
}

/* log(exp(lse) + exp(sink)); a sink of -inf is none. */
static __device__ __forceinline__ float add_sink(float lse, float sink) {
    const float high = fmaxf(lse, sink), low = fminf(lse, sink);
    return high == INFINITY || low == -INFINITY ? high : high + log1pf(expf(low - high));
}

/* exp(total - lse) without an infinity, which times P = 0 would be a NaN: beyond e^80 P is 0 to single precision anyway. */
static __device__ __forceinline__ float exp_difference(float total, float lse) { return expf(fminf(total - lse, 80.0f)); }

/* head: b * Hq + h. dot: dO . O of the row. */
static __device__ __forceinline__ void store_row_terms(const fm_cuda_backward_problem *bp, int64_t head, int32_t row, float dot) {
    const fm_cuda_problem *p = &bp->forward;
    const int64_t index = head * p->rows + row, to = head * bp->terms_stride + row;
    const float lse = row < p->rows ? p->lse[index] : -INFINITY;
    float lse2 = INFINITY, delta = 0.0f;
    if (lse != -INFINITY) {
        const float total = p->sinks != NULL ? add_sink(lse, p->sinks[head % p->heads]) : lse;
        lse2 = total * LOG2E;
        delta = bp->grad_lse != NULL ? dot - bp->grad_lse[index] * exp_difference(total, lse) : dot;
    }
    bp->lse2[to] = lse2;
    bp->delta[to] = delta;
}

/* Where the turn of a row's tile lies. */
static __device__ __forceinline__ int64_t turn_at(const fm_cuda_backward_problem *bp, int64_t head, int32_t row) {
    return head * (bp->terms_stride / FM_PLAN_BLOCK) + row / FM_PLAN_BLOCK;
}

/* Two rows, 16 apart, by 16 lanes. */
template <int DTYPE, bool IN_CHUNKS>
static __global__ void __launch_bounds__(THREADS) row_terms_kernel(const __grid_constant__ fm_cuda_backward_problem bp) {
    const fm_cuda_problem *p = &bp.forward;
    const row_block block = find_row_block(p, bp.terms_stride, TERM_ROWS * BLOCK_ROWS);
    const int32_t row0 = block.row0 + (int32_t)threadIdx.x / ROW_LANES, lane = (int32_t)threadIdx.x % ROW_LANES;
    const fm_cuda_tensor *output = &p->output, *grad = &bp.grad_output;
    const int64_t at = block.batch * output->stride[0] + block.head * output->stride[2];
    const int64_t grad_at = block.batch * grad->stride[0] + block.head * grad->stride[2];
    float dot[TERM_ROWS] = {};
    for (int32_t d = lane * CHUNK; d < p->head_dim_v; d += ROW_LANES * CHUNK) {
        float x[TERM_ROWS][CHUNK], y[TERM_ROWS][CHUNK];
#pragma unroll
        for (int i = 0; i < TERM_ROWS; i++) {
            const int32_t row = min(row0 + i * BLOCK_ROWS, p->rows - 1);
            load_chunk<DTYPE, IN_CHUNKS>(x[i], output, at + row * output->stride[1], d);
            load_chunk<DTYPE, IN_CHUNKS>(y[i], grad, grad_at + row * grad->stride[1], d);
        }
#pragma unroll
        for (int i = 0; i < TERM_ROWS; i++) {
#pragma unroll
            for (int e = 0; e < CHUNK; e++) {
                dot[i] = fmaf(x[i][e], y[i][e], dot[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TERM_ROWS; i++) {
        for (int d = ROW_LANES / 2; d > 0; d /= 2) {
            dot[i] += __shfl_xor_sync(0xffffffffu, dot[i], d);
        }
        const int32_t row = row0 + i * BLOCK_ROWS;
        if (lane == 0 && row < bp.terms_stride) {
            store_row_terms(&bp, (int64_t)block.batch * p->heads + block.head, row, dot[i]);
        }
    }
    if (bp.turns != NULL && threadIdx.x == 0 && block.row0 % FM_PLAN_BLOCK == 0) {
        bp.turns[turn_at(&bp, (int64_t)block.batch * p->heads + block.head, block.row0)] = 0;
    }
    if (bp.counter != NULL && blockIdx.x == 0 && threadIdx.x == 0) {
        *bp.counter = 0;
    }
}

/* A sum that the first in turn wrote may be -0 or subnormal, where one that additions made is neither. */
static __device__ __forceinline__ float scaled(float sum, float scale) {
    asm("add.ftz.f32 %0, %0, 0f00000000;" : "+f"(sum));
    return sum * scale;
}

/* From the sum to the tensor, times scale. Threads: four rows, then chunks, then rows again, so that a
 * warp reads 128 bytes in a row of memory and writes as much. */
template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) finish_kernel(const __grid_constant__ fm_cuda_backward_problem bp) {
    const fm_cuda_problem *p = &bp.forward;
    const fm_cuda_tensor *to = &bp.grad_query;
    const row_block block = find_row_block(p, p->rows, BLOCK_ROWS);
    const int32_t chunks = p->head_dim / CHUNK;
    const int64_t head = (int64_t)block.batch * p->heads + block.head;
    const float *sum = bp.grad_query_sum + head * bp.sum_head + block.row0 / BLOCK_ROWS * bp.sum_slab;
    const bool is_summed = bp.turns == NULL || bp.turns[turn_at(&bp, head, block.row0)] != 0; /* else nobody wrote */
    for (int32_t i = (int32_t)threadIdx.x; i < BLOCK_ROWS * chunks; i += THREADS) {
        const int32_t chunk = i / 4 % chunks, row = block.row0 + i % 4 + i / (4 * chunks) * 4;
        if (row >= p->rows) {
            continue;
        }
        const float4 *from = reinterpret_cast<const float4 *>(sum + chunk * bp.sum_chunk + (row - block.row0) * CHUNK);
        float4 low = {0.0f, 0.0f, 0.0f, 0.0f}, high = low;
        if (is_summed) {
            low = from[0], high = from[1];
        }
        const float x[CHUNK] = {scaled(low.x, p->scale),  scaled(low.y, p->scale),  scaled(low.z, p->scale),
                                scaled(low.w, p->scale),  scaled(high.x, p->scale), scaled(high.y, p->scale),
                                scaled(high.z, p->scale), scaled(high.w, p->scale)};
        store_chunk<DTYPE>(x, to, block.batch * to->stride[0] + row * to->stride[1] + block.head * to->stride[2], chunk * CHUNK);
    }
}

/* -exp(sink - total) (dO . O), dO . O taken back from delta. */
static __device__ __forceinline__ float sink_term(const fm_cuda_backward_problem *bp, float sink, int64_t head, int32_t row) {
    const float lse2 = bp->lse2[head * bp->terms_stride + row];
    if (lse2 == INFINITY) {
        return 0.0f;
    }
    float dot = bp->delta[head * bp->terms_stride + row];
    if (bp->grad_lse != NULL) {
        const int64_t index = head * bp->forward.rows + row;
        const float lse = bp->forward.lse[index];
        dot += bp->grad_lse[index] * exp_difference(add_sink(lse, sink), lse);
    }
    return -exp2f(sink * LOG2E - lse2) * dot;
}

/* One block a head: thread t sums rows t, t + 1024, ... of each batch item, then a tree. The order is always the same. */
static __global__ void __launch_bounds__(SINK_THREADS) grad_sinks_kernel(const __grid_constant__ fm_cuda_backward_problem bp) {
    __shared__ float sums[SINK_THREADS];
    const fm_cuda_problem *p = &bp.forward;
    const int32_t head = (int32_t)blockIdx.x, thread = (int32_t)threadIdx.x;
    const float sink = p->sinks[head];
    float sum = 0.0f;
    for (int32_t b = 0; b < p->batch; b++) {
        for (int32_t row = thread; row < p->rows; row += SINK_THREADS) {
            sum += sink_term(&bp, sink, (int64_t)b * p->heads + head, row);
        }
    }
    sums[thread] = sum;
    for (int width = SINK_THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (thread < width) {
            sums[thread] += sums[thread + width];
        }
    }
    if (thread == 0) {
        bp.grad_sinks[head] = sums[0];
    }
}

template <int DTYPE> static const void *row_terms_with(bool in_chunks) {
    return in_chunks ? (const void *)row_terms_kernel<DTYPE, true> : (const void *)row_terms_kernel<DTYPE, false>;
}

static const void *row_terms_of(fm_dtype dtype, bool in_chunks) {
    return dtype == FM_F32    ? row_terms_with<FM_F32>(in_chunks)
           : dtype == FM_BF16 ? row_terms_with<FM_BF16>(in_chunks)
                              : row_terms_with<FM_F16>(in_chunks);
}

extern "C" int fm_cuda_row_terms(const fm_cuda_backward_problem *problem, fm_dtype dtype, void *stream) {
    const fm_cuda_problem *p = &problem->forward;
    const void *kernel =
        row_terms_of(dtype == FM_F32 || p->output_is_f32 ? FM_F32 : dtype, p->output.in_chunks && problem->grad_output.in_chunks);
    if (problem->grad_query_sum != NULL && problem->turns == NULL) {
        const size_t elements = (size_t)p->batch * (size_t)p->heads * (size_t)problem->sum_head;
        const cudaError_t status =
            cudaMemsetAsync(problem->grad_query_sum, 0, elements * sizeof(float), static_cast<cudaStream_t>(stream));
        if (status != cudaSuccess) {
            return status;
        }
    }
    return launch_with(kernel, row_block_shape(p, problem->terms_stride, TERM_ROWS * BLOCK_ROWS), problem, stream);
}

extern "C" int fm_cuda_finish_grad_query(const fm_cuda_backward_problem *problem, fm_dtype dtype, void *stream) {
    const bool is_f32 = dtype == FM_F32 || problem->grad_query_is_f32;
    const void *kernel = is_f32             ? (const void *)finish_kernel<FM_F32>
                         : dtype == FM_BF16 ? (const void *)finish_kernel<FM_BF16>
                                            : (const void *)finish_kernel<FM_F16>;
    return launch_with(kernel, row_block_shape(&problem->forward, problem->forward.rows, BLOCK_ROWS), problem, stream);
}

extern "C" int fm_cuda_grad_sinks(const fm_cuda_backward_problem *problem, void *stream) {
    const launch_shape shape = {problem->forward.heads, 1, SINK_THREADS, 0};
    return launch_with((const void *)grad_sinks_kernel, shape, problem, stream);
}
