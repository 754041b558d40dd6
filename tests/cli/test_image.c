/* Pixels of PNG pictures, read back with libpng. */
#include "image.h"

#include "support/cmocka_all.h"

#include <flashmask/masks.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct pixels {
    png_image image;
    unsigned char *rgb;
} pixels;

static pixels draw(const fm_mask *mask, int32_t tile, int64_t cells) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.block_m = options.block_n = tile;
    fm_plan *plan = NULL;
    fm_picture picture = {0};
    fm_image image = {.title = "test", .shape = fm_mask_get_shape(mask), .stats = FM_PLAN_STATS_INIT, .picture = &picture};
    assert_int_equal(fm_plan_create(mask, &options, &plan), FM_OK);
    assert_int_equal(fm_plan_get_stats(plan, &image.stats), FM_OK);
    const fm_picture_request request = {.plan = plan, .rows = cells, .columns = cells};
    assert_true(fm_picture_make(mask, &request, &picture));
    char path[] = "/tmp/test_image.XXXXXX";
    close(mkstemp(path));
    assert_true(fm_image_save_png(path, &image));
    pixels p = {.image = {.version = PNG_IMAGE_VERSION}};
    assert_int_not_equal(png_image_begin_read_from_file(&p.image, path), 0);
    p.image.format = PNG_FORMAT_RGB;
    p.rgb = malloc(PNG_IMAGE_SIZE(p.image));
    assert_non_null(p.rgb);
    assert_int_not_equal(png_image_finish_read(&p.image, NULL, p.rgb, 0, NULL), 0);
    unlink(path);
    fm_picture_free(&picture);
    fm_plan_free(plan);
    return p;
}

static const unsigned char *at(const pixels *p, int64_t x, int64_t y) { return p->rgb + 3 * (y * p->image.width + x); }

static bool same(const unsigned char *a, const unsigned char *b) { return memcmp(a, b, 3) == 0; }

/* 8 rows and keys in tiles of 4: cells of 128 pixels behind a frame of one. */
static void each_pair_of_a_small_causal_mask_is_drawn(void **state) {
    (void)state;
    enum { N = 8, SCALE = 128 };
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_causal(N, N, &mask), FM_OK);
    pixels p = draw(mask, 4, 512);
    assert_int_equal(p.image.width, N * SCALE + 2);
    assert_int_equal(p.image.height, N * SCALE + 2);
    const unsigned char *full = at(&p, 1 + SCALE / 2, 1 + 7 * SCALE), *visible = at(&p, 1 + SCALE / 2, 1 + SCALE / 2);
    const unsigned char *hidden = at(&p, 1 + 3 * SCALE + SCALE / 2, 1 + SCALE / 2);
    const unsigned char *skipped = at(&p, 1 + 7 * SCALE, 1 + SCALE / 2);
    assert_false(same(full, visible) || same(full, hidden) || same(full, skipped));
    assert_false(same(visible, hidden) || same(visible, skipped) || same(hidden, skipped));
    for (int64_t i = 0; i < N; i++) {
        for (int64_t j = 0; j < N; j++) {
            const unsigned char *wanted = i / 4 > j / 4 ? full : i / 4 < j / 4 ? skipped : i >= j ? visible : hidden;
            assert_true(same(at(&p, 1 + j * SCALE + SCALE / 2, 1 + i * SCALE + SCALE / 2), wanted));
        }
    }
    const unsigned char *line = at(&p, 1 + 4 * SCALE, 1 + SCALE / 2); /* between tiles */
    assert_false(same(line, skipped) || same(line, hidden));
    assert_true(same(line, at(&p, 1 + SCALE / 2, 1 + 4 * SCALE)));
    assert_true(same(at(&p, 1 + 2 * SCALE, 1 + SCALE / 2), hidden)); /* not between cells of one tile */
    free(p.rgb);
    fm_mask_free(mask);
}

static void long_masks_are_scaled_down(void **state) {
    (void)state;
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_sliding_window(131072, 131072, 8191, 0, &mask), FM_OK);
    pixels p = draw(mask, 128, FM_IMAGE_CELLS);
    assert_in_range(p.image.width, 512, 1026);
    assert_int_equal(p.image.width, p.image.height);
    const int64_t middle = p.image.width / 2;
    assert_false(same(at(&p, middle - 8, middle), at(&p, middle + 8, middle)));            /* full, skipped */
    assert_true(same(at(&p, middle + 8, middle), at(&p, 2, (int64_t)p.image.height - 2))); /* skipped on either side */
    free(p.rgb);
    fm_mask_free(mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_pair_of_a_small_causal_mask_is_drawn),
                                       cmocka_unit_test(long_masks_are_scaled_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
