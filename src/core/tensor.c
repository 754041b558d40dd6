#include "core/tensor.h"

#include "core/memory.h"

/* Most bytes a tensor may span: the sum of two spans fits in 64 bits. */
#define LARGEST_SPAN (INT64_C(1) << 62)

size_t fm_dtype_size(fm_dtype dtype) {
    switch (dtype) {
    case FM_F32: return 4;
    case FM_F16:
    case FM_BF16: return 2;
    case FM_F64: return 8;
    }
    return 0;
}

const char *fm_dtype_name(fm_dtype dtype) {
    switch (dtype) {
    case FM_F32: return "f32";
    case FM_F16: return "f16";
    case FM_BF16: return "bf16";
    case FM_F64: return "f64";
    }
    return "unknown";
}

/* A stride that does not fit becomes one that every check refuses. */
static int64_t stride_product(int64_t extent, int64_t stride) {
    int64_t product;
    return __builtin_mul_overflow(extent, stride, &product) ? INT64_MAX : product;
}

fm_tensor fm_tensor_contiguous(void *data, fm_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    const int64_t stride1 = stride_product(n2, n3);
    return (fm_tensor){.data = data,
                       .dtype = dtype,
                       .device = {FM_CPU, 0},
                       .rank = 4,
                       .shape = {n0, n1, n2, n3},
                       .stride = {stride_product(n1, stride1), stride1, n3, 1}};
}

bool fm_tensor_is_empty(const fm_tensor *t) {
    return t->shape[0] == 0 || t->shape[1] == 0 || t->shape[2] == 0 || t->shape[3] == 0;
}

/* Extents above 1 with their strides, widest stride first. */
typedef struct axis {
    int64_t extent, stride;
} axis;

static int sorted_axes(const fm_tensor *t, axis out[4]) {
    int count = 0;
    for (int d = 0; d < 4; d++) {
        if (t->shape[d] <= 1) {
            continue;
        }
        int at = count++;
        for (; at > 0 && out[at - 1].stride < t->stride[d]; at--) {
            out[at] = out[at - 1];
        }
        out[at] = (axis){t->shape[d], t->stride[d]};
    }
    return count;
}

/* True if each axis steps past everything that the narrower axes reach, so that no two elements are one. */
static bool elements_are_apart(const fm_tensor *t) {
    axis axes[4];
    int64_t reach = 0;
    for (int k = sorted_axes(t, axes) - 1; k >= 0; k--) {
        if (axes[k].stride <= reach) {
            return false;
        }
        reach += (axes[k].extent - 1) * axes[k].stride;
    }
    return true;
}

fm_status fm_tensor_check(const char *name, const fm_tensor *t, bool is_output) {
    const size_t element = fm_dtype_size(t->dtype);
    FM_CHECK(element > 0, FM_ERROR_DTYPE, "%s: unknown dtype %d", name, (int)t->dtype);
    FM_CHECK(t->rank == 4, FM_ERROR_SHAPE, "%s: rank is %d, needs 4 ([batch, sequence, heads, head_dim])", name, t->rank);
    int64_t last = 0;
    for (int d = 0; d < 4; d++) {
        FM_CHECK(t->shape[d] >= 0 && t->shape[d] <= INT32_MAX, FM_ERROR_SHAPE, "%s: shape[%d] is %lld, needs 0 .. 2^31 - 1", name,
                 d, (long long)t->shape[d]);
        FM_CHECK(t->stride[d] >= 0, FM_ERROR_SHAPE, "%s: stride[%d] is %lld, negative strides are not accepted", name, d,
                 (long long)t->stride[d]);
        const int64_t reach = t->shape[d] > 0 ? fm_multiply(t->shape[d] - 1, t->stride[d]) : 0;
        FM_CHECK(reach >= 0 && !__builtin_add_overflow(last, reach, &last), FM_ERROR_SHAPE,
                 "%s: shape and strides reach past 2^63 elements", name);
    }
    FM_CHECK(last < LARGEST_SPAN / (int64_t)element, FM_ERROR_SHAPE, "%s: shape and strides reach past 2^62 bytes", name);
    if (fm_tensor_is_empty(t)) {
        return FM_OK;
    }
    FM_CHECK(!is_output || elements_are_apart(t), FM_ERROR_SHAPE,
             "%s: strides %lld, %lld, %lld, %lld give elements that share memory, which an output's must not", name,
             (long long)t->stride[0], (long long)t->stride[1], (long long)t->stride[2], (long long)t->stride[3]);
    FM_CHECK(t->data != NULL, FM_ERROR_ARGUMENT, "%s: data is NULL", name);
    FM_CHECK((uintptr_t)t->data % element == 0, FM_ERROR_ARGUMENT, "%s: data is not aligned to its %zu-byte elements", name,
             element);
    return FM_OK;
}

/* The bytes of a tensor: blocks of `block` bytes, repeated along axes with strides in bytes, widest first. */
typedef struct byte_set {
    int64_t block;
    int count;
    axis axes[4];
} byte_set;

static byte_set bytes_of(const fm_tensor *t) {
    const int64_t element = (int64_t)fm_dtype_size(t->dtype);
    byte_set set = {.block = element};
    set.count = sorted_axes(t, set.axes);
    for (int k = 0; k < set.count; k++) {
        set.axes[k].stride *= element;
    }
    for (; set.count > 0 && set.axes[set.count - 1].stride <= set.block; set.count--) { /* no gap: a longer block */
        const axis *narrowest = &set.axes[set.count - 1];
        set.block += (narrowest->extent - 1) * narrowest->stride;
    }
    return set;
}

static int64_t span_of(const byte_set *set) {
    int64_t span = set->block;
    for (int k = 0; k < set->count; k++) {
        span += (set->axes[k].extent - 1) * set->axes[k].stride;
    }
    return span;
}

/* Removes the widest axis if its stride is the given one; returns its extent, else 1. */
static int64_t peel(byte_set *set, int64_t stride) {
    if (set->count == 0 || set->axes[0].stride != stride) {
        return 1;
    }
    const int64_t extent = set->axes[0].extent;
    set->count--;
    for (int k = 0; k < set->count; k++) {
        set->axes[k] = set->axes[k + 1];
    }
    return extent;
}

static int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

/* Most copies of the inner sets that may lie across each other: 2 where the strides are nested, so more is not worth it. */
enum { MOST_SHIFTS = 4 };

/* Whether a, at 0, and b, at offset, share a byte. The widest stride s of the two is peeled off both: copy i of the inner a
 * is at i * s, copy j of the inner b at offset + j * s, so only the shift k = i - j matters, and only the few shifts at
 * which the inner spans meet. Where they are not few, the answer is true. */
static bool bytes_meet(byte_set a, byte_set b, int64_t offset) {
    if (offset >= span_of(&a) || -offset >= span_of(&b)) {
        return false;
    }
    const int64_t stride_a = a.count > 0 ? a.axes[0].stride : 0, stride_b = b.count > 0 ? b.axes[0].stride : 0;
    const int64_t s = stride_a > stride_b ? stride_a : stride_b;
    if (s == 0) {
        return true; /* two blocks */
    }
    const int64_t copies_a = peel(&a, s), copies_b = peel(&b, s);
    int64_t low = floor_divide(offset - span_of(&a), s) + 1, high = floor_divide(offset + span_of(&b) - 1, s);
    low = low > 1 - copies_b ? low : 1 - copies_b;
    high = high < copies_a - 1 ? high : copies_a - 1;
    if (high - low >= MOST_SHIFTS) {
        return true;
    }
    for (int64_t k = low; k <= high; k++) {
        if (bytes_meet(a, b, offset - k * s)) {
            return true;
        }
    }
    return false;
}

bool fm_tensor_overlap(const fm_tensor *a, const fm_tensor *b) {
    if (fm_tensor_is_empty(a) || fm_tensor_is_empty(b)) {
        return false;
    }
    return bytes_meet(bytes_of(a), bytes_of(b), (int64_t)((uintptr_t)b->data - (uintptr_t)a->data));
}

double fm_tensor_load(const fm_tensor *t, int64_t offset) {
    switch (t->dtype) {
    case FM_F32: return ((const float *)t->data)[offset];
    case FM_F16: return fm_f16_to_f32(((const uint16_t *)t->data)[offset]);
    case FM_BF16: return fm_bf16_to_f32(((const uint16_t *)t->data)[offset]);
    case FM_F64: return ((const double *)t->data)[offset];
    }
    return 0.0;
}

void fm_tensor_store(const fm_tensor *t, int64_t offset, double value) {
    switch (t->dtype) {
    case FM_F32: ((float *)t->data)[offset] = (float)value; break;
    case FM_F16: ((uint16_t *)t->data)[offset] = fm_f32_to_f16((float)value); break;
    case FM_BF16: ((uint16_t *)t->data)[offset] = fm_f32_to_bf16((float)value); break;
    case FM_F64: ((double *)t->data)[offset] = value; break;
    }
}

double fm_round_to_dtype(fm_dtype dtype, double value) {
    switch (dtype) {
    case FM_F32: return (float)value;
    case FM_F16: return fm_f16_to_f32(fm_f32_to_f16((float)value));
    case FM_BF16: return fm_bf16_to_f32(fm_f32_to_bf16((float)value));
    case FM_F64: return value;
    }
    return value;
}
