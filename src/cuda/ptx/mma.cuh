/* Tensor core products of sm_80 and what feeds them. PTX ISA, "Warp-level matrix instructions". */
#ifndef FM_CUDA_PTX_MMA_CUH
#define FM_CUDA_PTX_MMA_CUH

#include <stdint.h>

/* c[16 x 8] += a[16 x 16] b[16 x 8], f32 += half x half. Lane l, g = l / 4, t = l % 4:
 *   a0: (g, 2t..2t+1)  a1: (g + 8, 2t..)  a2: (g, 2t + 8..)  a3: (g + 8, 2t + 8..)   pairs of columns in one register
 *   b0: rows 2t, 2t+1 of column g         b1: rows 2t + 8, 2t + 9 of column g
 *   c0, c1: (g, 2t), (g, 2t + 1)          c2, c3: (g + 8, 2t), (g + 8, 2t + 1) */
static __device__ __forceinline__ void ptx_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if FM_IS_BF16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* Four 8 x 8 matrices of halves: lanes 8i .. 8i+7 give the shared addresses of the rows of matrix i; register i of lane l gets
 * row l / 4, columns 2 (l % 4) and + 1 of it. transposed: column l / 4, rows 2 (l % 4) and + 1. */
static __device__ __forceinline__ void ptx_ldmatrix(uint32_t r[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
static __device__ __forceinline__ void ptx_ldmatrix_transposed(uint32_t r[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* Four 8 x 8 matrices of halves to shared memory, transposed: as ptx_ldmatrix_transposed reads them. sm_90. PTX ISA, "stmatrix". */
static __device__ __forceinline__ void ptx_stmatrix_transposed(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                                               uint32_t r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
                 "r"(r2), "r"(r3)
                 : "memory");
}

/* 2^x to 2 ulp; 0 for -inf. */
static __device__ __forceinline__ float ptx_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The smaller of x and 1; a NaN stays. For weights 2^(S - lse): where scores are far from 0 their rounding alone may bring them above 1. */
static __device__ __forceinline__ float ptx_at_most_1(float x) {
    asm("min.NaN.f32 %0, %0, 0f3F800000;" : "+f"(x));
    return x;
}

#endif
