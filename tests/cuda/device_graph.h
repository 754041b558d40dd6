/* CUDA graphs for tests. */
#ifndef FM_TESTS_DEVICE_GRAPH_H
#define FM_TESTS_DEVICE_GRAPH_H

#include "device_memory.h"

/* Global mode: whatever could disturb a capture elsewhere, such as allocation, is an error. */
void device_capture_begin(cudaStream_t stream);
/* Fails the test if the capture was broken. */
cudaGraphExec_t device_capture_end(cudaStream_t stream);
/* Launches and waits. */
void device_replay(cudaGraphExec_t graph, cudaStream_t stream);

#endif
