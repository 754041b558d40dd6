/* Functions over the vector vocabulary; included after one vec_<isa>.h.
 *
 * The vocabulary: vec and vec_mask; VEC_WIDTH lanes; + - * / on vec; vec_set, vec_load, vec_store (any alignment); vec_fma
 * a * b + c, rounded once where the machine can; vec_max and vec_min give their second argument if either is NaN; vec_less;
 * vec_select(mask, a, b) a where the mask is set; vec_lanes(bits) lane i from bit i; vec_abs, vec_copysign; vec_scale(x, n)
 * x * 2^n for whole n in -200 .. 200; vec_sum in a fixed order; vec_load_f16, vec_load_bf16, vec_store_f16, vec_store_bf16
 * as core/half.h.
 */
#ifndef FM_CPU_VEC_MATH_H
#define FM_CPU_VEC_MATH_H

/* e^x to 1.25 ulp (1 with an FMA); 0 below -104, infinity from 88.8 on, NaN stays; exactly 1 at 0. x = n log 2 + r, n whole, with log 2 in
 * two parts of which n times the first is exact without an FMA too; e^r, |r| <= log(2) / 2, by a polynomial whose relative
 * error is 2^-28.9 (minimax with constant term 1). */
static inline vec vec_exp(vec x) {
    const vec magic = vec_set(0x1.8p23f); /* adding it leaves no room for a fraction */
    x = vec_min(vec_set(138.0f), vec_max(vec_set(-138.0f), x));
    const vec n = vec_fma(x, vec_set(0x1.715476p+0f), magic) - magic;
    const vec r = vec_fma(n, vec_set(-0x1.7f7d1cp-20f), vec_fma(n, vec_set(-0x1.62e4p-1f), x));
    vec p = vec_set(0x1.6ae73p-10f);
    p = vec_fma(p, r, vec_set(0x1.126782p-7f));
    p = vec_fma(p, r, vec_set(0x1.555822p-5f));
    p = vec_fma(p, r, vec_set(0x1.55541ap-3f));
    p = vec_fma(p, r, vec_set(0x1.fffffcp-2f));
    p = vec_fma(p, r, vec_set(1.0f));
    return vec_scale(vec_fma(p, r, vec_set(1.0f)), n);
}

/* tanh x to 2 ulp, also near 0, where it is odd: x + x^3 P(x^2) below 0.6 (relative error 2^-28.4), else
 * 1 - 2 / (e^2|x| + 1) with the sign of x. From 10 on it is 1 in f32. */
static inline vec vec_tanh(vec x) {
    const vec magnitude = vec_min(vec_set(10.0f), vec_abs(x)), square = magnitude * magnitude;
    vec p = vec_set(-0x1.82585ap-8f);
    p = vec_fma(p, square, vec_set(0x1.54b8a2p-6f));
    p = vec_fma(p, square, vec_set(-0x1.b898dep-5f));
    p = vec_fma(p, square, vec_set(0x1.1109aep-3f));
    p = vec_fma(p, square, vec_set(-0x1.55553ep-2f));
    const vec near_zero = vec_fma(p * square, magnitude, magnitude);
    const vec far = vec_set(1.0f) - vec_set(2.0f) / (vec_exp(magnitude + magnitude) + vec_set(1.0f));
    return vec_copysign(vec_select(vec_less(magnitude, vec_set(0.6f)), near_zero, far), x);
}

#endif
