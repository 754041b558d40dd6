/* Shared memory of the forward kernel of sm_90a, its barriers, and what the producer tells the consumers. */
#ifndef FM_CUDA_SM90_FORWARD_SHARED_CUH
#define FM_CUDA_SM90_FORWARD_SHARED_CUH

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/launch.h"
#include "cuda/tile/mask_rows.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/variant.cuh"

#include <stddef.h>

/* Of V and O; the object says so where it is not that of Q and K. */
#ifndef FM_HEAD_DIM_V
#define FM_HEAD_DIM_V FM_HEAD_DIM
#endif

enum {
    D = FM_HEAD_DIM,
    DV = FM_HEAD_DIM_V,
    TEAMS = 2,                 /* consumer warpgroups; team w has line w of a group */
    TEAM_ROWS = FM_PLAN_BLOCK, /* rows of a team */
    TEAM_WARPS = 4,
    KEYS = DV <= 128 ? 128 : 64,   /* of a step: an aligned pair of tiles of the plan, or one */
    HALVES = KEYS / FM_PLAN_BLOCK, /* of a step */
    REGIONS = (D + 63) / 64,       /* of Q and K, 64 dims wide, as the 128-byte swizzle wants it; past D zeros */
    VALUE_REGIONS = (DV + 63) / 64,
    BOX = FM_SM90_BOX,
    BOX_BYTES = BOX * BOX * 2,
    QUERY_BYTES = TEAMS * REGIONS * BOX_BYTES, /* [team][region][64 rows][64 dims] */
    KEY_BYTES = HALVES * REGIONS * BOX_BYTES,  /* [region][KEYS][64 dims] */
    VALUE_BYTES = HALVES * VALUE_REGIONS * BOX_BYTES,
    REGION_BYTES = HALVES * BOX_BYTES,     /* of K or V */
    QUERIES = D == 256 || D != DV ? 1 : 2, /* places for Q */
    STAGES = D == 64 ? 3 : 2,              /* of K, of V */
    ITEM_PLACES = 2 * QUERIES,
    KEY_AT = QUERIES * QUERY_BYTES,
    VALUE_AT = KEY_AT + STAGES * KEY_BYTES,
    TAIL_AT = VALUE_AT + STAGES * VALUE_BYTES
};

/* A step as the producer sends it, 32 bits: its index along the keys and the classes of its 64 x 64 tiles. Class bits: tile of team
 * w and half h has `visible` at 4 w + 2 h, `full` one above. */
enum {
    STEP_INDEX_SHIFT = 8,
    /* `flags` beside it */
    FLAG_LAST = 1, /* of the item */
    FLAG_END = 2   /* no more items */
};
static const uint32_t STEP_NONE = 0xffffffff; /* no step */
/* next: `what` of the step after this one, which consumers then need not wait for to know what to do; 0, which no team sees, after an
 * item's last step and where the next one is the first of another part. */
typedef struct forward_step {
    uint32_t what, flags, next;
} forward_step;

typedef struct forward_item {
    int32_t batch, head, group, plane;
    int32_t split; /* of the keys */
} forward_item;

/* A partial step, for a masker; what is STEP_NONE when there are no more. */
typedef struct forward_job {
    uint32_t what;
    int32_t group, plane;
} forward_job;

/* Words of 32 tiles of both lines of a group. */
typedef struct group_words {
    fm_tile_word line[TEAMS];
} group_words;

/* What the scout finds: an item and 32 words. */
enum { PART_FIRST = 1, PART_LAST = 2 /* of the item */, PART_END = 4 /* no more items */ };
typedef struct forward_part {
    group_words words[32];
    forward_item item;
    int32_t head_kv;
    uint32_t flags, waiting; /* waiting: bit l: words[l] is not empty */
    int32_t base;            /* number of words[0] along the line */
} forward_part;

/* Behind the tiles. `full`: one arrival and the bytes; `empty`: one arrival of each consumer warp. Use n of a ring is stage n % STAGES
 * in phase n / STAGES. An item is written with its Q, when nobody can still read what lay in its place: the item QUERIES before has given
 * its Q back, so the one before that is stored. */
typedef struct forward_tail {
    uint64_t key_full[STAGES], key_empty[STAGES], value_full[STAGES], value_empty[STAGES], query_full[QUERIES],
        query_empty[QUERIES];
    uint64_t part_full[2], part_empty[2];                             /* one arrival of each lane of the warp that is done */
    uint64_t job_full[TEAMS * STAGES];                                /* one arrival */
    uint64_t words_full[TEAMS * STAGES], words_empty[TEAMS * STAGES]; /* one arrival of each lane of a masker; of a team */
    forward_part part[2];
    forward_item item[ITEM_PLACES];
    forward_step step[STAGES];
    /* Of a team's partial steps, one after another. A job may be written when K's place is: all but STAGES - 1 of those before have
     * their words. */
    forward_job job[TEAMS][STAGES];
    alignas(8) mask_rows words[TEAMS][STAGES][TEAM_WARPS][32];
} forward_tail;

/* Shared address of barrier i of an array in the tail; x: a producer or consumer. */
#define TAIL_BARRIER(x, name, i) ((x)->shared + (uint32_t)(TAIL_AT + offsetof(forward_tail, name)) + 8 * (uint32_t)(i))

enum { SHARED_BYTES = TAIL_AT + (int)sizeof(forward_tail) + 1024 /* to start on a multiple of 1024 */ };
static_assert(SHARED_BYTES <= 232448, "shared memory of a block on sm_90");
static_assert((int)BOX == (int)FM_PLAN_BLOCK && TEAMS * TEAM_ROWS == (int)FM_PLAN_GROUP,
              "a box is a line of a group, or a tile's keys");

/* Places in a ring. */
typedef struct ring_place {
    uint32_t stage, phase;
} ring_place;
static __device__ __forceinline__ ring_place ring_after(ring_place place) {
    if (STAGES == 2) {
        return ring_place{place.stage ^ 1, place.phase ^ place.stage};
    }
    const bool wraps = place.stage == STAGES - 1;
    return ring_place{wraps ? 0 : place.stage + 1, place.phase ^ (uint32_t)wraps};
}

static __device__ __forceinline__ uint32_t step_classes(uint32_t what, int team) { return what >> (4 * team) & 15; }
static __device__ __forceinline__ int32_t key_of(uint32_t what, int half) {
    return (int32_t)(what >> STEP_INDEX_SHIFT) * KEYS + half * FM_PLAN_BLOCK;
}
/* What a team sees of a step, by the class bits of its tiles. */
static __device__ __forceinline__ bool sees(uint32_t classes) { return (classes & 5) != 0; }
/* Both halves; otherwise one, the second if sees_second. */
static __device__ __forceinline__ bool is_wide(uint32_t classes) { return HALVES == 2 && (classes & 5) == 5; }
static __device__ __forceinline__ bool sees_second(uint32_t classes) { return HALVES == 2 && (classes & 1) == 0; }
/* A visible half is partial. */
static __device__ __forceinline__ bool half_is_partial(uint32_t classes, int half) { return (classes >> (2 * half) & 3) == 1; }
/* Some half is. */
static __device__ __forceinline__ bool has_partial(uint32_t classes) { return (classes & ~(classes >> 1) & 5) != 0; }

#endif
