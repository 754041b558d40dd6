/* Forward attention of f32 tensors with FMAs, every head dim.
 *
 * Tiles      64 rows (one line of the plan) x 64 keys. A block owns the rows of one query head and walks the line's visible tiles.
 *            More than 128 dims of V are two parts, each by its own block; the first writes lse.
 * Roles      128 threads, all alike: 8 x 4 scores each, and 8 rows x 4 dims of each 64-dim block of O. A row's 16 threads are
 *            half a warp: its maximum is four shuffles, and its P is read by the warp that wrote it.
 * Barriers   one a slice: "my copies of this slice are there; everybody has finished with the one before".
 * Shared     48 KB: two stages of 16 KB and P. A stage is 32 dims of Q and of K, or 64 dims of V.
 * Registers  O 64, S 32, a product's operands 48; two blocks a multiprocessor.
 * Time       slice s + 1 is copied while slice s is multiplied:
 *              copy      QK1   QK2   ...   V0        V1      QK0 of the next tile
 *              multiply  QK0   QK1   ...   QKlast    V0      V1
 *              softmax                           ^ S -> P, O *= decay
 * Masks      full tiles run without; in partial ones hidden scores become -inf, which weigh exactly 0. */
#include "cuda/launch_kernel.cuh"
#include "cuda/tile/f32_tile.cuh"
#include "cuda/tile/line_walk.cuh"
#include "cuda/tile/work.cuh"

#include <math.h>

/* What a block reads: one line of rows of one head, and the slices in flight. */
typedef struct forward_pipe {
    f32_head query, key, value;
    int32_t row0;
    int32_t dim0;                 /* of Dv: first of the part */
    int32_t score_slices, slices; /* of a tile */
    float (*stages)[F32_WIDE];
    int turn; /* stage that holds the current slice */
} forward_pipe;

/* Starts the copy of one slice of a tile. */
static __device__ __forceinline__ void copy_slice(const forward_pipe *pipe, float *stage, int32_t tile, int slice) {
    const int32_t key0 = tile * F32_BLOCK;
    if (slice < pipe->score_slices) {
        f32_load_pair(stage, &pipe->query, pipe->row0, &pipe->key, key0, slice * F32_SLICE);
    } else {
        f32_load<F32_BLOCK, 0>(stage, &pipe->value, key0, pipe->dim0 + (slice - pipe->score_slices) * F32_BLOCK);
    }
}

/* Waits for a slice of `tile` and starts the copy of the one after it, which may be the first of tile `next`. */
static __device__ __forceinline__ const float *take_slice(forward_pipe *pipe, int32_t tile, int32_t next, int slice) {
    const float *stage = pipe->stages[pipe->turn];
    const bool is_last = slice + 1 == pipe->slices;
    pipe->turn ^= 1;
    ptx_cp_async_wait<0>();
    __syncthreads();
    if (!is_last || next != WALK_END) {
        copy_slice(pipe, pipe->stages[pipe->turn], is_last ? next : tile, is_last ? 0 : slice + 1);
    }
    ptx_cp_async_commit();
    return stage;
}

/* Maximum and sum of a row's scores so far. Thread (ty, tx) keeps those of row ty + 8 (tx % 8): two registers instead of 16. */
typedef struct row_state {
    float m, l;
} row_state;

/* Folds scores of one tile into the state of row i of the thread: S becomes P. Returns what the row's O is multiplied with. A
 * row that has seen nothing has maximum -inf; its exponents subtract 0 instead. */
static __device__ __forceinline__ float fold_row(float (&S)[F32_COLUMNS], row_state *state, int i) {
    const float old = __shfl_sync(0xffffffffu, state->m, i, 16);
    const float m = fmaxf(old, f32_row_max(fmaxf(fmaxf(S[0], S[1]), fmaxf(S[2], S[3]))));
    const float origin = m == -INFINITY ? 0.0f : m;
    const float decay = expf(old - origin);
#pragma unroll
    for (int j = 0; j < F32_COLUMNS; j++) {
        S[j] = expf(S[j] - origin);
    }
    const float sum = f32_row_sum((S[0] + S[1]) + (S[2] + S[3]));
    if (f32_tx() % 8 == i) {
        state->m = m;
        state->l = fmaf(state->l, decay, sum);
    }
    return decay;
}

static __device__ __forceinline__ void fold_tile(f32_fragment &S, float (&O)[F32_PART_BLOCKS][F32_ROWS][F32_COLUMNS],
                                                 row_state *state) {
#pragma unroll
    for (int i = 0; i < F32_ROWS; i++) {
        const float decay = fold_row(S[i], state, i);
#pragma unroll
        for (int j = 0; j < F32_PART_BLOCKS * F32_COLUMNS; j++) {
            O[j / F32_COLUMNS][i][j % F32_COLUMNS] *= decay;
        }
    }
}

/* O and lse of the block's rows. */
static __device__ __forceinline__ void store_rows(const fm_cuda_problem *p, work_item item, int32_t row0, int32_t dim0,
                                                  const float (&O)[F32_PART_BLOCKS][F32_ROWS][F32_COLUMNS], row_state state) {
    const int64_t head = item.batch * p->output.stride[0] + item.head * p->output.stride[2];
    const float sink = p->sinks != NULL ? p->sinks[item.head] : -INFINITY;
    const bool is_empty = state.l == 0.0f;
    const float own_inverse = is_empty ? 0.0f : 1.0f / (state.l + expf(sink - state.m));
    const int32_t own_row = row0 + f32_ty() + 8 * f32_tx();
    if (p->lse != NULL && dim0 == 0 && f32_tx() < F32_ROWS && own_row < p->rows) {
        p->lse[((int64_t)item.batch * p->heads + item.head) * p->rows + own_row] = is_empty ? -INFINITY : state.m + logf(state.l);
    }
#pragma unroll
    for (int i = 0; i < F32_ROWS; i++) {
        const int32_t row = row0 + f32_ty() + 8 * i;
        const float inverse = __shfl_sync(0xffffffffu, own_inverse, i, 16);
#pragma unroll
        for (int block = 0; block < F32_PART_BLOCKS; block++) {
            const int32_t dim = dim0 + block * F32_BLOCK + f32_tx() * F32_CHUNK;
            if (row < p->rows && dim < p->head_dim_v) {
                f32_store_row(&p->output, head, row, dim, O[block][i], inverse);
            }
        }
    }
}

static __global__ void __launch_bounds__(F32_THREADS, F32_BLOCKS_AT_ONCE)
    forward_f32_kernel(const __grid_constant__ fm_cuda_problem p) {
    __shared__ __align__(16) float stages[2][F32_WIDE], P[F32_WIDE];
    static_assert(sizeof stages + sizeof P <= 48 * 1024, "more needs an opt-in");
    const work_item item = work_at(&p.plan, &p.plan.row_lines, p.heads, 1, p.heads_together, blockIdx.x / 2);
    const int32_t line = 2 * item.group + (int32_t)(blockIdx.x & 1), key_head = item.head / (p.heads / p.heads_kv);
    if (line >= p.plan.row_lines.lines) {
        return;
    }
    const int32_t dim0 = (int32_t)blockIdx.y * F32_PART;
    const int score_slices = (p.head_dim + F32_SLICE - 1) / F32_SLICE;
    forward_pipe pipe = {{&p.query, item.batch, item.head, p.rows, p.head_dim},
                         {&p.key, item.batch, key_head, p.columns, p.head_dim},
                         {&p.value, item.batch, key_head, p.columns, p.head_dim_v},
                         line * F32_BLOCK,
                         dim0,
                         score_slices,
                         score_slices + f32_blocks_of_part(p.head_dim_v, dim0),
                         stages,
                         0};
    float O[F32_PART_BLOCKS][F32_ROWS][F32_COLUMNS];
    row_state state = {-INFINITY, 0.0f};
#pragma unroll
    for (int block = 0; block < F32_PART_BLOCKS; block++) {
        f32_clear(O[block]);
    }

    line_walk walk = line_walk_start(&p.plan.row_lines, item.plane, line, p.no_skip);
    bool is_full = false, next_is_full = false;
    int32_t tile = line_walk_next(&walk, &is_full);
    if (tile != WALK_END) {
        copy_slice(&pipe, stages[0], tile, 0);
        ptx_cp_async_commit();
    }
    while (tile != WALK_END) {
        const int32_t next = line_walk_next(&walk, &next_is_full);
        f32_fragment S;
        f32_clear(S);
        for (int slice = 0; slice < score_slices; slice++) {
            f32_add_scores(S, take_slice(&pipe, tile, next, slice));
        }
        f32_finish_scores(S, p.scale, p.softcap);
        if (!is_full) {
            f32_hide(S, &p.plan, item.plane, pipe.row0, tile * F32_BLOCK);
        }
        fold_tile(S, O, &state);
        f32_store_square(P, S);
#pragma unroll
        for (int block = 0; block < F32_PART_BLOCKS; block++) {
            if (score_slices + block < pipe.slices) {
                f32_add_by_rows(O[block], P, take_slice(&pipe, tile, next, score_slices + block));
            }
        }
        tile = next;
        is_full = next_is_full;
    }
    store_rows(&p, item, pipe.row0, dim0, O, state);
}

int fm_sm80_forward_f32(const fm_cuda_problem *problem, void *stream) {
    const int64_t lines = 2 * (int64_t)problem->batch * problem->heads * problem->plan.row_lines.groups;
    const launch_shape shape = {lines, f32_parts(problem->head_dim_v), F32_THREADS, 0};
    return launch_with((const void *)forward_f32_kernel, shape, problem, stream);
}
