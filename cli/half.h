/* f16 and bf16 in 16 bits, to and from float; rounding to nearest, ties to even. */
#ifndef FM_CLI_HALF_H
#define FM_CLI_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float half_from_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Finite values only. */
static inline uint16_t half_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float half_from_f16(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float magnitude = exponent == 0    ? ldexpf((float)mantissa, -24)
                            : exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                                             : ldexpf((float)(1024 + mantissa), exponent - 25);
    return bits >> 15 != 0 ? -magnitude : magnitude;
}

/* Magnitudes below 65520 only. */
static inline uint16_t half_to_f16(float value) {
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const float magnitude = fabsf(value);
    if (magnitude < 0x1p-14F) {
        return (uint16_t)(sign | (uint16_t)rintf(ldexpf(magnitude, 24))); /* subnormal: multiples of 2^-24 */
    }
    int exponent;
    const float fraction = frexpf(magnitude, &exponent); /* fraction * 2^exponent, fraction in [0.5, 1) */
    /* A mantissa that rounds up to 2048 carries into the exponent, which is right. */
    return (uint16_t)(sign | (((exponent + 13) << 10) + (int)rintf(ldexpf(fraction, 11))));
}

#endif
