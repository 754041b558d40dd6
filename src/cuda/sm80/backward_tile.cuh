/* Sizes of the backward kernel for this head dim, how its warps share a tile, and its shared memory.
 *
 *                    D   64   96  128  192  256     compact  96  128  192  256
 *   keys of a block     128  128  128   64   64              64   64   64   64
 *   rows of a tile       64   64   64   64   64              64   64   32   16
 *   stages of Q, dO       2    2    2    2    1               2    1    1    1
 */
#ifndef FM_CUDA_SM80_BACKWARD_TILE_CUH
#define FM_CUDA_SM80_BACKWARD_TILE_CUH

#include "cuda/sm80/product.cuh"
#include "cuda/tile/step_list.cuh"

#include <stddef.h>

#ifndef FM_COMPACT
#define FM_COMPACT 0
#endif

enum {
    KEYS = FM_COMPACT || DIM > 128 ? 64 : 128,
    ROWS = FM_COMPACT && DIM == 192   ? 32
           : FM_COMPACT && DIM == 256 ? 16
                                      : 64,
    STAGES = FM_COMPACT ? (DIM == 96 ? 2 : 1) : (DIM == 256 ? 1 : 2),
    WARPS = 4, /* of a team */
    TEAM = 32 * WARPS,
    THREADS = 2 * TEAM,
    MOST_SHARED = FM_COMPACT || DIM == 64 ? 99 * 1024 : 163 * 1024, /* of a block, GeForce of sm_86; A100 */

    /* S and dP: the four warps of a team side by side along the keys, two by two where keys are few */
    SCORE_WARP_ROWS = KEYS == 64 && ROWS == 64 ? 2 : 1,
    SCORE_ROWS = ROWS / SCORE_WARP_ROWS,
    SCORE_KEYS = KEYS / (WARPS / SCORE_WARP_ROWS),
    SCORE_M = SCORE_ROWS / 16,
    SCORE_N = SCORE_KEYS / 8,

    /* dV and dK: 64 keys of a warp (32 where 64 would leave it an odd number of products), the dims among the warps of those */
    SUM_WARP_KEYS = KEYS == 128 || DIM == 96 ? 2 : 1,
    SUM_KEYS = KEYS / SUM_WARP_KEYS,
    SUM_DIMS = DIM / (WARPS / SUM_WARP_KEYS),
    SUM_M = SUM_KEYS / 16,
    SUM_N = SUM_DIMS / 8,

    /* dQ: all eight warps, in two passes where a warp has many dims */
    QUERY_WARP_ROWS = ROWS == 16  ? 1
                      : DIM == 96 ? 4
                                  : 2,
    QUERY_PASSES = DIM == 256 && ROWS == 64 ? 2 : 1,
    QUERY_ROWS = ROWS / QUERY_WARP_ROWS,
    QUERY_DIMS = DIM / (2 * WARPS / QUERY_WARP_ROWS) / QUERY_PASSES,
    QUERY_M = QUERY_ROWS / 16,
    QUERY_N = QUERY_DIMS / 8
};

/* What a block works on. */
typedef struct block_work {
    int64_t plane;
    int32_t batch, key_head;
    int32_t head, end_head; /* of the query heads: the one that is walked now, and one past the key head's last */
    int32_t group, key0;
    int32_t half; /* of the group, where a block holds one half only */
    /* of the head that is walked now, for team dS and team P: Q and dO, delta and lse2; dQ's sum or NULL */
    const void *rows[2];
    const float *terms[2];
    float *query_sum;
} block_work;

typedef struct backward_shared {
    fm_half key[KEYS * DIM], value[KEYS * DIM];
    fm_half query[STAGES][ROWS * DIM], grad_output[STAGES][ROWS * DIM];
    fm_half probability[ROWS * KEYS], grad_score[ROWS * KEYS];
    float row_terms[2][ROWS]; /* of the two teams: delta, lse2 */
    step_list list;
    block_work work; /* here, not in registers */
} backward_shared;

static_assert(sizeof(backward_shared) <= MOST_SHARED, "a block's shared memory");
static_assert(sizeof(float) * KEYS * DIM <= offsetof(backward_shared, probability), "room for staging dK and dV");
static_assert(SCORE_M >= 1 && SCORE_N % 2 == 0 && SUM_N % 2 == 0 && QUERY_M >= 1 && QUERY_N % 2 == 0, "tiles of whole products");
static_assert(SUM_M * SUM_N * 4 + SCORE_M * SCORE_N * 4 <= 192, "sums of a thread leave room for fragments");
static_assert(FM_PLAN_BLOCK % ROWS == 0 && FM_PLAN_GROUP % KEYS == 0, "a tile lies in one tile of the plan");

enum { TEAM_SCORE = 0, TEAM_P = 1 };

static __device__ __forceinline__ int team_of(void) { return (int)(thread_here() / TEAM); }

/* First row and key of this warp's part of S or dP. */
static __device__ __forceinline__ int score_row0(void) { return (int)(thread_here() / 32 % SCORE_WARP_ROWS * SCORE_ROWS); }
static __device__ __forceinline__ int score_key0(void) {
    return (int)(thread_here() / 32 % WARPS / SCORE_WARP_ROWS * SCORE_KEYS);
}

/* First key and dim of this warp's sum. */
static __device__ __forceinline__ int sum_key0(void) {
    return (int)(thread_here() / 32 % WARPS / (WARPS / SUM_WARP_KEYS) * SUM_KEYS);
}
static __device__ __forceinline__ int sum_dim0(void) { return (int)(thread_here() / 32 % (WARPS / SUM_WARP_KEYS) * SUM_DIMS); }

/* First row and dim of this warp's part of dQ. */
static __device__ __forceinline__ int query_row0(void) { return (int)(thread_here() / 32 % QUERY_WARP_ROWS * QUERY_ROWS); }
static __device__ __forceinline__ int query_dim0(int pass) {
    return ((int)(thread_here() / 32 / QUERY_WARP_ROWS) * QUERY_PASSES + pass) * QUERY_DIMS;
}

#endif
