#include "attention/problem.h"
#include "core/tensor.h"

#include <math.h>

/* Below WORTH_THREADS rows, waking threads takes longer than the work. */
enum { WORTH_THREADS = 256 };

static fm_status check_output(const char *name, const fm_tensor *t, const fm_tensor *like, bool is_written) {
    FM_TRY(fm_tensor_check(name, t, is_written));
    FM_CHECK(t->device.kind == FM_CPU && t->device.index == 0, FM_ERROR_DEVICE, "%s: merging needs CPU memory", name);
    for (int d = 0; d < 4; d++) {
        FM_CHECK(t->shape[d] == like->shape[d], FM_ERROR_SHAPE, "%s: shape[%d] is %lld, o1 has %lld", name, d,
                 (long long)t->shape[d], (long long)like->shape[d]);
    }
    FM_CHECK(t->shape[3] >= 1 && t->shape[3] <= FM_MOST_HEAD_DIM, FM_ERROR_SHAPE, "%s: head_dim is %lld, needs 1 .. %d", name,
             (long long)t->shape[3], FM_MOST_HEAD_DIM);
    return FM_OK;
}

static bool is_same_view(const fm_tensor *a, const fm_tensor *b) {
    bool is_same = a->data == b->data && a->dtype == b->dtype;
    for (int d = 0; d < 4; d++) { /* the stride of a single element is never used */
        is_same = is_same && (a->stride[d] == b->stride[d] || a->shape[d] == 1);
    }
    return is_same;
}

/* That `written` shares memory with none of the inputs, or is `twin` itself. */
static fm_status check_apart(const char *name, const fm_tensor *written, const fm_tensor *twin,
                             const fm_tensor *const inputs[5]) {
    static const char *const names[5] = {"o1", "o2", "lse1", "lse2", "sinks"};
    for (int i = 0; written->data != NULL && i < 5; i++) {
        const bool is_twin = inputs[i] == twin && is_same_view(written, twin);
        FM_CHECK(is_twin || inputs[i]->data == NULL || !fm_tensor_overlap(written, inputs[i]), FM_ERROR_ARGUMENT,
                 "%s: shares memory with %s%s", name, names[i], inputs[i] == twin ? " but is another view" : "");
    }
    return FM_OK;
}

static fm_tensor floats(const float *values, int64_t count) {
    return fm_tensor_contiguous((void *)values, FM_F32, 1, 1, 1, count);
}

typedef struct merge {
    const fm_tensor *o1, *o2, *o;
    const float *lse1, *lse2, *sinks;
    float *lse;
} merge;

static fm_status check_arrays(const merge *m) {
    const int64_t *n = m->o1->shape, count = fm_tensor_is_empty(m->o1) ? 0 : n[0] * n[1] * n[2];
    const fm_tensor lse1 = floats(m->lse1, count), lse2 = floats(m->lse2, count), lse = floats(m->lse, count);
    const fm_tensor sinks = floats(m->sinks, n[2]);
    const struct {
        const char *name;
        const float *values;
    } arrays[] = {{"lse1", m->lse1}, {"lse2", m->lse2}, {"lse", m->lse}, {"sinks", m->sinks}};
    for (int i = 0; i < 4; i++) {
        FM_CHECK((uintptr_t)arrays[i].values % sizeof(float) == 0, FM_ERROR_ARGUMENT,
                 "%s: is not aligned to its %zu-byte elements", arrays[i].name, sizeof(float));
    }
    const fm_tensor *const inputs[5] = {m->o1, m->o2, &lse1, &lse2, &sinks};
    FM_TRY(check_apart("o", m->o, m->o1, inputs));
    FM_TRY(check_apart("lse", &lse, &lse1, inputs));
    FM_CHECK(m->lse == NULL || !fm_tensor_overlap(m->o, &lse), FM_ERROR_ARGUMENT, "lse: shares memory with o");
    return FM_OK;
}

/* One row of one head. A part with weight 0 is not read: what an empty part holds does not matter. */
static void merge_row(const merge *m, int64_t b, int64_t i, int64_t h) {
    const int64_t *n = m->o->shape, index = (b * n[2] + h) * n[1] + i;
    const double lse1 = m->lse1[index], lse2 = m->lse2[index], max = lse1 > lse2 || isnan(lse1) ? lse1 : lse2;
    double weight1 = 0.0, weight2 = 0.0, lse = -INFINITY;
    if (max != -INFINITY) {
        const double e1 = exp(lse1 - max), e2 = exp(lse2 - max);
        lse = max + log(e1 + e2);
        const double kept = m->sinks != NULL ? 1.0 / (1.0 + exp(m->sinks[h] - lse)) : 1.0;
        weight1 = e1 / (e1 + e2) * kept;
        weight2 = e2 / (e1 + e2) * kept;
    }
    for (int64_t d = 0; d < n[3]; d++) {
        const double part1 = weight1 != 0 ? weight1 * fm_tensor_load(m->o1, fm_tensor_offset(m->o1, b, i, h, d)) : 0.0;
        const double part2 = weight2 != 0 ? weight2 * fm_tensor_load(m->o2, fm_tensor_offset(m->o2, b, i, h, d)) : 0.0;
        fm_tensor_store(m->o, fm_tensor_offset(m->o, b, i, h, d), part1 + part2);
    }
    if (m->lse != NULL) {
        m->lse[index] = (float)lse;
    }
}

fm_status fm_attention_merge(const fm_tensor *o1, const float *lse1, const fm_tensor *o2, const float *lse2, const float *sinks,
                             const fm_tensor *o, float *lse) {
    fm_clear_error();
    FM_REQUIRE(o1);
    FM_REQUIRE(lse1);
    FM_REQUIRE(o2);
    FM_REQUIRE(lse2);
    FM_REQUIRE(o);
    FM_TRY(check_output("o1", o1, o1, false));
    FM_TRY(check_output("o2", o2, o1, false));
    FM_TRY(check_output("o", o, o1, true));
    const merge m = {o1, o2, o, lse1, lse2, sinks, lse};
    FM_TRY(check_arrays(&m));
    if (fm_tensor_is_empty(o)) {
        return FM_OK;
    }
    const int64_t batch = o->shape[0], rows = o->shape[1], heads = o->shape[2];
#pragma omp parallel for if (batch * rows * heads >= WORTH_THREADS)
    for (int64_t line = 0; line < batch * rows; line++) {
        for (int64_t h = 0; h < heads; h++) {
            merge_row(&m, line / rows, line % rows, h);
        }
    }
    return FM_OK;
}
