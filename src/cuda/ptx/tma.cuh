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

/* `bytes` contiguous bytes, a multiple of 16 as both addresses. One thread. PTX ISA, "cp.async.bulk". */
static __device__ __forceinline__ void ptx_bulk_load(uint32_t shared, const void *global, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Adds contiguous f32 from shared memory to global memory, each atomically. One thread; commit, then wait before the shared memory
 * is written again (ptx_bulk_wait_read), or before the kernel ends (ptx_bulk_wait). PTX ISA, "cp.reduce.async.bulk". */
static __device__ __forceinline__ void ptx_bulk_add_f32(float *global, uint32_t shared, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global), "r"(shared),
                 "r"(bytes)
                 : "memory");
}
/* Likewise, in the place of what is there. */
static __device__ __forceinline__ void ptx_bulk_store(void *global, uint32_t shared, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void ptx_bulk_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void ptx_bulk_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
/* Also empties L1 (CCTL.IVALL). */
template <int N> static __device__ __forceinline__ void ptx_bulk_wait(void) {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

/* Between ordinary accesses to shared memory and those of the copy engine or of wgmma, by each thread that made the former.
 * PTX ISA, "Async proxy". */
static __device__ __forceinline__ void ptx_fence_proxy_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
