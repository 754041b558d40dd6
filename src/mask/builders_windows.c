/* Masks that follow the diagonal: causal, windows, sinks, global tokens, prefixes; and padding. */
#include "mask/builders.h"

#include <stdio.h>

/* left and right of a public window; index, "" or "[h]", goes on from their names in a message. */
static fm_status read_window(const char *index, int64_t left, int64_t right, int64_t shift, fm_window *out) {
    char name[32];
    out->shift = shift;
    snprintf(name, sizeof name, "left%s", index);
    FM_TRY(fm_window_reach(name, left, &out->left));
    snprintf(name, sizeof name, "right%s", index);
    return fm_window_reach(name, right, &out->right);
}

fm_status fm_mask_full(int64_t Sq, int64_t Sk, fm_mask **out) { return fm_mask_sliding_window(Sq, Sk, -1, -1, out); }

fm_status fm_mask_causal(int64_t Sq, int64_t Sk, fm_mask **out) { return fm_mask_sliding_window(Sq, Sk, -1, 0, out); }

fm_status fm_mask_sliding_window(int64_t Sq, int64_t Sk, int64_t left, int64_t right, fm_mask **out) {
    fm_mask_writer writer;
    fm_window window = {0};
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_builder_open(&writer, 1, Sq, Sk, 1));
    fm_status status;
    FM_TRY_DONE(read_window("", left, right, Sk - Sq, &window));
    FM_TRY_DONE(fm_write_window(&writer, 0, 0, Sk, window, Sq));
done:
    return fm_builder_finish(&writer, status, out);
}

fm_status fm_mask_head_windows(int64_t Sq, int64_t Sk, int64_t heads, const int64_t *left, const int64_t *right, fm_mask **out) {
    fm_mask_writer writer;
    fm_window window = {0};
    fm_clear_error();
    FM_REQUIRE(left);
    FM_REQUIRE(right);
    FM_REQUIRE(out);
    FM_TRY(fm_builder_open(&writer, heads, Sq, Sk, 1));
    fm_status status = FM_OK;
    for (int64_t h = 0; h < heads; h++) {
        char index[24];
        snprintf(index, sizeof index, "[%lld]", (long long)h);
        FM_TRY_DONE(read_window(index, left[h], right[h], Sk - Sq, &window));
        FM_TRY_DONE(fm_write_window(&writer, h, 0, Sk, window, Sq));
    }
done:
    return fm_builder_finish(&writer, status, out);
}

fm_status fm_mask_sink_window(int64_t Sq, int64_t Sk, int64_t sink, int64_t window, fm_mask **out) {
    fm_mask_writer writer;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_reach("sink", sink, &sink));
    FM_TRY(fm_check_reach("window", window, &window));
    FM_TRY(fm_builder_open(&writer, 1, Sq, Sk, 1));
    const fm_window causal = {FM_UNLIMITED, 0, Sk - Sq}, last = {window - 1, 0, Sk - Sq};
    const int64_t sinks = fm_smaller(sink, Sk);
    fm_status status;
    FM_TRY_DONE(fm_write_window(&writer, 0, 0, sinks, causal, Sq));
    FM_TRY_DONE(fm_write_window(&writer, 0, sinks, Sk, last, Sq));
done:
    return fm_builder_finish(&writer, status, out);
}

fm_status fm_mask_global_window(int64_t Sq, int64_t Sk, int64_t global, int64_t left, int64_t right, fm_mask **out) {
    fm_mask_writer writer;
    fm_window window = {0};
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_extent("Sq", Sq));
    FM_TRY(fm_check_extent("Sk", Sk));
    FM_TRY(fm_check_reach("global", global, &global));
    FM_TRY(read_window("", left, right, Sk - Sq, &window));
    FM_TRY(fm_builder_open(&writer, 1, Sq, Sk, 2));
    const int64_t keys = fm_smaller(global, Sk), rows = fm_smaller(global, Sq);
    fm_status status;
    FM_TRY_DONE(fm_write_rows(&writer, 0, 0, keys, 0, Sq));
    for (int64_t j = keys; j < Sk; j++) {
        const fm_interval visible[] = {{0, (int32_t)rows}, fm_window_rows(&window, j, Sq)};
        FM_TRY_DONE(fm_mask_writer_column(&writer, 0, 0, j, visible, 2));
    }
done:
    return fm_builder_finish(&writer, status, out);
}

fm_status fm_mask_prefix_lm(int64_t Sq, int64_t Sk, int64_t prefix, fm_mask **out) {
    fm_mask_writer writer;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_extent("Sk", Sk));
    FM_CHECK(prefix >= 0 && prefix <= Sk, FM_ERROR_ARGUMENT, "prefix: is %lld, needs 0 .. Sk (%lld)", (long long)prefix,
             (long long)Sk);
    FM_TRY(fm_builder_open(&writer, 1, Sq, Sk, 1));
    fm_status status;
    FM_TRY_DONE(fm_write_rows(&writer, 0, 0, prefix, 0, Sq));
    FM_TRY_DONE(fm_write_window(&writer, 0, prefix, Sk, (fm_window){FM_UNLIMITED, 0, Sk - Sq}, Sq));
done:
    return fm_builder_finish(&writer, status, out);
}

fm_status fm_mask_padding(int64_t batch, int64_t Sq, int64_t Sk, const int64_t *left_pad, const int64_t *right_pad,
                          fm_mask **out) {
    fm_mask_writer writer;
    fm_clear_error();
    FM_REQUIRE(left_pad);
    FM_REQUIRE(right_pad);
    FM_REQUIRE(out);
    FM_TRY(fm_check_extent("Sq", Sq));
    FM_TRY(fm_check_extent("Sk", Sk));
    FM_CHECK(batch >= 1 && batch <= INT32_MAX, FM_ERROR_ARGUMENT, "batch: is %lld, needs 1 .. 2^31 - 1", (long long)batch);
    const int64_t tokens = Sq > Sk ? Sq : Sk, row0 = tokens - Sq, key0 = tokens - Sk; /* the first row and key */
    for (int64_t b = 0; b < batch; b++) {
        FM_CHECK(left_pad[b] >= 0 && left_pad[b] <= tokens, FM_ERROR_ARGUMENT, "left_pad[%lld]: is %lld, needs 0 .. %lld tokens",
                 (long long)b, (long long)left_pad[b], (long long)tokens);
        FM_CHECK(right_pad[b] >= 0 && right_pad[b] <= tokens - left_pad[b], FM_ERROR_ARGUMENT,
                 "right_pad[%lld]: is %lld, needs 0 .. %lld: %lld tokens less left_pad", (long long)b, (long long)right_pad[b],
                 (long long)(tokens - left_pad[b]), (long long)tokens);
    }
    FM_TRY(fm_mask_writer_open(&writer, (fm_mask_shape){batch, 1, Sq, Sk}, 1, NULL));
    fm_status status = FM_OK;
    for (int64_t b = 0; b < batch; b++) {
        const int64_t first = left_pad[b], last = tokens - right_pad[b]; /* the real tokens */
        const fm_interval rows = {(int32_t)fm_clamp(first - row0, 0, Sq), (int32_t)fm_clamp(last - row0, 0, Sq)};
        const int64_t key = fm_clamp(first - key0, 0, Sk), key_end = fm_clamp(last - key0, 0, Sk);
        FM_TRY_DONE(fm_mask_writer_columns(&writer, b, 0, key, key_end - key, &rows, 1));
    }
done:
    return fm_builder_finish(&writer, status, out);
}
