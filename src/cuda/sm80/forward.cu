/* Attention forward with the tensor cores of sm_80: O = softmax(scale Q K^T) V over the visible tiles of a group of rows.
 *
 * Tiles    128 rows x 64 keys for head dims up to 128: two 16-row fragments a warp, so that every fragment of K and V read from
 *          shared memory feeds two products. 64 rows x 32 keys (half a tile of the plan) for 192 and 256, whose O fills the
 *          registers with one fragment; such a block has one line of a group, so a group has two blocks.
 * Roles    4 warps, all alike: a warp owns 16 FRAGMENTS rows from Q to O, softmax included, and shares nothing with the others but
 *          the tiles of K and V.
 * Barriers one __syncthreads a step: behind it the step's tiles have arrived and nobody reads those of the step before.
 * Memory   shared: two stages of K and V, then Q, then forward_block (2.1 KB).
 *            head dim          64      96     128     192     256
 *            rows x keys   128x64  128x64  128x64   64x32   64x32
 *            shared, KB      50.1    74.1    98.1    74.1    98.1
 *          registers: up to 255, none spilled, so two blocks an SM. Head dim 128: O 128, S 64, P 16, fragments 16, softmax 8, the
 *          rest addresses. Q lies in registers where they suffice (64, 192, 256); else its fragments are read with each tile.
 * Time     of one warp and step i; two blocks an SM fill each other's gaps. copy: cp.async of the next tiles, between the products.
 *            wait, barrier | S = Q K^T ........ | mask | max | [rescale] | exp 0  exp 1   exp 2   exp 3
 *                          |   copy i + 1       |      |     |           |        P V 0   P V 1   P V 2   P V 3
 *          exp k are the weights of keys 16 k .., computed between the products of the 16 keys before.
 * Masks    a warp takes the class of its own 64-row line: hidden, it copies and goes on; full, no mask code runs; partial, it reads
 *          the bounds of the 64 keys before the barrier, goes on without work where its rows see none, and hides scores as -inf.
 *          Hidden keys weigh 0 and a hidden step moves nothing, so full and partial steps, and no_skip, give the same bits. */
#include "cuda/launch_kernel.cuh"
#include "cuda/tile/fragment.cuh"
#include "cuda/tile/mask_rows.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/step_list.cuh"
#include "cuda/tile/store_rows.cuh"
#include "cuda/tile/work.cuh"

enum {
    D = FM_HEAD_DIM,
    BLOCK_WARPS = 4,
    BLOCK_THREADS = 32 * BLOCK_WARPS,
    FRAGMENTS = D <= 128 ? 2 : 1, /* of 16 rows, of a warp */
    WARP_ROWS = 16 * FRAGMENTS,
    BLOCK_ROWS = BLOCK_WARPS * WARP_ROWS,
    ITEMS = FM_PLAN_GROUP / BLOCK_ROWS, /* of a group */
    TILE_KEYS = D <= 128 ? 64 : 32,
    STEP_PARTS = FM_PLAN_BLOCK / TILE_KEYS, /* of a step */
    KEY_BLOCKS = TILE_KEYS / 8,
    DIM_BLOCKS = D / 8,
    DIM_STEPS = D / 16,
    Q_IN_REGISTERS = D == 64 || D >= 192,
    BLOCKS_PER_SM = 2,
    TILE = TILE_KEYS * D, /* halves */
    STAGE = 2 * TILE,     /* K, V */
    Q_AT = 2 * STAGE,
    HALVES = Q_AT + BLOCK_ROWS * D
};
static_assert(Q_AT >= 2 * BLOCK_ROWS * D,
              "store_elements stages f32 rows before Q, which a warp may still read where there is no step");

/* What the block works at. It lies in shared memory, since registers are short. */
typedef struct forward_block {
    const fm_half *key, *value;
    work_item item;
    softmax_capping capping;
    float factor;       /* c of softmax.cuh */
    int32_t row0, half; /* half: the only one of the group, or -1 where the block has both */
    step_list steps;
} forward_block;

enum { SHARED_BYTES = HALVES * (int)sizeof(fm_half) + (int)sizeof(forward_block) };
static_assert(SHARED_BYTES <= 101376, "blocks must fit GPUs with 99 KB");

/* Sums of a warp's rows. */
typedef struct forward_rows {
    float O[FRAGMENTS][DIM_BLOCKS][4];
    float base[2 * FRAGMENTS], l[2 * FRAGMENTS];
} forward_rows;

/* Fragments of a warp's rows of Q, all of them or, where registers are short, one at a time. */
typedef uint32_t forward_query[Q_IN_REGISTERS ? DIM_STEPS : 1][FRAGMENTS][4];

/* A tile to copy: its first key, past the last one where there is no tile, and where it goes. */
typedef struct forward_copy {
    int32_t key;
    fm_half *stage;
} forward_copy;

/* Fills *block but for the steps, and starts the copy of Q. */
static __device__ __forceinline__ void start_block(const fm_cuda_problem *p, forward_block *block, fm_half *query_tile) {
    const work_item item = work_at(&p->plan, &p->plan.row_lines, p->heads, 1, p->heads_together, blockIdx.x / ITEMS);
    const int32_t part = (int32_t)(blockIdx.x % ITEMS), head_kv = item.head / (p->heads / p->heads_kv);
    if (threadIdx.x == 0) {
        block->item = item;
        block->row0 = item.group * FM_PLAN_GROUP + part * BLOCK_ROWS;
        block->half = ITEMS == 1 ? -1 : part;
        block->capping = softmax_capping_of(p->scale, p->softcap);
        block->factor = p->softcap > 0.0f ? 1.0f : softmax_factor(p->scale);
        block->key = tensor_head(&p->key, item.batch, head_kv);
        block->value = tensor_head(&p->value, item.batch, head_kv);
    }
    load_tile<BLOCK_THREADS, BLOCK_ROWS, D>(query_tile, &p->query, tensor_head(&p->query, item.batch, item.head),
                                            item.group * FM_PLAN_GROUP + part * BLOCK_ROWS, p->rows, p->head_dim);
    ptx_cp_async_commit();
    step_list_start(&block->steps, &p->plan.row_lines, item.plane, item.group, p->no_skip);
    __syncthreads();
}

/* The next steps of the block; 0 at the end. */
static __device__ __forceinline__ int next_steps(const fm_cuda_problem *p, forward_block *block) {
    int count;
    do {
        count = step_list_fill(&block->steps, &p->plan.row_lines, block->item.plane, block->item.group, p->no_skip);
        if (count == 0 || ITEMS == 1) {
            return count;
        }
        count = step_list_keep_half(&block->steps, block->half);
    } while (count == 0);
    return count;
}

/* First key of part i of the list, past the last key at the list's end. */
static __device__ __forceinline__ int32_t part_key(const fm_cuda_problem *p, const step_list *list, int i) {
    return i < list->count * STEP_PARTS ? step_tile(list->steps[i / STEP_PARTS]) * FM_PLAN_BLOCK + i % STEP_PARTS * TILE_KEYS
                                        : p->columns;
}

template <bool CHUNKS>
static __device__ __forceinline__ void copy_tiles(const fm_cuda_problem *p, const forward_block *block, forward_copy copy) {
    if (CHUNKS) {
        load_tile_chunks<BLOCK_THREADS, TILE_KEYS, D>(copy.stage, &p->key, block->key, copy.key, p->columns, p->head_dim);
        load_tile_chunks<BLOCK_THREADS, TILE_KEYS, D>(copy.stage + TILE, &p->value, block->value, copy.key, p->columns,
                                                      p->head_dim_v);
    } else {
        load_tile<BLOCK_THREADS, TILE_KEYS, D>(copy.stage, &p->key, block->key, copy.key, p->columns, p->head_dim);
        load_tile<BLOCK_THREADS, TILE_KEYS, D>(copy.stage + TILE, &p->value, block->value, copy.key, p->columns, p->head_dim_v);
    }
    ptx_cp_async_commit();
}

/* Scale < 0: the rows of the warp change sign, which is exact, and all that follows has |scale|. */
static __device__ __forceinline__ void negate_query(fm_half *rows) {
    uint32_t *pairs = reinterpret_cast<uint32_t *>(rows);
#pragma unroll 1
    for (int i = (int)threadIdx.x % 32; i < WARP_ROWS * D / 2; i += 32) {
        pairs[i] ^= 0x80008000u;
    }
    __syncwarp();
}

/* This lane's address in the warp's rows of Q. */
static __device__ __forceinline__ uint32_t query_address(const fm_half *query_tile) {
    return ptx_shared_address(query_tile) + thread_again() / 32 * (WARP_ROWS * D * 2) + fragment_by_rows<D>();
}

static __device__ __forceinline__ void read_query(uint32_t (&a)[FRAGMENTS][4], uint32_t address, int step) {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
        ptx_ldmatrix(a[f], fragment_at<D>(address, f, step));
    }
}

static __device__ __forceinline__ void take_query(const fm_cuda_problem *p, fm_half *query_tile, forward_query &query) {
    if (p->scale < 0.0f) {
        negate_query(query_tile + (int)threadIdx.x / 32 * WARP_ROWS * D);
    }
    if (Q_IN_REGISTERS) {
        const uint32_t address = query_address(query_tile);
#pragma unroll
        for (int k = 0; k < DIM_STEPS; k++) {
            read_query(query[Q_IN_REGISTERS ? k : 0], address, k);
        }
    }
}

/* S = Q K^T. The copies of the next tiles start between the first products: later, at a quarter or half of S, they arrive late and
 * a step takes 2% to 5% longer. */
template <bool CHUNKS>
static __device__ __forceinline__ void multiply_key(float (&S)[FRAGMENTS][KEY_BLOCKS][4], const fm_cuda_problem *p,
                                                    const forward_block *block, forward_query &query, const fm_half *shared,
                                                    const fm_half *key_tile, forward_copy next) {
    const uint32_t key = ptx_shared_address(key_tile) + fragment_by_columns<D>(), rows = query_address(shared + Q_AT);
#pragma unroll
    for (int i = 0; i < FRAGMENTS * KEY_BLOCKS * 4; i++) {
        S[i / (KEY_BLOCKS * 4)][i / 4 % KEY_BLOCKS][i % 4] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < DIM_STEPS; k++) {
        uint32_t(&a)[FRAGMENTS][4] = query[Q_IN_REGISTERS ? k : 0];
        if (!Q_IN_REGISTERS) {
            read_query(a, rows, k);
        }
#pragma unroll
        for (int n = 0; n < KEY_BLOCKS; n += 2) {
            uint32_t b[4];
            ptx_ldmatrix(b, fragment_at<D>(key, n / 2, k));
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++) {
                ptx_mma(S[f][n], a[f], b[0], b[1]);
                ptx_mma(S[f][n + 1], a[f], b[2], b[3]);
            }
        }
        if (k == 0) {
            copy_tiles<CHUNKS>(p, block, next);
        }
    }
}

/* The base moves where the tile beats it, and O and l with it. */
static __device__ __forceinline__ void advance_rows(forward_rows *rows, const float (&S)[FRAGMENTS][KEY_BLOCKS][4], float c) {
    float highest[2 * FRAGMENTS], rescale[2 * FRAGMENTS];
    softmax_highest(S, highest);
    if (!softmax_moves(rows->base, highest, c)) {
        return;
    }
    softmax_move(rows->base, highest, c, rescale);
#pragma unroll
    for (int r = 0; r < 2 * FRAGMENTS; r++) {
        rows->l[r] *= rescale[r];
#pragma unroll
        for (int d = 0; d < DIM_BLOCKS; d++) {
            rows->O[r / 2][d][r % 2 * 2] *= rescale[r];
            rows->O[r / 2][d][r % 2 * 2 + 1] *= rescale[r];
        }
    }
}

/* Weights of keys 16 k .. 16 k + 15: one register of a fragment of P, two weights, and their sum into l. */
static __device__ __forceinline__ void weigh_pair(uint32_t (&P)[FRAGMENTS][4], forward_rows *rows,
                                                  const float (&S)[FRAGMENTS][KEY_BLOCKS][4], int k, int i, float c,
                                                  const float (&base)[2 * FRAGMENTS]) {
    const int f = i / 4, r = 2 * f + i % 2;
    const float *pair = S[f][2 * k + i % 4 / 2] + i % 2 * 2;
    const float x = ptx_exp2(fmaf(pair[0], c, -base[r])), y = ptx_exp2(fmaf(pair[1], c, -base[r]));
    P[f][i % 4] = fm_half2_from(x, y);
    rows->l[r] += x + y;
}

/* O += P V, l += sums of P. The weights of the next 16 keys are computed between the products of these. */
static __device__ __forceinline__ void multiply_value(forward_rows *rows, float (&S)[FRAGMENTS][KEY_BLOCKS][4], float c,
                                                      const fm_half *value_tile) {
    constexpr int PAIRS = 4 * FRAGMENTS, TURNS = DIM_BLOCKS / 2;
    const uint32_t value = ptx_shared_address(value_tile) + fragment_by_rows<D>();
    const bool is_coarse = softmax_is_coarse(rows->base);
    if (is_coarse) {
        softmax_cut(S, rows->base, c);
        c = 1.0f;
    }
    float base[2 * FRAGMENTS]; /* copies: ptxas then keeps the order below, and needs no moves between registers */
#pragma unroll
    for (int r = 0; r < 2 * FRAGMENTS; r++) {
        base[r] = softmax_again(is_coarse ? 0.0f : rows->base[r]);
    }
    uint32_t P[2][FRAGMENTS][4];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        weigh_pair(P[0], rows, S, 0, i, c, base);
    }
#pragma unroll
    for (int k = 0; k < TILE_KEYS / 16; k++) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            uint32_t b[4];
            ptx_ldmatrix_transposed(b, fragment_at<D>(value, k, turn));
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++) {
                ptx_mma(rows->O[f][2 * turn], P[k % 2][f], b[0], b[1]);
                ptx_mma(rows->O[f][2 * turn + 1], P[k % 2][f], b[2], b[3]);
            }
#pragma unroll
            for (int i = turn * PAIRS / TURNS; i < (turn + 1) * PAIRS / TURNS && k + 1 < TILE_KEYS / 16; i++) {
                weigh_pair(P[(k + 1) % 2], rows, S, k + 1, i, c, base);
            }
        }
    }
}

/* Visibility of the warp's part of a step. is_active: it sees some of it, or no_skip; is_full: it needs no mask. */
static __device__ __forceinline__ mask_rows read_mask(const fm_cuda_problem *p, const forward_block *block, uint32_t step,
                                                      bool *is_active, bool *is_full) {
    const int warp_row = (int)(thread_again() / 32) * WARP_ROWS, half = ITEMS == 1 ? warp_row / FM_PLAN_BLOCK : block->half;
    mask_rows visible = {0, 0};
    *is_active = step_half_is_visible(step, half);
    *is_full = step_half_is_full(step, half);
    if (*is_active && !*is_full) {
        const int32_t row = block->row0 + warp_row, key = step_tile(step) * FM_PLAN_BLOCK;
        const tile_mask mask = tile_mask_at(&p->plan, block->item.plane, row, key);
        visible = mask_rows_read(&mask, row, key);
        const uint32_t any = (visible.even | visible.odd) << (32 - WARP_ROWS);
        *is_active = p->no_skip || __any_sync(0xffffffffu, any != 0);
    }
    return visible;
}

static __device__ __forceinline__ void zero_rows(forward_rows *rows) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS * DIM_BLOCKS * 4; i++) {
        rows->O[i / (DIM_BLOCKS * 4)][i / 4 % DIM_BLOCKS][i % 4] = 0.0f;
    }
#pragma unroll
    for (int r = 0; r < 2 * FRAGMENTS; r++) {
        rows->base[r] = SOFTMAX_LOWEST;
        rows->l[r] = 0.0f;
    }
}

static __device__ __forceinline__ void store_block(const fm_cuda_problem *p, const forward_block *block, forward_rows *rows,
                                                   fm_half *ring) {
    const int warp = (int)threadIdx.x / 32;
    const store_target target = {.tensor = &p->output,
                                 .head = block->item.batch * p->output.stride[0] + block->item.head * p->output.stride[2],
                                 .row0 = block->row0 + warp * WARP_ROWS,
                                 .rows = p->rows,
                                 .dim = p->head_dim_v,
                                 .is_f32 = p->output_is_f32};
    store_lse(p, block->item.batch, block->item.head, rows->base, rows->l, target.row0 + (int)threadIdx.x % 32 / 4);
    if (p->output.in_chunks && !p->output_is_f32) {
        store_chunks(&target, rows->O, rows->l);
    } else {
        store_elements(&target, rows->O, rows->l, reinterpret_cast<float *>(ring) + warp * WARP_ROWS * D);
    }
}

template <bool CHUNKS>
static __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS_PER_SM) forward_kernel(const __grid_constant__ fm_cuda_problem p) {
    extern __shared__ __align__(128) uint8_t memory[];
    fm_half *shared = reinterpret_cast<fm_half *>(memory);
    forward_block *block = reinterpret_cast<forward_block *>(shared + HALVES);
    start_block(&p, block, shared + Q_AT);
    if (block->row0 >= p.rows) {
        ptx_cp_async_wait<0>();
        return;
    }
    bool more = next_steps(&p, block) > 0;
    ptx_cp_async_wait<0>();
    __syncthreads();
    forward_query query;
    take_query(&p, shared + Q_AT, query);

    forward_rows rows;
    zero_rows(&rows);
    while (more) {
        forward_copy next = {part_key(&p, &block->steps, 0), shared};
        copy_tiles<CHUNKS>(&p, block, next);
#pragma unroll 1
        for (int i = 0; i < block->steps.count * STEP_PARTS; i++) {
            const fm_half *stage = next.stage;
            next.key = part_key(&p, &block->steps, i + 1);
            next.stage = shared + (i + 1) % 2 * STAGE;
            bool is_active, is_full;
            const mask_rows visible = read_mask(&p, block, block->steps.steps[i / STEP_PARTS], &is_active, &is_full);
            ptx_cp_async_wait<0>();
            __syncthreads();
            if (!is_active) {
                copy_tiles<CHUNKS>(&p, block, next);
                continue;
            }
            float S[FRAGMENTS][KEY_BLOCKS][4];
            multiply_key<CHUNKS>(S, &p, block, query, shared, stage, next);
            if (p.softcap > 0.0f) {
                softmax_cap(S, block->capping);
            }
            if (!is_full) {
                mask_rows_hide(S, visible, i % STEP_PARTS * KEY_BLOCKS);
            }
            advance_rows(&rows, S, block->factor);
            multiply_value(&rows, S, block->factor, stage + TILE);
        }
        ptx_cp_async_wait<0>(); /* of the tile past the end, which is zeros */
        more = next_steps(&p, block) > 0;
    }
    store_block(&p, block, &rows, shared);
}

extern "C" int FM_VARIANT(fm_sm80_forward)(const fm_cuda_problem *problem, void *stream) {
    const bool chunks = problem->key.in_chunks && problem->value.in_chunks;
    const void *kernel = chunks ? (const void *)forward_kernel<true> : (const void *)forward_kernel<false>;
    const int64_t blocks = (int64_t)problem->batch * problem->heads * problem->plan.row_lines.groups * ITEMS;
    return launch_with(kernel, launch_shape{blocks, 1, BLOCK_THREADS, SHARED_BYTES}, problem, stream);
}
