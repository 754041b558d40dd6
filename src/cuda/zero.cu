/* Zeroes a strided tensor: gradients of a call that has no row of output. */
#include "cuda/launch.h"
#include "cuda/launch_kernel.cuh"

enum { THREADS = 256, MOST_BLOCKS = 4096 };

typedef struct extents {
    int64_t n[4];
} extents;

template <int BYTES> static __global__ void zero_kernel(fm_cuda_tensor t, extents e) {
    const int64_t count = e.n[0] * e.n[1] * e.n[2] * e.n[3], step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const int64_t d = i % e.n[3], h = i / e.n[3] % e.n[2], row = i / e.n[3] / e.n[2] % e.n[1],
                      b = i / e.n[3] / e.n[2] / e.n[1];
        const int64_t offset = b * t.stride[0] + row * t.stride[1] + h * t.stride[2] + d * t.stride[3];
        if (BYTES == 4) {
            static_cast<uint32_t *>(t.data)[offset] = 0;
        } else {
            static_cast<uint16_t *>(t.data)[offset] = 0;
        }
    }
}

int fm_cuda_zero(const fm_cuda_tensor *tensor, const int64_t shape[4], fm_dtype dtype, void *stream) {
    extents e = {{shape[0], shape[1], shape[2], shape[3]}};
    const int64_t count = shape[0] * shape[1] * shape[2] * shape[3], blocks = (count + THREADS - 1) / THREADS;
    const void *kernel = dtype == FM_F32 ? (const void *)zero_kernel<4> : (const void *)zero_kernel<2>;
    fm_cuda_tensor t = *tensor;
    void *arguments[] = {&t, &e};
    return launch_kernel(kernel, launch_shape{blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS, 1, THREADS, 0}, arguments, stream);
}
