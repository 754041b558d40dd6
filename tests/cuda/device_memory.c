#include "device_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka_all.h"

enum { GUARD = 256, GUARD_BYTE = 0xa5, POISON_BYTE = 0xff, LEAST_CAPABILITY = 8 };

void device_require(void) {
    int devices = 0, major = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        puts("skipped: no CUDA device");
        exit(77);
    }
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major < LEAST_CAPABILITY) {
        printf("skipped: the CUDA device has compute capability %d.x, needs 8.0\n", major);
        exit(77);
    }
}

void device_succeed(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        fail_msg("%s: %s", what, cudaGetErrorString(error));
    }
}

device_memory device_memory_make(const void *host, size_t bytes, size_t shift) {
    device_memory m = {.bytes = bytes, .shift = shift};
    CUDA(cudaMalloc((void **)&m.base, bytes + shift + 2 * (size_t)GUARD));
    CUDA(cudaMemset(m.base, GUARD_BYTE, bytes + shift + 2 * (size_t)GUARD));
    m.data = m.base + GUARD + shift;
    device_memory_write(&m, host);
    return m;
}

void device_memory_write(const device_memory *m, const void *host) {
    CUDA(cudaDeviceSynchronize());
    if (host == NULL) {
        CUDA(cudaMemset(m->data, POISON_BYTE, m->bytes));
    } else {
        CUDA(cudaMemcpy(m->data, host, m->bytes, cudaMemcpyHostToDevice));
    }
    CUDA(cudaDeviceSynchronize());
}

void device_memory_write_async(const device_memory *m, const void *host, cudaStream_t stream) {
    CUDA(cudaMemcpyAsync(m->data, host, m->bytes, cudaMemcpyHostToDevice, stream));
}

static void check_guard(const char *guard, size_t bytes, const char *side) {
    unsigned char found[2 * GUARD];
    assert_true(bytes <= sizeof found);
    CUDA(cudaMemcpy(found, guard, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes; i++) {
        if (found[i] != GUARD_BYTE) {
            fail_msg("device memory was written %s an array, %zu bytes into its guard", side, i);
        }
    }
}

void device_memory_read(const device_memory *m, void *host) {
    CUDA(cudaDeviceSynchronize());
    check_guard(m->base, GUARD + m->shift, "before");
    check_guard((const char *)m->data + m->bytes, GUARD, "behind");
    if (host != NULL) {
        CUDA(cudaMemcpy(host, m->data, m->bytes, cudaMemcpyDeviceToHost));
    }
}

void device_memory_free(device_memory *m) {
    if (m->base != NULL) {
        device_memory_read(m, NULL);
        CUDA(cudaFree(m->base));
    }
    *m = (device_memory){0};
}

cudaStream_t device_stream_make(void) {
    cudaStream_t stream = NULL;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

size_t device_free_bytes(void) {
    size_t available = 0, total = 0;
    CUDA(cudaMemGetInfo(&available, &total));
    return available;
}
