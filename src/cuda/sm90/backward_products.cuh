/* What teams of both backward kernels do alike: products over dims and over rows, waits, the way out of dK and dV. */
#ifndef FM_CUDA_SM90_BACKWARD_PRODUCTS_CUH
#define FM_CUDA_SM90_BACKWARD_PRODUCTS_CUH

#include <stddef.h>

#include "cuda/sm90/backward_scores.cuh"
#include "cuda/tile/store_rows.cuh"

enum {
    TEAM_THREADS = 128,
    CONSUMERS = TEAMS * TEAM_THREADS,
    SUMS = D / 2 /* accumulators of dK or dV of a thread */
};

/* S^T or dP^T of one line: [64 keys x 64 rows] = keys (K or V) times rows (Q or dO). */
static __device__ __forceinline__ void multiply_dims(float (&x)[SCORES], uint64_t keys, uint64_t rows) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const int at = (k / 4 * BOX_BYTES + k % 4 * 32) / 16;
        if (k == 0) {
            ptx_wgmma_ss<0, 0, 0>(x, keys, rows);
        } else {
            ptx_wgmma_ss<1, 0, 0>(x, keys + at, rows + at);
        }
    }
}

/* dV or dK of one line: [64 keys x D] += pairs (P^T or dS^T) times rows (dO or Q). */
static __device__ __forceinline__ void multiply_rows(float (&x)[SUMS], const uint32_t (&pairs)[PAIRS], uint64_t rows) {
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) {
        ptx_wgmma_rs<1, 1>(x, pairs[4 * k], pairs[4 * k + 1], pairs[4 * k + 2], pairs[4 * k + 3], rows + k * 16 * 128 / 16);
    }
}

static __device__ __forceinline__ void arrive(uint64_t *barrier) {
    if (thread_again() % 32 == 0) {
        ptx_mbarrier_arrive(ptx_shared_address(barrier));
    }
}
/* Of every lane: for what all lanes have read, since lane 0's arrival does not order the reads of others. It costs nothing. */
static __device__ __forceinline__ void arrive_all(uint64_t *barrier) { ptx_mbarrier_arrive(ptx_shared_address(barrier)); }
static __device__ __forceinline__ void wait(uint64_t *barrier, uint32_t use) {
    ptx_mbarrier_wait(ptx_shared_address(barrier), use & 1);
}

/* Values that ptxas takes for uniform: it serialises products behind branches on others (C7520). */
static __device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

/* Where member[i] of the block's shared memory lies in it. */
#define SHARED_AT(member, i) \
    ((uint32_t)offsetof(backward_shared, member) + (uint32_t)(i) * (uint32_t)sizeof(((backward_shared *)NULL)->member[0]))

/* The low word of the descriptor of a block's shared memory. The asm hides from the compiler how it came about and the shuffle makes it
 * uniform, so another descriptor is a sum of it and an offset, where from an address it takes five instructions, one after another. */
static __device__ __forceinline__ uint32_t descriptor_origin(const backward_shared *s) {
    uint32_t origin = (uint32_t)ptx_wgmma_descriptor(ptx_shared_address(s), BOX_BYTES);
    asm volatile("" : "+r"(origin));
    return uniform(origin);
}
/* Of an operand of boxes at an offset in shared memory. */
static __device__ __forceinline__ uint64_t descriptor_at(uint32_t origin, uint32_t offset) {
    return (ptx_wgmma_descriptor(0, 0) & 0xffffffff00000000ull) | (origin + offset / 16);
}

/* Whether dK or dV goes out through the staging area. */
static __device__ __forceinline__ bool goes_by_elements(const fm_cuda_tensor *tensor, bool is_f32) {
    return tensor->data != NULL && (is_f32 || !tensor->in_chunks);
}
static __device__ __forceinline__ bool stores_by_elements(const fm_cuda_backward_problem *bp) {
    return goes_by_elements(&bp->grad_key, bp->grad_key_is_f32) || goes_by_elements(&bp->grad_value, bp->grad_value_is_f32);
}

/* One gradient of the warp's 16 keys. staged: the warp's, where elements lie meanwhile. lane: see store_elements_of. */
static __device__ __forceinline__ void store_keys(const store_target *target, const float (&sums)[1][D / 8][4], float factor,
                                                  float *staged, int lane) {
    const float factors[2] = {factor, factor};
    if (!goes_by_elements(target->tensor, target->is_f32)) {
        store_chunks<1, D / 8>(target, sums, factors);
    } else {
#pragma unroll
        for (int part = 0; part < D / 32; part++) {
            store_target some = *target;
            some.head += (int64_t)part * 32 * target->tensor->stride[3];
            some.dim -= part * 32;
            float few[1][4][4];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                few[0][i / 4][i % 4] = sums[0][4 * part + i / 4][i % 4];
            }
            __syncwarp();
            store_elements_of<1, 4>(lane, &some, few, factors, staged);
        }
    }
}

#endif
