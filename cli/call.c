#include "call.h"

#include <stdlib.h>
#include <time.h>

double fm_clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool fm_tensor_allocate(fm_tensor *out, fm_dtype dtype, const int64_t shape[4]) {
    int64_t count = 1;
    for (int d = 0; d < 4; d++) {
        if (__builtin_mul_overflow(count, shape[d], &count)) {
            return fm_cli_fail("the tensors are past 2^63 elements");
        }
    }
    void *data = fm_cli_allocate(count, fm_dtype_size(dtype));
    *out = fm_tensor_contiguous(data, dtype, shape[0], shape[1], shape[2], shape[3]);
    return data != NULL;
}

/* aligned_alloc wants a multiple of the alignment. */
static bool allocate_workspace(size_t bytes, void **out) {
    *out = bytes > 0 ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    return bytes == 0 || *out != NULL || fm_cli_fail("out of memory: a workspace of %zu bytes", bytes);
}

bool fm_call_forward(fm_attention_forward_args *args, double *seconds) {
    size_t bytes = 0;
    if (args->workspace == NULL) {
        if (!fm_cli_ok(fm_attention_forward_workspace(args, &bytes), "attention") ||
            !allocate_workspace(bytes, &args->workspace)) {
            return false;
        }
        args->workspace_bytes = bytes;
    }
    const double start = fm_clock_seconds();
    const bool ok = fm_cli_ok(fm_attention_forward(args), "attention");
    if (seconds != NULL) {
        *seconds = fm_clock_seconds() - start;
    }
    return ok;
}

bool fm_call_backward(fm_attention_backward_args *args, double *seconds) {
    size_t bytes = 0;
    if (args->workspace == NULL) {
        if (!fm_cli_ok(fm_attention_backward_workspace(args, &bytes), "attention") ||
            !allocate_workspace(bytes, &args->workspace)) {
            return false;
        }
        args->workspace_bytes = bytes;
    }
    const double start = fm_clock_seconds();
    const bool ok = fm_cli_ok(fm_attention_backward(args), "attention");
    if (seconds != NULL) {
        *seconds = fm_clock_seconds() - start;
    }
    return ok;
}
