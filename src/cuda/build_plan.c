/* Device plans: a host mask's arrays go up as they are, and the plan kernels do the rest. */
#include "cuda/device.h"
#include "cuda/launch.h"

/* The window turned round: row i sees key j iff j - right <= i + shift <= j + left. */
static fm_cuda_window window_of(const fm_window *w) {
    return (fm_cuda_window){.first = -w->right - w->shift, .last = w->left - w->shift};
}

static fm_status refuse_capture(void *stream) {
    enum cudaStreamCaptureStatus capturing;
    CUDA_TRY("stream", cudaStreamIsCapturing((cudaStream_t)stream, &capturing));
    FM_CHECK(capturing == cudaStreamCaptureStatusNone, FM_ERROR_CUDA,
             "stream: is being captured, and a host mask must be uploaded: make its plan before the capture, or use "
             "fm_plan_create_from_vectors");
    return FM_OK;
}

static fm_status copy(void *to, const void *from, int64_t bytes, void *stream) {
    if (bytes > 0) {
        CUDA_TRY("mask upload", cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream));
    }
    return FM_OK;
}

/* The host mask's arrays as they are; pageable memory has been read when cudaMemcpyAsync returns. */
static fm_status upload(const fm_device_plan *plan, const fm_mask_view *mask, void *stream) {
    const int64_t planes = (int64_t)plan->batch * plan->heads;
    const size_t row = (size_t)plan->columns * sizeof(fm_interval), pitch = (size_t)plan->bounds_stride * sizeof(fm_interval);
    FM_TRY(refuse_capture(stream));
    const int64_t lines =
        planes * mask->intervals; /* both have intervals as a plane's rows: the plan has at least one, maybe empty */
    if (lines > 0 && row > 0) {
        CUDA_TRY("mask upload", cudaMemcpy2DAsync(plan->bounds, pitch, mask->bounds, row, row, (size_t)lines,
                                                  cudaMemcpyHostToDevice, (cudaStream_t)stream));
    }
    if (mask->intervals == 0 && row > 0) { /* every key empty: [0, 0) */
        CUDA_TRY("mask upload",
                 cudaMemsetAsync(plan->bounds, 0, pitch * (size_t)(planes * plan->intervals), (cudaStream_t)stream));
    }
    if (plan->stripe_slot == NULL) {
        return FM_OK;
    }
    if (mask->stripe_slot == NULL) { /* room for a fallback that this mask does not have: every slot is FM_NO_SLOT */
        CUDA_TRY("mask upload", cudaMemsetAsync(plan->stripe_slot, 0xff, (size_t)(planes * plan->stripes) * sizeof(int32_t),
                                                (cudaStream_t)stream));
        return FM_OK;
    }
    FM_TRY(copy(plan->stripe_slot, mask->stripe_slot, planes * plan->stripes * (int64_t)sizeof(int32_t), stream));
    FM_TRY(copy(plan->block_index, mask->block_index, mask->slots * plan->row_blocks * (int64_t)sizeof(int32_t), stream));
    return copy(plan->blocks, mask->blocks, mask->block_count * FM_BLOCK_WORDS * (int64_t)sizeof(uint64_t), stream);
}

static fm_status build_arrays(const fm_plan *plan, const fm_plan_source *source, void *stream) {
    const fm_device_plan *d = &plan->on_device;
    const fm_cuda_window window = window_of(&plan->window);
    if (source->vectors != NULL) {
        CUDA_TRY("plan", fm_cuda_plan_from_vectors(d, source->vectors, window, stream));
    } else if (source->mask != NULL) {
        FM_TRY(upload(d, source->mask, stream));
        CUDA_TRY("plan", fm_cuda_plan_from_bounds(d, window, stream));
    } else {
        CUDA_TRY("plan", fm_cuda_plan_from_nothing(d, window, stream));
    }
    return FM_OK;
}

fm_status fm_cuda_build_plan(const fm_plan *plan, const fm_plan_source *source, void *stream) {
    int previous;
    FM_TRY(fm_cuda_enter_device(plan->device.index, &previous));
    const fm_status status = build_arrays(plan, source, stream);
    fm_cuda_leave_device(plan->device.index, previous);
    return status;
}
