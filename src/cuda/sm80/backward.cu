/* Gradients of keys and values, and of queries unless that is left to grad_query.cu. Tensor cores by mma.sync, copies by cp.async.
 *
 * Tiles     A block holds 128 keys (64 above D 128) of one key head and walks, for each of its query heads, the tiles of 64 rows
 *           that the plan says are visible. dK and dV stay in registers to the end: no atomics, one fixed order of sums.
 * Roles     Two teams of four warps, one warp of each on every scheduler. Team P: S = Q K^T, P, dV += P^T dO. Team dS: dP =
 *           dO V^T, dS, dK += dS^T Q. Both: dQ = dS K, half each. A team's sum is 64 x 64 a warp, which reads
 *           a third less shared memory than 64 x 32 of both sums would, and one team's exponentials run under the other's products.
 * Barriers  P_READY     P is written. Team dS waits, team P goes on
 *           P_TEAM      the same within team P
 *           SCORE_READY dS is written and P read. Team P waits, team dS goes on
 *           SCORE_TEAM  the same within team dS
 *           NEXT_READY  the next Q, dO and row terms have landed. Team P waits, team dS goes on
 *           GRAD_FREE   team P is done with dO, team dS with its copies and its own dQ. Team dS waits, team P goes on
 *           SCORE_FREE  with softcap alone: dQ has been taken from dS's tile, where team P puts P (1 - tanh^2). Both wait
 * Memory    See backward_tile.cuh; 163 KB at most. Registers: 128 of a sum, 64 of a score tile, fragments: 255. Nothing else may
 *           live through the loop, hence the work in shared memory and the values that are computed again (product.cuh).
 * Time      team P   | S(i)                     | exp, P | dV(i)      | dQ(i) | S(i+1) ...
 *           team dS  | copy Q, dO(i+1) |   dP(i)         | dS | dK(i) | dQ(i) | copy ...
 * Masks     Team P alone knows them: P of a hidden pair is 0, and so are dV, dS, dK, dQ. Half a tile (64 keys) that is hidden
 *           is not computed at all. Rows past the last have lse2 = +inf, so P is 0.
 */
#include "cuda/launch_kernel.cuh"
#include "cuda/ptx/bar.cuh"
#include "cuda/sm80/backward_add.cuh"
#include "cuda/sm80/backward_scores.cuh"
#include "cuda/sm80/backward_store.cuh"
#include "cuda/sm80/load_rows.cuh"
#include "cuda/tile/work.cuh"

enum { P_READY = 1, P_TEAM, SCORE_READY, SCORE_TEAM, NEXT_READY, GRAD_FREE, SCORE_FREE };

/* Tiles of the list are numbered step * PARTS + part. The first at or after `at` that the block's keys see. */
enum { PARTS = FM_PLAN_BLOCK / ROWS };
static __device__ __forceinline__ bool is_end(const backward_shared *s, int at) { return at >= s->list.count * PARTS; }
static __device__ __forceinline__ int next_tile(const backward_shared *s, int at) {
    while (KEYS < FM_PLAN_GROUP && !is_end(s, at) && !step_half_is_visible(s->list.steps[at / PARTS], s->work.half)) {
        at = (at / PARTS + 1) * PARTS;
    }
    return at;
}

/* The loop's state in one number: from bit 5 on the tile, then four bits of classes as in its step, and the stage. All else is read or
 * computed where it is needed, for registers are what the loop is short of. */
static __device__ __forceinline__ int tile_of(uint32_t at) {
    asm volatile("" : "+r"(at)); /* computed here, not kept */
    return (int)(at >> 5);
}
static __device__ __forceinline__ int stage_of(uint32_t at) { return STAGES == 2 ? (int)(at & 1) : 0; }
static __device__ __forceinline__ bool is_visible_at(uint32_t at, int half) { return step_half_is_visible(at >> 1, half); }
static __device__ __forceinline__ bool is_full_at(uint32_t at, int half) { return step_half_is_full(at >> 1, half); }

/* Step of a tile; of no matter what past the end, so that it can be read before it is known whether there is one. */
static __device__ __forceinline__ uint32_t step_at(const backward_shared *s, int tile) {
    return s->list.steps[min(tile / PARTS, STEP_CAPACITY - 1)];
}
static __device__ __forceinline__ int32_t row0_of(const backward_shared *s, int tile) {
    return step_tile(step_at(s, tile)) * FM_PLAN_BLOCK + tile % PARTS * ROWS;
}
static __device__ __forceinline__ uint32_t state_of(const backward_shared *s, int tile, int stage) {
    return (uint32_t)tile << 5 | step_at(s, tile) % (1 << STEP_TILE_SHIFT) << 1 | (uint32_t)stage;
}

/* Half of the block's keys that key `key` of the tile lies in. */
static __device__ __forceinline__ int half_of(const block_work *work, int key) { return KEYS == 128 ? key / 64 : work->half; }

/* Copies of a tile by one team: dO (of = TEAM_P) or Q. */
static __device__ __forceinline__ void load_row_tile(backward_shared *s, int stage, const fm_cuda_backward_problem *bp,
                                                     int32_t row0, int of) {
    const fm_cuda_problem *p = &bp->forward;
    const fm_cuda_tensor *t = of == TEAM_P ? &bp->grad_output : &p->query;
    const row_source source = {s->work.rows[of],
                               t->stride[1],
                               t->stride[3],
                               p->rows,
                               of == TEAM_P ? p->head_dim_v : p->head_dim,
                               t->in_chunks,
                               of == TEAM_P && p->output_is_f32};
    load_rows<TEAM, ROWS, DIM>(of == TEAM_P ? s->grad_output[stage] : s->query[stage], &source, row0,
                               (int)(thread_here() % TEAM));
}

/* lse2 (of = TEAM_P) or delta of a row; P is 0 in rows past the last. */
static __device__ __forceinline__ float load_row_term(const backward_shared *s, const fm_cuda_problem *p, int32_t row, int of) {
    if (row >= p->rows) {
        return of == TEAM_P ? INFINITY : 0.0f;
    }
    return __ldg(s->work.terms[of] + row);
}

/* dQ of a tile: keys of halves that are visible. */
static __device__ __forceinline__ void grad_query_of_tile(backward_shared *s, const fm_cuda_problem *p, uint32_t at) {
    const block_work *work = &s->work;
    const uint32_t from = ptx_shared_address(s->grad_score) + rows_bytes<KEYS>(query_row0()), key = ptx_shared_address(s->key);
#pragma unroll 1
    for (int pass = 0; pass < QUERY_PASSES; pass++) {
        float sum[QUERY_M][QUERY_N][4];
        clear(sum);
        const bool both = KEYS == 128 && is_visible_at(at, 0) && is_visible_at(at, 1);
        if (both) {
            product_row_column<QUERY_M, QUERY_N, KEYS, KEYS, DIM>(sum, from, 0, key, query_dim0(pass) / 8);
        }
#pragma unroll
        for (int half = 0; half < KEYS / 64; half++) {
            if (!both && is_visible_at(at, half_of(work, 64 * half))) {
                product_row_column<QUERY_M, QUERY_N, 64, KEYS, DIM>(sum, from, 8 * half, key + rows_bytes<DIM>(64 * half),
                                                                    query_dim0(pass) / 8);
            }
        }
        const int32_t row0 = row0_of(s, tile_of(at));
        if (row0 + ROWS <= p->rows) {
            add_grad_query<0>(sum, work->query_sum, p, row0 + query_row0(), query_dim0(pass));
        } else {
            add_grad_query<1>(sum, work->query_sum, p, row0 + query_row0(), query_dim0(pass));
        }
    }
}

/* First row of the tile after this one of the list; the number of rows where there is none. */
static __device__ __forceinline__ int32_t next_row0(const backward_shared *s, const fm_cuda_problem *p, uint32_t at) {
    const int next = next_tile(s, tile_of(at) + 1);
    const int32_t row0 = row0_of(s, next);
    return is_end(s, next) ? p->rows : row0;
}

/* With two stages, by team dS: starts the copies of the next tile. */
static __device__ __forceinline__ void load_next(backward_shared *s, const fm_cuda_backward_problem *bp, uint32_t at) {
    const int32_t row0 = next_row0(s, &bp->forward, at);
#pragma unroll 1
    for (int of = 0; of < 2 && row0 < bp->forward.rows; of++) {
        load_row_tile(s, stage_of(at) ^ 1, bp, row0, of);
    }
    ptx_cp_async_commit();
}

/* A row term of the next tile for each thread of team dS: delta for the lower half, lse2 for the upper. */
static_assert(STAGES == 1 || 2 * ROWS == TEAM, "a term for each thread");
static __device__ __forceinline__ float load_next_term(const backward_shared *s, const fm_cuda_problem *p, uint32_t at) {
    const int32_t row = next_row0(s, p, at) + (int32_t)(thread_here() % ROWS);
    return load_row_term(s, p, row, (int)(thread_here() / ROWS % 2));
}

/* S or dP of the warp. */
static __device__ __forceinline__ void multiply_scores(float (&score)[SCORE_M][SCORE_N][4], const backward_shared *s, int team,
                                                       int stage, int row0, int key0) {
    const uint32_t rows = ptx_shared_address(team == TEAM_P ? s->query[stage] : s->grad_output[stage]);
    const uint32_t keys = ptx_shared_address(team == TEAM_P ? s->key : s->value);
    clear(score);
    product_row_row<SCORE_M, SCORE_N, DIM>(score, rows + rows_bytes<DIM>(row0), keys + rows_bytes<DIM>(key0));
}

/* S or dP of the warp, then P or dS of the team in shared memory. Team dS starts with the copies of the next tile, so that S, for which
 * it would have to wait in the end, has the tensor cores to itself meanwhile; it returns the next tile's term. */
static __device__ __forceinline__ float scores_of_tile(backward_shared *s, const fm_cuda_backward_problem *bp, uint32_t at) {
    float score[SCORE_M][SCORE_N][4];
    const int team = team_of(), row0 = score_row0(), key0 = score_key0(), half = half_of(&s->work, key0);
    const bool is_visible = is_visible_at(at, half), capped = bp->forward.softcap > 0.0f;
    const bool is_full = is_full_at(at, half) || team == TEAM_SCORE;
    uint64_t visible = ~static_cast<uint64_t>(0);
    if (STAGES == 2 && team == TEAM_SCORE) {
        load_next(s, bp, at);
    }
    if (!is_full && is_visible) {
        visible = find_visible(&bp->forward, &s->work, row0_of(s, tile_of(at)) + row0, s->work.key0 + key0);
    }
    if (is_visible) {
        multiply_scores(score, s, team, stage_of(at), row0, key0);
    }
    if (capped) {
        ptx_bar_sync(SCORE_FREE, THREADS);
    }
    if (team == TEAM_P) {
        if (is_visible) {
            write_probabilities(score, s, &bp->forward, visible, is_full, row0, key0);
        }
        ptx_bar_arrive(P_READY, THREADS);
        ptx_bar_sync(P_TEAM, TEAM);
        return 0.0f;
    }
    const float term = STAGES == 2 ? load_next_term(s, &bp->forward, at) : 0.0f;
    ptx_bar_sync(P_READY, THREADS);
    if (is_visible) {
        write_grad_scores(score, s, capped, row0, key0);
    }
    ptx_bar_arrive(SCORE_READY, THREADS);
    ptx_bar_sync(SCORE_TEAM, TEAM);
    return term;
}

/* dV or dK of the warp. */
static __device__ __forceinline__ void add_tile(float (&sum)[SUM_M][SUM_N][4], backward_shared *s, uint32_t at) {
    if (is_visible_at(at, half_of(&s->work, sum_key0()))) {
        const int team = team_of(), stage = stage_of(at);
        const uint32_t scores = ptx_shared_address(team == TEAM_P ? s->probability : s->grad_score);
        const uint32_t rows = ptx_shared_address(team == TEAM_P ? s->grad_output[stage] : s->query[stage]);
        product_column_column<SUM_M, SUM_N, ROWS, KEYS, DIM>(sum, scores, sum_key0() / 8, rows, sum_dim0() / 8);
    }
}

/* Copies a tile while nothing else goes on: the first of a list, and with one stage every tile. */
static __device__ __forceinline__ void load_alone(backward_shared *s, const fm_cuda_backward_problem *bp, uint32_t at) {
    const int32_t row0 = row0_of(s, tile_of(at));
    const int team = team_of(), thread = (int)(thread_here() % TEAM);
    load_row_tile(s, 0, bp, row0, team);
    ptx_cp_async_commit();
    if (thread < ROWS) {
        s->row_terms[team][thread] = load_row_term(s, &bp->forward, row0 + thread, team);
    }
    ptx_cp_async_wait<0>();
    ptx_bar_block();
}

/* Walks the tiles of the list. */
static __device__ __forceinline__ void walk(float (&sum)[SUM_M][SUM_N][4], backward_shared *s,
                                            const fm_cuda_backward_problem *bp) {
    uint32_t at = state_of(s, next_tile(s, 0), 0);
    if (is_end(s, tile_of(at))) {
        return;
    }
    load_alone(s, bp, at);
    while (true) {
        const float term = scores_of_tile(s, bp, at);
        add_tile(sum, s, at);
        if (team_of() == TEAM_P) {
            ptx_bar_sync(SCORE_READY, THREADS);
            ptx_bar_arrive(GRAD_FREE, THREADS);
        } else {
            if (STAGES == 2) {
                s->row_terms[thread_here() / ROWS % 2][thread_here() % ROWS] = term;
                ptx_cp_async_wait<0>();
            }
            ptx_bar_arrive(NEXT_READY, THREADS);
        }
        if (bp->grad_query_sum != NULL) {
            grad_query_of_tile(s, &bp->forward, at);
        }
        const int next = next_tile(s, tile_of(at) + 1);
        at = state_of(s, next, ~at & 1);
        const bool ends = is_end(s, next);
        ptx_bar_sync(team_of() == TEAM_P ? NEXT_READY : GRAD_FREE, THREADS);
        if (ends) {
            return;
        }
        if (STAGES == 1) {
            ptx_bar_block();
            load_alone(s, bp, at);
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

/* What the loop needs of the head that is walked next. */
static __device__ __forceinline__ void find_head(block_work *work, const fm_cuda_backward_problem *bp) {
    const fm_cuda_problem *p = &bp->forward;
    const int64_t head = (int64_t)work->batch * p->heads + work->head;
    work->rows[TEAM_SCORE] = row_source_of(&p->query, work->batch, work->head, 0, 0, false).head;
    work->rows[TEAM_P] = row_source_of(&bp->grad_output, work->batch, work->head, 0, 0, p->output_is_f32).head;
    work->terms[TEAM_SCORE] = bp->delta + head * bp->terms_stride;
    work->terms[TEAM_P] = bp->lse2 + head * bp->terms_stride;
    work->query_sum = bp->grad_query_sum + head * p->rows * p->head_dim;
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
    ptx_bar_block();
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
        ptx_bar_block();
        if (threadIdx.x == 0) {
            work->head++;
            work->plane = mask_plane(&p->plan, work->batch, work->head, p->heads);
            step_list_start(&s->list, lines, work->plane, work->group, p->no_skip);
        }
        ptx_bar_block();
        if (threadIdx.x == TEAM) { /* while warp 0 makes the list */
            find_head(work, &bp);
        }
        while (step_list_fill(&s->list, lines, work->plane, work->group, p->no_skip) > 0) {
            walk(sum, s, &bp);
        }
    } while (work->head + 1 < work->end_head);
    ptx_cp_async_wait<0>();
    store_sums(sum, s, &bp, team_of() == TEAM_P ? P_TEAM : SCORE_TEAM);
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
