/* flashmask: attention with column-wise masks. Public C interface: status, tensor, mask, plan, attention.
 *
 * Conventions that hold everywhere:
 *   - Tensors are [batch, sequence, heads, head_dim] with any strides; [batch, heads, sequence, head_dim] is a transposed view.
 *   - Causal is aligned bottom-right: row i sees key j if and only if j <= i + (Sk - Sq).
 *   - A mask lists, for each key column, the query rows that MAY see it: up to FM_MAX_INTERVALS half-open intervals.
 *   - A row that sees no key has output 0, lse -inf and query gradient 0, and adds nothing to other gradients.
 *   - Every function returns an fm_status; results come back through pointers and are untouched on failure.
 *   - Masks and host plans are immutable: threads may share them. The library never prints and never exits.
 * Builders of named masks and packing are in masks.h.
 */
#ifndef FLASHMASK_FLASHMASK_H
#define FLASHMASK_FLASHMASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(FM_BUILD_SHARED)
#define FM_API __attribute__((visibility("default")))
#else
#define FM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ------------------------------------------------------------------------------------------------------ */

#define FM_VERSION 100 /* major * 10000 + minor * 100 + patch: 0.1.0 */

/* FM_VERSION of the library that is linked, which may be newer than this header. */
FM_API int fm_version(void);

/* ---- status ------------------------------------------------------------------------------------------------------- */

typedef enum fm_status {
    FM_OK = 0,
    FM_ERROR_ARGUMENT = 10,       /* null, negative, out of range, inconsistent                                */
    FM_ERROR_SHAPE = 11,          /* sizes or strides of two arguments do not fit together                     */
    FM_ERROR_DTYPE = 12,          /* element type not accepted there                                           */
    FM_ERROR_DEVICE = 13,         /* memory or plan on another device than the call needs                      */
    FM_ERROR_UNSUPPORTED = 20,    /* valid, but this build or backend does not have it                         */
    FM_ERROR_CANNOT_EXPRESS = 21, /* the target form cannot hold this mask; the message names the first column */
    FM_ERROR_LIMIT = 22,          /* a size limit would be passed; the message says by how much                */
    FM_ERROR_OUT_OF_MEMORY = 30,
    FM_ERROR_WORKSPACE = 31, /* workspace missing or smaller than the matching _workspace function says   */
    FM_ERROR_CUDA = 40,
    FM_ERROR_IO = 50,
    FM_ERROR_INTERNAL = 90
} fm_status;

/* "FM_OK", "FM_ERROR_SHAPE", ...; "unknown status" for other values. Never NULL. */
FM_API const char *fm_status_name(fm_status status);

/* What went wrong in the calling thread's last failed fm_ call: the argument, what was given, what is accepted.
 * Valid until that thread's next fm_ call. Empty string when nothing failed. */
FM_API const char *fm_error_message(void);

/* ---- tensor ------------------------------------------------------------------------------------------------------- */

typedef enum fm_dtype { FM_F32 = 0, FM_F16 = 1, FM_BF16 = 2, FM_F64 = 3 /* reference backend only */ } fm_dtype;
typedef enum fm_device_kind { FM_CPU = 0, FM_CUDA = 1 } fm_device_kind;

typedef struct fm_device {
    fm_device_kind kind;
    int32_t index; /* 0 for the CPU */
} fm_device;

/* A view of memory that the caller owns. Strides count elements, are not negative, and may be 0 for inputs.
 * data must be aligned to its element size and may be NULL only where a function says so or where an extent is 0. */
typedef struct fm_tensor {
    void *data;
    fm_dtype dtype;
    fm_device device;
    int32_t rank;
    int64_t shape[4], stride[4];
} fm_tensor;

/* Bytes of one element, 0 for an unknown dtype. */
FM_API size_t fm_dtype_size(fm_dtype dtype);

/* A C-contiguous CPU tensor of rank 4 over data. Checks nothing: calls that get it refuse extents that are not legal. */
FM_API fm_tensor fm_tensor_contiguous(void *data, fm_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3);

/* ---- mask --------------------------------------------------------------------------------------------------------- */

/* A mask owns its memory and keeps no pointer into the caller's. One that comes back through `out` belongs to the caller, who
 * frees it once, when no thread uses it any more. Stored form: per key column, 0..FM_MAX_INTERVALS visible row intervals,
 * ascending, not empty, separated by at least one row. A mask that needs more intervals in some column stores the aligned
 * FM_STRIPE keys around that column as bitmaps (the fallback): 128 x 128 bits per partly visible block, equal blocks stored
 * once. */
typedef struct fm_mask fm_mask;

/* Bm, Hm, Sq, Sk: each 0 .. 2^31 - 1, batch * heads 1 .. 2^31 - 1, their product below 2^63 (FM_ERROR_LIMIT). */
typedef struct fm_mask_shape {
    int64_t batch, heads, rows, columns;
} fm_mask_shape;

typedef struct fm_interval {
    int32_t start, end; /* rows [start, end) */
} fm_interval;

#define FM_MAX_INTERVALS 4
#define FM_STRIPE 128

/* Options of the functions whose result may need the fallback. NULL where accepted means the defaults. */
typedef struct fm_mask_options {
    size_t size; /* sizeof(fm_mask_options) */
    /* Most bytes the fallback may take; -1: 1 GiB. Beyond: FM_ERROR_LIMIT naming the bytes that it needs, or above 4 GiB, where
     * counting ends, that it needs at least. */
    int64_t fallback_limit;
} fm_mask_options;

/* Releases a mask. NULL is accepted. Plans made from the mask stay valid. */
FM_API void fm_mask_free(fm_mask *mask);

/* All zeros for NULL. */
FM_API fm_mask_shape fm_mask_get_shape(const fm_mask *mask);

/* M: intervals of the widest column that is not a bitmap, 0..FM_MAX_INTERVALS. 0 for NULL. */
FM_API int32_t fm_mask_interval_count(const fm_mask *mask);

FM_API bool fm_mask_has_fallback(const fm_mask *mask);

/* Bytes of the intervals and of the fallback together: 8 * M per key, batch item and head, plus the bitmaps. */
FM_API int64_t fm_mask_bytes(const fm_mask *mask);

/* Bytes of the fallback alone; 0 without one. */
FM_API int64_t fm_mask_fallback_bytes(const fm_mask *mask);

/* 64 bits that are equal for equal masks, on every machine. 0 for NULL. */
FM_API uint64_t fm_mask_hash(const fm_mask *mask);

/* True if both masks have the same shape and the same visible pairs. */
FM_API bool fm_mask_equal(const fm_mask *a, const fm_mask *b);

/* The visible intervals of one column into out[0 .. *count). FM_ERROR_CANNOT_EXPRESS if it has more than FM_MAX_INTERVALS.
 * O(M), or O(Sq) with memory of its own where the column is in a bitmap: whole masks are read with fm_mask_to_intervals. */
FM_API fm_status fm_mask_column(const fm_mask *mask, int64_t batch, int64_t head, int64_t column,
                                fm_interval out[FM_MAX_INTERVALS], int32_t *count);

/* Number of visible (row, column) pairs over all batch items and heads of the mask. O(1). */
FM_API fm_status fm_mask_visible_pairs(const fm_mask *mask, int64_t *pairs);

/* -- conversions into a mask. Arrays are packed, C-contiguous, on the host, and not kept. O(input). -- */

/* FlashMask's own vectors, v: [Bm, Hm, Sk, vectors] of MASKED half-open row intervals (Paddle's startend_row_indices).
 *   causal,     1: rows >= v0 are masked             causal,     2: rows [v0, v1) are masked
 *   not causal, 2: rows >= v0 and rows < v1 masked   not causal, 4: rows [v0, v1) and rows [v2, v3) are masked
 * causal additionally masks above the bottom-right diagonal. Values are clamped to [0, Sq]; start >= end masks nothing.
 * FM_ERROR_ARGUMENT for any other combination. */
FM_API fm_status fm_mask_from_startend_row_indices(fm_mask_shape shape, int32_t vectors, bool causal, const int32_t *v,
                                                   fm_mask **out);

/* First and last VISIBLE row, both inclusive: fms, fme: [Bm, Hm, intervals, Sk], intervals 1..4 in any order; overlapping
 * ones merge. Values are intersected with [0, Sq - 1]; fms > fme is an empty interval. */
FM_API fm_status fm_mask_from_fms_fme(fm_mask_shape shape, int32_t intervals, const int32_t *fms, const int32_t *fme,
                                      fm_mask **out);

/* VISIBLE half-open row intervals, v: [Bm, Hm, intervals, Sk], intervals 0..4 in any order; overlapping and touching ones
 * merge; start == end is empty. FM_ERROR_ARGUMENT if start > end, start < 0 or end > Sq. */
FM_API fm_status fm_mask_from_intervals(fm_mask_shape shape, int32_t intervals, const fm_interval *v, fm_mask **out);

/* VISIBLE half-open key ranges of each row, start, end: [Bm, Hm, ranges, Sq], ranges >= 0, in any order; overlapping ones
 * merge; start == end is empty. FM_ERROR_ARGUMENT if start > end or outside [0, Sk]. */
FM_API fm_status fm_mask_from_row_ranges(fm_mask_shape shape, int32_t ranges, const int32_t *start, const int32_t *end,
                                         const fm_mask_options *options, fm_mask **out);

/* Documents by cumulative lengths, cu_q[0 .. documents], cu_k likewise (NULL: cu_k = cu_q), both starting at 0 and not
 * descending, last entries at most Sq and Sk. causal is bottom-right inside each document. Zero-length documents are legal.
 * Rows and keys past the last entry are padding: they see nothing and nobody sees them. */
FM_API fm_status fm_mask_from_cu_seqlens(const int32_t *cu_q, const int32_t *cu_k, int64_t documents, bool causal, int64_t Sq,
                                         int64_t Sk, fm_mask **out);

/* Document of each token, ids: [batch, length]. Equal ids are one document wherever they stand. Tokens whose id is
 * padding_id are padding; padding_id -1: there is none. FM_ERROR_ARGUMENT for other negative ids. */
FM_API fm_status fm_mask_from_document_ids(int64_t batch, int64_t length, const int32_t *ids, int32_t padding_id, bool causal,
                                           const fm_mask_options *options, fm_mask **out);

/* Position of each token, ids: [batch, length]: a value that is not its predecessor + 1 starts a document (whatever the
 * value). With padding set, two or more equal ids at the end are padding, without the first of them where it continues its
 * predecessor; two or more at the beginning likewise, without the last of them where its successor continues it.
 * FM_ERROR_ARGUMENT for negative ids. */
FM_API fm_status fm_mask_from_position_ids(int64_t batch, int64_t length, const int32_t *ids, bool causal, bool padding,
                                           fm_mask **out);

/* A dense matrix, visible: [Bm, Hm, Sq, Sk], nonzero = visible. */
FM_API fm_status fm_mask_from_dense(fm_mask_shape shape, const uint8_t *visible, const fm_mask_options *options, fm_mask **out);

/* -- conversions out of a mask, into the forms above, in the same layouts. capacity counts the elements that each array has room
 *    for; FM_ERROR_ARGUMENT when the form has more. Unused intervals are [Sq, Sq), unused key ranges [Sk, Sk).
 *    FM_ERROR_CANNOT_EXPRESS names the first column (row) that does not fit; nothing is written then. -- */
FM_API fm_status fm_mask_to_startend_row_indices(const fm_mask *mask, int32_t vectors, bool causal, int32_t *v, int64_t capacity);
FM_API fm_status fm_mask_to_fms_fme(const fm_mask *mask, int32_t intervals, int32_t *fms, int32_t *fme, int64_t capacity);
FM_API fm_status fm_mask_to_intervals(const fm_mask *mask, int32_t intervals, fm_interval *v, int64_t capacity);
FM_API fm_status fm_mask_to_row_ranges(const fm_mask *mask, int32_t ranges, int32_t *start, int32_t *end, int64_t capacity);
/* A mask of packed documents, causal or not, batch 1 and heads 1. capacity: entries of cu_q and of cu_k, documents + 1 are
 * written. Zero-length documents are not recovered. */
FM_API fm_status fm_mask_to_cu_seqlens(const fm_mask *mask, bool causal, int32_t *cu_q, int32_t *cu_k, int64_t capacity,
                                       int64_t *documents);
/* 1 = visible. FM_ERROR_LIMIT above 2^32 bytes. */
FM_API fm_status fm_mask_to_dense(const fm_mask *mask, uint8_t *visible, int64_t capacity);

/* -- algebra: O(intervals and bitmaps read and written). Results are new masks. Extents of two masks must agree, but that batch
 *    and heads of 1 broadcast in fm_mask_and and fm_mask_or; FM_ERROR_SHAPE where they do not. -- */
FM_API fm_status fm_mask_and(const fm_mask *a, const fm_mask *b, const fm_mask_options *options, fm_mask **out);
FM_API fm_status fm_mask_or(const fm_mask *a, const fm_mask *b, const fm_mask_options *options, fm_mask **out);
/* Same shape, moved down by rows and right by columns (either may be negative); what nothing moved into sees nothing. */
FM_API fm_status fm_mask_shift(const fm_mask *mask, int64_t rows, int64_t columns, const fm_mask_options *options, fm_mask **out);
/* Rows [row0, row1) and columns [col0, col1). */
FM_API fm_status fm_mask_slice(const fm_mask *mask, int64_t row0, int64_t row1, int64_t col0, int64_t col1,
                               const fm_mask_options *options, fm_mask **out);
/* The functions below take whole batch items and heads. They have no fallback limit of their own: the bitmaps exist already,
 * and equal blocks are stored once. */
/* Batch items [batch0, batch1), at least one: for a last batch that is smaller. (A mask of batch 1 fits any batch as it is.) */
FM_API fm_status fm_mask_slice_batch(const fm_mask *mask, int64_t batch0, int64_t batch1, fm_mask **out);
/* Head h of the result is head h / (heads / Hm) of the mask; heads must be a multiple of Hm. */
FM_API fm_status fm_mask_repeat_heads(const fm_mask *mask, int64_t heads, fm_mask **out);
/* Heads side by side (per-head masks), batch items one after another; count at least 1. Other extents must agree. */
FM_API fm_status fm_mask_stack_heads(const fm_mask *const *heads, int64_t count, fm_mask **out);
FM_API fm_status fm_mask_stack_batch(const fm_mask *const *items, int64_t count, fm_mask **out);

/* ---- attention backends ------------------------------------------------------------------------------------------- */

typedef enum fm_backend_id {
    FM_BACKEND_AUTO = 0,  /* by the device of the tensors */
    FM_BACKEND_REFERENCE, /* plain loops. f64 tensors: the oracle; f32, f16, bf16: sums in f32, P rounded to the dtype */
    FM_BACKEND_CPU, /* tiles of 64 x 64. The environment variable FLASHMASK_CPU_ISA = generic, avx2 or avx512 caps its vectors */
    /* NVIDIA GPUs of compute capability 8.0 and later; head dims are multiples of 8 up to 256. AUTO also takes the kernels for newer
     * GPUs where device and tensors allow it, whose results differ within tolerance */
    FM_BACKEND_CUDA_SM80
} fm_backend_id;

/* The instruction set of the CPU backend's kernels on this machine: "generic", "avx2" or "avx512". The environment variable
 * FLASHMASK_CPU_ISA caps it; FM_ERROR_ARGUMENT if it holds anything else. The text is static. */
FM_API fm_status fm_cpu_isa(const char **name);

/* ---- plan --------------------------------------------------------------------------------------------------------- */

/* Which tiles of the score matrix are skipped, full or partial, exactly: skipped if no pair is visible, full if every pair
 * is. A tile cut by the last row is classified by its real rows; a tile cut by the last column is never full. Built once
 * per mask and reused by forward, backward, every layer and every micro-batch. A plan keeps its mask alive and its
 * causal and window flags; it holds no pointer into caller memory. */
typedef struct fm_plan fm_plan;
typedef enum fm_tile_class { FM_TILE_SKIPPED = 0, FM_TILE_PARTIAL = 1, FM_TILE_FULL = 2 } fm_tile_class;

typedef struct fm_tile_run {
    int32_t first, count; /* tiles first .. first + count - 1 along the row (column) of tiles */
    fm_tile_class kind;   /* full or partial; skipped tiles are in no run */
} fm_tile_run;

typedef struct fm_work {
    int32_t batch, head, tile_row; /* batch and head of the mask */
} fm_work;

typedef struct fm_plan_options {
    size_t size;
    fm_backend_id backend; /* AUTO: the CPU backend */
    bool causal;           /* intersect with the bottom-right causal mask */
    /* intersect with a window: row i sees keys i' - left .. i' + right, i' = i + Sk - Sq; -1: unlimited */
    int64_t window_left, window_right;
    /* rows and keys of a tile, 1 .. 2^20; 0: the backend's own. Attention takes only plans with the backend's own tiles */
    int32_t block_m, block_n;
    /* device plans: bitmap blocks (128 x 128 pairs, 2 KiB each) that there is room for; 0: the mask has no fallback.
     * fm_mask_fallback_bytes / 2048, rounded up, is always enough */
    int64_t fallback_blocks;
} fm_plan_options;

typedef struct fm_plan_stats {
    size_t size; /* set by the caller: sizeof(fm_plan_stats) */
    int64_t tiles, full, partial, skipped;
    int64_t visible_pairs;          /* with the plan's causal and window flags */
    int64_t mask_bytes, plan_bytes; /* of their arrays */
    int64_t dense_bytes;            /* of a one-byte dense mask of the same shape */
    int32_t block_m, block_n;
    double density;         /* visible pairs / all pairs; 0 without pairs */
    double tile_efficiency; /* visible pairs / (visible tiles * block_m * block_n); 0 without tiles */
    double build_seconds;
} fm_plan_stats;

/* options NULL: defaults. O(N log N) for structured masks, in memory proportional to the runs. FM_ERROR_LIMIT above 2^31 - 1
 * rows or columns of tiles over all batch items and heads of the mask. The caller frees the plan, once. */
FM_API fm_status fm_plan_create(const fm_mask *mask, const fm_plan_options *options, fm_plan **out);
FM_API void fm_plan_free(fm_plan *plan); /* NULL is accepted */
FM_API fm_status fm_plan_get_stats(const fm_plan *plan, fm_plan_stats *out);
/* Runs of one row (column) of tiles, ascending; the array belongs to the plan. */
FM_API fm_status fm_plan_row_runs(const fm_plan *plan, int64_t batch, int64_t head, int64_t tile_row, const fm_tile_run **runs,
                                  int64_t *count);
FM_API fm_status fm_plan_column_runs(const fm_plan *plan, int64_t batch, int64_t head, int64_t tile_column,
                                     const fm_tile_run **runs, int64_t *count);
/* All rows of tiles, those with most visible tiles first; ties in (batch, head, tile_row) order. */
FM_API fm_status fm_plan_order(const fm_plan *plan, const fm_work **work, int64_t *count);
/* Stats, runs and order answer for host plans; FM_ERROR_DEVICE on a device plan, whose contents are on the GPU. */

/* -- device plans, for the CUDA backend: bounds, tile classes, counts and order in device memory of the caller's. Their size
 *    follows from shapes alone. Nothing here synchronises; everything is ordered by `stream` and may be captured in a CUDA
 *    graph, but for the upload of a host mask, which is refused during capture. A plan borrows its buffer, which must be
 *    256-byte aligned and stay until the last call that uses the plan has run; fm_plan_free frees the handle alone. -- */

/* Interval vectors in memory of a GPU: element c of key j is data[b * stride[0] + h * stride[1] + j * stride[2] + c * stride[3]],
 * strides in elements, 0 repeats.
 *   STARTEND   vectors 1, 2 or 4 and causal as fm_mask_from_startend_row_indices: masked rows
 *   FMS_FME    vectors 2 * k: first and last visible row, inclusive, of k = 1..4 intervals, in pairs
 *   INTERVALS  vectors 2 * k: start and end of k = 1..4 visible half-open intervals, in pairs
 * Contents cannot be checked without waiting for the GPU: values outside the rows are clamped, start >= end is empty. */
typedef enum fm_vector_format { FM_VECTORS_STARTEND = 0, FM_VECTORS_FMS_FME = 1, FM_VECTORS_INTERVALS = 2 } fm_vector_format;

typedef struct fm_mask_vectors {
    size_t size; /* sizeof(fm_mask_vectors) */
    fm_vector_format format;
    fm_mask_shape shape; /* Bm, Hm, Sq, Sk */
    int32_t vectors;
    bool causal; /* STARTEND only: part of what the vectors mean. A plan's own causal flag intersects */
    const int32_t *data;
    int64_t stride[4];
    fm_device device;
} fm_mask_vectors;

/* Visible intervals that a key can have in this form, 1..4: what fm_plan_device_bytes takes. */
FM_API fm_status fm_mask_vectors_intervals(const fm_mask_vectors *vectors, int32_t *intervals);

/* Bytes of the buffer of a device plan: intervals 1..4 as fm_mask_interval_count (0 counts as 1) or fm_mask_vectors_intervals
 * says. FM_ERROR_LIMIT above 2^28 tiles of 64 x 64 a (batch item, head), and above 2^31 - 256 rows or keys. Four bits a tile: 2.1 MB
 * for a mask of 128K tokens. */
FM_API fm_status fm_plan_device_bytes(fm_mask_shape shape, int32_t intervals, const fm_plan_options *options, size_t *bytes);

/* From a host mask, which is uploaded before this returns and which the plan keeps alive. */
FM_API fm_status fm_plan_create_device(const fm_mask *mask, const fm_plan_options *options, fm_device device, void *buffer,
                                       size_t bytes, void *stream, fm_plan **out);
FM_API fm_status fm_plan_create_from_vectors(const fm_mask_vectors *vectors, const fm_plan_options *options, void *buffer,
                                             size_t bytes, void *stream, fm_plan **out);
/* A handle for a buffer that one of the two calls above has filled, or will have filled in stream order, for the same shape,
 * intervals and options: for callers who keep the buffer and not the handle. Nothing is launched and nothing in it is checked. */
FM_API fm_status fm_plan_attach_device(fm_mask_shape shape, int32_t intervals, const fm_plan_options *options, fm_device device,
                                       void *buffer, size_t bytes, fm_plan **out);
/* New contents of the same shape, format and count of vectors; the plan's flags stay. Calls that use the plan before this one in
 * stream order see the old contents. Not for plans of host masks. */
FM_API fm_status fm_plan_update_from_vectors(fm_plan *plan, const fm_mask_vectors *vectors, void *stream);

/* ---- attention ---------------------------------------------------------------------------------------------------- */

typedef struct fm_attention_forward_args {
    size_t size; /* sizeof(fm_attention_forward_args) */
    /* [B,Sq,Hq,D] [B,Sk,Hkv,D] [B,Sk,Hkv,Dv], one dtype; Hq a multiple of Hkv; D and Dv 1..256 */
    fm_tensor query, key, value;
    const fm_mask *mask; /* [B or 1; 1, Hkv or Hq; Sq; Sk]; NULL: the plan's mask, or everything visible */
    /* NULL: built inside. Flags below that are left at their defaults are the plan's; other flags or another mask: an error */
    const fm_plan *plan;
    bool causal; /* intersected with the mask, bottom-right */
    /* intersected with the mask: row i sees keys i' - left .. i' + right, i' = i + Sk - Sq; -1: unlimited */
    int64_t window_left, window_right;
    float softmax_scale; /* any finite value; NaN (the default): 1 / sqrt(D) */
    float softcap;       /* > 0: S = softcap * tanh(scale * q.k / softcap) before masking; 0: off */
    /* [Hq] or NULL: one more logit per head in the denominator, natural units; not part of lse */
    const float *sinks;
    fm_tensor output; /* [B,Sq,Hq,Dv], dtype of query or f32; overwritten; overlaps no input */
    float *lse;       /* [B,Hq,Sq] contiguous, natural log of the sum of exp(S); or NULL */
    bool no_skip;     /* visit every tile through the masked path: same bits, slower; for tests */
    fm_backend_id backend;
    int32_t num_threads; /* CPU: 1 .. 1024, or 0 = OpenMP's own choice. Results do not depend on it */
    void *workspace;     /* at least the bytes that fm_attention_forward_workspace says; may be NULL for 0 */
    size_t workspace_bytes;
    void *stream; /* CUDA: cudaStream_t of the tensors' device, NULL is the default stream; NULL on the CPU */
} fm_attention_forward_args;

typedef struct fm_attention_backward_args {
    size_t size;
    /* the forward call: same inputs and flags, with its output and lse. f64 tensors only: lse NULL = recomputed in f64 */
    const fm_attention_forward_args *forward;
    fm_tensor grad_output; /* like output; any strides, 0 included; dtype of output */
    const float *grad_lse; /* [B,Hq,Sq] contiguous, gradient of lse, or NULL; ignored on empty rows */
    /* shapes of query, key, value; dtype of query or f32; overwritten; data NULL = not wanted */
    fm_tensor grad_query, grad_key, grad_value;
    float *grad_sinks;  /* [Hq], overwritten, or NULL; needs forward->sinks */
    bool deterministic; /* equal bits on every run; always so on the CPU, slower on a GPU (docs/performance.md) */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} fm_attention_backward_args;

/* Workspace bytes: a function of shapes, dtypes and backend alone, never of the mask. On the CPU 0: calls allocate and free
 * what they need, 0.4 MB for each thread and, in backward, 8 bytes for each row of each query head. On CUDA memory of the
 * tensors' device, 256-byte aligned: in forward of halves 256 bytes, unless the backend is FM_BACKEND_CUDA_SM80; in backward, rows
 * rounded up to 64, 8 bytes a row and query head; of halves also 4 bytes an element of query, and with head dims from 40 on (the larger
 * of both) those 256 and 4 bytes for 64 rows of a query head, unless the backend is FM_BACKEND_CUDA_SM80; calls without the latter need
 * nothing for elements of query if deterministic; and without a plan, the bytes of a device plan of the mask's batch and heads with 4
 * intervals (for a mask with a fallback also its bitmaps). */
FM_API fm_status fm_attention_forward_workspace(const fm_attention_forward_args *args, size_t *bytes);
FM_API fm_status fm_attention_backward_workspace(const fm_attention_backward_args *args, size_t *bytes);

/* Attention. Every argument is checked before anything is written. On the CPU the result is complete on return and depends
 * neither on num_threads nor on batch neighbours; keys and values that no row sees may hold anything, NaN included.
 * On CUDA a call launches kernels on its stream and returns; it never synchronises and allocates no device memory; sinks, lse,
 * grad_lse and grad_sinks are device pointers. With a plan a call may be captured in a CUDA graph; without one, too, if it has no
 * mask (a host mask must be uploaded). K and V of tiles that are skipped may hold anything; inside a visited tile a value that is not
 * finite can reach other rows and keys of that tile. Tiles are 64 rows by 64 keys; of two neighbours a kernel may visit both where
 * either is visible. */
FM_API fm_status fm_attention_forward(const fm_attention_forward_args *args);
FM_API fm_status fm_attention_backward(const fm_attention_backward_args *args);

/* Joins two partial results over disjoint sets of keys: o1, o2, o [B,Sq,Hq,Dv] of any accepted dtypes, lse1, lse2, lse
 * [B,Hq,Sq]. Empty parts (lse -inf) are exact. sinks [Hq]: only in the last merge, since partials are computed without them;
 * NULL otherwise. o and lse may be o1 and lse1. lse NULL: not wanted. */
FM_API fm_status fm_attention_merge(const fm_tensor *o1, const float *lse1, const fm_tensor *o2, const float *lse2,
                                    const float *sinks, const fm_tensor *o, float *lse);

/* ---- initialisers -------------------------------------------------------------------------------------------------- */

/* Start every argument struct from its own: fm_plan_options options = FM_PLAN_OPTIONS_INIT; the size lets structs grow.
 * The formatter is off because its versions disagree about braces in macros. */
/* clang-format off */
#define FM_MASK_OPTIONS_INIT {.size = sizeof(fm_mask_options), .fallback_limit = -1}
#define FM_PLAN_OPTIONS_INIT {.size = sizeof(fm_plan_options), .window_left = -1, .window_right = -1}
#define FM_PLAN_STATS_INIT {.size = sizeof(fm_plan_stats)}
#define FM_MASK_VECTORS_INIT {.size = sizeof(fm_mask_vectors)}
#define FM_ATTENTION_FORWARD_ARGS_INIT \
    {.size = sizeof(fm_attention_forward_args), .window_left = -1, .window_right = -1, .softmax_scale = __builtin_nanf("")}
#define FM_ATTENTION_BACKWARD_ARGS_INIT {.size = sizeof(fm_attention_backward_args)}
/* clang-format on */

#ifdef __cplusplus
}
#endif
#endif
