#include "mask/interval_difference.h"

/* Endpoint i of a list: 2 k is the start of interval k, 2 k + 1 its end. Past the last one: larger than any. */
static int64_t endpoint(const fm_interval *v, int64_t count, int64_t i) {
    if (i >= 2 * count) {
        return INT64_MAX;
    }
    return i % 2 == 0 ? v[i / 2].start : v[i / 2].end;
}

int64_t fm_interval_difference(const fm_interval *a, int64_t na, const fm_interval *b, int64_t nb, fm_interval *out) {
    int64_t i = 0, k = 0, count = 0;
    bool inside = false;
    while (i < 2 * na || k < 2 * nb) {
        const int64_t x = endpoint(a, na, i), y = endpoint(b, nb, k);
        i += x <= y;
        k += y <= x;
        if (x == y) { /* both lists change here: the difference does not */
            continue;
        }
        if (inside) {
            out[count++].end = (int32_t)(x < y ? x : y);
        } else {
            out[count].start = (int32_t)(x < y ? x : y);
        }
        inside = !inside;
    }
    return count;
}
