/* Barriers in shared memory that count arrivals and bytes. PTX ISA, "mbarrier". Addresses are those of ptx_shared_address.
 *
 * A barrier is in phase 0, 1, 2, ...; a phase ends when `arrivals` threads have arrived and all bytes that they expect have come. To
 * wait with parity q is to wait for the end of a phase of that parity, so on a fresh barrier a wait with parity 1 returns at once:
 * "the phase before the first one". */
#ifndef FM_CUDA_PTX_MBARRIER_CUH
#define FM_CUDA_PTX_MBARRIER_CUH

#include <stdint.h>

/* One thread; then ptx_mbarrier_fence_init by it and a barrier of the block. */
static __device__ __forceinline__ void ptx_mbarrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Makes inits visible to the copy engine. */
static __device__ __forceinline__ void ptx_mbarrier_fence_init(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void ptx_mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives; the phase also waits for `bytes` bytes of asynchronous copies. */
static __device__ __forceinline__ void ptx_mbarrier_arrive_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Returns once the phase of this parity has ended; what its arrivals released and its copies wrote is visible then. */
static __device__ __forceinline__ void ptx_mbarrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (done == 0);
}

#endif
