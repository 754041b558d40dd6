/* Launching kernels from the host. */
#ifndef FM_CUDA_LAUNCH_KERNEL_CUH
#define FM_CUDA_LAUNCH_KERNEL_CUH

#include <cuda_runtime.h>
#include <stdint.h>

typedef struct launch_shape {
    int64_t blocks; /* along x, whose limit is 2^31 - 1; 0: nothing to do */
    int parts;      /* along y */
    int threads;
    size_t shared_bytes; /* dynamic */
} launch_shape;

/* A cudaError_t, the launch's own: cudaGetLastError after it would also report what an earlier call of the caller's left behind. */
static inline int launch_kernel(const void *kernel, launch_shape shape, void **arguments, void *stream) {
    if (shape.blocks == 0) {
        return cudaSuccess;
    }
    if (shape.blocks > INT32_MAX) {
        return cudaErrorInvalidConfiguration;
    }
    if (shape.shared_bytes > 0) {
        const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shape.shared_bytes);
        if (error != cudaSuccess) {
            return error;
        }
    }
    return cudaLaunchKernel(kernel, dim3((unsigned)shape.blocks, (unsigned)shape.parts), dim3((unsigned)shape.threads), arguments,
                            shape.shared_bytes, static_cast<cudaStream_t>(stream));
}

/* Of a kernel that takes one struct. */
static inline int launch_with(const void *kernel, launch_shape shape, const void *argument, void *stream) {
    void *arguments[] = {const_cast<void *>(argument)};
    return launch_kernel(kernel, shape, arguments, stream);
}

#endif
