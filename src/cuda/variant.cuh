/* The variant that this object is: compiled with -DFM_HEAD_DIM=64|96|128|192|256 and -DFM_IS_BF16=0|1. */
#ifndef FM_CUDA_VARIANT_CUH
#define FM_CUDA_VARIANT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdint.h>

#define FM_PASTE_(a, b, c) a##_##b##_##c
#define FM_PASTE(a, b, c) FM_PASTE_(a, b, c)

#if FM_IS_BF16
#define FM_VARIANT(name) FM_PASTE(name, bf16, FM_HEAD_DIM)
typedef __nv_bfloat16 fm_half;
static __device__ __forceinline__ fm_half fm_half_from(float x) { return __float2bfloat16_rn(x); }
static __device__ __forceinline__ float fm_half_to(fm_half x) { return __bfloat162float(x); }
/* low half x, high half y */
static __device__ __forceinline__ uint32_t fm_half2_from(float x, float y) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
/* All ones over each half of a pair that is not 0. */
static __device__ __forceinline__ uint32_t fm_half2_is_not_0(uint32_t pair) {
    return __hneu2_mask(*reinterpret_cast<const __nv_bfloat162 *>(&pair), __nv_bfloat162{0, 0});
}
/* The smaller of each half and 1; a NaN stays. */
static __device__ __forceinline__ uint32_t fm_half2_at_most_1(uint32_t pair) {
    asm("min.NaN.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x3f803f80u));
    return pair;
}
#else
#define FM_VARIANT(name) FM_PASTE(name, f16, FM_HEAD_DIM)
typedef __half fm_half;
static __device__ __forceinline__ fm_half fm_half_from(float x) { return __float2half_rn(x); }
static __device__ __forceinline__ float fm_half_to(fm_half x) { return __half2float(x); }
static __device__ __forceinline__ uint32_t fm_half2_from(float x, float y) {
    const __half2 pair = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
static __device__ __forceinline__ uint32_t fm_half2_is_not_0(uint32_t pair) {
    return __hneu2_mask(*reinterpret_cast<const __half2 *>(&pair), __half2{0, 0});
}
static __device__ __forceinline__ uint32_t fm_half2_at_most_1(uint32_t pair) {
    asm("min.NaN.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x3c003c00u));
    return pair;
}
#endif

#endif
