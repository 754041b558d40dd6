/* Random numbers: splitmix64, the same stream on every machine. */
#ifndef FM_CLI_RANDOM_H
#define FM_CLI_RANDOM_H

#include <math.h>
#include <stdint.h>

typedef struct fm_random {
    uint64_t state;
} fm_random;

static inline uint64_t fm_random_next(fm_random *random) {
    uint64_t z = (random->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* 0 .. n - 1, n >= 1. */
static inline int64_t fm_random_below(fm_random *random, int64_t n) { return (int64_t)(fm_random_next(random) % (uint64_t)n); }

/* [0, 1) in steps of 2^-53. */
static inline double fm_random_unit(fm_random *random) { return (double)(fm_random_next(random) >> 11) * 0x1p-53; }

/* Standard normal (Box and Muller). */
static inline double fm_random_normal(fm_random *random) {
    const double radius = sqrt(-2 * log(1 - fm_random_unit(random)));
    return radius * cos(6.283185307179586 * fm_random_unit(random));
}

#endif
