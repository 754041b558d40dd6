/* Devices and memory of the CUDA backend, and how its functions answer a cudaError_t. */
#ifndef FM_CUDA_DEVICE_H
#define FM_CUDA_DEVICE_H

#include "attention/problem.h"

#include <cuda_runtime_api.h>

/* FM_ERROR_CUDA, with a message that says what failed. */
fm_status fm_cuda_fail(const char *what, int error);

/* Returns from the caller where a call, of type int or cudaError_t, fails. */
#define CUDA_TRY(what, call)                   \
    do {                                       \
        const int error_ = (int)(call);        \
        if (error_ != cudaSuccess) {           \
            (void)cudaGetLastError();          \
            return fm_cuda_fail(what, error_); \
        }                                      \
    } while (0)

/* Those of fm_backend. */
fm_status fm_cuda_check_device(fm_device device);
fm_status fm_cuda_check_memory(const char *name, const void *memory, fm_device device);
fm_status fm_cuda_build_plan(const fm_plan *plan, const fm_plan_source *source, void *stream); /* build_plan.c */

/* Makes a device current; a context of the caller's that is current on it stays. leave undoes it. */
fm_status fm_cuda_enter_device(int32_t index, int *previous);
void fm_cuda_leave_device(int32_t index, int previous);

#endif
