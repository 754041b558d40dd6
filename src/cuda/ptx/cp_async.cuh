/* Asynchronous copies from global to shared memory. PTX ISA, "cp.async". */
#ifndef FM_CUDA_PTX_CP_ASYNC_CUH
#define FM_CUDA_PTX_CP_ASYNC_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t ptx_shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/* 16 bytes past L1; 16 zero bytes, and no read, unless valid. */
static __device__ __forceinline__ void ptx_cp_async_16(uint32_t shared, const void *global, bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/* 4 bytes, through L1: only copies of 16 can pass it. */
static __device__ __forceinline__ void ptx_cp_async_4(uint32_t shared, const void *global, bool valid) {
    const int bytes = valid ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/* Closes the group of copies issued since the last one. */
static __device__ __forceinline__ void ptx_cp_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most N of this thread's groups are in flight. Other threads' copies need a barrier after it. */
template <int N> static __device__ __forceinline__ void ptx_cp_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
