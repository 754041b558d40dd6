/* Small integer helpers. */
#ifndef FM_CORE_INTEGERS_H
#define FM_CORE_INTEGERS_H

#include <stdint.h>

static inline int64_t fm_smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t fm_clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

/* a / b rounded up; a >= 0, b > 0, and a + b fits. */
static inline int64_t fm_ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Bits 0 .. count - 1 and none above, for any count. */
static inline uint64_t fm_low_bits(int64_t count) {
    return count <= 0 ? 0 : count >= 64 ? UINT64_MAX : (UINT64_C(1) << count) - 1;
}

#endif
