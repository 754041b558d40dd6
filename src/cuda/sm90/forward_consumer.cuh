/* What a consumer warp of the forward kernel keeps, and what it does between products: barriers and turns, masks, softmax. */
#ifndef FM_CUDA_SM90_FORWARD_CONSUMER_CUH
#define FM_CUDA_SM90_FORWARD_CONSUMER_CUH

#include "cuda/ptx/bar.cuh"
#include "cuda/sm90/forward_producer.cuh"
#include "cuda/tile/softmax.cuh"

enum {
    TEAM_THREADS = 128,
    THREADS = (1 + TEAMS) * TEAM_THREADS,
    CONSUMER_WARPS = TEAMS * TEAM_THREADS / 32,
    PRODUCER_REGISTERS = 40,
    CONSUMER_REGISTERS = 232,
    KEY_BLOCKS = KEYS / 8,
    HALF_BLOCKS = FM_PLAN_BLOCK / 8,
    DIM_BLOCKS = DV / 8,
    SCORES = KEYS / 2, /* accumulators of a thread */
    HALF_SCORES = FM_PLAN_BLOCK / 2,
    SUMS = DV / 2,
    TURN_BARRIER = 1,  /* + team */
    TEAM_BARRIER = 3,  /* + team */
    LAZY = FM_IS_BF16, /* bases are set once, see weigh */
    MOVES_OUTPUT =
        !LAZY || HALVES == 1 /* LAZY: O is 0 then, but with 64 keys a step ptxas serialises all products otherwise (C7515) */
};
#define LAZY_LIMIT 0x1p40f  /* of a lane's l */
#define LAZY_COARSE 0x1p27f /* of a base, from where on a score's exponent above it may pass SOFTMAX_SLACK */
static_assert(TEAM_THREADS * PRODUCER_REGISTERS + TEAMS * TEAM_THREADS * CONSUMER_REGISTERS <= 65536 / THREADS / 8 * 8 * THREADS,
              "more registers than the launch got would hang in setmaxnreg");

/* Sums of a thread's rows. */
typedef struct forward_rows {
    float O[1][DIM_BLOCKS][4];
    float base[2], l[2], rescale[2];
    float l_before[2]; /* l before the step in work */
    mask_rows words;   /* of that step, if it is partial: take_words */
    bool moves;        /* O is to be multiplied by rescale */
    bool is_beyond;    /* weigh_again is to follow */
    bool is_coarse;    /* LAZY 0: softmax_is_coarse(base). LAZY 1: lazy_is_coarse of some base, all steps are weighed again */
    bool is_new;       /* LAZY 1: a row of the warp has seen nothing yet */
} forward_rows;

typedef uint32_t forward_weights[SCORES / 2];

/* What a launch adds to its problem. */
typedef struct forward_launch {
    item_source source;
    float factor; /* c of softmax.cuh */
    softmax_capping capping;
    fm_sm90_splits splits;
    fm_cuda_tensor split_output; /* of splits, rows of all heads one after another */
} forward_launch;

typedef struct consumer {
    const fm_cuda_problem *p;
    const forward_launch *launch;
    forward_tail *tail;
    uint32_t shared;
    int team;
    ring_place at; /* of the step in work, in the rings of K and V alike */
    uint32_t items;
    ring_place words; /* of the next partial step */
} consumer;

/* ---- steps ---- */

/* Values that ptxas takes for uniform: it serialises products behind branches on others (C7520). */
static __device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(ALL_LANES, x, 0); }

static __device__ __forceinline__ void wait_key(const consumer *x, ring_place at) {
    ptx_mbarrier_wait(TAIL_BARRIER(x, key_full, at.stage), at.phase);
}
/* By lane 0, which also gives the place back: no other lane's read is to be ordered before that. */
static __device__ __forceinline__ forward_step read_step(const consumer *x, ring_place at) {
    forward_step step = {0, 0, 0};
    if (threadIdx.x % 32 == 0) {
        step = x->tail->step[at.stage];
    }
    return forward_step{uniform(step.what), uniform(step.flags), uniform(step.next)};
}

static __device__ __forceinline__ void release(uint32_t barrier) {
    if (threadIdx.x % 32 == 0) {
        ptx_mbarrier_arrive(barrier);
    }
}
static __device__ __forceinline__ void release_key(const consumer *x, ring_place at) {
    release(TAIL_BARRIER(x, key_empty, at.stage));
}
static __device__ __forceinline__ void wait_value(const consumer *x, ring_place at) {
    ptx_mbarrier_wait(TAIL_BARRIER(x, value_full, at.stage), at.phase);
}
static __device__ __forceinline__ void release_value(const consumer *x, ring_place at) {
    release(TAIL_BARRIER(x, value_empty, at.stage));
}

static __device__ __forceinline__ void turn_take(const consumer *x) {
    ptx_bar_sync(TURN_BARRIER + x->team, TEAMS * TEAM_THREADS);
}
static __device__ __forceinline__ void turn_pass(const consumer *x) {
    ptx_bar_arrive(TURN_BARRIER + 1 - x->team, TEAMS * TEAM_THREADS);
}

/* A step that the team does not see: it takes part in turns and rings. */
static __device__ __forceinline__ void skip_step(consumer *x, bool is_last) {
    turn_take(x);
    turn_pass(x);
    if (is_last) {
        release(TAIL_BARRIER(x, query_empty, x->items % QUERIES));
    }
    release_key(x, x->at);
    wait_value(x, x->at); /* a place may be given back only after it was filled */
    release_value(x, x->at);
    x->at = ring_after(x->at);
}

/* ---- masks ---- */

static __device__ __forceinline__ const forward_item *item_of(const consumer *x) {
    return &x->tail->item[x->items % ITEM_PLACES];
}
/* The warp's first row. */
static __device__ __forceinline__ int32_t row_of(const consumer *x) {
    return item_of(x)->group * FM_PLAN_GROUP + x->team * TEAM_ROWS + (int32_t)thread_again() % TEAM_THREADS / 32 * 16;
}
/* What the team's masker says of a step, if it is partial: forward_masker.cuh. Called before K is given back: a job may take the place of
 * one STAGES before once K's place is free. All lanes arrive, so that racecheck can follow the words. */
static __device__ __forceinline__ mask_rows take_words(consumer *x, uint32_t classes) {
    mask_rows words = {0, 0};
    if (has_partial(classes)) {
        const uint32_t thread = thread_again() % TEAM_THREADS;
        ptx_mbarrier_wait(TAIL_BARRIER(x, words_full, x->team * STAGES + x->words.stage), x->words.phase);
        words = x->tail->words[x->team][x->words.stage][thread / 32][thread % 32];
        ptx_mbarrier_arrive(TAIL_BARRIER(x, words_empty, x->team * STAGES + x->words.stage));
        x->words = ring_after(x->words);
    }
    return words;
}

/* Hidden scores become -inf. */
template <int BLOCKS> static __device__ __forceinline__ void hide(float (&S)[1][BLOCKS][4], mask_rows words, uint32_t classes) {
#pragma unroll
    for (int h = 0; h < BLOCKS / HALF_BLOCKS; h++) {
        if (BLOCKS == HALF_BLOCKS || half_is_partial(classes, h)) {
#pragma unroll
            for (int i = 0; i < 4; i++) { /* ptxas moves bits of a byte to predicates at once */
                const uint32_t seen = (i % 2 ? words.odd : words.even) >> (16 * h + i / 2 * 8);
#pragma unroll
                for (int n = 0; n < HALF_BLOCKS; n++) {
                    float *score = &S[0][h * HALF_BLOCKS + n][i];
                    *score = seen & 1u << n ? *score : -INFINITY;
                }
            }
        }
    }
}

/* ---- softmax ---- */

/* softmax_highest in two chains a row: half the latency. */
template <int BLOCKS> static __device__ __forceinline__ void find_highest(const float (&S)[1][BLOCKS][4], float (&highest)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float x = S[0][0][2 * r], y = S[0][0][2 * r + 1];
#pragma unroll
        for (int n = 1; n < BLOCKS; n++) {
            x = fmaxf(x, S[0][n][2 * r]);
            y = fmaxf(y, S[0][n][2 * r + 1]);
        }
        highest[r] = fmaxf(x, y);
    }
}

/* LAZY: whether the rounding of a base alone could make a weight pass the slack. Such weights are cut, and so in all steps alike. */
static __device__ __forceinline__ bool lazy_is_coarse(float base) {
    const float x = fabsf(base);
    return x >= LAZY_COARSE && x < INFINITY && base > SOFTMAX_LOWEST;
}
static __device__ __forceinline__ bool lazy_are_coarse(const forward_rows *rows) {
    return __any_sync(ALL_LANES, lazy_is_coarse(rows->base[0]) || lazy_is_coarse(rows->base[1]));
}

/* Moves bases that scores beat; with LAZY only of rows that have none. */
static __device__ __forceinline__ void move_bases(forward_rows *rows, float (&highest)[2], float c) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        highest[r] = LAZY && rows->base[r] > SOFTMAX_LOWEST ? -INFINITY : highest[r];
    }
    rows->moves = softmax_moves(rows->base, highest, c);
    if (rows->moves) {
        softmax_move(rows->base, highest, c, rows->rescale);
        if (!LAZY) {
            rows->l[0] *= rows->rescale[0];
            rows->l[1] *= rows->rescale[1];
        }
        rows->is_coarse = LAZY ? lazy_are_coarse(rows) : softmax_is_coarse(rows->base);
        rows->is_new = __any_sync(ALL_LANES, fminf(rows->base[0], rows->base[1]) <= SOFTMAX_LOWEST);
    }
}

/* Scores become weights and go into l.
 *
 * Looking for the highest score of each step would be a fifth of a full step's instructions. A bfloat16 has the range of a float, so a row
 * may keep the base that the first keys it sees give it: weights are then as exact as with any other base, as long as they are finite.
 * LAZY does so; where l passes LAZY_LIMIT, 28 in natural units above the first keys, weigh_again does the step once more with a
 * higher base, and so it does all steps where a base is coarse. Halves of a step that are hidden add 0 to l and decide nothing. */
template <bool CAPPED, int BLOCKS>
static __device__ __forceinline__ void weigh(float (&S)[1][BLOCKS][4], forward_rows *rows, const consumer *x, uint32_t classes) {
    float c = CAPPED ? 1.0f : x->launch->factor, highest[2], base[2];
    if (CAPPED) {
        softmax_cap(S, x->launch->capping);
    }
    if (has_partial(classes)) {
        hide(S, rows->words, classes);
    }
    rows->moves = false;
    if (!LAZY || rows->is_new) {
        find_highest(S, highest);
        move_bases(rows, highest, c);
    }
    if (__builtin_expect(!LAZY && rows->is_coarse, 0)) {
        softmax_cut(S, rows->base, c);
        c = 1.0f;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        base[r] = !LAZY && rows->is_coarse ? 0.0f : rows->base[r];
        rows->l_before[r] = rows->l[r];
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
            float *pair = S[0][n] + 2 * r;
            pair[0] = ptx_exp2(fmaf(pair[0], c, -base[r]));
            pair[1] = ptx_exp2(fmaf(pair[1], c, -base[r]));
            rows->l[r] += pair[0] + pair[1];
        }
    }
    rows->is_beyond = LAZY && __any_sync(ALL_LANES, rows->is_coarse || fmaxf(rows->l[0], rows->l[1]) > LAZY_LIMIT);
}

/* a of ptx_wgmma_rs, from the accumulators of S. */
template <int BLOCKS> static __device__ __forceinline__ void pack(forward_weights &P, const float (&S)[1][BLOCKS][4]) {
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) {
        P[i] = fm_half2_from(S[0][i / 2][i % 2 * 2], S[0][i / 2][i % 2 * 2 + 1]);
    }
}

static __device__ __forceinline__ void zero_rows(forward_rows *rows) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        rows->O[0][i / 4][i % 4] = 0.0f;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        rows->base[r] = SOFTMAX_LOWEST;
        rows->l[r] = 0.0f;
        rows->rescale[r] = 1.0f;
    }
    rows->moves = false;
    rows->is_coarse = false;
    rows->is_new = true;
}

static __device__ __forceinline__ void rescale_output(forward_rows *rows) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        rows->O[0][i / 4][i % 4] *= rows->rescale[i / 2 % 2];
    }
}

#endif
