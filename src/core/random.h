/* splitmix64 (Steele, Lea, Flood 2014): seeded draws and hashes that are the same on every machine. */
#ifndef FM_CORE_RANDOM_H
#define FM_CORE_RANDOM_H

#include <stdint.h>

static inline uint64_t fm_random_bits(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* A step of a running hash: mixes value into it. */
static inline uint64_t fm_hash_step(uint64_t hash, uint64_t value) {
    hash += value;
    return fm_random_bits(&hash);
}

/* 0 .. count - 1, count 1 .. 2^31: off uniform by less than count / 2^32. */
static inline int64_t fm_random_below(uint64_t *state, int64_t count) {
    return (int64_t)(((fm_random_bits(state) >> 32) * (uint64_t)count) >> 32);
}

#endif
