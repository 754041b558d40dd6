/* Vector vocabulary, portable: four floats in the compiler's own vector type, which becomes whatever the machine has. */
#ifndef FM_CPU_VEC_GENERIC_H
#define FM_CPU_VEC_GENERIC_H

#include "core/half.h"

#include <stddef.h>

typedef float vec __attribute__((vector_size(16)));
typedef int32_t vec_mask __attribute__((vector_size(16))); /* all ones or zero in each lane */

/* Registers of one GEMM block: 12 sums, 2 of b, 1 of a, of the 16 that x86-64 and most others have. */
enum { VEC_WIDTH = 4, VEC_BLOCK_ROWS = 6, VEC_BLOCK_COLUMNS = 2 };

static inline vec vec_set(float x) { return (vec){x, x, x, x}; }

static inline vec vec_load(const float *from) {
    vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline void vec_store(float *to, vec v) { memcpy(to, &v, sizeof v); }

static inline vec vec_fma(vec a, vec b, vec c) { return a * b + c; }

static inline vec vec_select(vec_mask mask, vec a, vec b) { return (vec)((mask & (vec_mask)a) | (~mask & (vec_mask)b)); }
static inline vec_mask vec_less(vec a, vec b) { return (vec_mask)(a < b); }
static inline vec vec_max(vec a, vec b) { return vec_select((vec_mask)(a > b), a, b); }
static inline vec vec_min(vec a, vec b) { return vec_select((vec_mask)(a < b), a, b); }

static inline vec vec_abs(vec x) { return (vec)((vec_mask)x & INT32_MAX); }
static inline vec vec_copysign(vec magnitude, vec sign) {
    return (vec)(((vec_mask)magnitude & INT32_MAX) | ((vec_mask)sign & INT32_MIN));
}

/* In two steps, so that 2^n need not be a normal float. */
static inline vec vec_scale(vec x, vec n) {
    const vec_mask exponent = __builtin_convertvector(n, vec_mask), half = exponent >> 1, rest = exponent - half;
    return x * (vec)((half + 127) << 23) * (vec)((rest + 127) << 23);
}

static inline float vec_sum(vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }

static inline vec_mask vec_lanes(uint64_t bits) {
    const int32_t low = (int32_t)(bits & 15);
    return (vec_mask)(((vec_mask){low, low, low, low} & (vec_mask){1, 2, 4, 8}) != 0);
}

static inline vec vec_load_f16(const uint16_t *from) {
    return (vec){fm_f16_to_f32(from[0]), fm_f16_to_f32(from[1]), fm_f16_to_f32(from[2]), fm_f16_to_f32(from[3])};
}

static inline vec vec_load_bf16(const uint16_t *from) {
    return (vec){fm_bf16_to_f32(from[0]), fm_bf16_to_f32(from[1]), fm_bf16_to_f32(from[2]), fm_bf16_to_f32(from[3])};
}

static inline void vec_store_f16(uint16_t *to, vec v) {
    for (int i = 0; i < VEC_WIDTH; i++) {
        to[i] = fm_f32_to_f16(v[i]);
    }
}

static inline void vec_store_bf16(uint16_t *to, vec v) {
    for (int i = 0; i < VEC_WIDTH; i++) {
        to[i] = fm_f32_to_bf16(v[i]);
    }
}

#endif
