/* Device plans: their layout in a buffer, for attention calls that make their own. */
#ifndef FM_ATTENTION_DEVICE_PLAN_H
#define FM_ATTENTION_DEVICE_PLAN_H

#include "attention/problem.h"

/* Bytes of a plan's arrays; errors as fm_plan_device_bytes. */
fm_status fm_device_plan_bytes(fm_mask_shape shape, int32_t intervals, int64_t fallback_blocks, size_t *bytes);

/* fallback_blocks that a host mask needs: its blocks, 1 where its bitmap stripes need none (all of their blocks are wholly visible or
 * wholly hidden), 0 without a fallback. */
int64_t fm_device_plan_blocks(const fm_mask_view *mask);

/* A plan for the same arguments whose arrays lie in buffer, their contents still to be written by the backend's build_plan. mask is
 * retained, or NULL. */
fm_status fm_device_plan_make(fm_mask_shape shape, int32_t intervals, const fm_plan_options *options, fm_device device,
                              const fm_mask *mask, void *buffer, fm_plan **out);

#endif
