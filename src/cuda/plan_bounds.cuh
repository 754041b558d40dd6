/* The first step of a device plan: the visible rows of every key, one thread a key, from a caller's vectors, from a host mask that
 * was uploaded, or of no mask; then cut to the window. Keys never meet, so that intervals are replaced in place. */
#ifndef FM_CUDA_PLAN_BOUNDS_CUH
#define FM_CUDA_PLAN_BOUNDS_CUH

#include "cuda/launch.h"

enum { BOUNDS_THREADS = 256 };
static_assert(FM_MAX_INTERVALS == 4, "sort_intervals is a network of 4");

typedef enum bounds_source { FROM_VECTORS, FROM_BOUNDS, FROM_NOTHING } bounds_source;

static __device__ __forceinline__ int32_t clamp_row(int64_t row, int32_t rows) {
    return (int32_t)min(max(row, (int64_t)0), (int64_t)rows);
}

/* [start, end) inside [0, rows); every empty one as [rows, rows), which sorts last. */
static __device__ __forceinline__ fm_interval clip(int64_t start, int64_t end, int32_t rows) {
    const int32_t s = clamp_row(start, rows), e = clamp_row(end, rows);
    return s < e ? fm_interval{s, e} : fm_interval{rows, rows};
}

static __device__ __forceinline__ void sort_pair(fm_interval *a, fm_interval *b) {
    if (a->start > b->start) {
        const fm_interval x = *a;
        *a = *b;
        *b = x;
    }
}

static __device__ __forceinline__ void sort_intervals(fm_interval v[FM_MAX_INTERVALS]) {
    sort_pair(&v[0], &v[1]);
    sort_pair(&v[2], &v[3]);
    sort_pair(&v[0], &v[2]);
    sort_pair(&v[1], &v[3]);
    sort_pair(&v[1], &v[2]);
}

/* Writes the intervals of one key, given ascending, cut to the window. */
typedef struct bounds_writer {
    fm_interval *next, *end;
    int64_t stride;
    fm_interval window;
    int32_t rows;
} bounds_writer;

static __device__ __forceinline__ void write_interval(bounds_writer *w, int32_t start, int32_t end) {
    const fm_interval cut = {max(start, w->window.start), min(end, w->window.end)};
    if (cut.start < cut.end && w->next < w->end) {
        *w->next = cut;
        w->next += w->stride;
    }
}

static __device__ __forceinline__ void write_rest(bounds_writer *w) {
    for (; w->next < w->end; w->next += w->stride) {
        *w->next = fm_interval{w->rows, w->rows};
    }
}

/* Visible intervals in any order: overlapping and touching ones merge. */
static __device__ __forceinline__ void write_visible(bounds_writer *w, fm_interval v[FM_MAX_INTERVALS]) {
    sort_intervals(v);
    fm_interval merged = v[0];
#pragma unroll
    for (int m = 1; m < FM_MAX_INTERVALS; m++) {
        if (v[m].start <= merged.end) {
            merged.end = max(merged.end, v[m].end);
        } else {
            write_interval(w, merged.start, merged.end);
            merged = v[m];
        }
    }
    write_interval(w, merged.start, merged.end);
}

/* What masked intervals, in any order, leave of all rows. */
static __device__ __forceinline__ void write_unmasked(bounds_writer *w, fm_interval masked[FM_MAX_INTERVALS]) {
    int32_t row = 0;
    sort_intervals(masked);
#pragma unroll
    for (int m = 0; m < FM_MAX_INTERVALS; m++) {
        write_interval(w, row, masked[m].start);
        row = max(row, masked[m].end);
    }
    write_interval(w, row, w->rows);
}

/* startend_row_indices of one key; the meaning of each count of vectors stands in flashmask.h. */
static __device__ __forceinline__ void write_startend(bounds_writer *w, const fm_mask_vectors *f, const int32_t *v, int32_t key) {
    const int32_t rows = w->rows;
    const int64_t step = f->stride[3];
    const int64_t diagonal = (int64_t)key - (f->shape.columns - f->shape.rows);
    fm_interval masked[FM_MAX_INTERVALS] = {clip(0, f->causal ? diagonal : 0, rows), {rows, rows}, {rows, rows}, {rows, rows}};
    if (f->vectors == 1) {
        masked[1] = clip(v[0], rows, rows);
    } else if (f->vectors == 2 && !f->causal) {
        masked[1] = clip(v[0], rows, rows);
        masked[2] = clip(0, v[step], rows);
    } else {
        masked[1] = clip(v[0], v[step], rows);
        if (f->vectors == 4) {
            masked[2] = clip(v[2 * step], v[3 * step], rows);
        }
    }
    write_unmasked(w, masked);
}

static __device__ __forceinline__ void write_pairs(bounds_writer *w, const fm_mask_vectors *f, const int32_t *v) {
    const int64_t step = f->stride[3], past_last = f->format == FM_VECTORS_FMS_FME;
    fm_interval visible[FM_MAX_INTERVALS];
#pragma unroll
    for (int m = 0; m < FM_MAX_INTERVALS; m++) {
        visible[m] = fm_interval{w->rows, w->rows};
        if (2 * m < f->vectors) {
            visible[m] = clip(v[2 * m * step], v[(2 * m + 1) * step] + past_last, w->rows);
        }
    }
    write_visible(w, visible);
}

/* Intervals in place: already canonical, so only the window cuts them. All are read before the first is written. */
static __device__ __forceinline__ void write_uploaded(bounds_writer *w, int32_t intervals) {
    fm_interval v[FM_MAX_INTERVALS];
#pragma unroll
    for (int m = 0; m < FM_MAX_INTERVALS; m++) {
        v[m] = m < intervals ? w->next[m * w->stride] : fm_interval{0, 0};
    }
#pragma unroll
    for (int m = 0; m < FM_MAX_INTERVALS; m++) {
        write_interval(w, v[m].start, v[m].end);
    }
}

static __global__ void __launch_bounds__(BOUNDS_THREADS)
    bounds_kernel(const __grid_constant__ fm_device_plan plan, const __grid_constant__ fm_mask_vectors vectors,
                  const fm_cuda_window window, const bounds_source source) {
    const int64_t i = (int64_t)blockIdx.x * BOUNDS_THREADS + threadIdx.x, plane = i / plan.bounds_stride;
    const int32_t key = (int32_t)(i - plane * plan.bounds_stride), rows = plan.rows;
    if (plane >= (int64_t)plan.batch * plan.heads) {
        return;
    }
    fm_interval *first = plan.bounds + plane * plan.intervals * plan.bounds_stride + key;
    bounds_writer w = {.next = first,
                       .end = first + (int64_t)plan.intervals * plan.bounds_stride,
                       .stride = plan.bounds_stride,
                       .window = {clamp_row(key + window.first, rows), clamp_row(key + window.last + 1, rows)},
                       .rows = rows};
    const bool is_bitmap = plan.stripe_slot != NULL && plan.stripe_slot[plane * plan.stripes + key / FM_PLAN_GROUP] >= 0;
    if (key >= plan.columns) {
        /* no rows */
    } else if (source == FROM_NOTHING || is_bitmap) {
        write_interval(&w, 0, rows);
    } else if (source == FROM_BOUNDS) {
        write_uploaded(&w, plan.intervals);
    } else {
        const int32_t *v = vectors.data + plane / plan.heads * vectors.stride[0] + plane % plan.heads * vectors.stride[1] +
                           key * vectors.stride[2];
        if (vectors.format == FM_VECTORS_STARTEND) {
            write_startend(&w, &vectors, v, key);
        } else {
            write_pairs(&w, &vectors, v);
        }
    }
    write_rest(&w);
}

#endif
