#include "core/half.h"
#include "support/cmocka_all.h"

#include <math.h>

static void every_f16_survives_the_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h <= 0xffff; h++) {
        const float x = fm_f16_to_f32((uint16_t)h);
        if (isnan(x)) {
            assert_true(isnan(fm_f16_to_f32(fm_f32_to_f16(x))));
        } else {
            assert_int_equal(fm_f32_to_f16(x), h);
        }
    }
}

static void every_bf16_survives_the_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h <= 0xffff; h++) {
        const float x = fm_bf16_to_f32((uint16_t)h);
        if (isnan(x)) {
            assert_true(isnan(fm_bf16_to_f32(fm_f32_to_bf16(x))));
        } else {
            assert_int_equal(fm_f32_to_bf16(x), h);
        }
    }
}

static float value_of_f16(uint32_t h) { return fm_f16_to_f32((uint16_t)h); }

/* Between two neighbours the middle goes to the even one, and a hair to either side goes to that side. */
static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float low = value_of_f16(h), high = value_of_f16(h + 1), middle = 0.5f * (low + high);
        assert_int_equal(fm_f32_to_f16(middle), h % 2 == 0 ? h : h + 1);
        assert_int_equal(fm_f32_to_f16(nextafterf(middle, low)), h);
        assert_int_equal(fm_f32_to_f16(nextafterf(middle, high)), h + 1);
    }
    assert_int_equal(fm_f32_to_f16(65519.99f), 0x7bff);
    assert_int_equal(fm_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(fm_f32_to_f16(-INFINITY), 0xfc00);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7f7f; h++) {
        const uint32_t middle = h << 16 | 0x8000u;
        assert_int_equal(fm_f32_to_bf16(fm_bits_float(middle)), h % 2 == 0 ? h : h + 1);
        assert_int_equal(fm_f32_to_bf16(fm_bits_float(middle - 1)), h);
        assert_int_equal(fm_f32_to_bf16(fm_bits_float(middle + 1)), h + 1);
    }
    assert_int_equal(fm_f32_to_bf16(INFINITY), 0x7f80);
    assert_true(isnan(fm_bf16_to_f32(fm_f32_to_bf16(fm_bits_float(0x7f800001u)))));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_survives_the_round_trip),
        cmocka_unit_test(every_bf16_survives_the_round_trip),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
