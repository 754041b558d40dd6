/* Masks that drop keys one by one: QK-sparse, hash-sparse, random eviction, random pairs. */
#include "core/memory.h"
#include "core/random.h"
#include "mask/builders.h"
#include "mask/groups.h"
#include "mask/stripe.h"

#include <stdlib.h>

fm_status fm_mask_qk_sparse(int64_t Sq, int64_t Sk, int64_t spans, const int64_t *offset, const int64_t *length, fm_mask **out) {
    const fm_spans hidden = {spans, offset, length};
    fm_mask_writer writer;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_extent("Sk", Sk));
    FM_TRY(fm_check_spans(&hidden, Sk));
    FM_TRY(fm_builder_open(&writer, 1, Sq, Sk, 1));
    const fm_window causal = {FM_UNLIMITED, 0, Sk - Sq};
    fm_status status;
    int64_t at = 0;
    for (int64_t k = 0; k < spans; k++) { /* a key of a span is seen from the row of the span's end on */
        const int64_t end = offset[k] + length[k], row = fm_window_rows(&causal, end, Sq).start;
        FM_TRY_DONE(fm_write_window(&writer, 0, at, offset[k], causal, Sq));
        FM_TRY_DONE(fm_write_rows(&writer, 0, offset[k], end, row, Sq));
        at = end;
    }
    FM_TRY_DONE(fm_write_window(&writer, 0, at, Sk, causal, Sq));
done:
    return fm_builder_finish(&writer, status, out);
}

fm_status fm_mask_hash_sparse(int64_t length, const int32_t *bucket, const fm_mask_options *options, fm_mask **out) {
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_array("length", "bucket", length, bucket));
    return fm_mask_from_groups(&(fm_groups){.batch = 1, .length = length, .ids = bucket, .causal = true}, options, out);
}

/* keys: [length], scratch. One head's draw. */
static fm_status evict_head(fm_mask_writer *writer, int64_t head, int64_t start, int32_t *keys, uint64_t *random) {
    const int64_t length = writer->shape.rows, first = start < length ? start : length;
    int64_t left = 0;
    for (; left < first; left++) { /* keys before the row that are not evicted */
        keys[left] = (int32_t)left;
    }
    for (int64_t row = first; row < length; row++) {
        if (left > 0) {
            const int64_t drawn = fm_random_below(random, left);
            FM_TRY(fm_mask_writer_interval(writer, 0, head, keys[drawn], keys[drawn], row));
            keys[drawn] = keys[--left];
        }
        keys[left++] = (int32_t)row;
    }
    for (int64_t k = 0; k < left; k++) {
        FM_TRY(fm_mask_writer_interval(writer, 0, head, keys[k], keys[k], length));
    }
    return FM_OK;
}

fm_status fm_mask_random_eviction(int64_t length, int64_t heads, int64_t start, uint64_t seed, fm_mask **out) {
    fm_mask_writer writer;
    int32_t *keys = NULL;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_extent("length", length));
    FM_TRY(fm_check_reach("start", start, &start));
    FM_TRY(fm_builder_open(&writer, heads, length, length, 1));
    fm_status status;
    FM_TRY_DONE(fm_allocate("eviction keys", length, sizeof *keys, (void **)&keys));
    for (int64_t h = 0; h < heads; h++) {
        FM_TRY_DONE(evict_head(&writer, h, start, keys, &seed));
    }
done:
    free(keys);
    return fm_builder_finish(&writer, status, out);
}

/* Draws the pairs of one stripe, row after row; bits as in stripe.h, those past the last key stay 0. */
static void draw_stripe(int64_t rows, int64_t keys, uint64_t threshold, uint64_t *random, uint64_t *bits) {
    for (int64_t i = 0; i < 2 * rows; i++) {
        const int64_t left = keys - 64 * (i % 2), count = left < 64 ? left : 64;
        bits[i] = 0;
        for (int64_t c = 0; c < count; c++) {
            bits[i] |= (uint64_t)(fm_random_bits(random) >> 11 < threshold) << c;
        }
    }
}

fm_status fm_mask_random_sparse(int64_t Sq, int64_t Sk, double density, uint64_t seed, const fm_mask_options *options,
                                fm_mask **out) {
    fm_mask_writer writer;
    uint64_t *bits = NULL;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_extent("Sq", Sq));
    FM_TRY(fm_check_extent("Sk", Sk));
    FM_CHECK(density >= 0 && density <= 1, FM_ERROR_ARGUMENT, "density: is %g, needs 0 .. 1", density);
    FM_TRY(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, Sq, Sk}, INT32_MAX, options));
    const uint64_t threshold = (uint64_t)(density * 0x1p53); /* exact */
    fm_status status;
    FM_TRY_DONE(fm_allocate("random pairs", fm_stripe_words(Sq), sizeof *bits, (void **)&bits));
    for (int64_t stripe = 0; stripe * FM_STRIPE < Sk; stripe++) {
        draw_stripe(Sq, Sk - stripe * FM_STRIPE, threshold, &seed, bits);
        FM_TRY_DONE(fm_mask_writer_stripe(&writer, 0, 0, stripe, bits));
    }
done:
    free(bits);
    return fm_builder_finish(&writer, status, out);
}
