/* Barriers of a block. PTX ISA, "barrier": when one completes, what its threads wrote before it is seen by those that waited. Barrier 0
 * is __syncthreads. */
#ifndef FM_CUDA_PTX_BAR_CUH
#define FM_CUDA_PTX_BAR_CUH

#include <stdint.h>

/* __syncthreads for a warp that may come in parts. The barrier would count each part as a whole warp and open too early, and ptxas
 * 13.0 was seen to leave a warp apart between `if (threadIdx.x == 0) { .. }` and __syncthreads, and to drop a __syncwarp between
 * them. So the lanes wait for each other by a mask that it does not know. */
static __device__ __forceinline__ void ptx_bar_block(void) {
    uint32_t below, others;
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(others));
    __syncwarp(below | others);
    __syncthreads();
}

/* Waits until `threads` threads, whole warps, have arrived. */
static __device__ __forceinline__ void ptx_bar_sync(int barrier, int threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Arrives and goes on. */
static __device__ __forceinline__ void ptx_bar_arrive(int barrier, int threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif
