/* Shared memory of the backward kernel of sm_90a, its barriers, and what the producer tells consumers and adders. */
#ifndef FM_CUDA_SM90_BACKWARD_SHARED_CUH
#define FM_CUDA_SM90_BACKWARD_SHARED_CUH

#include "cuda/launch.h"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
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
    ADDERS = 3,                              /* warps */
    STAGED_PHASES = 4,                       /* at least as many as adders wait for at a time */
    NOTES = 16                               /* for the adders, of steps that were sent */
};
static_assert((int)BOX == (int)FM_PLAN_BLOCK && TEAMS * BOX == KEYS, "a box is a line, or a step's rows");
/* Before a note all but the last STAGES + 1 steps have been added, but the ADDERS last notes follow each other. What a note replaces
 * must be older than the step before of the same adder, whose lanes have met since they read it. */
static_assert(NOTES >= STAGES + 1 + ADDERS + ADDERS, "a note could be lost");
static_assert(D <= 128, "dK and dV of 64 keys lie in a warpgroup's registers");

/* A step as the producer sends it. */
typedef struct backward_step {
    uint32_t what; /* tile and classes as in tile/step_list.cuh */
    int32_t plane; /* of the mask */
} backward_step;

typedef struct backward_item {
    int32_t batch, head, group; /* head: of K and V */
    int32_t steps;              /* over all query heads; 0: keys that nobody sees; ITEM_END: there is none */
} backward_item;
enum { ITEM_END = -1, ITEM_PLACES = 8 /* more than STAGES + 2: one is stored, STAGES may have been sent, one is found */ };

/* The producer's own notes: the query head in work, and how much it sent. */
typedef struct backward_sending {
    int32_t head, plane;
    uint32_t first_tile; /* of the sum */
    uint32_t notes;
    int32_t heads_together; /* key heads whose items are taken side by side */
} backward_sending;

/* A step as adders hear of it. group: of the item's keys; -1: there are no more steps. */
typedef struct backward_note {
    uint32_t sum_tile; /* (batch * heads + query head) * tiles of rows + tile */
    int32_t tile, plane, group;
} backward_note;

/* `full`: one arrival and the bytes; `empty`: one arrival of each consumer warp. Use n of a stage is in phase n / STAGES, of dS in n / 2,
 * of a note in n / NOTES. */
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

#endif
