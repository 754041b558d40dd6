/* dK and dV to global memory, through shared memory: the sums' own layout would write 8 bytes here and there, and code for every
 * stride and dtype unrolled over 128 registers does not stay in the instruction cache (a block paid 28000 cycles for it). */
#ifndef FM_CUDA_SM80_BACKWARD_STORE_CUH
#define FM_CUDA_SM80_BACKWARD_STORE_CUH

#include "cuda/ptx/bar.cuh"
#include "cuda/sm80/backward_tile.cuh"

/* Where a team's sum goes. */
typedef struct sum_target {
    const fm_cuda_tensor *tensor;
    bool is_f32;
    int32_t dim;
    float factor;
} sum_target;

static __device__ __forceinline__ sum_target sum_target_of(const fm_cuda_backward_problem *bp, int team) {
    const fm_cuda_problem *p = &bp->forward;
    const sum_target value = {&bp->grad_value, bp->grad_value_is_f32, p->head_dim_v, 1.0f};
    const sum_target key = {&bp->grad_key, bp->grad_key_is_f32, p->head_dim, p->scale};
    return team == TEAM_P ? value : key;
}

/* Where dims d .. d + 3 of a row lie in a staging: 16-byte pieces turned within eight rows. */
static __device__ __forceinline__ int staged(int row, int d) { return row * DIM + 4 * ((d / 4) ^ (row & 7)) + d % 4; }

/* The warp's part of its team's sum to a staging, [KEYS][DIM]. Pieces are reached from the first by an exclusive or, as fragments are
 * (product.cuh). */
static __device__ __forceinline__ void stage_sum(float *stage, const float (&sum)[SUM_M][SUM_N][4], float factor) {
    const int lane = lane_here(), row0 = sum_key0() + lane / 4, dim0 = sum_dim0() + lane % 4 * 2;
    const int first = staged(row0, dim0);
#pragma unroll
    for (int n = 0; n < SUM_N; n++) {
        const int at = is_power_of_2(SUM_N) ? (first ^ 8 * n % 32) + 8 * n / 32 * 32 : staged(row0, dim0 + 8 * n);
#pragma unroll
        for (int i = 0; i < SUM_M * 2; i++) {
            const float *c = sum[i / 2][n] + i % 2 * 2;
            *reinterpret_cast<float2 *>(stage + at + 8 * i * DIM) = make_float2(factor * c[0], factor * c[1]);
        }
    }
}

/* Eight neighbouring dims of a gradient. */
static __device__ __forceinline__ void store_eight(const sum_target *to, int64_t offset, const float (&x)[CHUNK]) {
    const fm_cuda_tensor *t = to->tensor;
    if (t->in_chunks && !to->is_f32) {
        *reinterpret_cast<uint4 *>(static_cast<fm_half *>(t->data) + offset) = make_uint4(
            fm_half2_from(x[0], x[1]), fm_half2_from(x[2], x[3]), fm_half2_from(x[4], x[5]), fm_half2_from(x[6], x[7]));
        return;
    }
#pragma unroll
    for (int e = 0; e < CHUNK; e++) {
        if (to->is_f32) {
            static_cast<float *>(t->data)[offset + e * t->stride[3]] = x[e];
        } else {
            static_cast<fm_half *>(t->data)[offset + e * t->stride[3]] = fm_half_from(x[e]);
        }
    }
}

/* A staging to global memory, by COUNT threads numbered `thread`. */
template <int COUNT>
static __device__ __forceinline__ void store_staged(const float *stage, const sum_target *to, const block_work *work,
                                                    int32_t columns, int thread) {
    constexpr int PIECES = DIM / CHUNK;
    const fm_cuda_tensor *t = to->tensor;
    const int64_t head = work->batch * t->stride[0] + work->key_head * t->stride[2];
#pragma unroll 1
    for (int i = thread; i < KEYS * PIECES; i += COUNT) {
        const int row = i / PIECES, d = i % PIECES * CHUNK;
        if (work->key0 + row < columns && d < to->dim) {
            const float4 low = *reinterpret_cast<const float4 *>(stage + staged(row, d));
            const float4 high = *reinterpret_cast<const float4 *>(stage + staged(row, d + 4));
            const float x[CHUNK] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            store_eight(to, head + (work->key0 + row) * t->stride[1] + d * t->stride[3], x);
        }
    }
}

/* dK and dV from the warps' sums through shared memory, whose tiles nobody needs any more: both at once where they fit in the place of
 * K, V, Q and dO, each team its own. */
enum { SUM_FLOATS = KEYS * DIM, STORES_AT_ONCE = 2 * sizeof(float) * SUM_FLOATS <= offsetof(backward_shared, probability) };

static __device__ __forceinline__ void store_sums(const float (&sum)[SUM_M][SUM_N][4], backward_shared *s,
                                                  const fm_cuda_backward_problem *bp, int team_barrier) {
    constexpr int COUNT = STORES_AT_ONCE ? TEAM : THREADS;
    ptx_bar_block();
#pragma unroll 1
    for (int turn = 0; turn < (STORES_AT_ONCE ? 1 : 2); turn++) {
        const int team = STORES_AT_ONCE ? team_of() : turn;
        const sum_target to = sum_target_of(bp, team);
        float *stage = reinterpret_cast<float *>(s) + (STORES_AT_ONCE ? team * SUM_FLOATS : 0);
        if (to.tensor->data == NULL) {
            continue;
        }
        if (team_of() == team) {
            stage_sum(stage, sum, to.factor);
        }
        ptx_bar_sync(STORES_AT_ONCE ? team_barrier : 0, COUNT);
        store_staged<COUNT>(stage, &to, &s->work, bp->forward.columns, thread_here() % COUNT);
        if (!STORES_AT_ONCE) {
            ptx_bar_block();
        }
    }
}

#endif
