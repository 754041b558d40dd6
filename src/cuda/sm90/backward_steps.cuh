/* What the producer of the backward kernels of sm_90a tells consumers and adders. */
#ifndef FM_CUDA_SM90_BACKWARD_STEPS_CUH
#define FM_CUDA_SM90_BACKWARD_STEPS_CUH

#include <stdint.h>

enum {
    ADDERS = 3,        /* warps */
    STAGED_PHASES = 4, /* at least as many as adders wait for at a time */
    NOTES = 16         /* for the adders, of steps that were sent */
};

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

#endif
