/* Gradients of keys and values, and of queries unless that is left to grad_query.cu. Tensor cores by mma.sync, copies by cp.async.
 *
 * Tiles     A block holds 128 keys (64 above D 128) of one key head and walks, for each of its query heads, the tiles of 64 rows
 *           that the plan says are visible. dK and dV stay in registers to the end: no atomics, one fixed order of sums.
 * Roles     Two teams of four warps, one warp of each on every scheduler. Team P: S = Q K^T, P, dV += P^T dO. Team dS: dP =
 *           dO V^T, dS, dK += dS^T Q. Both: dQ = dS K, half each. A team's sum is 64 x 64 a warp, which reads
 *           a third less shared memory than 64 x 32 of both sums would, and one team's exponentials run under the other's products.
 * Barriers  P_READY     P is written. Team dS waits, team P goes on
 *           P_TEAM      the same within team P; its last tile's dO may be overwritten
 *           SCORE_READY dS is written and P read. Team P waits, team dS goes on
 *           SCORE_TEAM  the same within team dS
 *           QUERY_READY the next Q has landed. Team P waits, team dS goes on
 *           GRAD_READY  the next dO has landed. Team dS waits, team P, past SCORE_READY, goes on
 *           SCORE_FREE  with softcap alone: dQ has been taken from dS's tile, where team P puts P (1 - tanh^2)
 * Memory    See backward_tile.cuh; 163 KB at most. Registers: 128 of a sum, 64 of a score tile, fragments: 255. Nothing else may
 *           live through the loop, hence the work in shared memory and the values that are computed again (product.cuh).
 * Time      team P   | S(i)  | exp, P | copy dO(i+1) | dV(i)        | dQ(i) | S(i+1) ...
 *           team dS  |     dP(i)      | dS | copy Q(i+1) | dK(i)         | dQ(i) | dP(i+1) ...
 * Masks     Team P alone knows them: P of a hidden pair is 0, and so are dV, dS, dK, dQ. Half a tile (64 keys) that is hidden
 *           is not computed at all. Rows past the last have lse2 = +inf, so P is 0.
 */
#include "cuda/launch_kernel.cuh"
#include "cuda/ptx/bar.cuh"
#include "cuda/sm80/backward_scores.cuh"
#include "cuda/sm80/backward_store.cuh"
#include "cuda/sm80/load_rows.cuh"
#include "cuda/tile/work.cuh"

enum { P_READY = 1, P_TEAM, SCORE_READY, SCORE_TEAM, QUERY_READY, GRAD_READY, SCORE_FREE };

/* One tile of rows. */
typedef struct row_tile {
    int32_t row0;
    uint32_t step;
} row_tile;

/* Tiles of the list are numbered step * PARTS + part. The first at or after `at` that the block's keys see. */
enum { PARTS = FM_PLAN_BLOCK / ROWS };
static __device__ __forceinline__ bool is_end(const backward_shared *s, int at) { return at >= s->list.count * PARTS; }
static __device__ __forceinline__ int next_tile(const backward_shared *s, int at) {
    while (KEYS < FM_PLAN_GROUP && !is_end(s, at) && !step_half_is_visible(s->list.steps[at / PARTS], s->work.half)) {
        at = (at / PARTS + 1) * PARTS;
    }
    return at;
}

static __device__ __forceinline__ row_tile tile_at(const backward_shared *s, int at) {
    const uint32_t step = s->list.steps[at / PARTS];
    const row_tile tile = {step_tile(step) * FM_PLAN_BLOCK + at % PARTS * ROWS, step};
    return tile;
}

/* Half of the block's keys that key `key` of the tile lies in. */
static __device__ __forceinline__ int half_of(const block_work *work, int key) { return KEYS == 128 ? key / 64 : work->half; }

/* A team's part of a tile's copies: dO by team P, Q by team dS. */
static __device__ __forceinline__ void load_row_tile(backward_shared *s, int stage, const fm_cuda_backward_problem *bp,
                                                     int32_t row0) {
    const fm_cuda_problem *p = &bp->forward;
    const block_work *work = &s->work;
    const int thread = (int)threadIdx.x % TEAM;
    if (team_of() == TEAM_P) {
        const row_source grad =
            row_source_of(&bp->grad_output, work->batch, work->head, p->rows, p->head_dim_v, p->output_is_f32);
        load_rows<TEAM, ROWS, DIM>(s->grad_output[stage], &grad, row0, thread);
    } else {
        const row_source query = row_source_of(&p->query, work->batch, work->head, p->rows, p->head_dim, false);
        load_rows<TEAM, ROWS, DIM>(s->query[stage], &query, row0, thread);
    }
    ptx_cp_async_commit();
}

/* lse2 or delta, as the team needs, of the row that this thread looks after; P is 0 in rows past the last. */
static __device__ __forceinline__ float load_row_term(const fm_cuda_backward_problem *bp, const block_work *work, int32_t row0) {
    const int team = team_of();
    const int32_t row = row0 + (int)threadIdx.x % TEAM;
    const float *terms = team == TEAM_P ? bp->lse2 : bp->delta;
    if ((int)threadIdx.x % TEAM >= ROWS || row >= bp->forward.rows) {
        return team == TEAM_P ? INFINITY : 0.0f;
    }
    return __ldg(terms + ((int64_t)work->batch * bp->forward.heads + work->head) * bp->forward.rows + row);
}

static __device__ __forceinline__ void store_row_term(backward_shared *s, float term) {
    if ((int)threadIdx.x % TEAM < ROWS) {
        s->row_terms[team_of()][threadIdx.x % TEAM] = term;
    }
}

/* Adds the warp's part of dQ to the sum of one head, [D / 8][Sq][8]. Lanes l and l + 16 exchange a value so that an instruction adds
 * four whole rows of eight, 128 bytes in a row of memory:
 *
 *   lane 4 g + t has  (g, 2t) (g, 2t+1)         adds  g < 4: (g, 2t) and (g + 4, 2t)    else (g - 4, 2t + 1) and (g, 2t + 1) */
template <int CUT> /* 1: the tile is cut by the last row */
static __device__ __forceinline__ void add_grad_query(const float (&sum)[QUERY_M][QUERY_N][4], float *head,
                                                      const fm_cuda_problem *p, int32_t row0, int dim0) {
    const int lane = lane_here();
    const bool upper = lane >= 16;
    const int32_t row = row0 + lane / 4 % 4;
    float *at = head + ((int64_t)(dim0 / 8) * p->rows + row) * 8 + lane % 4 * 2 + (upper ? 1 : 0);
#pragma unroll
    for (int n = 0; n < QUERY_N; n++) {
        if (dim0 + 8 * n >= p->head_dim) {
            return;
        }
#pragma unroll
        for (int i = 0; i < 2 * QUERY_M; i++) {
            const float x = sum[i / 2][n][i % 2 * 2], y = sum[i / 2][n][i % 2 * 2 + 1];
            const float other = __shfl_xor_sync(0xffffffffu, upper ? x : y, 16);
            if (!CUT || row + 8 * i < p->rows) {
                atomicAdd(at + 64 * i, upper ? other : x);
            }
            if (!CUT || row + 8 * i + 4 < p->rows) {
                atomicAdd(at + 64 * i + 32, upper ? y : other);
            }
        }
        at += (int64_t)p->rows * 8;
    }
}

/* dQ of a tile: keys of halves that are visible. */
static __device__ __forceinline__ void grad_query_of_tile(backward_shared *s, const fm_cuda_backward_problem *bp, int at) {
    const fm_cuda_problem *p = &bp->forward;
    const block_work *work = &s->work;
    const row_tile tile = tile_at(s, at);
    const int warp = team_of() * WARPS + team_warp(), row0 = warp % QUERY_WARP_ROWS * QUERY_ROWS;
    const uint32_t from = ptx_shared_address(s->grad_score) + rows_bytes<KEYS>(row0), key = ptx_shared_address(s->key);
#pragma unroll 1
    for (int pass = 0; pass < QUERY_PASSES; pass++) {
        const int dim0 = (warp / QUERY_WARP_ROWS * QUERY_PASSES + pass) * QUERY_DIMS;
        float sum[QUERY_M][QUERY_N][4];
        clear(sum);
#pragma unroll
        for (int half = 0; half < KEYS / 64; half++) {
            if (step_half_is_visible(tile.step, half_of(work, 64 * half))) {
                product_row_column<QUERY_M, QUERY_N, 64, KEYS, DIM>(sum, from, 8 * half, key + rows_bytes<DIM>(64 * half),
                                                                    dim0 / 8);
            }
        }
        float *head = bp->grad_query_sum + ((int64_t)work->batch * p->heads + work->head) * p->rows * p->head_dim;
        if (tile.row0 + ROWS <= p->rows) {
            add_grad_query<0>(sum, head, p, tile.row0 + row0, dim0);
        } else {
            add_grad_query<1>(sum, head, p, tile.row0 + row0, dim0);
        }
    }
}

/* Starts the team's copies of tile `next` of the list, if there is one and a stage for it. */
static __device__ __forceinline__ void load_next(backward_shared *s, int stage, const fm_cuda_backward_problem *bp, int next) {
    if (STAGES == 2 && !is_end(s, next)) {
        load_row_tile(s, stage ^ 1, bp, tile_at(s, next).row0);
    }
}

/* S or dP of the warp, then P or dS of the team in shared memory; copies of tile `next` start. */
static __device__ __forceinline__ void scores_of_tile(backward_shared *s, int stage, const fm_cuda_backward_problem *bp, int at,
                                                      int next) {
    float score[SCORE_M][SCORE_N][4];
    const row_tile tile = tile_at(s, at);
    const int team = team_of(), row0 = team_warp() % SCORE_WARP_ROWS * SCORE_ROWS;
    const int key0 = team_warp() / SCORE_WARP_ROWS * SCORE_KEYS, half = half_of(&s->work, key0);
    const bool is_visible = step_half_is_visible(tile.step, half), capped = bp->forward.softcap > 0.0f;
    const bool is_full = step_half_is_full(tile.step, half) || team == TEAM_SCORE;
    uint64_t visible = ~static_cast<uint64_t>(0);
    if (!is_full && is_visible) {
        visible = find_visible(&bp->forward, &s->work, tile.row0 + row0, s->work.key0 + key0);
    }
    if (is_visible) {
        const uint32_t rows = ptx_shared_address(team == TEAM_P ? s->query[stage] : s->grad_output[stage]);
        const uint32_t keys = ptx_shared_address(team == TEAM_P ? s->key : s->value);
        clear(score);
        product_row_row<SCORE_M, SCORE_N, DIM>(score, rows + rows_bytes<DIM>(row0), keys + rows_bytes<DIM>(key0));
    }
    if (capped && team == TEAM_P) {
        ptx_bar_sync(SCORE_FREE, THREADS);
    } else if (capped) {
        ptx_bar_arrive(SCORE_FREE, THREADS);
    }
    if (team == TEAM_P) {
        if (is_visible) {
            write_probabilities(score, s, &bp->forward, visible, is_full, row0, key0);
        }
        ptx_bar_arrive(P_READY, THREADS);
        ptx_bar_sync(P_TEAM, TEAM);
        load_next(s, stage, bp, next);
        return;
    }
    ptx_bar_sync(P_READY, THREADS);
    if (is_visible) {
        write_grad_scores(score, s, capped, row0, key0);
    }
    ptx_bar_arrive(SCORE_READY, THREADS);
    load_next(s, stage, bp, next);
    ptx_bar_sync(SCORE_TEAM, TEAM);
}

/* dV or dK of the warp. */
static __device__ __forceinline__ void add_tile(float (&sum)[SUM_M][SUM_N][4], backward_shared *s, int stage, int at) {
    if (step_half_is_visible(tile_at(s, at).step, half_of(&s->work, sum_key0()))) {
        const int team = team_of();
        const uint32_t scores = ptx_shared_address(team == TEAM_P ? s->probability : s->grad_score);
        const uint32_t rows = ptx_shared_address(team == TEAM_P ? s->grad_output[stage] : s->query[stage]);
        product_column_column<SUM_M, SUM_N, ROWS, KEYS, DIM>(sum, scores, sum_key0() / 8, rows, sum_dim0() / 8);
    }
}

/* Copies a tile while nothing else goes on: the first of a list, and with one stage every tile. */
static __device__ __forceinline__ void load_alone(backward_shared *s, const fm_cuda_backward_problem *bp, int32_t row0) {
    load_row_tile(s, 0, bp, row0);
    store_row_term(s, load_row_term(bp, &s->work, row0));
    ptx_cp_async_wait<0>();
    __syncthreads();
}

static __device__ __forceinline__ int tile_of(int state) {
    asm volatile("" : "+r"(state)); /* computed here, not kept */
    return state >> 1;
}

/* Walks the tiles of the list. Its state is one number, twice the tile plus the stage; all else is read again where it is needed,
 * for registers are what this loop is short of. */
static __device__ __forceinline__ void walk(float (&sum)[SUM_M][SUM_N][4], backward_shared *s,
                                            const fm_cuda_backward_problem *bp) {
    int state = 2 * next_tile(s, 0);
    if (is_end(s, tile_of(state))) {
        return;
    }
    load_alone(s, bp, tile_at(s, tile_of(state)).row0);
    while (true) {
        const int stage = STAGES == 2 ? state & 1 : 0, next = next_tile(s, tile_of(state) + 1);
        scores_of_tile(s, stage, bp, tile_of(state), next);
        const float term = load_row_term(bp, &s->work, is_end(s, next) ? bp->forward.rows : tile_at(s, next).row0);
        add_tile(sum, s, stage, tile_of(state));
        store_row_term(s, term);
        ptx_cp_async_wait<0>();
        if (team_of() == TEAM_P) {
            ptx_bar_sync(SCORE_READY, THREADS);
            ptx_bar_arrive(GRAD_READY, THREADS);
        } else {
            ptx_bar_arrive(QUERY_READY, THREADS);
        }
        if (bp->grad_query_sum != NULL) {
            grad_query_of_tile(s, bp, tile_of(state));
        }
        ptx_bar_sync(team_of() == TEAM_P ? QUERY_READY : GRAD_READY, THREADS);
        state = 2 * next_tile(s, tile_of(state) + 1) + (~state & 1);
        if (is_end(s, tile_of(state))) {
            return;
        }
        if (STAGES == 1) {
            __syncthreads();
            load_alone(s, bp, tile_at(s, tile_of(state)).row0);
        }
    }
}

/* head: one before the first. */
static __device__ __forceinline__ block_work find_work(const fm_cuda_problem *p) {
    const int32_t parts = FM_PLAN_GROUP / KEYS, half = (int32_t)(blockIdx.x % parts), heads = p->heads / p->heads_kv;
    const work_item item = work_at(&p->plan, &p->plan.column_lines, p->heads_kv, heads, 1, blockIdx.x / parts);
    block_work work;
    work.plane = item.plane;
    work.batch = item.batch;
    work.key_head = item.head;
    work.head = item.head * heads - 1;
    work.end_head = work.head + 1 + heads;
    work.group = item.group;
    work.key0 = item.group * FM_PLAN_GROUP + half * KEYS;
    work.half = half;
    return work;
}

static __global__ void __launch_bounds__(THREADS, 1) backward_kernel(const __grid_constant__ fm_cuda_backward_problem bp) {
    extern __shared__ __align__(1024) unsigned char shared_bytes[];
    backward_shared *s = reinterpret_cast<backward_shared *>(shared_bytes);
    const fm_cuda_problem *p = &bp.forward;
    const fm_tile_lines *lines = &p->plan.column_lines;
    block_work *work = &s->work;
    if (threadIdx.x == 0) {
        *work = find_work(p);
    }
    __syncthreads();
    if (work->key0 >= p->columns) {
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const fm_cuda_tensor *from = i == 0 ? &p->key : &p->value;
        const row_source source =
            row_source_of(from, work->batch, work->key_head, p->columns, i == 0 ? p->head_dim : p->head_dim_v, false);
        load_rows<THREADS, KEYS, DIM>(i == 0 ? s->key : s->value, &source, work->key0, (int)threadIdx.x);
    }
    ptx_cp_async_commit();
    float sum[SUM_M][SUM_N][4];
    clear(sum);
    do {
        __syncthreads();
        if (threadIdx.x == 0) {
            work->head++;
            work->plane = mask_plane(&p->plan, work->batch, work->head, p->heads);
            step_list_start(&s->list, lines, work->plane, work->group, p->no_skip);
        }
        __syncthreads();
        while (step_list_fill(&s->list, lines, work->plane, work->group, p->no_skip) > 0) {
            walk(sum, s, &bp);
        }
    } while (work->head + 1 < work->end_head);
    ptx_cp_async_wait<0>();
#pragma unroll 1
    for (int team = 0; team < 2; team++) {
        if ((team == TEAM_P ? bp.grad_value.data : bp.grad_key.data) != NULL) {
            store_sums(sum, s, &bp, team);
        }
    }
}

#if FM_COMPACT
extern "C" int FM_VARIANT(fm_sm80_backward_compact)(const fm_cuda_backward_problem *problem, void *stream) {
#else
extern "C" int FM_VARIANT(fm_sm80_backward)(const fm_cuda_backward_problem *problem, void *stream) {
#endif
    const fm_cuda_problem *p = &problem->forward;
    const int64_t blocks = (int64_t)p->batch * p->heads_kv * p->plan.column_lines.groups * (FM_PLAN_GROUP / KEYS);
    return launch_with((const void *)backward_kernel, launch_shape{blocks, 1, THREADS, sizeof(backward_shared)}, problem, stream);
}
