/* Named barriers of a block. PTX ISA, "barrier": when one completes, what its threads wrote before it is seen by those that
 * waited. Barrier 0 is __syncthreads. */
#ifndef FM_CUDA_PTX_BAR_CUH
#define FM_CUDA_PTX_BAR_CUH

/* Waits until `threads` threads, whole warps, have arrived. */
static __device__ __forceinline__ void ptx_bar_sync(int barrier, int threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Arrives and goes on. */
static __device__ __forceinline__ void ptx_bar_arrive(int barrier, int threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif
