#include "mask/convert.h"

#include "core/memory.h"

fm_status fm_array_count(const char *name, fm_mask_shape shape, int64_t lists, int64_t length, int64_t *count) {
    FM_TRY(fm_mask_shape_check(shape));
    const int64_t planes = shape.batch * shape.heads, line = fm_multiply(lists, length);
    const int64_t elements = line < 0 ? -1 : fm_multiply(planes, line);
    FM_CHECK(elements >= 0 && fm_multiply(elements, 8) >= 0, FM_ERROR_LIMIT,
             "%s: %lld x %lld x %lld x %lld elements pass 2^63 bytes", name, (long long)shape.batch, (long long)shape.heads,
             (long long)lists, (long long)length);
    *count = elements;
    return FM_OK;
}

fm_status fm_array_check_input(const char *name, const void *array, int64_t count) {
    FM_CHECK(array != NULL || count == 0, FM_ERROR_ARGUMENT, "%s: is NULL, needs %lld elements", name, (long long)count);
    return FM_OK;
}

fm_status fm_array_check_output(const char *name, const void *array, int64_t capacity, int64_t count) {
    FM_CHECK(capacity >= count, FM_ERROR_ARGUMENT, "capacity: is %lld, %s needs %lld elements", (long long)capacity, name,
             (long long)count);
    return fm_array_check_input(name, array, count);
}

fm_status fm_startend_check(int32_t vectors, bool causal) {
    const bool known = causal ? vectors == 1 || vectors == 2 : vectors == 2 || vectors == 4;
    FM_CHECK(known, FM_ERROR_ARGUMENT, "vectors: is %d, needs %s", vectors,
             causal ? "1 or 2 for a causal mask" : "2 or 4 for a mask that is not causal");
    return FM_OK;
}

fm_status fm_columns_visit(const fm_mask_view *view, int64_t b, int64_t h, fm_stripe_columns *scratch, fm_column_visitor visit,
                           void *context) {
    for (int64_t j = 0; j < view->shape.columns; j++) {
        const int64_t c = j % FM_STRIPE;
        if (c == 0) {
            FM_TRY(fm_mask_read_stripe(view, b, h, j / FM_STRIPE, scratch));
        }
        const int64_t first = scratch->first[c], count = scratch->first[c + 1] - first;
        FM_TRY(visit(context, &(fm_column){b, h, j, scratch->intervals + first, count}));
    }
    return FM_OK;
}
