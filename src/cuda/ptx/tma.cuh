/* The bulk tensor copy engine (TMA). PTX ISA, "cp.async.bulk.tensor". A tensor map says shape, strides, box and swizzle; it lies in
 * the kernel's parameters, __grid_constant__. */
#ifndef FM_CUDA_PTX_TMA_CUH
#define FM_CUDA_PTX_TMA_CUH

#include <cuda.h>
#include <stdint.h>

static __device__ __forceinline__ void ptx_tma_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* The box at element (c0, c1, c2, c3), c0 along the contiguous dimension, into shared memory; elements outside the tensor become 0.
 * The barrier counts the whole box in bytes. One thread. */
static __device__ __forceinline__ void ptx_tma_load_4d(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int c0, int c1,
                                                       int c2, int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::
            "r"(shared),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

/* Between ordinary accesses to shared memory and those of the copy engine or of wgmma, by each thread that made the former.
 * PTX ISA, "Async proxy". */
static __device__ __forceinline__ void ptx_fence_proxy_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
