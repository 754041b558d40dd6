/* Registers handed from one warpgroup to another. PTX ISA, "setmaxnreg". The kernel needs a cap on registers (__launch_bounds__ with a
 * number of blocks), every warp of a warpgroup runs the instruction, and taking waits until enough have been given: the sum over the
 * block must stay within what it was launched with. N: a multiple of 8, 24 .. 256. */
#ifndef FM_CUDA_PTX_SETMAXNREG_CUH
#define FM_CUDA_PTX_SETMAXNREG_CUH

template <int N> static __device__ __forceinline__ void ptx_registers_give(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void ptx_registers_take(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
