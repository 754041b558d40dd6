#include "mask/visibility.h"

#include <string.h>

fm_status fm_window_reach(const char *name, int64_t keys, int64_t *out) {
    FM_CHECK(keys >= -1, FM_ERROR_ARGUMENT, "%s: is %lld, needs keys >= 0 or -1 (unlimited)", name, (long long)keys);
    *out = keys < 0 ? FM_UNLIMITED : fm_smaller(keys, FM_UNLIMITED);
    return FM_OK;
}

fm_status fm_window_make(bool causal, int64_t window_left, int64_t window_right, fm_mask_shape shape, fm_window *out) {
    fm_window window = {.shift = shape.columns - shape.rows};
    FM_TRY(fm_window_reach("window_left", window_left, &window.left));
    FM_TRY(fm_window_reach("window_right", window_right, &window.right));
    window.right = causal ? 0 : window.right;
    *out = window;
    return FM_OK;
}

/* An interval of a column flips its bit at its first row and back at its end; a running XOR down the rows fills it in. */
static void interval_bits(const fm_mask_view *v, int64_t b, int64_t h, int64_t row0, int64_t rows, int64_t column0,
                          int64_t columns, uint64_t *bits) {
    memset(bits, 0, (size_t)rows * sizeof *bits);
    for (int32_t m = 0; m < v->intervals; m++) {
        const fm_interval *bounds = fm_mask_bounds(v, b, h, m) + column0;
        for (int64_t c = 0; c < columns; c++) {
            const int64_t start = bounds[c].start - row0, end = bounds[c].end - row0;
            if (end <= 0 || start >= rows || start >= end) {
                continue;
            }
            bits[start < 0 ? 0 : start] ^= UINT64_C(1) << c;
            if (end < rows) {
                bits[end] ^= UINT64_C(1) << c;
            }
        }
    }
    for (int64_t r = 1; r < rows; r++) {
        bits[r] ^= bits[r - 1];
    }
}

void fm_visible_bits(const fm_mask_view *v, const fm_window *window, int64_t b, int64_t h, int64_t row0, int64_t rows,
                     int64_t column0, int64_t columns, uint64_t *bits) {
    const int64_t stripe = column0 / FM_STRIPE;
    const int32_t slot = fm_mask_slot(v, b, h, stripe);
    if (slot == FM_NO_SLOT) {
        interval_bits(v, b, h, row0, rows, column0, columns, bits);
    } else {
        const int64_t first = column0 % FM_STRIPE; /* the columns lie in one 64-bit word */
        for (int64_t r = 0; r < rows; r++) {
            uint64_t words[2];
            fm_mask_stripe_row(v, slot, stripe, row0 + r, words);
            bits[r] = (words[first / 64] >> (first % 64)) & fm_low_bits(columns);
        }
    }
    if (fm_window_is_unlimited(window)) {
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        const int64_t diagonal = row0 + r + window->shift - column0; /* of this row, counted from column0 */
        bits[r] &= fm_low_bits(diagonal + window->right + 1) & ~fm_low_bits(diagonal - window->left);
    }
}
