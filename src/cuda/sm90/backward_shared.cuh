/* Shared memory of the backward kernel of sm_90a for head dims up to 128, and its barriers. */
#ifndef FM_CUDA_SM90_BACKWARD_SHARED_CUH
#define FM_CUDA_SM90_BACKWARD_SHARED_CUH

#include "cuda/launch.h"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/backward_steps.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/variant.cuh"

enum {
    D = FM_HEAD_DIM,
    TEAMS = 2,               /* consumer warpgroups; team w has line w of a group of keys */
    KEYS = FM_PLAN_GROUP,    /* of a block */
    ROWS = FM_PLAN_BLOCK,    /* of a step: a tile of the plan */
    REGIONS = (D + 63) / 64, /* 64 dims wide, as the 128-byte swizzle wants it; past D zeros */
    BOX = 64,                /* rows (keys) and dims of a TMA box */
    BOX_BYTES = BOX * BOX * 2,
    ROWS_BYTES = REGIONS * BOX_BYTES,        /* of Q or dO: [region][64 rows][64 dims] */
    LINE_BYTES = REGIONS * BOX_BYTES,        /* of one line of K or V, likewise */
    KEYS_BYTES = TEAMS * LINE_BYTES,         /* of K or V: [line] */
    STAGES = 3,                              /* of Q, dO and their rows' terms */
    GRAD_SCORE_BYTES = TEAMS * BOX_BYTES,    /* dS: [line][64 rows][64 keys] */
    TERMS_BYTES = ROWS * (int)sizeof(float), /* of lse2 or delta */
    QUERY_DIMS = D == 64 ? 32 : 64,          /* of dQ that team 0 makes; team 1 makes the others */
    STAGED_FLOATS = 16 * QUERY_DIMS,         /* a warp's part of dQ on its way out */
    FIRST_STAGED = 1,                        /* the team that makes its dQ first */
    TURNS = 1                                /* that a group of keys passes on, of a tile */
};
static_assert((int)BOX == (int)FM_PLAN_BLOCK && TEAMS * BOX == KEYS, "a box is a line, or a step's rows");
/* Before a note all but the last STAGES + 1 steps have been added, but the ADDERS last notes follow each other. What a note replaces
 * must be older than the step before of the same adder, whose lanes have met since they read it. */
static_assert(NOTES >= STAGES + 1 + ADDERS + ADDERS, "a note could be lost");
static_assert(D <= 128, "dK and dV of 64 keys lie in a warpgroup's registers");

/* `full`: one arrival and the bytes; `empty`: one arrival of each consumer warp, of each thread for stages, whose row terms all have
 * read. Use n of a stage is in phase n / STAGES, of dS in n / 2, of a note in n / NOTES. */
typedef struct backward_shared {
    alignas(1024) uint8_t key[KEYS_BYTES];
    uint8_t value[KEYS_BYTES];
    uint8_t query[STAGES][ROWS_BYTES];
    uint8_t grad_output[STAGES][ROWS_BYTES];
    uint8_t grad_score[2][GRAD_SCORE_BYTES];
    alignas(128) float staged[TEAMS][4][STAGED_FLOATS]; /* of each warp: dQ; at the end of an item dV and dK */
    alignas(128) float lse2[STAGES][ROWS];
    float delta[STAGES][ROWS];
    backward_step step[STAGES];
    backward_item item[ITEM_PLACES]; /* in turn */
    uint64_t key_full, key_empty;
    uint64_t query_full[STAGES], grad_output_full[STAGES], stage_empty[STAGES];
    uint64_t grad_score_full[2];  /* both lines of dS are there: 8 warps */
    uint64_t grad_score_empty[2]; /* team 0 has made dQ from it: 4 warps */
    backward_sending sending;
    /* To the adders. Use n of each is of step n. */
    backward_note note[NOTES];
    uint64_t note_full[NOTES];                  /* one arrival */
    uint64_t staged_full[TEAMS][STAGED_PHASES]; /* of each warp of the team */
    uint64_t staged_empty[TEAMS];               /* of an adder */
} backward_shared;
static_assert(sizeof(backward_shared) <= 232448, "shared memory of a block on sm_90");
static_assert(D != 128 || sizeof(backward_shared) == 232448, "docs/kernels.md says so");

/* Chunks of 8 dims of dQ that a team makes. */
static __device__ __forceinline__ int first_chunk(int team) { return team * (QUERY_DIMS / CHUNK); }
static __device__ __forceinline__ int count_chunks(int team) {
    (void)team;
    return QUERY_DIMS / CHUNK;
}

#endif
