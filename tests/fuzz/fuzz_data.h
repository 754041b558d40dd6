/* Structured values out of a fuzzer's bytes. When the bytes run out every value is the low end of its range. */
#ifndef FM_TESTS_FUZZ_DATA_H
#define FM_TESTS_FUZZ_DATA_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The fuzzer reports an abort as a finding and keeps the input. */
#define FUZZ_REQUIRE(condition)                                                            \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                       \
        }                                                                                  \
    } while (0)

typedef struct fuzz_data {
    const uint8_t *bytes;
    size_t left;
} fuzz_data;

static inline uint8_t fuzz_byte(fuzz_data *data) {
    if (data->left == 0) {
        return 0;
    }
    data->left--;
    return *data->bytes++;
}

static inline uint32_t fuzz_word(fuzz_data *data) {
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) {
        word = word << 8 | fuzz_byte(data);
    }
    return word;
}

/* In [low, high], both included; at most 2^16 values. */
static inline int32_t fuzz_integer(fuzz_data *data, int32_t low, int32_t high) {
    const int32_t choices = high - low + 1;
    const int32_t raw = choices <= 256 ? fuzz_byte(data) : (fuzz_byte(data) << 8 | fuzz_byte(data));
    return low + raw % choices;
}

/* A row bound: mostly within a few rows of [0, rows], one time in eight any integer at all. */
static inline int32_t fuzz_bound(fuzz_data *data, int32_t rows) {
    return fuzz_byte(data) < 32 ? (int32_t)fuzz_word(data) : fuzz_integer(data, -3, rows + 3);
}

#endif
