/* bf16 and f16 to and from f32, rounding to nearest, ties to even. */
#ifndef FM_CORE_HALF_H
#define FM_CORE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t fm_float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float fm_bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float fm_bf16_to_f32(uint16_t h) { return fm_bits_float((uint32_t)h << 16); }

static inline uint16_t fm_f32_to_bf16(float x) {
    const uint32_t bits = fm_float_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { /* NaN: keep it one */
        return (uint16_t)((bits >> 16) | 0x0040u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float fm_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0) { /* zero and subnormal: mantissa * 2^-24 */
        const float magnitude = (float)mantissa * 0x1p-24f;
        return fm_bits_float(sign | fm_float_bits(magnitude));
    }
    if (exponent == 0x1f) {
        return fm_bits_float(sign | 0x7f800000u | (mantissa << 13));
    }
    return fm_bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

static inline uint16_t fm_f32_to_f16(float x) {
    const uint32_t bits = fm_float_bits(x), magnitude = bits & 0x7fffffffu;
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
    }
    if (magnitude >= 0x477ff000u) { /* rounds to 2^16 or more */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low mantissa bits, rounded */
        return (uint16_t)(sign | (fm_float_bits(fm_bits_float(magnitude) + 0.5f) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

#endif
