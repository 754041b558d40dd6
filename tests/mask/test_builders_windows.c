/* Builders of masks along the diagonal, against the words of their contracts. */
#include <flashmask/masks.h>

#include "support/cmocka_all.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/truth.h"

enum { DRAWS = 400, LONGEST = 70, MOST_PLANES = 4 };

typedef struct parameters {
    int64_t Sq, Sk, sink, window, global, prefix;
    int64_t left[MOST_PLANES], right[MOST_PLANES]; /* of heads, or padding of batch items */
    int64_t planes;
} parameters;

/* Sizes and counts, at and around the edges as often as in between: Sq <, = and > Sk. */
static parameters draw(test_random *r) {
    parameters p = {.Sq = random_integer(r, 1, LONGEST), .Sk = random_integer(r, 1, LONGEST), .planes = random_integer(r, 1, 4)};
    if (random_chance(r, 0.33)) {
        p.Sk = p.Sq;
    }
    p.sink = random_chance(r, 0.1) ? INT64_MAX : random_integer(r, 0, p.Sk + 1);
    p.window = random_chance(r, 0.1) ? INT64_MAX : random_integer(r, 0, p.Sk + 1);
    p.global = random_chance(r, 0.1) ? INT64_MAX : random_integer(r, 0, p.Sk + 1) / 2;
    p.prefix = random_integer(r, 0, p.Sk);
    for (int k = 0; k < MOST_PLANES; k++) {
        p.left[k] = random_chance(r, 0.1) ? INT64_MAX : random_integer(r, -1, p.Sk + 1);
        p.right[k] = random_chance(r, 0.1) ? INT64_MAX : random_integer(r, -1, p.Sk + 1);
    }
    return p;
}

/* Row i stands at key i + Sk - Sq. */
static int64_t place(const parameters *p, int64_t i) { return i + p->Sk - p->Sq; }

static bool full_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    (void)v, (void)b, (void)h, (void)i, (void)j;
    return true;
}

static bool causal_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    (void)b, (void)h;
    return j <= place(v, i);
}

static bool window_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const parameters *p = v;
    (void)b;
    return (p->left[h] == -1 || place(p, i) - j <= p->left[h]) && (p->right[h] == -1 || j - place(p, i) <= p->right[h]);
}

static bool sink_window_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const parameters *p = v;
    return causal_rule(v, b, h, i, j) && (j < p->sink || place(p, i) - j < p->window);
}

static bool global_window_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const parameters *p = v;
    (void)h;
    return i < p->global || j < p->global || window_rule(v, b, 0, i, j);
}

static bool prefix_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const parameters *p = v;
    return j < p->prefix || causal_rule(v, b, h, i, j);
}

static void windows_follow_their_contracts(void **state) {
    test_random r = {1};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        const parameters p = draw(&r);
        fm_mask *mask = NULL;
        succeed(fm_mask_full(p.Sq, p.Sk, &mask));
        assert_mask_follows(mask, full_rule, &p);
        succeed(fm_mask_causal(p.Sq, p.Sk, &mask));
        assert_mask_follows(mask, causal_rule, &p);
        succeed(fm_mask_sliding_window(p.Sq, p.Sk, p.left[0], p.right[0], &mask));
        assert_mask_follows(mask, window_rule, &p);
        succeed(fm_mask_head_windows(p.Sq, p.Sk, p.planes, p.left, p.right, &mask));
        assert_int_equal(fm_mask_get_shape(mask).heads, p.planes);
        assert_mask_follows(mask, window_rule, &p);
    }
}

static void sinks_and_prefixes_follow_their_contracts(void **state) {
    test_random r = {2};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        const parameters p = draw(&r);
        fm_mask *mask = NULL;
        succeed(fm_mask_sink_window(p.Sq, p.Sk, p.sink, p.window, &mask));
        assert_mask_follows(mask, sink_window_rule, &p);
        succeed(fm_mask_global_window(p.Sq, p.Sk, p.global, p.left[0], p.right[0], &mask));
        assert_true(fm_mask_interval_count(mask) <= 2);
        assert_mask_follows(mask, global_window_rule, &p);
        succeed(fm_mask_prefix_lm(p.Sq, p.Sk, p.prefix, &mask));
        assert_mask_follows(mask, prefix_rule, &p);
    }
}

/* The rows are the last Sq of max(Sq, Sk) tokens, the keys the last Sk; pads count from either end of all of them. */
static bool padding_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const parameters *p = v;
    const int64_t tokens = p->Sq > p->Sk ? p->Sq : p->Sk, row = i + tokens - p->Sq, key = j + tokens - p->Sk;
    (void)h;
    return row >= p->left[b] && row < tokens - p->right[b] && key >= p->left[b] && key < tokens - p->right[b];
}

static void padding_follows_its_contract(void **state) {
    test_random r = {3};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        parameters p = draw(&r);
        fm_mask *mask = NULL;
        const int64_t tokens = p.Sq > p.Sk ? p.Sq : p.Sk;
        for (int64_t b = 0; b < p.planes; b++) {
            p.left[b] = random_integer(&r, 0, tokens);
            p.right[b] = random_integer(&r, 0, tokens - p.left[b]);
        }
        succeed(fm_mask_padding(p.planes, p.Sq, p.Sk, p.left, p.right, &mask));
        assert_int_equal(fm_mask_get_shape(mask).batch, p.planes);
        assert_mask_follows(mask, padding_rule, &p);
    }
}

/* https://github.com/Dao-AILab/flash-attention/issues/1778: users take top-left for bottom-right */
static void causal_is_aligned_bottom_right(void **state) {
    const int64_t sizes[][2] = {{2, 5}, {5, 2}, {3, 128}, {200, 100}};
    (void)state;
    for (int k = 0; k < 4; k++) {
        const parameters p = {.Sq = sizes[k][0], .Sk = sizes[k][1]};
        fm_mask *mask = NULL;
        succeed(fm_mask_causal(p.Sq, p.Sk, &mask));
        assert_mask_follows(mask, causal_rule, &p);
    }
    char picture[PICTURE_BYTES];
    fm_mask *wide = NULL, *tall = NULL;
    succeed(fm_mask_causal(2, 5, &wide));
    picture_of_mask(wide, 0, 0, picture);
    assert_string_equal(picture, "xxxx. / xxxxx");
    succeed(fm_mask_causal(5, 2, &tall));
    picture_of_mask(tall, 0, 0, picture);
    assert_string_equal(picture, ".. / .. / .. / x. / xx");
    fm_mask_free(wide);
    fm_mask_free(tall);
}

/* https://github.com/huggingface/transformers/issues/39408: a window of W means W keys here and W + 1 there */
static void window_of_w_keys_shows_w_keys(void **state) {
    char picture[PICTURE_BYTES];
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_sliding_window(8, 8, 4 - 1, 0, &mask));
    picture_of_mask(mask, 0, 0, picture);
    assert_string_equal(picture, "x....... / xx...... / xxx..... / xxxx.... / .xxxx... / ..xxxx.. / ...xxxx. / ....xxxx");
    fm_mask_free(mask);
}

/* FlashMask's window_size w makes vectors LTS[j] = j + w + 1, its examples and its benchmark LTS[j] = j + w: w + 1 keys and w. */
static void both_of_flashmasks_windows_have_a_name(void **state) {
    enum { S = 40, W = 7 };
    (void)state;
    for (int64_t keys = W; keys <= W + 1; keys++) {
        int32_t lts[S];
        fm_mask *vectors = NULL, *window = NULL;
        for (int64_t j = 0; j < S; j++) {
            lts[j] = (int32_t)(j + keys); /* past S at the end */
        }
        succeed(fm_mask_from_startend_row_indices((fm_mask_shape){1, 1, S, S}, 1, true, lts, &vectors));
        succeed(fm_mask_sliding_window(S, S, keys - 1, 0, &window));
        assert_true(fm_mask_equal(vectors, window));
        fm_mask_free(vectors);
        fm_mask_free(window);
    }
}

/* https://github.com/Dao-AILab/flash-attention/issues/1133: window S - 1 differed from causal */
static void windows_that_hide_nothing_equal_causal(void **state) {
    const int64_t left[] = {-1, INT64_MAX, INT32_MAX, 16, 15};
    fm_mask *causal = NULL, *wide = NULL;
    (void)state;
    succeed(fm_mask_causal(16, 16, &causal));
    for (int k = 0; k < 5; k++) {
        fm_mask *mask = NULL;
        succeed(fm_mask_sliding_window(16, 16, left[k], 0, &mask));
        assert_true(fm_mask_equal(mask, causal));
        assert_int_equal(fm_mask_hash(mask), fm_mask_hash(causal));
        fm_mask_free(mask);
    }
    succeed(fm_mask_sliding_window(16, 16, 14, 0, &wide));
    assert_false(fm_mask_equal(wide, causal));
    fm_mask_free(wide);
    fm_mask_free(causal);
}

/* https://github.com/Dao-AILab/flash-attention/issues/895: right window clamped wrongly where Sq > Sk; negative ignored */
static void far_right_window_shows_all_and_negative_is_refused(void **state) {
    char picture[PICTURE_BYTES];
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_sliding_window(5, 2, 0, INT32_MAX, &mask));
    picture_of_mask(mask, 0, 0, picture);
    assert_string_equal(picture, "xx / xx / xx / xx / .x");
    fm_mask_free(mask);
    mask = NULL;
    refuse(fm_mask_sliding_window(16, 16, 8, -3, &mask), FM_ERROR_ARGUMENT, "right: is -3");
    refuse(fm_mask_sliding_window(16, 16, -2, 0, &mask), FM_ERROR_ARGUMENT, "left: is -2");
    assert_null(mask);
}

/* https://github.com/Dao-AILab/flash-attention/issues/603: no sink with a window; column j >= 2 ends at row j + 4 */
static void sink_and_window_are_exact(void **state) {
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_sink_window(16, 16, 2, 4, &mask));
    assert_int_equal(fm_mask_interval_count(mask), 1);
    for (int64_t j = 0; j < 16; j++) {
        fm_interval v[FM_MAX_INTERVALS];
        int32_t count;
        succeed(fm_mask_column(mask, 0, 0, j, v, &count));
        assert_int_equal(count, 1);
        assert_int_equal(v[0].start, j);
        assert_int_equal(v[0].end, j < 2 || j + 4 > 16 ? 16 : j + 4);
    }
    fm_mask_free(mask);
}

/* Windows at and one off the 128-key edges of stripes and tiles. https://github.com/pytorch/pytorch/issues/141126 */
static void window_edges_are_exact_around_128(void **state) {
    const int64_t edges[] = {0, 1, 126, 127, 128, 129};
    (void)state;
    for (int k = 0; k < 6 * 6; k++) {
        const parameters p = {.Sq = 255 + k % 3, .Sk = 257 - k / 6 % 3, .left = {edges[k / 6]}, .right = {edges[k % 6]}};
        fm_mask *mask = NULL;
        succeed(fm_mask_sliding_window(p.Sq, p.Sk, p.left[0], p.right[0], &mask));
        assert_mask_follows(mask, window_rule, &p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_follow_their_contracts),
        cmocka_unit_test(sinks_and_prefixes_follow_their_contracts),
        cmocka_unit_test(padding_follows_its_contract),
        cmocka_unit_test(causal_is_aligned_bottom_right),
        cmocka_unit_test(window_of_w_keys_shows_w_keys),
        cmocka_unit_test(both_of_flashmasks_windows_have_a_name),
        cmocka_unit_test(windows_that_hide_nothing_equal_causal),
        cmocka_unit_test(far_right_window_shows_all_and_negative_is_refused),
        cmocka_unit_test(sink_and_window_are_exact),
        cmocka_unit_test(window_edges_are_exact_around_128),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
