/* Products of one warp: fragments by ldmatrix from swizzled tiles (tile/shared_tile.cuh), m16n8k16 on them, f32 sums.
 *
 * Tiles are given by the shared address of their first row. A lane's part of a chunk's place depends on its row modulo 8 alone,
 * so whole multiples of 8 rows are constant offsets of an instruction. Which lane reads which row, for matrices 0 1 2 3 of an x4:
 *
 *   order DOWN (row = lane % 16, chunk += lane / 16)      order ACROSS (row = lane / 16 * 8 + lane % 8, chunk += lane / 8 % 2)
 *     0 2                                                   0 1
 *     1 3                                                   2 3
 */
#ifndef FM_CUDA_SM80_PRODUCT_CUH
#define FM_CUDA_SM80_PRODUCT_CUH

#include "cuda/ptx/mma.cuh"
#include "cuda/tile/shared_tile.cuh"

enum { DIM = FM_HEAD_DIM };

static __device__ __forceinline__ int lane_of(void) { return (int)threadIdx.x % 32; }

/* The same numbers as values of their own: the compiler computes what follows from them where it is used, and does not keep it in
 * registers all through a loop that has none to spare. */
static __device__ __forceinline__ uint32_t thread_here(void) {
    uint32_t thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}
static __device__ __forceinline__ int lane_here(void) { return (int)(thread_here() % 32); }

/* Shared address of this lane's row for an x4 at chunks `chunk` and `chunk` + 1. */
template <int WIDTH> static __device__ __forceinline__ uint32_t down(uint32_t tile, int lane, int chunk) {
    const uint32_t l = (uint32_t)lane;
    return tile + 2 * (uint32_t)shared_chunk<WIDTH>((int)(l % 16), chunk + (int)(l / 16));
}
template <int WIDTH> static __device__ __forceinline__ uint32_t across(uint32_t tile, int lane, int chunk) {
    const uint32_t l = (uint32_t)lane;
    return tile + 2 * (uint32_t)shared_chunk<WIDTH>((int)(l / 16 * 8 + l % 8), chunk + (int)(l / 8 % 2));
}
/* Bytes of `rows` rows. */
template <int WIDTH> static __device__ __forceinline__ constexpr uint32_t rows_bytes(int rows) {
    return 2u * WIDTH * (uint32_t)rows;
}

/* A row of N fragments that starts at a multiple of N, N a power of two: all are reached from the first one by an exclusive or
 * (shared_move), which costs an instruction, and no register that would have to live through the product. */
static __device__ __forceinline__ constexpr bool is_power_of_2(int n) { return (n & (n - 1)) == 0; }

template <int M, int N>
static __device__ __forceinline__ void multiply(float (&sum)[M][N][4], const uint32_t (&a)[M][4], const uint32_t (&b)[N / 2][4]) {
    static_assert(N % 2 == 0, "an x4 feeds two columns of tiles");
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            ptx_mma(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
}

template <int M, int N> static __device__ __forceinline__ void clear(float (&sum)[M][N][4]) {
#pragma unroll
    for (int i = 0; i < M * N * 4; i++) {
        sum[i / (N * 4)][i / 4 % N][i % 4] = 0.0f;
    }
}

/* sum[16 M x 8 N] += A B^T, both [..][WIDTH], over all of WIDTH. */
template <int M, int N, int WIDTH>
static __device__ __forceinline__ void product_row_row(float (&sum)[M][N][4], uint32_t a_tile, uint32_t b_tile) {
    const int lane = lane_here();
    const uint32_t a_first = down<WIDTH>(a_tile, lane, 0), b_first = across<WIDTH>(b_tile, lane, 0);
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++) {
        uint32_t a[M][4], b[N / 2][4];
        const uint32_t a_at = shared_move<WIDTH>(a_first, 0, 2 * k), b_at = shared_move<WIDTH>(b_first, 0, 2 * k);
#pragma unroll
        for (int m = 0; m < M; m++) {
            ptx_ldmatrix(a[m], a_at + rows_bytes<WIDTH>(16 * m));
        }
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            ptx_ldmatrix(b[n], b_at + rows_bytes<WIDTH>(16 * n));
        }
        multiply(sum, a, b);
    }
}

/* sum[16 M x 8 N] += A^T B over K rows; A [K][A_WIDTH] from chunk a_chunk on, B [K][B_WIDTH] from chunk b_chunk on. */
template <int M, int N, int K, int A_WIDTH, int B_WIDTH>
static __device__ __forceinline__ void product_column_column(float (&sum)[M][N][4], uint32_t a_tile, int a_chunk, uint32_t b_tile,
                                                             int b_chunk) {
    static_assert(is_power_of_2(M), "chunks of A by exclusive or");
    const int lane = lane_here();
    const uint32_t a_first = across<A_WIDTH>(a_tile, lane, a_chunk), b_first = down<B_WIDTH>(b_tile, lane, b_chunk);
#pragma unroll 2
    for (int k = 0; k < K / 16; k++) {
        uint32_t a[M][4], b[N / 2][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            ptx_ldmatrix_transposed(a[m], shared_move<A_WIDTH>(a_first, 0, 2 * m) + rows_bytes<A_WIDTH>(16 * k));
        }
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            const uint32_t at =
                is_power_of_2(N) ? shared_move<B_WIDTH>(b_first, 0, 2 * n) : down<B_WIDTH>(b_tile, lane, b_chunk + 2 * n);
            ptx_ldmatrix_transposed(b[n], at + rows_bytes<B_WIDTH>(16 * k));
        }
        multiply(sum, a, b);
    }
}

/* sum[16 M x 8 N] += A B over K; A [16 M][A_WIDTH] from chunk a_chunk on, B [K][B_WIDTH] from chunk b_chunk on. Fragments are read a
 * step ahead: products of a few tiles do not hide the reads of their own. */
template <int M, int N, int K, int A_WIDTH, int B_WIDTH>
static __device__ __forceinline__ void product_row_column(float (&sum)[M][N][4], uint32_t a_tile, int a_chunk, uint32_t b_tile,
                                                          int b_chunk) {
    const int lane = lane_here();
    const uint32_t a_first = down<A_WIDTH>(a_tile, lane, a_chunk), b_first = down<B_WIDTH>(b_tile, lane, b_chunk);
    uint32_t a[2][M][4], b[2][N / 2][4];
#pragma unroll
    for (int k = -1; k < K / 16; k++) {
        const int next = k + 1;
        if (next < K / 16) {
            const uint32_t a_at = shared_move<A_WIDTH>(a_first, 0, 2 * next);
#pragma unroll
            for (int m = 0; m < M; m++) {
                ptx_ldmatrix(a[next % 2][m], a_at + rows_bytes<A_WIDTH>(16 * m));
            }
#pragma unroll
            for (int n = 0; n < N / 2; n++) {
                const uint32_t at =
                    is_power_of_2(N) ? shared_move<B_WIDTH>(b_first, 0, 2 * n) : down<B_WIDTH>(b_tile, lane, b_chunk + 2 * n);
                ptx_ldmatrix_transposed(b[next % 2][n], at + rows_bytes<B_WIDTH>(16 * next));
            }
        }
        if (k >= 0) {
            multiply(sum, a[k % 2], b[k % 2]);
        }
    }
}

#endif
