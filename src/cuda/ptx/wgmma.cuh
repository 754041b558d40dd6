/* Tensor core products of a warpgroup (sm_90a), asynchronous. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
 *
 *   ptx_wgmma_fence                 before the first product that reads or writes registers touched since
 *   ptx_wgmma_ss / _rs ...          d[64 x N] (+)= a[64 x 16] b[16 x N], f32 += half x half; a in shared memory or in registers
 *   ptx_wgmma_commit                closes a group
 *   ptx_wgmma_wait<n>               until at most n groups are in flight; then ptx_wgmma_ready(d) before d is read
 *
 * Layout of d, of warp w of the warpgroup and lane l, g = l / 4, t = l % 4: d[4 j + {0, 1}] is row 16 w + g, columns 8 j + 2 t + {0, 1};
 * d[4 j + {2, 3}] the same of row g + 8. N is twice the length of d. a in registers is laid out as ptx_mma's: a0 = (g, 2t ..),
 * a1 = (g + 8, 2t ..), a2 = (g, 2t + 8 ..), a3 = (g + 8, 2t + 8 ..): the accumulators 8 k .. 8 k + 7 of another product, packed in
 * pairs, are a of columns 16 k .. 16 k + 15.
 *
 * Operands in shared memory are rows of 64 halves (128 bytes) in the 128-byte swizzle of a tensor map, on multiples of 1024 bytes:
 *   TRANSPOSED 0   rows are the operand's rows (a) or columns (b), the 64 halves run along the product's sum
 *   TRANSPOSED 1   rows are indices of the sum, the 64 halves run along the operand's rows (a) or columns (b) */
#ifndef FM_CUDA_PTX_WGMMA_CUH
#define FM_CUDA_PTX_WGMMA_CUH

#include <stdint.h>

static __device__ __forceinline__ void ptx_wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void ptx_wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void ptx_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps reads of an accumulator below the wait that makes it valid. */
template <int N> static __device__ __forceinline__ void ptx_wgmma_ready(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

/* Descriptor of an operand at a shared address. PTX ISA, "Matrix Descriptor": bits 0 .. 13 address, 16 .. 29 leading offset, 32 .. 45
 * stride offset, all in units of 16 bytes, 62 .. 63 = 1: 128-byte swizzle. Stride: from 8 rows to the next 8, 1024 where rows lie in a
 * row. Leading: from 64 halves to the next 64, of a TRANSPOSED 1 operand; else unused. Bytes / 16 may be added to a descriptor: 32
 * bytes for each 16 of the sum within 128 (TRANSPOSED 0), 2048 for each 16 (TRANSPOSED 1). */
static __device__ __forceinline__ uint64_t ptx_wgmma_descriptor(uint32_t address, int leading) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

#if FM_IS_BF16
#define PTX_WGMMA_TYPES "f32.bf16.bf16"
#else
#define PTX_WGMMA_TYPES "f32.f16.f16"
#endif

#define PTX_8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define PTX_16(d, i) PTX_8(d, i), PTX_8(d, i + 8)
#define PTX_32(d, i) PTX_16(d, i), PTX_16(d, i + 16)
#define PTX_NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define PTX_NAMES_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PTX_NAMES_48 PTX_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define PTX_NAMES_64 PTX_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PTX_NAMES_96                                                                                                             \
    PTX_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90," \
                 "%91,%92,%93,%94,%95"
#define PTX_NAMES_128                                                                                                          \
    PTX_NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117," \
                 "%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* Both forms for one N = 2 REGISTERS. i0 ..: numbers of the operands behind the accumulators. ADD 0 overwrites d. */
#define PTX_WGMMA(N, REGISTERS, NAMES, D, i0, i1, i2, i3, i4, i5, i6)                                                       \
    template <int ADD, int A_TRANSPOSED, int B_TRANSPOSED>                                                                  \
    static __device__ __forceinline__ void ptx_wgmma_ss(float(&d)[REGISTERS], uint64_t a, uint64_t b) {                     \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i2 ", 0;\n"                                                      \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16." PTX_WGMMA_TYPES " {" NAMES "}, %" #i0 ", %" #i1          \
                     ", p, 1, 1, %" #i3 ", %" #i4 ";\n}\n"                                                                  \
                     : D                                                                                                    \
                     : "l"(a), "l"(b), "n"(ADD), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED)                                       \
                     : "memory");                                                                                           \
    }                                                                                                                       \
    template <int ADD, int B_TRANSPOSED>                                                                                    \
    static __device__ __forceinline__ void ptx_wgmma_rs(float(&d)[REGISTERS], uint32_t a0, uint32_t a1, uint32_t a2,        \
                                                        uint32_t a3, uint64_t b) {                                          \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i5 ", 0;\n"                                                      \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16." PTX_WGMMA_TYPES " {" NAMES "}, {%" #i0 ",%" #i1 ",%" #i2 \
                     ",%" #i3 "}, %" #i4 ", p, 1, 1, %" #i6 ";\n}\n"                                                        \
                     : D                                                                                                    \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(ADD), "n"(B_TRANSPOSED)                              \
                     : "memory");                                                                                           \
    }

/* The formatter is off because it would spread the operands over lines. */
/* clang-format off */
#define PTX_D_16 PTX_16(d, 0)
#define PTX_D_32 PTX_32(d, 0)
#define PTX_D_48 PTX_32(d, 0), PTX_16(d, 32)
#define PTX_D_64 PTX_32(d, 0), PTX_32(d, 32)
#define PTX_D_96 PTX_32(d, 0), PTX_32(d, 32), PTX_32(d, 64)
#define PTX_D_128 PTX_32(d, 0), PTX_32(d, 32), PTX_32(d, 64), PTX_32(d, 96)
PTX_WGMMA(32, 16, PTX_NAMES_16, PTX_D_16, 16, 17, 18, 19, 20, 21, 22)
PTX_WGMMA(64, 32, PTX_NAMES_32, PTX_D_32, 32, 33, 34, 35, 36, 37, 38)
PTX_WGMMA(96, 48, PTX_NAMES_48, PTX_D_48, 48, 49, 50, 51, 52, 53, 54)
PTX_WGMMA(128, 64, PTX_NAMES_64, PTX_D_64, 64, 65, 66, 67, 68, 69, 70)
PTX_WGMMA(192, 96, PTX_NAMES_96, PTX_D_96, 96, 97, 98, 99, 100, 101, 102)
PTX_WGMMA(256, 128, PTX_NAMES_128, PTX_D_128, 128, 129, 130, 131, 132, 133, 134)
/* clang-format on */

#endif
