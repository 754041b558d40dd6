/* The shared memory of the backward kernel that this variant has: its enums and struct differ, what they share has the same names. */
#ifndef FM_CUDA_SM90_BACKWARD_MEMORY_CUH
#define FM_CUDA_SM90_BACKWARD_MEMORY_CUH

#if FM_HEAD_DIM > 128
#include "cuda/sm90/backward_wide_shared.cuh"
#else
#include "cuda/sm90/backward_shared.cuh"
#endif

#endif
