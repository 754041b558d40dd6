/* Additions to global memory that return nothing. PTX ISA, "red". */
#ifndef FM_CUDA_PTX_RED_CUH
#define FM_CUDA_PTX_RED_CUH

/* Four floats at once, 16 bytes aligned: compute capability 9.0 and later, so the one place that asks for the architecture
 * (docs/design.md). */
#if __CUDA_ARCH__ >= 900
enum { PTX_HAS_RED_4 = 1 };
static __device__ __forceinline__ void ptx_red_add_4(float *global, float x0, float x1, float x2, float x3) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(global), "f"(x0), "f"(x1), "f"(x2), "f"(x3) : "memory");
}
#else
enum { PTX_HAS_RED_4 = 0 };
static __device__ __forceinline__ void ptx_red_add_4(float *, float, float, float, float) {}
#endif

#endif
