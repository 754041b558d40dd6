/* Turns of blocks by a counter in global memory, for what the copy engine adds and stores there. PTX ISA, "ld", "red", "Async proxy". */
#ifndef FM_CUDA_PTX_TURN_CUH
#define FM_CUDA_PTX_TURN_CUH

#include <stdint.h>

/* Returns once the counter is `turn` or more. Copies to global memory that the thread starts then follow those that were complete when the
 * turns were passed on: so on sm_90, not by the letter of PTX, which asks for an acquire. That is this load and CCTL.IVALL, which empties
 * the multiprocessor's L1, where blocks keep the mask's bounds. These copies leave from behind a branch on what the load brought from
 * L2, and work in L2. Nothing else is ordered. One thread. */
static __device__ __forceinline__ void ptx_turn_wait(const uint32_t *counter, uint32_t turn) {
    uint32_t now;
    do {
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now < turn);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* Passes the turn on: to counter + 1. What the copy engine wrote must be complete (ptx_bulk_wait), which makes it visible like the
 * thread's own writes. */
static __device__ __forceinline__ void ptx_turn_pass(uint32_t *counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

#endif
