#include "cuda/device.h"

enum { MAJOR_NEEDED = 8 };

fm_status fm_cuda_fail(const char *what, int error) {
    fm_fail(FM_ERROR_CUDA, "CUDA: %s: %s", what, cudaGetErrorString((cudaError_t)error));
    return FM_ERROR_CUDA;
}

fm_status fm_cuda_check_device(fm_device device) {
    int count = 0, major = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        fm_fail(FM_ERROR_DEVICE, "CUDA: no device can be used: %s", cudaGetErrorString(error));
        return FM_ERROR_DEVICE;
    }
    FM_CHECK(device.kind == FM_CUDA && device.index >= 0 && device.index < count, FM_ERROR_DEVICE,
             "CUDA: device index is %d, this machine has %d", device.index, count);
    CUDA_TRY("compute capability", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
    FM_CHECK(major >= MAJOR_NEEDED, FM_ERROR_DEVICE, "CUDA: device %d has compute capability %d.x, needs %d.0 or later",
             device.index, major, MAJOR_NEEDED);
    return FM_OK;
}

fm_status fm_cuda_check_memory(const char *name, const void *memory, fm_device device) {
    struct cudaPointerAttributes attributes;
    FM_CHECK(memory != NULL, FM_ERROR_ARGUMENT, "%s: is NULL", name);
    CUDA_TRY(name, cudaPointerGetAttributes(&attributes, memory));
    FM_CHECK(attributes.type != cudaMemoryTypeUnregistered, FM_ERROR_DEVICE,
             "%s: is host memory that the GPU cannot read, needs memory of CUDA device %d", name, device.index);
    FM_CHECK(attributes.type != cudaMemoryTypeDevice || attributes.device == device.index, FM_ERROR_DEVICE,
             "%s: is memory of CUDA device %d, the tensors are on device %d", name, attributes.device, device.index);
    return FM_OK;
}

fm_status fm_cuda_enter_device(int32_t index, int *previous) {
    CUDA_TRY("current device", cudaGetDevice(previous));
    if (*previous != index) {
        CUDA_TRY("choosing the device", cudaSetDevice(index));
    }
    return FM_OK;
}

void fm_cuda_leave_device(int32_t index, int previous) {
    if (previous != index) {
        (void)cudaSetDevice(previous);
    }
}
