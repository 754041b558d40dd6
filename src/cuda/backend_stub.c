/* The CUDA backend of a build without CUDA: every call says so. */
#include "attention/problem.h"

static fm_status unavailable(void) {
    fm_fail(FM_ERROR_UNSUPPORTED, "CUDA: this build of the library has no CUDA backend (FM_CUDA=ON builds it)");
    return FM_ERROR_UNSUPPORTED;
}

static fm_status check_device(fm_device device) {
    (void)device;
    return unavailable();
}

/* The dispatcher checks the device first, so the rest is never reached. */
const fm_backend fm_backend_cuda_sm80 = {
    .id = FM_BACKEND_CUDA_SM80, .name = "CUDA", .device = FM_CUDA, .uses_plan = true, .check_device = check_device};
