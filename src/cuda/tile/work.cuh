/* Which block does what: the longest groups of a head first, heads that fit L2 together side by side, batch items one after
 * another. Nothing but the order of execution depends on it. */
#ifndef FM_CUDA_TILE_WORK_CUH
#define FM_CUDA_TILE_WORK_CUH

#include "cuda/launch.h"

typedef struct work_item {
    int32_t batch, head; /* head: of `heads` */
    int32_t group;       /* of the lines */
    int32_t place;       /* of the group in the order of its head's */
    int64_t plane;       /* of the mask */
} work_item;

/* Plane of the mask of batch item b and query head h. */
static __device__ __forceinline__ int64_t mask_plane(const fm_device_plan *plan, int32_t b, int32_t h, int32_t query_heads) {
    const int32_t mask_head = h / (query_heads / plan->heads);
    return (int64_t)(plan->batch == 1 ? 0 : b) * plan->heads + mask_head;
}

/* Item i of batch * heads * lines->groups, which fits a grid, so 32 bits. heads: query heads, or key heads with heads_per_item
 * query heads each. */
static __device__ __forceinline__ work_item work_at(const fm_device_plan *plan, const fm_tile_lines *lines, int32_t heads,
                                                    int32_t heads_per_item, int32_t together, uint32_t i) {
    const uint32_t groups = (uint32_t)lines->groups, per_batch = groups * (uint32_t)heads;
    work_item item;
    item.batch = (int32_t)(i / per_batch);
    uint32_t rest = i % per_batch;
    const int32_t bundle = (int32_t)(rest / (groups * (uint32_t)together)), first = bundle * together;
    const uint32_t count = (uint32_t)min(together, heads - first);
    rest -= (uint32_t)first * groups;
    item.head = first + (int32_t)(rest % count);
    item.plane = mask_plane(plan, item.batch, item.head * heads_per_item, heads * heads_per_item);
    item.place = (int32_t)(rest / count);
    item.group = lines->order[item.plane * lines->groups + item.place];
    return item;
}

#endif
