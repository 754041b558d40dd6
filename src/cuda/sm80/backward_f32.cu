/* Backward attention of f32 tensors with FMAs, every head dim, always deterministic: one kernel for each gradient, each sum in one
 * accumulator of one thread, and a small one for delta before them.
 *
 * Tiles      64 rows x 64 keys. grad_query: a block owns 64 rows of a query head and walks the row line's tiles. grad_key and
 *            grad_value: 64 keys of a key head, the column line's tiles, for each query head of the group. Gradients of more than
 *            128 dims are computed in parts of 128 by different blocks.
 * Roles      128 threads, all alike: 8 x 4 scores each, and 8 rows (keys) x 4 dims of each 64-dim block of the gradient.
 * Barriers   one a slice: "my copies of this slice are there; everybody has finished with the one before". It also publishes
 *            what was stored in the square.
 * Shared     48 KB: two stages of 16 KB and the square, which holds P for grad_value, W then dS for the others.
 * Registers  gradient 64, S or dP 32, a product's operands 48; two blocks a multiprocessor. grad_key and grad_value in one block
 *            would hold 64 more: their S is computed twice instead, one product of eight.
 * Time       slice s + 1 is copied while slice s is multiplied:
 *              copy      QK1   ...   dO.V0    dO.V1   ...      K0 (Q0)    K1 (Q1)   QK0 of the next tile
 *              multiply  QK0   ...   QKlast   dO.V0   ...   dO.Vlast      K0        K1
 *              between                      ^ S -> P -> W            ^ dP, W -> dS
 *            grad_value has no dO.V and multiplies P with dO.
 * Masks      full tiles run without; in partial ones hidden scores become -inf, so that P, W and dS are exactly 0.
 *
 * dS = P (dP - delta) (1 - t^2), t = S / softcap. W = P (1 - t^2) is what waits for dP. P is exp(S - log_total) in natural units
 * and from the forward's lse: with the workspace's lse2, S log2e would be rounded once more, and P is wrong by 2^-24 |S log2e|. */
#include "cuda/launch_kernel.cuh"
#include "cuda/tile/f32_tile.cuh"
#include "cuda/tile/line_walk.cuh"
#include "cuda/tile/work.cuh"

#include <math.h>

enum { OF_QUERY, OF_KEY, OF_VALUE }; /* whose gradient */

/* What a block reads for one query head: pairs of narrow slices for S, then for dP, then wide slices of `other`. */
typedef struct backward_pipe {
    f32_head query, key, value, grad_output;
    f32_head other;                            /* what P or dS is multiplied with */
    int32_t origin;                            /* first row (OF_QUERY) or key of the block */
    int32_t dim0;                              /* first dim of the part */
    int32_t score_slices, pair_slices, slices; /* ends, in order */
    float (*stages)[F32_WIDE];
    int turn; /* stage that holds the current slice */
} backward_pipe;

/* Starts the copy of one slice of a tile. */
template <int OF>
static __device__ __forceinline__ void copy_slice(const backward_pipe *pipe, float *stage, int32_t tile, int slice) {
    const int32_t row0 = OF == OF_QUERY ? pipe->origin : tile * F32_BLOCK;
    const int32_t key0 = OF == OF_QUERY ? tile * F32_BLOCK : pipe->origin;
    if (slice < pipe->score_slices) {
        f32_load_pair(stage, &pipe->query, row0, &pipe->key, key0, slice * F32_SLICE);
    } else if (OF != OF_VALUE && slice < pipe->pair_slices) {
        f32_load_pair(stage, &pipe->grad_output, row0, &pipe->value, key0, (slice - pipe->score_slices) * F32_SLICE);
    } else {
        f32_load<F32_BLOCK, 0>(stage, &pipe->other, tile * F32_BLOCK, pipe->dim0 + (slice - pipe->pair_slices) * F32_BLOCK);
    }
}

/* Waits for a slice of `tile` and starts the copy of the one after it, which may be the first of tile `next`. */
template <int OF>
static __device__ __forceinline__ const float *take_slice(backward_pipe *pipe, int32_t tile, int32_t next, int slice) {
    const float *stage = pipe->stages[pipe->turn];
    const bool is_last = slice + 1 == pipe->slices;
    pipe->turn ^= 1;
    ptx_cp_async_wait<0>();
    __syncthreads();
    if (!is_last || next != WALK_END) {
        copy_slice<OF>(pipe, pipe->stages[pipe->turn], is_last ? next : tile, is_last ? 0 : slice + 1);
    }
    ptx_cp_async_commit();
    return stage;
}

/* log(exp(lse) + exp(sink)) of a row, natural units; +inf where P is 0: in an empty row, or with a sink of +inf. */
static __device__ __forceinline__ float log_total_of(const fm_cuda_problem *f, int32_t head, float lse) {
    const float sink = f->sinks != NULL ? f->sinks[head] : -INFINITY;
    const float larger = sink > lse ? sink : lse, smaller = sink > lse ? lse : sink;
    if (lse == -INFINITY || larger == INFINITY) {
        return INFINITY;
    }
    return smaller == -INFINITY ? larger : larger + log1pf(expf(smaller - larger));
}

/* delta = dO . O - grad_lse exp(log_total - lse) again, over what row_terms put there: one chain of FMAs over ascending dims, as dP
 * is. A row that sees one key has O = v, and so dP - delta is exactly 0 there. One thread a row. */
static __global__ void __launch_bounds__(F32_THREADS) delta_f32_kernel(const __grid_constant__ fm_cuda_backward_problem p) {
    const fm_cuda_problem *f = &p.forward;
    const int64_t at = (int64_t)blockIdx.x * F32_THREADS + threadIdx.x;
    const int64_t row = at % f->rows, head = at / f->rows % f->heads, batch = at / f->rows / f->heads;
    if (batch >= f->batch) {
        return;
    }
    const fm_cuda_tensor *O = &f->output, *dO = &p.grad_output;
    const float *o = static_cast<const float *>(O->data) + batch * O->stride[0] + row * O->stride[1] + head * O->stride[2];
    const float *g = static_cast<const float *>(dO->data) + batch * dO->stride[0] + row * dO->stride[1] + head * dO->stride[2];
    const float lse = f->lse[at];
    float delta = 0.0f;
    if (lse != -INFINITY) {
#pragma unroll 8
        for (int d = 0; d < f->head_dim_v; d++) {
            delta = fmaf(g[d * dO->stride[3]], o[d * O->stride[3]], delta);
        }
        if (p.grad_lse != NULL) {
            delta -= p.grad_lse[at] * expf(log_total_of(f, (int32_t)head, lse) - lse);
        }
    }
    p.delta[at] = delta;
}

/* Of one row. Thread (ty, tx) loads those of row ty + 8 (tx % 8); the others get them by shuffle. */
typedef struct row_terms {
    float log_total, delta;
} row_terms;

static __device__ __forceinline__ row_terms load_terms(const fm_cuda_backward_problem *p, int32_t batch, int32_t head,
                                                       int32_t row0) {
    const fm_cuda_problem *f = &p->forward;
    const int32_t row = row0 + f32_ty() + 8 * (f32_tx() % F32_ROWS);
    row_terms terms = {INFINITY, 0.0f}; /* past the end */
    if (row < f->rows) {
        const int64_t at = ((int64_t)batch * f->heads + head) * f->rows + row;
        terms.log_total = log_total_of(f, head, f->lse[at]);
        terms.delta = p->delta[at];
    }
    return terms;
}

/* S becomes P, or W. Probabilities are at most 1: with scores of 10^12 the rounding of lse alone would make them overflow. */
template <int OF> static __device__ __forceinline__ void weigh(f32_fragment &S, row_terms terms, float softcap) {
    const float inverse = softcap > 0.0f ? f32_inverse_softcap(f32_opaque(softcap)) : 0.0f;
#pragma unroll
    for (int i = 0; i < F32_ROWS; i++) {
        const float log_total = __shfl_sync(0xffffffffu, terms.log_total, i, 16);
#pragma unroll
        for (int j = 0; j < F32_COLUMNS; j++) {
            const float x = S[i][j] - log_total, P = expf(x > 0.0f ? 0.0f : x);
            if (OF != OF_VALUE && softcap > 0.0f) {
                const float t = S[i][j] * inverse;
                S[i][j] = P == 0.0f ? 0.0f : P * (1.0f - t * t);
            } else {
                S[i][j] = P;
            }
        }
    }
}

/* The square's W and dP become dS; each thread reads what it wrote. W 0 gives 0 whatever dP is: hidden V may be huge. */
static __device__ __forceinline__ void finish_dS(float *square, f32_fragment &dP, row_terms terms) {
    f32_fragment W;
    f32_read_square(W, square);
#pragma unroll
    for (int i = 0; i < F32_ROWS; i++) {
        const float delta = __shfl_sync(0xffffffffu, terms.delta, i, 16);
#pragma unroll
        for (int j = 0; j < F32_COLUMNS; j++) {
            dP[i][j] = W[i][j] == 0.0f ? 0.0f : W[i][j] * (dP[i][j] - delta);
        }
    }
    f32_store_square(square, dP);
}

template <int OF>
static __device__ __forceinline__ void start_pipe(backward_pipe *pipe, const fm_cuda_backward_problem *p, int32_t batch,
                                                  int32_t head) {
    const fm_cuda_problem *f = &p->forward;
    const int32_t key_head = head / (f->heads / f->heads_kv);
    pipe->query = f32_head{&f->query, batch, head, f->rows, f->head_dim};
    pipe->key = f32_head{&f->key, batch, key_head, f->columns, f->head_dim};
    pipe->value = f32_head{&f->value, batch, key_head, f->columns, f->head_dim_v};
    pipe->grad_output = f32_head{&p->grad_output, batch, head, f->rows, f->head_dim_v};
    pipe->other = OF == OF_QUERY ? pipe->key : OF == OF_KEY ? pipe->query : pipe->grad_output;
    pipe->score_slices = (f->head_dim + F32_SLICE - 1) / F32_SLICE;
    pipe->pair_slices = pipe->score_slices + (OF == OF_VALUE ? 0 : (f->head_dim_v + F32_SLICE - 1) / F32_SLICE);
    pipe->slices = pipe->pair_slices + f32_blocks_of_part(OF == OF_VALUE ? f->head_dim_v : f->head_dim, pipe->dim0);
}

/* Adds the square's P or dS times a tile's rows of `other`. */
template <int OF>
static __device__ __forceinline__ void add_product(float (&grad)[F32_PART_BLOCKS][F32_ROWS][F32_COLUMNS], const float *square,
                                                   backward_pipe *pipe, int32_t tile, int32_t next) {
#pragma unroll
    for (int block = 0; block < F32_PART_BLOCKS; block++) {
        if (pipe->pair_slices + block >= pipe->slices) {
            continue;
        }
        const float *stage = take_slice<OF>(pipe, tile, next, pipe->pair_slices + block);
        if (OF == OF_QUERY) {
            f32_add_by_rows(grad[block], square, stage);
        } else {
            f32_add_by_keys(grad[block], square, stage);
        }
    }
}

/* Adds what the tiles of one query head give. */
template <int OF>
static __device__ __forceinline__ void add_head(float (&grad)[F32_PART_BLOCKS][F32_ROWS][F32_COLUMNS], backward_pipe *pipe,
                                                float *square, const fm_cuda_backward_problem *p, work_item item) {
    const fm_cuda_problem *f = &p->forward;
    const fm_tile_lines *lines = OF == OF_QUERY ? &f->plan.row_lines : &f->plan.column_lines;
    line_walk walk = line_walk_start(lines, item.plane, pipe->origin / F32_BLOCK, f->no_skip);
    bool is_full = false, next_is_full = false;
    int32_t tile = line_walk_next(&walk, &is_full);
    start_pipe<OF>(pipe, p, item.batch, item.head);
    if (tile != WALK_END) {
        copy_slice<OF>(pipe, pipe->stages[pipe->turn], tile, 0);
        ptx_cp_async_commit();
    }
    while (tile != WALK_END) {
        const int32_t next = line_walk_next(&walk, &next_is_full);
        const int32_t row0 = OF == OF_QUERY ? pipe->origin : tile * F32_BLOCK;
        const int32_t key0 = OF == OF_QUERY ? tile * F32_BLOCK : pipe->origin;
        f32_fragment S;
        f32_clear(S);
        for (int slice = 0; slice < pipe->score_slices; slice++) {
            f32_add_scores(S, take_slice<OF>(pipe, tile, next, slice));
        }
        f32_finish_scores(S, f->scale, f->softcap);
        if (!is_full) {
            f32_hide(S, &f->plan, item.plane, row0, key0);
        }
        const row_terms terms = load_terms(p, item.batch, item.head, row0);
        weigh<OF>(S, terms, f->softcap);
        f32_store_square(square, S);
        if (OF != OF_VALUE) {
            f32_clear(S);
            for (int slice = pipe->score_slices; slice < pipe->pair_slices; slice++) {
                f32_add_scores(S, take_slice<OF>(pipe, tile, next, slice));
            }
            finish_dS(square, S, terms);
        }
        add_product<OF>(grad, square, pipe, tile, next);
        tile = next;
        is_full = next_is_full;
    }
}

/* first: of the block's rows or keys; count: all there are. */
template <int OF>
static __device__ __forceinline__ void store_grad(const fm_cuda_backward_problem *p, work_item item, int32_t first, int32_t dim0,
                                                  const float (&grad)[F32_PART_BLOCKS][F32_ROWS][F32_COLUMNS]) {
    const fm_cuda_tensor *t = OF == OF_QUERY ? &p->grad_query : OF == OF_KEY ? &p->grad_key : &p->grad_value;
    const int32_t count = OF == OF_QUERY ? p->forward.rows : p->forward.columns;
    const int32_t dims = OF == OF_VALUE ? p->forward.head_dim_v : p->forward.head_dim;
    const int64_t head = item.batch * t->stride[0] + item.head * t->stride[2];
#pragma unroll
    for (int i = 0; i < F32_ROWS; i++) {
        const int32_t row = first + (OF == OF_QUERY ? f32_ty() + 8 * i : 4 * f32_ty() + i % 4 + i / 4 * 32);
#pragma unroll
        for (int block = 0; block < F32_PART_BLOCKS; block++) {
            const int32_t dim = dim0 + block * F32_BLOCK + f32_tx() * F32_CHUNK;
            if (row < count && dim < dims) {
                f32_store_row(t, head, row, dim, grad[block][i], OF == OF_VALUE ? 1.0f : p->forward.scale);
            }
        }
    }
}

template <int OF>
static __global__ void __launch_bounds__(F32_THREADS, F32_BLOCKS_AT_ONCE)
    grad_f32_kernel(const __grid_constant__ fm_cuda_backward_problem p) {
    __shared__ __align__(16) float stages[2][F32_WIDE], square[F32_WIDE];
    static_assert(sizeof stages + sizeof square <= 48 * 1024, "more needs an opt-in");
    const fm_cuda_problem *f = &p.forward;
    const fm_tile_lines *lines = OF == OF_QUERY ? &f->plan.row_lines : &f->plan.column_lines;
    const int32_t group = OF == OF_QUERY ? 1 : f->heads / f->heads_kv; /* query heads of an item */
    const work_item item = work_at(&f->plan, lines, f->heads / group, group, max(f->heads_together / group, 1), blockIdx.x / 2);
    const int32_t line = 2 * item.group + (int32_t)(blockIdx.x & 1);
    if (line >= lines->lines) {
        return;
    }
    float grad[F32_PART_BLOCKS][F32_ROWS][F32_COLUMNS];
#pragma unroll
    for (int block = 0; block < F32_PART_BLOCKS; block++) {
        f32_clear(grad[block]);
    }
    backward_pipe pipe;
    pipe.origin = line * F32_BLOCK;
    pipe.dim0 = (int32_t)blockIdx.y * F32_PART;
    pipe.stages = stages;
    pipe.turn = 0;
    for (int32_t h = 0; h < group; h++) {
        work_item one = item;
        one.head = item.head * group + h;
        one.plane = mask_plane(&f->plan, item.batch, one.head, f->heads);
        add_head<OF>(grad, &pipe, square, &p, one);
    }
    store_grad<OF>(&p, item, pipe.origin, pipe.dim0, grad);
}

template <int OF> static int launch(const fm_cuda_backward_problem *p, void *stream) {
    const fm_cuda_problem *f = &p->forward;
    const int64_t groups = OF == OF_QUERY ? f->plan.row_lines.groups : f->plan.column_lines.groups;
    const int64_t heads = OF == OF_QUERY ? f->heads : f->heads_kv;
    const int64_t lines = 2 * groups * heads * f->batch;
    const launch_shape shape = {lines, f32_parts(OF == OF_VALUE ? f->head_dim_v : f->head_dim), F32_THREADS, 0};
    return launch_with((const void *)grad_f32_kernel<OF>, shape, p, stream);
}

static int launch_delta(const fm_cuda_backward_problem *p, void *stream) {
    const int64_t rows = (int64_t)p->forward.batch * p->forward.heads * p->forward.rows;
    if (p->grad_query.data == NULL && p->grad_key.data == NULL) {
        return cudaSuccess;
    }
    const launch_shape shape = {(rows + F32_THREADS - 1) / F32_THREADS, 1, F32_THREADS, 0};
    return launch_with((const void *)delta_f32_kernel, shape, p, stream);
}

int fm_sm80_backward_f32(const fm_cuda_backward_problem *problem, void *stream) {
    int error = launch_delta(problem, stream);
    if (error == cudaSuccess && problem->grad_key.data != NULL) {
        error = launch<OF_KEY>(problem, stream);
    }
    if (error == cudaSuccess && problem->grad_value.data != NULL) {
        error = launch<OF_VALUE>(problem, stream);
    }
    if (error == cudaSuccess && problem->grad_query.data != NULL) {
        error = launch<OF_QUERY>(problem, stream);
    }
    return error;
}
