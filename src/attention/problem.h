/* What a backend receives: one call, checked, with every default filled in and at least one row of output. Backends do not
 * check again. */
#ifndef FM_ATTENTION_PROBLEM_H
#define FM_ATTENTION_PROBLEM_H

#include "core/integers.h"
#include "plan/plan.h"

#include <omp.h>

enum { FM_MOST_HEAD_DIM = 256 }; /* of D and Dv */
enum { FM_MOST_THREADS = 1024 };

typedef struct fm_problem {
    int64_t batch, rows, columns; /* B, Sq, Sk */
    int64_t heads, heads_kv;      /* Hq, Hkv; query head h uses key head h / (Hq / Hkv) */
    int64_t head_dim, head_dim_v; /* D, Dv */
    fm_tensor query, key, value, output;
    float *lse;               /* [B, Hq, Sq] or NULL */
    const fm_mask_view *mask; /* CPU backends: never NULL, no mask is a full one. CUDA: NULL, the plan holds it */
    fm_window window;     /* causal and window flags, to be intersected with the mask; a device plan's bounds have it inside */
    const fm_plan *plan;  /* of this mask and window with the backend's tiles; NULL if the backend has none */
    float scale, softcap; /* softcap 0: off */
    const float *sinks;   /* [Hq] or NULL */
    bool no_skip;
    fm_backend_id asked; /* AUTO leaves the choice of kernels to the backend */
    int32_t num_threads; /* 0: OpenMP's choice */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} fm_problem;

typedef struct fm_backward_problem {
    fm_problem forward; /* output and lse hold the forward's results */
    fm_tensor grad_output;
    const float *grad_lse;                      /* [B, Hq, Sq] or NULL */
    fm_tensor grad_query, grad_key, grad_value; /* data NULL: not wanted */
    float *grad_sinks;                          /* [Hq] or NULL */
    bool deterministic;
} fm_backward_problem;

/* Mask batch item and mask head of batch item b and query head h. */
static inline int64_t fm_problem_mask_batch(const fm_problem *p, int64_t b) { return p->mask->shape.batch == 1 ? 0 : b; }
static inline int64_t fm_problem_mask_head(const fm_problem *p, int64_t h) { return h / (p->heads / p->mask->shape.heads); }
static inline int64_t fm_problem_key_head(const fm_problem *p, int64_t h) { return h / (p->heads / p->heads_kv); }

/* OpenMP's own choice, within what num_threads may be: with OMP_NUM_THREADS=-1 libomp's is negative, and each of 100000 threads
 * would take half a megabyte. */
static inline int32_t fm_problem_free_threads(void) { return (int32_t)fm_clamp(omp_get_max_threads(), 1, FM_MOST_THREADS); }

/* What a device plan is made of: a host mask, which is uploaded, or vectors on the plan's device, or neither (all visible). */
typedef struct fm_plan_source {
    const fm_mask_view *mask;
    const fm_mask_vectors *vectors;
} fm_plan_source;

/* One backend: a table of functions. */
typedef struct fm_backend {
    fm_backend_id id;
    const char *name;
    fm_device_kind device;
    bool uses_plan;
    bool takes_f64;
    /* never a function of the mask: mask and plan of the problem are not set */
    fm_status (*forward_workspace)(const fm_problem *problem, size_t *bytes);
    fm_status (*backward_workspace)(const fm_backward_problem *problem, size_t *bytes);
    fm_status (*forward)(const fm_problem *problem);
    fm_status (*backward)(const fm_backward_problem *problem);
    /* Backends of a GPU; NULL in others. */
    fm_status (*zero_gradients)(const fm_backward_problem *problem); /* of a problem without output elements */
    fm_status (*check_device)(fm_device device);                     /* present, with a driver, and new enough */
    /* That memory may be used by the device's kernels; name leads the message. NULL may not. */
    fm_status (*check_memory)(const char *name, const void *memory, fm_device device);
    /* Writes every array of plan->on_device from source, intersected with plan->window, in stream order. */
    fm_status (*build_plan)(const fm_plan *plan, const fm_plan_source *source, void *stream);
} fm_backend;

extern const fm_backend fm_backend_reference; /* attention/reference.c */
extern const fm_backend fm_backend_cpu;       /* cpu/backend.c */
extern const fm_backend fm_backend_cuda_sm80; /* cuda/backend.c, or cuda/backend_stub.c in a build without CUDA */

#endif
