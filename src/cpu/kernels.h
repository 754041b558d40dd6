/* Tile kernels of the CPU backend: one table per instruction set, all with the same contracts.
 *
 * A score tile holds lines of FM_CPU_LANES floats: lane x of line y is [y * FM_CPU_LANES + x]. In the forward and query
 * gradient passes lines are keys and lanes are query rows, so that the softmax of 64 rows runs lane by lane and the query,
 * which stays, is the one that gets transposed. In the key and value gradient pass the keys stay: lines are query rows and
 * lanes are keys. Visibility of a tile is one word per line, bit x for lane x.
 */
#ifndef FM_CPU_KERNELS_H
#define FM_CPU_KERNELS_H

#include "plan/plan.h"

/* FM_CPU_PAD: every vector width divides it; scratch rows are padded to it. */
enum { FM_CPU_LANES = 64, FM_CPU_PAD = 16, FM_CPU_MAX_DIM = 256 };
_Static_assert((int)FM_CPU_BLOCK_M == (int)FM_CPU_LANES && (int)FM_CPU_BLOCK_N == (int)FM_CPU_LANES,
               "a line of a score tile is one word of visibility bits");

/* Rows of one batch item and head of a tensor. */
typedef struct fm_cpu_rows {
    char *data;
    fm_dtype dtype;             /* f32, f16, bf16 */
    int64_t row_stride, stride; /* elements from row to row and inside a row */
    int64_t width;              /* elements of a row, at most FM_CPU_MAX_DIM */
} fm_cpu_rows;

/* c [m, n] = a [m, k] * b [k, n], added to c with accumulate. Each element is one chain of FMAs over ascending k, started at
 * 0 and added to c last; it does not depend on the other extents. n is a multiple of the table's width. */
typedef struct fm_cpu_gemm {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_column; /* strides */
    const float *b;
    int64_t b_stride; /* of rows; columns are contiguous */
    float *c;
    int64_t c_stride;
    bool accumulate;
} fm_cpu_gemm;

/* One step of the online softmax, rows in lanes. */
typedef struct fm_cpu_softmax {
    float *scores; /* [lines]: in: scores; out: exp(score - maximum), 0 where hidden */
    int64_t lines;
    const uint64_t *visible; /* [lines]; NULL: everything */
    float cap;               /* > 0: score = cap * tanh(score / cap) */
    float *maximum, *sum;    /* [FM_CPU_LANES], updated; maximum is -inf while a row has seen nothing */
    float *decay;            /* [FM_CPU_LANES], out: exp(old maximum - new maximum) */
} fm_cpu_softmax;

/* What the gradient of the softmax needs of each query row: dS = P (dP - offset) + P' grad_lse, P = exp(score - lse_output),
 * P' = exp(score - lse). offset and grad_lse stay apart: dP - offset is a small difference of large numbers. */
typedef struct fm_cpu_row_terms {
    float lse_output[FM_CPU_LANES]; /* log of the denominator of P in the output: with the sink; +inf where P is 0 */
    float lse[FM_CPU_LANES];        /* log of the denominator without it, likewise; read only with has_split */
    float offset[FM_CPU_LANES];     /* grad_output . output */
    float grad_lse[FM_CPU_LANES];   /* 0 where there is none */
    bool has_split;                 /* sinks and grad_lse together: P of the two terms of dS differ */
} fm_cpu_row_terms;

/* From scores and dP to P and dS. Probabilities never exceed 1: with scores of 10^12 the rounding of lse alone would make
 * them overflow. */
typedef struct fm_cpu_softmax_grad {
    float *scores;      /* [lines]: in: scores; out: P, 0 where hidden */
    float *grad_scores; /* [lines]: in: dP; out: dS, 0 where hidden */
    int64_t lines;
    const uint64_t *visible; /* [lines]; NULL: everything */
    bool lanes_are_rows;     /* the row terms belong to lanes; else to lines */
    float cap;               /* > 0: score = cap * tanh(score / cap), dS *= 1 - tanh^2 */
    const fm_cpu_row_terms *terms;
} fm_cpu_softmax_grad;

typedef struct fm_cpu_kernels {
    const char *name;
    int64_t width; /* floats of a vector */

    void (*gemm)(const fm_cpu_gemm *gemm);

    /* to[i][0 .. width rounded up to a vector) = scale * rows first .. first + count - 1, zeros past the width. Bit i of the
     * result: row i has an element that is not finite. count at most 64. Reads nothing outside the rows. */
    uint64_t (*widen)(const fm_cpu_rows *from, int64_t first, int64_t count, float scale, float *to, int64_t to_stride);

    /* Rows first .. first + count - 1 = from[i] * factor[i], rounded to the dtype. */
    void (*narrow)(const float *from, int64_t from_stride, const float *factor, const fm_cpu_rows *to, int64_t first,
                   int64_t count);

    /* to[d][i] = from[i][d] for d < width, i < count; 0 for count <= i < FM_CPU_LANES. */
    void (*transpose)(const float *from, int64_t from_stride, int64_t count, int64_t width, float *to);

    /* out[x] = sum over d of a[d][x] * b[d][x] for FM_CPU_LANES lanes: the chain of FMAs that gemm does, so that
     * grad_output . output of a row that sees one key is its dP bit for bit, and dS exactly 0. */
    void (*lane_dots)(const float *a, const float *b, int64_t depth, float *out);

    /* rows[i][0 .. n) *= factor[i], for i < count. */
    void (*scale_rows)(float *rows, int64_t stride, int64_t count, int64_t n, const float *factor);

    void (*softmax)(const fm_cpu_softmax *step);
    void (*softmax_grad)(const fm_cpu_softmax_grad *step);
} fm_cpu_kernels;

extern const fm_cpu_kernels fm_cpu_kernels_generic, fm_cpu_kernels_avx2, fm_cpu_kernels_avx512;

static inline int64_t fm_cpu_round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

#endif
