/* Two blocks of a cluster: each other's shared memory and barriers. PTX ISA, "Cluster", "mapa", "mbarrier", "st.async", "cp.async.bulk". Addresses are
 * those of ptx_shared_address; the kernel is __cluster_dims__(2), so block 2 n + r has rank r. */
#ifndef FM_CUDA_PTX_CLUSTER_CUH
#define FM_CUDA_PTX_CLUSTER_CUH

#include <cuda.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t ptx_cluster_rank(void) {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Where the other block has what this one has at the address. */
static __device__ __forceinline__ uint32_t ptx_cluster_peer(uint32_t shared, uint32_t rank) {
    uint32_t peer;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(shared), "r"(rank ^ 1));
    return peer;
}

/* A barrier of all threads of both blocks, whole warps: barriers' inits are visible behind it, and at its end a block keeps its shared memory
 * for the other. The mask is one that ptxas does not know: bar.cuh. */
static __device__ __forceinline__ void ptx_cluster_sync(void) {
    uint32_t below, others;
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(others));
    __syncwarp(below | others);
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* At the other block's barrier (ptx_cluster_peer): says that this thread's warp has read what the other block will overwrite. What the
 * thread has stored is not released to the other block, which would take a fence of the whole GPU. */
static __device__ __forceinline__ void ptx_cluster_mbarrier_arrive(uint32_t peer) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(peer) : "memory");
}

/* A word to the other block, whose barrier counts four bytes; to, barrier: ptx_cluster_peer. */
static __device__ __forceinline__ void ptx_cluster_store(uint32_t to, uint32_t word, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to), "r"(word), "r"(barrier)
                 : "memory");
}

/* `bytes` bytes to the other block, whose barrier counts them; to, barrier: ptx_cluster_peer. One thread. */
static __device__ __forceinline__ void ptx_cluster_copy(uint32_t to, uint32_t from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "r"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* ptx_tma_load_4d into both blocks: to the same place of each, and each one's barrier counts the whole box. One thread of one block. */
static __device__ __forceinline__ void ptx_cluster_load_4d(uint32_t shared, const CUtensorMap *map, uint32_t barrier, int c0,
                                                           int c1, int c2, int c3) {
    asm volatile("{\n"
                 ".reg .b16 both;\n"
                 "mov.b16 both, 3;\n"
                 "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], both;\n"
                 "}\n" ::"r"(shared),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}

#endif
