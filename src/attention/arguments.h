/* Checks of attention's arguments against each other. Nothing is allocated or written. */
#ifndef FM_ATTENTION_ARGUMENTS_H
#define FM_ATTENTION_ARGUMENTS_H

#include "attention/problem.h"

/* Tensors, arrays and numbers of a forward call; fills in *out but for mask, window, plan and workspace. */
fm_status fm_forward_arguments(const fm_attention_forward_args *args, const fm_backend *backend, fm_problem *out);

/* The same for what a backward call adds; out->forward is set and stays. */
fm_status fm_backward_arguments(const fm_attention_backward_args *args, const fm_backend *backend, fm_backward_problem *out);

/* That a mask (name says whose, for messages) fits the extents of a problem. */
fm_status fm_mask_argument(const char *name, fm_mask_shape mask, const fm_problem *problem);

/* That the caller's workspace holds what the backend needs; puts that much of it into the problem. */
fm_status fm_workspace_argument(void *workspace, size_t given, size_t needed, fm_problem *out);

/* That nothing which a call writes shares memory with anything else that it reads or writes. */
fm_status fm_forward_overlaps(const fm_problem *problem);
fm_status fm_backward_overlaps(const fm_backward_problem *problem);

/* That the backend's device may use all memory of a call. */
fm_status fm_forward_memory(const fm_problem *problem, const fm_backend *backend);
fm_status fm_backward_memory(const fm_backward_problem *problem, const fm_backend *backend);

/* "CPU", "CUDA" or "unknown". */
const char *fm_device_name(fm_device_kind kind);

#endif
