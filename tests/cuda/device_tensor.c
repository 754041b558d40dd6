#include "device_tensor.h"

#include "support/cmocka_all.h"

enum { PERIOD = 1048573 };

device_tensor device_tensor_make(fm_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    device_tensor t = {.view = fm_tensor_contiguous(NULL, dtype, n0, n1, n2, n3)};
    t.memory = device_memory_make(NULL, (size_t)(n0 * n1 * n2 * n3) * fm_dtype_size(dtype), 0);
    t.view.data = t.memory.data;
    t.view.device.kind = FM_CUDA;
    return t;
}

void device_tensor_free(device_tensor *t) {
    device_memory_free(&t->memory);
    *t = (device_tensor){0};
}

void device_tensor_fill(const device_tensor *t, test_random *random) {
    test_tensor block = test_tensor_make(LAYOUT_CONTIGUOUS, t->view.dtype, 1, 1, 1, PERIOD);
    test_tensor_fill(&block, random, 1.0);
    char *to = t->memory.data;
    size_t done = block.bytes < t->memory.bytes ? block.bytes : t->memory.bytes;
    CUDA(cudaMemcpy(to, block.buffer, done, cudaMemcpyHostToDevice));
    while (done < t->memory.bytes) { /* what is there is whole periods */
        const size_t rest = t->memory.bytes - done, bytes = done < rest ? done : rest;
        CUDA(cudaMemcpy(to + done, to, bytes, cudaMemcpyDeviceToDevice));
        done += bytes;
    }
    CUDA(cudaDeviceSynchronize());
    test_tensor_free(&block);
}

test_tensor device_tensor_slice(const device_tensor *t, int64_t item, int64_t first, int64_t count, int64_t head) {
    test_tensor slice = test_tensor_make(LAYOUT_CONTIGUOUS, t->view.dtype, 1, count, 1, t->view.shape[3]);
    const size_t element = fm_dtype_size(t->view.dtype), width = (size_t)t->view.shape[3] * element;
    const char *from = (const char *)t->memory.data + (size_t)fm_tensor_offset(&t->view, item, first, head, 0) * element;
    CUDA(cudaMemcpy2D(slice.buffer, width, from, (size_t)t->view.stride[1] * element, width, (size_t)count,
                      cudaMemcpyDeviceToHost));
    return slice;
}
