/* Tensors in device memory that are too large for the host: filled there, looked at through slices. */
#ifndef FM_TESTS_DEVICE_TENSOR_H
#define FM_TESTS_DEVICE_TENSOR_H

#include "device_memory.h"
#include "support/test_tensor.h"

typedef struct device_tensor {
    fm_tensor view; /* contiguous, on device 0 */
    device_memory memory;
} device_tensor;

/* Every byte is 0xff. */
device_tensor device_tensor_make(fm_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3);
void device_tensor_free(device_tensor *tensor);

/* Normal values that repeat after a prime number of elements, so that no two rows that an offset wrong by a power of two would
 * exchange are alike. */
void device_tensor_fill(const device_tensor *tensor, test_random *random);

/* [1, count, 1, n3] of one item and head, copied to the host. */
test_tensor device_tensor_slice(const device_tensor *tensor, int64_t item, int64_t first, int64_t count, int64_t head);

#endif
