/* Shared memory of the backward kernel of sm_90a for head dims above 128, and its barriers. Two blocks, a cluster, have a group of keys:
 * block r (its rank) has line r. */
#ifndef FM_CUDA_SM90_BACKWARD_WIDE_SHARED_CUH
#define FM_CUDA_SM90_BACKWARD_WIDE_SHARED_CUH

#include "cuda/launch.h"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/backward_steps.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/variant.cuh"

enum {
    D = FM_HEAD_DIM,
    BLOCKS = 2,           /* of a cluster */
    TEAMS = 2,            /* consumer warpgroups: one makes dV, the other dK */
    VALUE_TEAM = 0,       /* S, P, dV */
    KEY_TEAM = 1,         /* dP, dS, dK */
    KEYS = FM_PLAN_GROUP, /* of a cluster */
    ROWS = FM_PLAN_BLOCK, /* of a step: a tile of the plan */
    REGIONS = D / 64,     /* 64 dims wide, as the 128-byte swizzle wants it */
    BOX = 64,             /* rows (keys) and dims of a TMA box */
    BOX_BYTES = BOX * BOX * 2,
    ROWS_BYTES = REGIONS * BOX_BYTES,        /* of Q, dO or a line of K or V: [region][64 rows][64 dims] */
    STAGES = 2,                              /* of Q and the rows' terms */
    GRAD_STAGES = D == 192 ? 2 : 1,          /* of dO */
    TERMS_BYTES = ROWS * (int)sizeof(float), /* of lse2 or delta */
    QUERY_BOXES = 2,                         /* of K of the other line that a block's dims of dQ need */
    QUERY_DIMS = 64,                         /* of dQ that team 0 makes, of 128 (D 192: 96) of the block's */
    LAST_QUERY_DIMS = D == 192 ? 32 : 64,    /* and team 1 */
    STAGED_FLOATS = 16 * QUERY_DIMS,         /* a warp's part of dQ on its way out */
    FIRST_STAGED = 0,                        /* the team that makes its dQ first */
    TURNS = BLOCKS                           /* that a group of keys passes on, of a tile: one a block */
};
static_assert(D == 192 || D == 256, "dims of dQ of blocks and teams are laid out for these");
static_assert((int)BOX == (int)FM_PLAN_BLOCK && BLOCKS * BOX == KEYS, "a box is a line, or a step's rows");
/* Before a note all but the last STAGES + 2 steps have been added, but the ADDERS last notes follow each other. What a note replaces must be
 * older than the step before of the same adder, whose lanes have met since they read it. */
static_assert(NOTES >= STAGES + 2 + ADDERS + ADDERS, "a note could be lost");
/* A cluster's second block may be behind the first by the items that fit its stages of Q, one being found and one being taken. */
static_assert(ITEM_PLACES >= STAGES + 3, "a number could be lost");

/* `full`: one arrival and the bytes. `empty`: one arrival of each consumer warp, of those of both blocks where the copy engine writes to
 * both; of the other's alone, two phases could end before this block's sender asks about the first (docs/kernels.md). Of its own
 * block's each thread arrives at query_empty, for all have read its row terms. Use n of a stage is in phase n / STAGES (of dO
 * n / GRAD_STAGES), of a note in n / NOTES, of scores and staging in phase n. */
typedef struct backward_shared {
    alignas(1024) uint8_t key[ROWS_BYTES], value[ROWS_BYTES]; /* of the block's line */
    uint8_t other_key[QUERY_BOXES][BOX_BYTES];                /* of the other line, those dims of which the block makes dQ */
    uint8_t query[STAGES][ROWS_BYTES];
    uint8_t grad_output[GRAD_STAGES][ROWS_BYTES];
    uint8_t score[BLOCKS][BOX_BYTES];                   /* [0]: P, then dS of the own line; [1]: dS of the other */
    alignas(128) float staged[TEAMS][4][STAGED_FLOATS]; /* of each warp: dQ; at the end of an item dV and dK */
    alignas(128) float lse2[STAGES][ROWS];
    float delta[STAGES][ROWS];
    backward_step step[STAGES];
    backward_item item[ITEM_PLACES]; /* in turn */
    uint32_t number[ITEM_PLACES];    /* of items, from block 0 */
    uint64_t number_full[ITEM_PLACES];
    uint64_t key_full, key_empty;
    uint64_t query_full[STAGES], query_empty[STAGES];
    uint64_t grad_output_full[GRAD_STAGES], grad_output_empty[GRAD_STAGES];
    uint64_t score_full;      /* P is there: 4 warps */
    uint64_t grad_score_full; /* dS of both lines is there: one arrival and the other block's bytes */
    uint64_t score_empty;     /* dQ has been made from it: 16 warps of both blocks; without dQ: P has been read, 4 warps */
    backward_sending sending;
    /* To the adders. Use n of each is of step n. */
    backward_note note[NOTES];
    uint64_t note_full[NOTES];                  /* one arrival */
    uint64_t staged_full[TEAMS][STAGED_PHASES]; /* of each warp of the team */
    uint64_t staged_empty[TEAMS];               /* of an adder */
} backward_shared;
static_assert(sizeof(backward_shared) <= 232448, "shared memory of a block on sm_90");
static_assert(sizeof(backward_shared) == (D == 256 ? 231424 : 215040), "docs/kernels.md says so");

/* dQ's dims among blocks and teams, in 64s (D 256), or 64s and 32s (D 192), so that each team's lie in one box of K:
 *
 *   D 256   block 0: team 0   0 ..  63   team 1  64 .. 127     block 1: team 0 128 .. 191   team 1 192 .. 255
 *   D 192   block 0: team 0   0 ..  63   team 1 128 .. 159     block 1: team 0  64 .. 127   team 1 160 .. 191 */
static __device__ __forceinline__ int first_query_dim(int team, int rank) {
    return D == 256 ? 128 * rank + 64 * team : team == 0 ? 64 * rank : 128 + 32 * rank;
}

/* Chunks of 8 dims of dQ that a team makes. */
static __device__ __forceinline__ int first_chunk(int team) { return first_query_dim(team, (int)ptx_cluster_rank()) / CHUNK; }
static __device__ __forceinline__ int count_chunks(int team) { return (team == 0 ? QUERY_DIMS : LAST_QUERY_DIMS) / CHUNK; }

#endif
