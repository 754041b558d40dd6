/* Seeded random numbers for tests: splitmix64. */
#ifndef FM_TESTS_RANDOM_H
#define FM_TESTS_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct test_random {
    uint64_t state;
} test_random;

static inline uint64_t random_bits(test_random *r) {
    uint64_t z = (r->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in [low, high], both included. */
static inline int64_t random_integer(test_random *r, int64_t low, int64_t high) {
    return low + (int64_t)(random_bits(r) % (uint64_t)(high - low + 1));
}

static inline bool random_chance(test_random *r, double probability) {
    return (double)(random_bits(r) >> 11) * 0x1p-53 < probability;
}

/* Roughly normal: sum of 12 uniforms less 6. */
static inline float random_normal(test_random *r) {
    double sum = -6.0;
    for (int i = 0; i < 12; i++) {
        sum += (double)(random_bits(r) >> 11) * 0x1p-53;
    }
    return (float)sum;
}

#endif
