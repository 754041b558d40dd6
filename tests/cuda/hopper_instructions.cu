#define FM_IS_BF16 1
#include "hopper_instructions.h"

#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/setmaxnreg.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/turn.cuh"
#include "cuda/ptx/wgmma.cuh"

enum { BOX = FM_SM90_BOX, BOX_BYTES = BOX * BOX * 2, TEAM = 128, MOST_BOXES = 5, SHARED_BYTES = MOST_BOXES * BOX_BYTES + 1024 };

/* First address of the boxes. */
static __device__ uint32_t start(const uint8_t *memory) { return (ptx_shared_address(memory) + 1023) & ~1023u; }

static __device__ void init(uint64_t *barrier) {
    if (threadIdx.x == 0) {
        ptx_mbarrier_init(ptx_shared_address(barrier), 1);
        ptx_mbarrier_fence_init();
    }
    __syncthreads();
}

static __global__ void copy_box(const __grid_constant__ fm_sm90_maps maps, int dim0, int row0, uint16_t *out) {
    extern __shared__ uint8_t memory[];
    __shared__ uint64_t barrier;
    const uint32_t at = start(memory);
    init(&barrier);
    if (threadIdx.x == 0) {
        ptx_tma_prefetch_map(&maps.query);
        ptx_mbarrier_arrive_expect(ptx_shared_address(&barrier), BOX_BYTES);
        ptx_tma_load_4d(at, &maps.query, ptx_shared_address(&barrier), dim0, row0, 1, 1);
    }
    ptx_mbarrier_wait(ptx_shared_address(&barrier), 0);
    for (int i = (int)threadIdx.x; i < BOX * BOX; i += TEAM) {
        const int row = i / BOX,
                  chunk = i % BOX / 8; /* 128-byte swizzle: chunks of a row are exchanged by its place among eight */
        const uint8_t *from = memory + (at - ptx_shared_address(memory)) + row * 128 + (chunk ^ row % 8) * 16 + i % 8 * 2;
        out[i] = *reinterpret_cast<const uint16_t *>(from);
    }
}

/* Box number `place` of the block's shared memory. */
static __device__ void read_box(const uint8_t *memory, int place, uint16_t *out) {
    const uint8_t *box = memory + (start(memory) - ptx_shared_address(memory)) + place * BOX_BYTES;
    for (int i = (int)threadIdx.x; i < BOX * BOX; i += TEAM) {
        out[i] = *reinterpret_cast<const uint16_t *>(box + i / BOX * 128 + (i % BOX / 8 ^ i / BOX % 8) * 16 + i % 8 * 2);
    }
}

static __global__ void __cluster_dims__(2)
    share_boxes(const __grid_constant__ fm_sm90_maps maps, uint16_t *out, uint32_t *words) {
    enum { FROM_FIRST, OWN, FROM_OTHER, WORD, ALL_READ, BARRIERS };
    extern __shared__ uint8_t memory[];
    __shared__ uint64_t barriers[BARRIERS];
    __shared__ uint32_t word;
    const uint32_t at = start(memory), rank = ptx_cluster_rank(), full = ptx_shared_address(barriers);
    if (threadIdx.x == 0) {
        for (int i = 0; i < BARRIERS; i++) {
            ptx_mbarrier_init(full + 8 * i, i == ALL_READ ? 2 : 1);
        }
        ptx_mbarrier_fence_init();
    }
    ptx_cluster_sync();
    if (threadIdx.x == 0) {
        for (int i = FROM_FIRST; i <= FROM_OTHER; i++) {
            ptx_mbarrier_arrive_expect(full + 8 * i, BOX_BYTES);
        }
        ptx_mbarrier_arrive_expect(full + 8 * WORD, sizeof word);
        if (rank == 0) {
            ptx_cluster_load_4d(at, &maps.query, full + 8 * FROM_FIRST, 0, 0, 1, 1);
        }
        ptx_tma_load_4d(at + OWN * BOX_BYTES, &maps.query, full + 8 * OWN, 0, BOX * (int)(rank + 1), 1, 1);
        ptx_mbarrier_wait(full + 8 * OWN, 0);
        ptx_cluster_copy(ptx_cluster_peer(at + FROM_OTHER * BOX_BYTES, rank), at + OWN * BOX_BYTES, BOX_BYTES,
                         ptx_cluster_peer(full + 8 * FROM_OTHER, rank));
        ptx_cluster_store(ptx_cluster_peer(ptx_shared_address(&word), rank), 100 + rank, ptx_cluster_peer(full + 8 * WORD, rank));
    }
    for (int i = FROM_FIRST; i <= WORD; i++) {
        ptx_mbarrier_wait(full + 8 * i, 0);
    }
    for (int i = FROM_FIRST; i <= FROM_OTHER; i++) {
        read_box(memory, i, out + (3 * rank + i) * BOX * BOX);
    }
    if (threadIdx.x == 0) {
        words[rank] = word;
        ptx_mbarrier_arrive(full + 8 * ALL_READ);
        ptx_cluster_mbarrier_arrive(ptx_cluster_peer(full + 8 * ALL_READ, rank));
    }
    ptx_mbarrier_wait(full + 8 * ALL_READ, 0);
    ptx_cluster_sync();
}

template <int REGISTERS> static __device__ void write(const float (&d)[REGISTERS], float *out) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < REGISTERS; i++) {
        const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        out[row * 2 * REGISTERS + column] = d[i];
    }
}

/* Waits for the products of d and writes it. */
template <int REGISTERS> static __device__ __forceinline__ void finish(float (&d)[REGISTERS], float *out) {
    ptx_wgmma_commit();
    ptx_wgmma_wait<0>();
    ptx_wgmma_ready(d);
    write(d, out);
}

template <int REGISTERS>
static __global__ void __launch_bounds__(TEAM) multiply_shared(const __grid_constant__ fm_sm90_maps maps, float *out) {
    extern __shared__ uint8_t memory[];
    __shared__ uint64_t barrier;
    constexpr int BOXES = (2 * REGISTERS + BOX - 1) / BOX;
    const uint32_t at = start(memory);
    init(&barrier);
    if (threadIdx.x == 0) {
        ptx_mbarrier_arrive_expect(ptx_shared_address(&barrier), (1 + BOXES) * BOX_BYTES);
        ptx_tma_load_4d(at, &maps.query, ptx_shared_address(&barrier), 0, 0, 0, 0);
        for (int i = 0; i < BOXES; i++) {
            ptx_tma_load_4d(at + (uint32_t)((1 + i) * BOX_BYTES), &maps.key, ptx_shared_address(&barrier), 0, i * BOX, 0, 0);
        }
    }
    ptx_mbarrier_wait(ptx_shared_address(&barrier), 0);
    const uint64_t a = ptx_wgmma_descriptor(at, 0), b = ptx_wgmma_descriptor(at + BOX_BYTES, 0);
    float d[REGISTERS];
    ptx_wgmma_fence();
    ptx_wgmma_ss<0, 0, 0>(d, a, b);
#pragma unroll
    for (int k = 1; k < 4; k++) {
        ptx_wgmma_ss<1, 0, 0>(d, a + 2 * k, b + 2 * k);
    }
    finish(d, out);
}

template <int REGISTERS>
static __global__ void __launch_bounds__(TEAM)
    multiply_registers(const __grid_constant__ fm_sm90_maps maps, const uint16_t *weights, float start_at, float *out) {
    extern __shared__ uint8_t memory[];
    __shared__ uint64_t barrier;
    constexpr int BOXES = (2 * REGISTERS + BOX - 1) / BOX;
    const uint32_t at = start(memory);
    init(&barrier);
    if (threadIdx.x == 0) {
        ptx_mbarrier_arrive_expect(ptx_shared_address(&barrier), BOXES * BOX_BYTES);
        for (int i = 0; i < BOXES; i++) {
            ptx_tma_load_4d(at + (uint32_t)(i * BOX_BYTES), &maps.value, ptx_shared_address(&barrier), i * BOX, 0, 0, 0);
        }
    }
    ptx_mbarrier_wait(ptx_shared_address(&barrier), 0);
    const int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4, column = (int)threadIdx.x % 4 * 2;
    float d[REGISTERS];
    uint32_t a[4][4];
#pragma unroll
    for (int i = 0; i < REGISTERS; i++) {
        d[i] = start_at;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int r = row + i % 2 * 8, c = i / 4 * 16 + i / 2 % 2 * 8 + column;
        a[i / 4][i % 4] = *reinterpret_cast<const uint32_t *>(weights + r * BOX + c);
    }
    ptx_wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        ptx_wgmma_rs<1, 1>(d, a[k][0], a[k][1], a[k][2], a[k][3], ptx_wgmma_descriptor(at, BOX_BYTES) + k * 2048 / 16);
    }
    finish(d, out);
}

/* b: `dim0` dims into a box of value. */
template <int REGISTERS>
static __global__ void __launch_bounds__(TEAM)
    multiply_transposed(const __grid_constant__ fm_sm90_maps maps, int dim0, float *out) {
    extern __shared__ uint8_t memory[];
    __shared__ uint64_t barrier;
    const uint32_t at = start(memory);
    init(&barrier);
    if (threadIdx.x == 0) {
        ptx_mbarrier_arrive_expect(ptx_shared_address(&barrier), 2 * BOX_BYTES);
        ptx_tma_load_4d(at, &maps.query, ptx_shared_address(&barrier), 0, 0, 0, 0);
        ptx_tma_load_4d(at + BOX_BYTES, &maps.value, ptx_shared_address(&barrier), 0, 0, 0, 0);
    }
    ptx_mbarrier_wait(ptx_shared_address(&barrier), 0);
    const uint64_t a = ptx_wgmma_descriptor(at, 0), b = ptx_wgmma_descriptor(at + BOX_BYTES + (uint32_t)dim0 * 2, BOX_BYTES);
    float d[REGISTERS];
    ptx_wgmma_fence();
    ptx_wgmma_ss<0, 0, 1>(d, a, b);
#pragma unroll
    for (int k = 1; k < 4; k++) {
        ptx_wgmma_ss<1, 0, 1>(d, a + 2 * k, b + k * 2048 / 16);
    }
    finish(d, out);
}

/* One warp: 16 x 16 of `in` transposed by way of shared memory; then `sum` += 256 words that a bulk load brought, twice. */
static __global__ void store_and_add(const uint16_t *in, uint16_t *out, const float *words, float *sum) {
    __shared__ alignas(128) uint16_t tile[16 * 16];
    __shared__ alignas(128) float copy[256];
    __shared__ uint64_t barrier;
    const int lane = (int)threadIdx.x, row = lane / 4, column = lane % 4 * 2;
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) { /* matrix i: rows 8 (i % 2) .., columns 8 (i / 2) .. */
        r[i] = *reinterpret_cast<const uint32_t *>(in + (row + i % 2 * 8) * 16 + column + i / 2 * 8);
    }
    ptx_stmatrix_transposed(ptx_shared_address(tile + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8), r[0], r[1], r[2],
                            r[3]);
    init(&barrier);
    for (int i = lane; i < 256; i += 32) {
        out[i] = tile[i];
    }
    if (lane == 0) {
        ptx_mbarrier_arrive_expect(ptx_shared_address(&barrier), sizeof copy);
        ptx_bulk_load(ptx_shared_address(copy), words, sizeof copy, ptx_shared_address(&barrier));
    }
    ptx_mbarrier_wait(ptx_shared_address(&barrier), 0);
    for (int i = lane; i < 256; i += 32) {
        copy[i] *= 2.0f;
    }
    ptx_fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
        ptx_bulk_add_f32(sum, ptx_shared_address(copy), sizeof copy);
        ptx_bulk_commit();
        ptx_bulk_wait_read<0>();
        ptx_bulk_add_f32(sum, ptx_shared_address(copy), sizeof copy);
        ptx_bulk_commit();
        ptx_bulk_wait<0>();
    }
}

static __global__ void __launch_bounds__(3 * TEAM, 1) move_registers(int *out) {
    if (threadIdx.x < TEAM) {
        ptx_registers_give<40>();
    } else {
        ptx_registers_take<232>();
        out[threadIdx.x - TEAM] = 1;
    }
}

/* sum = 2 sum + block: what comes out tells the order. The first block writes that, others add what is missing.
 * What is read lies in L2, where the copies before are complete; another load would want an acquire. */
static __global__ void take_turns(uint32_t *counter, float *sum) {
    __shared__ alignas(128) float staged[256];
    const int lane = (int)threadIdx.x;
    const uint32_t turn = gridDim.x - 1 - blockIdx.x;
    if (lane == 0) {
        ptx_turn_wait(counter, turn);
    }
    __syncwarp();
    for (int i = lane; i < 256; i += 32) {
        staged[i] = __ldcg(sum + i) * (turn == 0 ? 2.0f : 1.0f) + (float)blockIdx.x;
    }
    ptx_fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
        if (turn == 0) {
            ptx_bulk_store(sum, ptx_shared_address(staged), sizeof staged);
        } else {
            ptx_bulk_add_f32(sum, ptx_shared_address(staged), sizeof staged);
        }
        ptx_bulk_commit();
        ptx_bulk_wait<0>();
        ptx_turn_pass(counter);
    }
}

static int launch_blocks(const void *kernel, unsigned blocks, void **arguments) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    if (error == cudaSuccess) {
        error = cudaLaunchKernel(kernel, dim3(blocks), dim3(TEAM), arguments, SHARED_BYTES, 0);
    }
    return error != cudaSuccess ? error : cudaDeviceSynchronize();
}
static int launch(const void *kernel, void **arguments) { return launch_blocks(kernel, 1, arguments); }

extern "C" int hopper_copy_box(const fm_sm90_maps *maps, int dim0, int row0, uint16_t *out) {
    void *arguments[] = {const_cast<fm_sm90_maps *>(maps), &dim0, &row0, &out};
    return launch((const void *)copy_box, arguments);
}

extern "C" int hopper_share_boxes(const fm_sm90_maps *maps, uint16_t *out, uint32_t *words) {
    void *arguments[] = {const_cast<fm_sm90_maps *>(maps), &out, &words};
    return launch_blocks((const void *)share_boxes, 2, arguments);
}

extern "C" int hopper_multiply_shared(const fm_sm90_maps *maps, int columns, float *out) {
    void *arguments[] = {const_cast<fm_sm90_maps *>(maps), &out};
    const void *kernel = columns == 64    ? (const void *)multiply_shared<32>
                         : columns == 96  ? (const void *)multiply_shared<48>
                         : columns == 128 ? (const void *)multiply_shared<64>
                         : columns == 192 ? (const void *)multiply_shared<96>
                                          : (const void *)multiply_shared<128>;
    return launch(kernel, arguments);
}

extern "C" int hopper_multiply_registers(const fm_sm90_maps *maps, int columns, const uint16_t *weights, float start_at,
                                         float *out) {
    void *arguments[] = {const_cast<fm_sm90_maps *>(maps), &weights, &start_at, &out};
    const void *kernel = columns == 64    ? (const void *)multiply_registers<32>
                         : columns == 96  ? (const void *)multiply_registers<48>
                         : columns == 128 ? (const void *)multiply_registers<64>
                         : columns == 192 ? (const void *)multiply_registers<96>
                                          : (const void *)multiply_registers<128>;
    return launch(kernel, arguments);
}

extern "C" int hopper_multiply_transposed(const fm_sm90_maps *maps, int columns, int dim0, float *out) {
    void *arguments[] = {const_cast<fm_sm90_maps *>(maps), &dim0, &out};
    return launch(columns == 32 ? (const void *)multiply_transposed<16> : (const void *)multiply_transposed<32>, arguments);
}

extern "C" int hopper_take_turns(int blocks, uint32_t *counter, float *sum) {
    take_turns<<<(unsigned)blocks, 32>>>(counter, sum);
    const cudaError_t error = cudaGetLastError();
    return error != cudaSuccess ? error : cudaDeviceSynchronize();
}

extern "C" int hopper_store_and_add(const uint16_t *in, uint16_t *out, const float *words, float *sum) {
    store_and_add<<<1, 32>>>(in, out, words, sum);
    const cudaError_t error = cudaGetLastError();
    return error != cudaSuccess ? error : cudaDeviceSynchronize();
}

extern "C" int hopper_move_registers(int *out) {
    move_registers<<<1, 3 * TEAM>>>(out);
    const cudaError_t error = cudaGetLastError();
    return error != cudaSuccess ? error : cudaDeviceSynchronize();
}
