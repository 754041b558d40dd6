/* One call on the CPU, the tiles that its passes work on, and the scratch memory of one thread. */
#ifndef FM_CPU_TILE_H
#define FM_CPU_TILE_H

#include "attention/problem.h"
#include "core/memory.h"
#include "cpu/kernels.h"

/* The query is multiplied by the scale on the way in, so that the GEMM yields scores. They stay in natural units: folding
 * log2(e) into the query, as GPU kernels do, would round every score, row maximum and lse once more, and the exponential
 * costs the same. */
typedef struct fm_cpu_call {
    const fm_problem *problem;
    const fm_backward_problem *backward; /* NULL in the forward pass */
    const fm_cpu_kernels *kernels;
    int64_t head_dim, head_dim_v; /* rounded up to whole vectors */
    float *row_offset, *row_lse;  /* backward: offset and lse_output of fm_cpu_row_terms, [B, Hq, Sq] */
} fm_cpu_call;

/* FM_ERROR_ARGUMENT only for a bad FLASHMASK_CPU_ISA. backward may be NULL. */
fm_status fm_cpu_call_open(const fm_problem *problem, const fm_backward_problem *backward, fm_cpu_call *out);

/* Row-major f32 tile of up to 64 rows and FM_CPU_MAX_DIM columns. */
enum { FM_CPU_TILE_FLOATS = FM_CPU_LANES * FM_CPU_MAX_DIM, FM_CPU_SCORE_FLOATS = FM_CPU_LANES * FM_CPU_LANES };

/* Scratch of one thread, in cache lines of its own. Names say what the passes keep there. */
typedef struct fm_cpu_scratch {
    _Alignas(FM_ALIGNMENT) float lanes_a[FM_CPU_TILE_FLOATS];       /* transposed: query or key */
    float lanes_b[FM_CPU_TILE_FLOATS];                              /* transposed: grad_output or value */
    float lines_a[FM_CPU_TILE_FLOATS], lines_b[FM_CPU_TILE_FLOATS]; /* key or query, value or grad_output */
    float sum_a[FM_CPU_TILE_FLOATS], sum_b[FM_CPU_TILE_FLOATS];     /* results: output or grad_query; grad_key, grad_value */
    float scores[FM_CPU_SCORE_FLOATS], grad_scores[FM_CPU_SCORE_FLOATS];
    float factors[FM_CPU_LANES], maximum[FM_CPU_LANES], sum[FM_CPU_LANES];
    fm_cpu_row_terms terms;
    uint64_t visible[FM_CPU_LANES];
} fm_cpu_scratch;

/* Threads that a call with this much work runs on (at least 1), and scratch for each of them, released with free(). */
int32_t fm_cpu_thread_count(const fm_problem *problem, int64_t work);
fm_status fm_cpu_scratch_allocate(int32_t threads, fm_cpu_scratch **out);

/* Rows (sequence positions) of batch item b and head h. */
fm_cpu_rows fm_cpu_tensor_rows(const fm_tensor *tensor, int64_t b, int64_t h);

/* Widened rows of one tensor, and which of them are not finite. */
typedef struct fm_cpu_tile {
    fm_cpu_rows rows;
    int64_t first, count;
    float scale;
    float *data; /* [count, stride], columns padded with zeros to whole vectors */
    int64_t stride;
    uint64_t bad; /* bit i: row i holds an infinity or NaN */
} fm_cpu_tile;

/* Rows first .. first + count - 1, times scale, into data. */
fm_cpu_tile fm_cpu_tile_load(const fm_cpu_call *call, fm_cpu_rows rows, int64_t first, int64_t count, float scale, float *data);

/* scores[line][lane] = tile[line] . lanes[.][lane], for 64 lanes. A row or lane that is not finite spoils its own scores
 * only. */
void fm_cpu_scores(const fm_cpu_call *call, const fm_cpu_tile *tile, const float *lanes, float *scores);

/* The 64 x 64 bits transposed in place: bit x of word y becomes bit y of word x. */
void fm_cpu_transpose_bits(uint64_t words[FM_CPU_LANES]);

/* One tile of the score matrix of batch item b and query head h. */
typedef struct fm_cpu_place {
    int64_t b, h, tile_row, tile_column;
} fm_cpu_place;

/* Index into [B, Hq, Sq] of the first row of a tile. */
static inline int64_t fm_cpu_first_row(const fm_problem *p, fm_cpu_place place) {
    return (place.b * p->heads + place.h) * p->rows + place.tile_row * FM_CPU_LANES;
}

static inline int64_t fm_cpu_tile_length(int64_t extent, int64_t tile) {
    const int64_t rest = extent - tile * FM_CPU_LANES;
    return rest < FM_CPU_LANES ? rest : FM_CPU_LANES;
}

/* The part of a tile that holds its visible pairs. What lies outside would add exact zeros. */
typedef struct fm_cpu_part {
    int64_t first, count;    /* keys or rows of the problem that are the lines */
    int64_t lane, lanes;     /* lanes lane .. lane + lanes - 1 */
    const uint64_t *visible; /* [count], bit x for lane x (of the tile); NULL: everything */
} fm_cpu_part;

/* Lines are keys and lanes rows, or the other way round. Missing rows and keys are hidden. bits hold what is visible. With
 * no_skip the part is all real lines and lanes. */
fm_cpu_part fm_cpu_visible_part(const fm_problem *problem, fm_cpu_place place, fm_tile_class kind, bool lines_are_keys,
                                uint64_t bits[FM_CPU_LANES]);

/* sum[lane] += weights[line][lane] * tile[line] over the lines and for the lanes of part; sum has rows of tile->stride.
 * Weights are 0 where hidden. Rows of the tile that are not finite reach only the lanes that see them: 0 times infinity would
 * be NaN in the others. Such rows are zeroed in the tile. */
void fm_cpu_accumulate(const fm_cpu_call *call, const float *weights, fm_cpu_tile *tile, const fm_cpu_part *part, float *sum);

/* Runs of place's row (column) of tiles. With no_skip one run of partial tiles over everything, kept in *whole. */
typedef struct fm_cpu_runs {
    const fm_tile_run *runs;
    int64_t count;
} fm_cpu_runs;
fm_cpu_runs fm_cpu_row_runs(const fm_problem *problem, fm_cpu_place place, fm_tile_run *whole);
fm_cpu_runs fm_cpu_column_runs(const fm_problem *problem, fm_cpu_place place, fm_tile_run *whole);

/* Rows of tiles in plan order, each for all batch items and query heads that share its part of the mask, neighbours
 * together. get leaves tile_column 0. */
int64_t fm_cpu_row_work_count(const fm_problem *problem);
fm_cpu_place fm_cpu_row_work_get(const fm_problem *problem, int64_t index);

#endif
