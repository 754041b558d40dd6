/* The judge of `flashmask check`: what it lets pass and what it must not. */
#include "support/cmocka_all.h"

#include "half.h"
#include "trial.h"

#include <math.h>

enum { O = 0, LSE = 1, VALUES = 4, TERMS = 16 };

static fm_tensor tensor_of(float *values) { return fm_tensor_contiguous(values, FM_F32, 1, 1, 1, VALUES); }

static fm_trial_error judge(int result, float ours, float plain, float truth) {
    float a[VALUES] = {1, 2, 3, ours}, b[VALUES] = {1, 2, 3, plain}, c[VALUES] = {1, 2, 3, truth};
    const fm_tensor x = tensor_of(a), y = tensor_of(b), z = tensor_of(c);
    fm_trial_error e = {0};
    fm_trial_measure(&e, TERMS, &x, &y, &z);
    fm_trial_judge(&e, result, FM_F32);
    return e;
}

static void twice_the_plain_error_passes_and_more_does_not(void **state) {
    (void)state;
    assert_true(judge(O, 1.0F + 0x1p-10F, 1.0F + 0x1p-11F, 1.0F).agrees);
    assert_false(judge(O, 1.0F + 0x1p-9F, 1.0F + 0x1p-11F, 1.0F).agrees);
}

static void without_plain_error_the_floor_counts(void **state) {
    (void)state;
    const double unit = 0x1p-24, walk = 2 * 4 * unit; /* 16 terms; the largest value is 3 */
    const fm_trial_error o = judge(O, 1, 1, 1), lse = judge(LSE, 1, 1, 1);
    assert_true(fabs(o.floor - ((2 * unit + walk) * 3 + 1e-7)) < 1e-15);
    assert_true(fabs(lse.floor - ((8 * unit + walk) * 3 + 1e-7)) < 1e-15);
    assert_true(judge(O, 1.0F + 0x1p-20F, 1, 1).agrees);
    assert_false(judge(O, 1.0F + 0x1p-18F, 1, 1).agrees);
    assert_true(judge(LSE, 1.0F + 0x1.5p-19F, 1, 1).agrees);
    assert_false(judge(LSE, 1.0F + 0x1p-18F, 1, 1).agrees);
}

static void nan_never_passes(void **state) {
    (void)state;
    assert_false(judge(O, NAN, 1, 1).agrees);
    assert_false(judge(O, NAN, NAN, NAN).agrees);
    assert_false(judge(O, NAN, NAN, 1).agrees);
}

static void infinity_passes_only_where_the_oracle_has_it(void **state) {
    (void)state;
    assert_true(judge(LSE, -INFINITY, -INFINITY, -INFINITY).agrees);
    assert_false(judge(LSE, 0, -INFINITY, -INFINITY).agrees);
    assert_false(judge(LSE, INFINITY, -INFINITY, -INFINITY).agrees);
    assert_false(judge(O, INFINITY, 1, 1).agrees);
}

static void every_half_comes_back(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float f16 = half_from_f16((uint16_t)bits), bf16 = half_from_bf16((uint16_t)bits);
        if (isfinite(f16)) {
            assert_int_equal(half_to_f16(f16), bits);
        }
        if (isfinite(bf16)) {
            assert_int_equal(half_to_bf16(bf16), bits);
        }
    }
}

static void halves_round_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x7bff; bits++) { /* positive f16 below the largest */
        const float low = half_from_f16((uint16_t)bits), high = half_from_f16((uint16_t)(bits + 1)), middle = (low + high) / 2;
        assert_int_equal(half_to_f16(middle), bits + (bits & 1));
        assert_int_equal(half_to_f16(nextafterf(middle, 0)), bits);
        assert_int_equal(half_to_f16(-nextafterf(middle, high)), 0x8000 | (bits + 1));
    }
    for (uint32_t bits = 0; bits < 0x7f7f; bits++) {
        const float low = half_from_bf16((uint16_t)bits), high = half_from_bf16((uint16_t)(bits + 1));
        const float middle = low / 2 + high / 2;
        if (middle > low && middle < high && bits > 256) { /* halving is exact above the subnormals */
            assert_int_equal(half_to_bf16(middle), bits + (bits & 1));
        }
    }
}

static void equal_seeds_give_equal_inputs(void **state) {
    (void)state;
    const fm_trial_shape shape = {1, 3, 5, 2, 1, 8, 4, FM_BF16};
    fm_trial_inputs a = {0}, b = {0}, c = {0};
    assert_true(fm_trial_inputs_make(&shape, 1, &a) && fm_trial_inputs_make(&shape, 1, &b) &&
                fm_trial_inputs_make(&shape, 2, &c));
    assert_memory_equal(a.query.data, b.query.data, 3 * 2 * 8 * 2);
    assert_memory_not_equal(a.query.data, c.query.data, 3 * 2 * 8 * 2);
    fm_trial_inputs_free(&a);
    fm_trial_inputs_free(&b);
    fm_trial_inputs_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twice_the_plain_error_passes_and_more_does_not),
        cmocka_unit_test(without_plain_error_the_floor_counts),
        cmocka_unit_test(nan_never_passes),
        cmocka_unit_test(infinity_passes_only_where_the_oracle_has_it),
        cmocka_unit_test(every_half_comes_back),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(equal_seeds_give_equal_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
