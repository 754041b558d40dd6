/* The picture in the comment above each builder in masks.h is what the builder builds. */
#include <flashmask/masks.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka_all.h"
#include "support/dense.h"
#include "support/expect.h"

enum { SIDE = 6, BLOCK = 16, ROW_STEP = SIDE + 3, PICTURE_LENGTH = SIDE * ROW_STEP - 3 };

/* include/flashmask/masks.h, found from this file. */
static char *read_header(void) {
    char path[4096];
    snprintf(path, sizeof path, "%.*s/../../include/flashmask/masks.h", (int)(strrchr(__FILE__, '/') - __FILE__), __FILE__);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_in_range(fread(text, 1, (1 << 20) - 1, file), 1, (1 << 20) - 2);
    fclose(file);
    return text;
}

/* A picture's text at `at`: 6 rows of 6, parted by " / ". */
static bool is_picture(const char *at) {
    for (int k = 0; k < PICTURE_LENGTH; k++) {
        const char *allowed = k % ROW_STEP < SIDE ? "x." : k % ROW_STEP == SIDE + 1 ? "/" : " ";
        if (at[k] == 0 || strchr(allowed, at[k]) == NULL) {
            return false;
        }
    }
    return true;
}

/* The last picture between the previous declaration and the one of `function`. */
static const char *find_picture(const char *header, const char *function) {
    char declaration[128];
    snprintf(declaration, sizeof declaration, "FM_API fm_status %s(", function);
    const char *at = strstr(header, declaration);
    assert_non_null(at);
    while (at > header && at[-1] != ';') {
        at--;
        if (is_picture(at)) {
            return at;
        }
    }
    fail_msg("no picture above %s", function);
    return NULL;
}

/* scale: pairs a letter stands for, in rows and in columns. */
static void check_picture(const char *header, const char *function, int scale, fm_mask *mask) {
    static uint8_t dense[SIDE * BLOCK * SIDE * BLOCK];
    char built[SIDE * ROW_STEP];
    const int side = SIDE * scale;
    assert_int_equal(fm_mask_get_shape(mask).rows, side);
    assert_int_equal(fm_mask_get_shape(mask).columns, side);
    dense_of_mask(mask, dense);
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) {
            built[i * ROW_STEP + j] = dense[i * scale * side + j * scale] ? 'x' : '.';
        }
        memcpy(built + i * ROW_STEP + SIDE, " / ", ROW_STEP - SIDE);
    }
    built[PICTURE_LENGTH] = 0;
    const char *drawn = find_picture(header, function);
    if (strncmp(drawn, built, PICTURE_LENGTH) != 0) {
        fail_msg("%s builds\n%s, its picture is\n%.*s", function, built, PICTURE_LENGTH, drawn);
    }
    fm_mask_free(mask);
}

/* Builds it and checks its picture. */
#define PICTURE(scale, function, ...)                     \
    do {                                                  \
        fm_mask *mask_ = NULL;                            \
        succeed(function(__VA_ARGS__, &mask_));           \
        check_picture(header, #function, (scale), mask_); \
    } while (0)

static void windows_look_as_drawn(void **state) {
    const char *header = *state;
    const int64_t left[] = {2}, right[] = {0}, one[] = {1};
    PICTURE(1, fm_mask_full, 6, 6);
    PICTURE(1, fm_mask_causal, 6, 6);
    PICTURE(1, fm_mask_sliding_window, 6, 6, 2, 0);
    PICTURE(1, fm_mask_sink_window, 6, 6, 1, 2);
    PICTURE(1, fm_mask_global_window, 6, 6, 1, 1, 1);
    PICTURE(1, fm_mask_prefix_lm, 6, 6, 3);
    PICTURE(1, fm_mask_head_windows, 6, 6, 1, left, right);
    PICTURE(1, fm_mask_padding, 1, 6, 6, one, one);
}

static void documents_look_as_drawn(void **state) {
    const char *header = *state;
    const int64_t lengths[] = {2, 4}, prefix[] = {2, 2}, twos[] = {2, 2, 2}, six[] = {6}, one[] = {1}, three[] = {3};
    const int64_t parent[] = {-1, 0, 0};
    const fm_question question = {2, 2, twos};
    PICTURE(1, fm_mask_documents, 2, lengths, true, 0);
    PICTURE(1, fm_mask_documents_sink_window, 2, lengths, 1, 2, 0);
    PICTURE(1, fm_mask_prefix_documents, 2, prefix, lengths, 0);
    PICTURE(1, fm_mask_share_question, 1, &question, false, 0);
    PICTURE(1, fm_mask_prefix_tree, 3, parent, twos, NULL);
    PICTURE(1, fm_mask_causal_blockwise, 3, twos);
    PICTURE(1, fm_mask_image_spans, 1, six, 1, one, three);
}

static void sparse_masks_look_as_drawn(void **state) {
    const char *header = *state;
    const int64_t one[] = {1}, three[] = {3};
    const int32_t bucket[] = {0, 1, 0, 1, 0, 1};
    uint8_t checkerboard[SIDE * SIDE];
    for (int k = 0; k < SIDE * SIDE; k++) {
        checkerboard[k] = (k / SIDE + k) % 2 == 0;
    }
    const fm_mask_shape shape = {1, 1, SIDE * BLOCK, SIDE * BLOCK};
    PICTURE(1, fm_mask_qk_sparse, 6, 6, 1, one, three);
    PICTURE(1, fm_mask_hash_sparse, 6, bucket, NULL);
    PICTURE(1, fm_mask_random_eviction, 6, 1, 3, 1);
    PICTURE(BLOCK, fm_mask_blocks, shape, BLOCK, checkerboard, NULL);
    PICTURE(BLOCK, fm_mask_bigbird, SIDE * BLOCK, SIDE * BLOCK, BLOCK, 1, 1, 1, 1, NULL);
    PICTURE(1, fm_mask_random_sparse, 6, 6, 0.5, 1, NULL);
}

static int load_header(void **state) {
    *state = read_header();
    return 0;
}

static int free_header(void **state) {
    free(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_look_as_drawn),
        cmocka_unit_test(documents_look_as_drawn),
        cmocka_unit_test(sparse_masks_look_as_drawn),
    };
    return cmocka_run_group_tests(tests, load_header, free_header);
}
