/* Vector vocabulary: AVX-512 F, BW, DQ and VL, sixteen floats. */
#ifndef FM_CPU_VEC_AVX512_H
#define FM_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef __m512 vec;
typedef __mmask16 vec_mask;

/* Registers of one GEMM block: 24 sums, 4 of b, 1 of a, of 32. Four vectors are the 64 columns of a score tile. */
enum { VEC_WIDTH = 16, VEC_BLOCK_ROWS = 6, VEC_BLOCK_COLUMNS = 4 };

static inline vec vec_set(float x) { return _mm512_set1_ps(x); }
static inline vec vec_load(const float *from) { return _mm512_loadu_ps(from); }
static inline void vec_store(float *to, vec v) { _mm512_storeu_ps(to, v); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }

static inline vec vec_select(vec_mask mask, vec a, vec b) { return _mm512_mask_blend_ps(mask, b, a); }
static inline vec_mask vec_less(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }

static inline vec vec_abs(vec x) { return _mm512_abs_ps(x); }
static inline vec vec_copysign(vec magnitude, vec sign) {
    return _mm512_or_ps(vec_abs(magnitude), _mm512_and_ps(_mm512_set1_ps(-0.0f), sign));
}

static inline vec vec_scale(vec x, vec n) { return _mm512_scalef_ps(x, n); }

static inline float vec_sum(vec v) { return _mm512_reduce_add_ps(v); }

static inline vec_mask vec_lanes(uint64_t bits) { return (vec_mask)(bits & 0xffff); }

static inline vec vec_load_f16(const uint16_t *from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)); }

static inline vec vec_load_bf16(const uint16_t *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16));
}

static inline void vec_store_f16(uint16_t *to, vec v) {
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* As fm_f32_to_bf16: nearest even; a NaN keeps its upper bits and becomes quiet. */
static inline void vec_store_bf16(uint16_t *to, vec v) {
    const __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i halves = _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(halves));
}

#endif
