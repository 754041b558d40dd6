/* Vector vocabulary: AVX2 with FMA and F16C, eight floats. */
#ifndef FM_CPU_VEC_AVX2_H
#define FM_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef __m256 vec;
typedef __m256 vec_mask; /* the sign bit of each lane decides */

/* Registers of one GEMM block: 12 sums, 2 of b, 1 of a, of 16. */
enum { VEC_WIDTH = 8, VEC_BLOCK_ROWS = 6, VEC_BLOCK_COLUMNS = 2 };

static inline vec vec_set(float x) { return _mm256_set1_ps(x); }
static inline vec vec_load(const float *from) { return _mm256_loadu_ps(from); }
static inline void vec_store(float *to, vec v) { _mm256_storeu_ps(to, v); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }

static inline vec vec_select(vec_mask mask, vec a, vec b) { return _mm256_blendv_ps(b, a, mask); }
static inline vec_mask vec_less(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline vec vec_max(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline vec vec_min(vec a, vec b) { return _mm256_min_ps(a, b); }

static inline vec vec_abs(vec x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
static inline vec vec_copysign(vec magnitude, vec sign) {
    return _mm256_or_ps(vec_abs(magnitude), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}

static inline __m256 power_of_two(__m256i exponent) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
}

/* In two steps, so that 2^n need not be a normal float. */
static inline vec vec_scale(vec x, vec n) {
    const __m256i exponent = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(exponent, 1);
    return x * power_of_two(half) * power_of_two(_mm256_sub_epi32(exponent, half));
}

static inline float vec_sum(vec v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline vec_mask vec_lanes(uint64_t bits) {
    const __m256i one_each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)(bits & 255)), one_each), one_each));
}

static inline vec vec_load_f16(const uint16_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }

static inline vec vec_load_bf16(const uint16_t *from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16));
}

static inline void vec_store_f16(uint16_t *to, vec v) {
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* As fm_f32_to_bf16: nearest even; a NaN keeps its upper bits and becomes quiet. */
static inline void vec_store_bf16(uint16_t *to, vec v) {
    const __m256i bits = _mm256_castps_si256(v), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i halves = _mm256_blendv_epi8(rounded, quiet, is_nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x08);
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(packed));
}

#endif
