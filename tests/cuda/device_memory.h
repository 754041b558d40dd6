/* Device memory for tests: filled, guarded on both sides, read back. Every function fails the test where CUDA does. */
#ifndef FM_TESTS_DEVICE_MEMORY_H
#define FM_TESTS_DEVICE_MEMORY_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

/* A program's first line: without a device of compute capability 8.0 or later it says so and exits with 77, ctest's "skipped". */
void device_require(void);

void device_succeed(cudaError_t error, const char *what);
#define CUDA(call) device_succeed(call, #call)

/* 256 bytes on each side hold a pattern of their own. data is 256-byte aligned, but for `shift` bytes. */
typedef struct device_memory {
    char *base;
    void *data; /* NULL: none */
    size_t bytes, shift;
} device_memory;

/* host NULL: every byte is 0xff, a NaN in all dtypes. Complete on return, for every stream. */
device_memory device_memory_make(const void *host, size_t bytes, size_t shift);
/* Overwrites it; NULL as above. Waits for the device before and after. */
void device_memory_write(const device_memory *memory, const void *host);
/* The same in stream order, host memory to stay until the stream has run. */
void device_memory_write_async(const device_memory *memory, const void *host, cudaStream_t stream);
/* Waits for the device. Fails the test if a guard was written; host NULL: checks guards alone. */
void device_memory_read(const device_memory *memory, void *host);
/* Reads the guards too. */
void device_memory_free(device_memory *memory);

/* A stream that does not wait for the default stream. */
cudaStream_t device_stream_make(void);

/* Bytes of device memory that are free. */
size_t device_free_bytes(void);

#endif
