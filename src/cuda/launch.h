/* What backend.c hands to the launch functions of the kernels: plain structs, passed on to the kernels by value, and the table of
 * variants. Every launch function returns a cudaError_t as int, launches on `stream` of the current device and waits for nothing. */
#ifndef FM_CUDA_LAUNCH_H
#define FM_CUDA_LAUNCH_H

#include "plan/device_plan.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Strides in elements, [batch, row, head, dim]. in_chunks: rows can be read 16 bytes at a time: aligned data, dim stride 1, other
 * strides whole chunks. */
typedef struct fm_cuda_tensor {
    void *data;
    int64_t stride[4];
    bool in_chunks;
} fm_cuda_tensor;

/* A problem on the device. plan->on_device is plan. */
typedef struct fm_cuda_problem {
    fm_device_plan plan;
    fm_cuda_tensor query, key, value, output;
    float *lse;         /* [B, Hq, Sq] or NULL */
    const float *sinks; /* [Hq] or NULL */
    int32_t batch, rows, columns, heads, heads_kv, head_dim, head_dim_v;
    int32_t heads_together; /* query heads whose work is scheduled side by side because their K and V fit L2; whole groups */
    float scale, softcap;
    bool no_skip;
    bool output_is_f32;
} fm_cuda_problem;

typedef struct fm_cuda_backward_problem {
    fm_cuda_problem forward;
    fm_cuda_tensor grad_output;                      /* f32 if output is */
    const float *grad_lse;                           /* [B, Hq, Sq] or NULL */
    fm_cuda_tensor grad_query, grad_key, grad_value; /* data NULL: not wanted */
    bool grad_query_is_f32, grad_key_is_f32, grad_value_is_f32;
    float *grad_sinks; /* [Hq] or NULL */
    /* Workspace, written by the row_terms kernel: for each row what dS = P (dP - delta) needs, P = exp2(S log2e - lse2). */
    int64_t terms_stride; /* rows of a head: Sq, or more, then as if empty */
    float *lse2;          /* [B, Hq, terms_stride] log2e * log(exp(lse) + exp(sink)); +inf for an empty row, so that P is 0 */
    float *delta;         /* [B, Hq, terms_stride] dO . O - grad_lse exp(lse_total - lse) */
    /* Sum of dQ, f32, zeroed by row_terms unless there are turns. Element (head b * Hq + h, row, dim) lies at h * sum_head +
     * row / 16 * sum_slab + dim / 8 * sum_chunk + row % 16 * 8 + dim % 8, so that what a warp adds at once lies in a row of memory.
     * NULL where the backward kernel makes no dQ: f32, not wanted, wanted alone (unless deterministic with turns), or deterministic
     * without turns. */
    float *grad_query_sum;
    int64_t sum_head, sum_slab, sum_chunk;
    /* Of the Hopper kernels, zeroed by row_terms. counter counts items; turns, [B, Hq, tiles of 64 rows], groups of keys that have
     * added their dQ, for head dims above 128 twice, a block each: if deterministic all, one after another, else the first, which writes
     * what others add to. NULL: other kernels, or key heads of several query heads and not deterministic. */
    uint32_t *counter, *turns;
    bool deterministic;
} fm_cuda_backward_problem;

/* plan.cu: fills every array of a plan from vectors, from the uploaded bounds of a host mask, or from nothing. The causal flag and
 * the window as a key sees them: */
typedef struct fm_cuda_window {
    int64_t first, last; /* rows that may see key j: [j + first, j + last] */
} fm_cuda_window;
int fm_cuda_plan_from_vectors(const fm_device_plan *plan, const fm_mask_vectors *vectors, fm_cuda_window window, void *stream);
/* bounds hold [planes, M] rows of the host mask's intervals, already at bounds_stride; the fallback's arrays are uploaded */
int fm_cuda_plan_from_bounds(const fm_device_plan *plan, fm_cuda_window window, void *stream);
/* everything visible */
int fm_cuda_plan_from_nothing(const fm_device_plan *plan, fm_cuda_window window, void *stream);

/* zero.cu: every element of a [n0, n1, n2, n3] tensor of halves or f32. */
int fm_cuda_zero(const fm_cuda_tensor *tensor, const int64_t shape[4], fm_dtype dtype, void *stream);

/* Rows of a slab of dQ's sum, which a block of finish_grad_query takes. */
enum { FM_CUDA_ROW_BLOCK = 16 };

/* backward_aux.cu, dtypes by enum: row terms and zeroing before the main kernel; dQ's conversion and the sinks' gradient after it. */
int fm_cuda_row_terms(const fm_cuda_backward_problem *problem, fm_dtype dtype, void *stream);
int fm_cuda_finish_grad_query(const fm_cuda_backward_problem *problem, fm_dtype dtype, void *stream);
int fm_cuda_grad_sinks(const fm_cuda_backward_problem *problem, void *stream);

/* sm80/: of each (dtype, head dim bucket), the smallest bucket that holds D and Dv. variants.h lists those that the build has. */
#define FM_CUDA_DECLARE(dtype, dim)                                                                      \
    int fm_sm80_forward_##dtype##_##dim(const fm_cuda_problem *problem, void *stream);                   \
    int fm_sm80_backward_##dtype##_##dim(const fm_cuda_backward_problem *problem, void *stream);         \
    int fm_sm80_backward_compact_##dtype##_##dim(const fm_cuda_backward_problem *problem, void *stream); \
    int fm_sm80_grad_query_##dtype##_##dim(const fm_cuda_backward_problem *problem, void *stream);
#define FM_CUDA_DECLARE_BOTH(dim) FM_CUDA_DECLARE(f16, dim) FM_CUDA_DECLARE(bf16, dim)
FM_CUDA_DECLARE_BOTH(64)
FM_CUDA_DECLARE_BOTH(96)
FM_CUDA_DECLARE_BOTH(128)
FM_CUDA_DECLARE_BOTH(192)
FM_CUDA_DECLARE_BOTH(256)

/* sm90/forward.c: the forward kernel for Hopper. The first function says how many bytes place->workspace needs, whatever they hold.
 * The second is false where device, build or tensors do not allow the kernel, and nothing was launched; else *error is a cudaError_t. */
typedef struct fm_sm90_place {
    int32_t device;
    void *workspace, *stream;
} fm_sm90_place;
typedef struct fm_sm90_extents {
    int64_t batch, rows, columns, heads, head_dim_v;
} fm_sm90_extents;
size_t fm_sm90_forward_workspace(const fm_sm90_extents *extents);
bool fm_sm90_forward(const fm_cuda_problem *problem, fm_dtype dtype, const fm_sm90_place *place, int *error);

/* f32 tensors, every head dim: FMA kernels. */
int fm_sm80_forward_f32(const fm_cuda_problem *problem, void *stream);
int fm_sm80_backward_f32(const fm_cuda_backward_problem *problem, void *stream);

#ifdef __cplusplus
}
#endif
#endif
