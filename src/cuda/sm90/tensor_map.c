/* Tensor maps of query, key and value: [batch, rows, heads, dims] of any strides that the copy engine takes. CUDA driver API, "Tensor Map
 * Object Management". The driver's function comes through the runtime, so that nothing links to the driver. */
#include "cuda/sm90/launch.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>

enum { RANK = 4, ALIGNMENT = 16 };
static const int64_t STRIDE_LIMIT = INT64_C(1) << 40; /* bytes */

typedef CUresult (*encode_tiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                                 const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_tiled look_up_encode(void) {
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    encode_tiled encode = NULL;
    if (found == cudaDriverEntryPointSuccess) {
        *(void **)&encode = function;
    }
    return encode;
}

/* NULL: the driver has none. Looked up by the first call, or by several at once, which all find the same function. */
static encode_tiled find_encode(void) {
    static _Atomic(encode_tiled) known;
    encode_tiled encode = atomic_load_explicit(&known, memory_order_relaxed);
    if (encode == NULL) {
        encode = look_up_encode();
        atomic_store_explicit(&known, encode, memory_order_relaxed);
    }
    return encode;
}

/* Extents of a map: dims, rows, heads, batch. */
typedef struct map_extents {
    int64_t of[RANK];
} map_extents;

/* Bytes from one element of rows, heads and batch to the next. Where there is one element any legal number will do; a stride of 0
 * that repeats elements is refused. */
static bool find_strides(const fm_cuda_tensor *t, const map_extents *extents, cuuint64_t strides[RANK - 1]) {
    static const int axis[RANK] = {3, 1, 2, 0};
    for (int i = 1; i < RANK; i++) {
        const int64_t bytes = t->stride[axis[i]] * 2;
        if (extents->of[i] > 1 && (bytes == 0 || bytes % ALIGNMENT != 0 || bytes >= STRIDE_LIMIT)) {
            return false;
        }
        strides[i - 1] = extents->of[i] > 1 ? (cuuint64_t)bytes : ALIGNMENT;
    }
    return true;
}

static bool make_map(encode_tiled encode, CUtensorMapDataType type, const fm_cuda_tensor *t, map_extents extents,
                     CUtensorMap *map) {
    static const cuuint32_t box[RANK] = {FM_SM90_BOX, FM_SM90_BOX, 1, 1}, steps[RANK] = {1, 1, 1, 1};
    cuuint64_t strides[RANK - 1], sizes[RANK];
    if (!t->in_chunks || !find_strides(t, &extents, strides)) {
        return false;
    }
    for (int i = 0; i < RANK; i++) {
        if (extents.of[i] <= 0) {
            return false;
        }
        sizes[i] = (cuuint64_t)extents.of[i];
    }
    return encode(map, type, RANK, t->data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool fm_sm90_make_maps(const fm_cuda_problem *p, fm_dtype dtype, fm_sm90_maps *maps) {
    const CUtensorMapDataType type = dtype == FM_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const encode_tiled encode = find_encode();
    return encode != NULL &&
           make_map(encode, type, &p->query, (map_extents){{p->head_dim, p->rows, p->heads, p->batch}}, &maps->query) &&
           make_map(encode, type, &p->key, (map_extents){{p->head_dim, p->columns, p->heads_kv, p->batch}}, &maps->key) &&
           make_map(encode, type, &p->value, (map_extents){{p->head_dim_v, p->columns, p->heads_kv, p->batch}}, &maps->value);
}

bool fm_sm90_make_backward_maps(const fm_cuda_backward_problem *bp, fm_dtype dtype, fm_sm90_backward_maps *maps) {
    const fm_cuda_problem *p = &bp->forward;
    const CUtensorMapDataType type = dtype == FM_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    return fm_sm90_make_maps(p, dtype, &maps->forward) &&
           make_map(find_encode(), type, &bp->grad_output, (map_extents){{p->head_dim_v, p->rows, p->heads, p->batch}},
                    &maps->grad_output);
}
