/* dQ by a walk along rows: one fixed order of sums, where the backward kernel's additions to global memory come in any order.
 * Costs two products more, S and dP again. Used with `deterministic` (not by calls that Hopper's kernel takes), and where dQ alone is
 * wanted.
 *
 * Tiles     A block holds 64 rows of one query head and walks the tiles of 64 keys (32 above D 128) that the plan says are visible.
 * Roles     Four warps of 16 rows each. S and dP, 16 x 64 a warp, stay in registers; so does dS, as the left factor of dQ += dS K.
 * Barriers  One of all threads before and after the copies of a tile of K and V. Several blocks of a multiprocessor hide each other's.
 * Memory    Q, dO: 64 x D each; K, V: 64 x D (32 x D) each; the list of steps. 98 KB at D 256. Registers: 64 (128) of dQ.
 * Time      copy | S, dP, P, dS, dQ | copy | ...
 * Masks     P of a hidden pair is 0. Rows past the last have lse2 = +inf.
 */
#include "cuda/launch_kernel.cuh"
#include "cuda/ptx/bar.cuh"
#include "cuda/sm80/load_rows.cuh"
#include "cuda/sm80/product.cuh"
#include "cuda/tile/mask_tile.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/step_list.cuh"
#include "cuda/tile/work.cuh"

enum {
    DQ_ROWS = FM_PLAN_BLOCK,
    DQ_KEYS = DIM > 128 ? 32 : 64,
    DQ_THREADS = 128,
    DQ_SCORE_N = DQ_KEYS / 8,
    DQ_N = DIM / 8,
    DQ_MOST_SHARED = 99 * 1024
};

/* What the block works on. */
typedef struct query_work {
    work_item item;
    int32_t half, row0;
} query_work;

/* Of this lane's two rows. */
typedef struct row_terms {
    float lse2[2], delta[2];
} row_terms;

typedef struct query_shared {
    fm_half query[DQ_ROWS * DIM], grad_output[DQ_ROWS * DIM];
    fm_half key[DQ_KEYS * DIM], value[DQ_KEYS * DIM];
    step_list list;
    query_work work; /* here, not in registers */
} query_shared;

static_assert(sizeof(query_shared) <= DQ_MOST_SHARED, "a block's shared memory");

static __device__ __forceinline__ int warp_row0(void) { return (int)threadIdx.x / 32 * 16; }

static __device__ __forceinline__ query_work find_rows(const fm_cuda_problem *p) {
    query_work work;
    work.item = work_at(&p->plan, &p->plan.row_lines, p->heads, 1, p->heads_together, blockIdx.x / 2);
    work.half = (int32_t)(blockIdx.x % 2);
    work.row0 = work.item.group * FM_PLAN_GROUP + work.half * DQ_ROWS;
    return work;
}

static __device__ __forceinline__ row_terms load_row_terms(const fm_cuda_backward_problem *bp, const query_work *work) {
    const fm_cuda_problem *p = &bp->forward;
    row_terms terms;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t row = work->row0 + warp_row0() + 8 * i + lane_of() / 4;
        const int64_t at = ((int64_t)work->item.batch * p->heads + work->item.head) * bp->terms_stride + row;
        terms.lse2[i] = row < p->rows ? bp->lse2[at] : INFINITY;
        terms.delta[i] = row < p->rows ? bp->delta[at] : 0.0f;
    }
    return terms;
}

/* P (with softcap: P (1 - tanh^2)) in the place of S. */
static __device__ __forceinline__ void find_probabilities(float (&score)[1][DQ_SCORE_N][4], const fm_cuda_problem *p,
                                                          const row_terms *terms) {
    const bool capped = p->softcap > 0.0f;
    const float inner = capped ? __fdividef(p->scale, p->softcap) : 0.0f, outer = p->softcap * SOFTMAX_LOG2E,
                scale2 = p->scale * SOFTMAX_LOG2E;
#pragma unroll
    for (int i = 0; i < DQ_SCORE_N * 4; i++) {
        float *x = &score[0][i / 4][i % 4];
        const float lse2 = terms->lse2[i % 4 / 2];
        if (capped) {
            const float t = softmax_tanh(2.0f * SOFTMAX_LOG2E * (*x * inner));
            *x = ptx_at_most_1(ptx_exp2(fmaf(t, outer, -lse2))) * (1.0f - t * t);
        } else {
            *x = ptx_at_most_1(ptx_exp2(fmaf(*x, scale2, -lse2)));
        }
    }
}

static __device__ __forceinline__ void hide(float (&score)[1][DQ_SCORE_N][4], const tile_mask *mask, int32_t row, int32_t key0) {
#pragma unroll
    for (int n = 0; n < DQ_SCORE_N; n++) {
        const uint32_t visible = tile_mask_pairs<2>(mask, row, key0 + 8 * n + lane_of() % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            score[0][n][e] = visible >> e & 1 ? score[0][n][e] : 0.0f;
        }
    }
}

/* P 0 gives dS 0 whatever dP is: hidden V, or dO of an empty row, may be so large that dP is not finite. */
static __device__ __forceinline__ void drop_hidden(float (&grad)[1][DQ_SCORE_N][4], const float (&score)[1][DQ_SCORE_N][4]) {
#pragma unroll
    for (int i = 0; i < DQ_SCORE_N * 4; i++) {
        grad[0][i / 4][i % 4] = score[0][i / 4][i % 4] == 0.0f ? 0.0f : grad[0][i / 4][i % 4];
    }
}

/* dQ += dS K, dS from the registers of P and dP. */
static __device__ __forceinline__ void add_product(float (&sum)[1][DQ_N][4], const float (&score)[1][DQ_SCORE_N][4],
                                                   const float (&grad)[1][DQ_SCORE_N][4], const row_terms *terms, uint32_t key) {
    const int lane = lane_here();
#pragma unroll
    for (int k = 0; k < DQ_KEYS / 16; k++) {
        uint32_t a[1][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = 2 * k + i / 2, e = i % 2 * 2;
            a[0][i] = fm_half2_from(score[0][n][e] * (grad[0][n][e] - terms->delta[i % 2]),
                                    score[0][n][e + 1] * (grad[0][n][e + 1] - terms->delta[i % 2]));
        }
#pragma unroll
        for (int n = 0; n < DQ_N; n += 2) {
            uint32_t b[4];
            ptx_ldmatrix_transposed(b, down<DIM>(key, lane, n) + rows_bytes<DIM>(16 * k));
            ptx_mma(sum[0][n], a[0], b[0], b[1]);
            ptx_mma(sum[0][n + 1], a[0], b[2], b[3]);
        }
    }
}

/* Adds the keys from key0 on, whose K and V are in shared memory. */
static __device__ __forceinline__ void add_keys(float (&sum)[1][DQ_N][4], const query_shared *s, const fm_cuda_problem *p,
                                                const row_terms *terms, int32_t key0, bool is_full) {
    float score[1][DQ_SCORE_N][4], grad[1][DQ_SCORE_N][4];
    const uint32_t rows = rows_bytes<DIM>(warp_row0());
    clear(score);
    product_row_row<1, DQ_SCORE_N, DIM>(score, ptx_shared_address(s->query) + rows, ptx_shared_address(s->key));
    find_probabilities(score, p, terms);
    if (!is_full) {
        const tile_mask mask = tile_mask_at(&p->plan, s->work.item.plane, s->work.row0, key0);
        hide(score, &mask, s->work.row0 + warp_row0() + lane_of() / 4, key0);
    }
    clear(grad);
    product_row_row<1, DQ_SCORE_N, DIM>(grad, ptx_shared_address(s->grad_output) + rows, ptx_shared_address(s->value));
    if (!is_full) {
        drop_hidden(grad, score);
    }
    add_product(sum, score, grad, terms, ptx_shared_address(s->key));
}

static __device__ __forceinline__ void load_keys(query_shared *s, const fm_cuda_problem *p, int32_t key0) {
    const query_work *work = &s->work;
    const int32_t head = work->item.head / (p->heads / p->heads_kv);
    const row_source key = row_source_of(&p->key, work->item.batch, head, p->columns, p->head_dim, false);
    const row_source value = row_source_of(&p->value, work->item.batch, head, p->columns, p->head_dim_v, false);
    ptx_bar_block();
    load_rows<DQ_THREADS, DQ_KEYS, DIM>(s->key, &key, key0, (int)threadIdx.x);
    load_rows<DQ_THREADS, DQ_KEYS, DIM>(s->value, &value, key0, (int)threadIdx.x);
    ptx_cp_async_commit();
    ptx_cp_async_wait<0>();
    ptx_bar_block();
}

static __device__ __forceinline__ void store_sum(const float (&sum)[1][DQ_N][4], const fm_cuda_backward_problem *bp,
                                                 const query_work *work) {
    const fm_cuda_problem *p = &bp->forward;
    const fm_cuda_tensor *t = &bp->grad_query;
#pragma unroll
    for (int i = 0; i < DQ_N * 4; i++) {
        const int32_t row = work->row0 + warp_row0() + i % 4 / 2 * 8 + lane_of() / 4;
        const int32_t d = i / 4 * 8 + lane_of() % 4 * 2 + i % 2;
        if (row < p->rows && d < p->head_dim) {
            const int64_t at =
                work->item.batch * t->stride[0] + row * t->stride[1] + work->item.head * t->stride[2] + d * t->stride[3];
            const float x = p->scale * sum[0][i / 4][i % 4];
            if (bp->grad_query_is_f32) {
                static_cast<float *>(t->data)[at] = x;
            } else {
                static_cast<fm_half *>(t->data)[at] = fm_half_from(x);
            }
        }
    }
}

static __global__ void __launch_bounds__(DQ_THREADS, DIM <= 128 ? 2 : 1)
    grad_query_kernel(const __grid_constant__ fm_cuda_backward_problem bp) {
    extern __shared__ __align__(1024) unsigned char shared_bytes[];
    query_shared *s = reinterpret_cast<query_shared *>(shared_bytes);
    const fm_cuda_problem *p = &bp.forward;
    const fm_tile_lines *lines = &p->plan.row_lines;
    const query_work *work = &s->work;
    if (threadIdx.x == 0) {
        s->work = find_rows(p);
    }
    ptx_bar_block();
    if (work->row0 >= p->rows) {
        return;
    }
    const row_source query = row_source_of(&p->query, work->item.batch, work->item.head, p->rows, p->head_dim, false);
    const row_source grad =
        row_source_of(&bp.grad_output, work->item.batch, work->item.head, p->rows, p->head_dim_v, p->output_is_f32);
    load_rows<DQ_THREADS, DQ_ROWS, DIM>(s->query, &query, work->row0, (int)threadIdx.x);
    load_rows<DQ_THREADS, DQ_ROWS, DIM>(s->grad_output, &grad, work->row0, (int)threadIdx.x);
    const row_terms terms = load_row_terms(&bp, work);
    float sum[1][DQ_N][4];
    clear(sum);
    step_list_start(&s->list, lines, work->item.plane, work->item.group, p->no_skip);
    while (step_list_fill(&s->list, lines, work->item.plane, work->item.group, p->no_skip) > 0) {
        for (int i = 0; i < s->list.count * (FM_PLAN_BLOCK / DQ_KEYS); i++) {
            const uint32_t step = s->list.steps[i / (FM_PLAN_BLOCK / DQ_KEYS)];
            if (step_half_is_visible(step, work->half)) {
                const int32_t key0 = step_tile(step) * FM_PLAN_BLOCK + i % (FM_PLAN_BLOCK / DQ_KEYS) * DQ_KEYS;
                load_keys(s, p, key0);
                add_keys(sum, s, p, &terms, key0, step_half_is_full(step, work->half));
            }
        }
    }
    ptx_cp_async_wait<0>();
    store_sum(sum, &bp, work);
}

extern "C" int FM_VARIANT(fm_sm80_grad_query)(const fm_cuda_backward_problem *problem, void *stream) {
    const fm_cuda_problem *p = &problem->forward;
    const int64_t blocks = (int64_t)p->batch * p->heads * p->plan.row_lines.groups * 2;
    return launch_with((const void *)grad_query_kernel, launch_shape{blocks, 1, DQ_THREADS, sizeof(query_shared)}, problem,
                       stream);
}
