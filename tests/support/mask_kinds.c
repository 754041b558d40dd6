#include "support/mask_kinds.h"

#include <flashmask/masks.h>

#include <stdlib.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random_mask.h"

enum { MOST_PARTS = 8, MOST_HEADS = 64 };

static int64_t longest(const attention_case *c) { return c->rows > c->columns ? c->rows : c->columns; }

/* Cuts a square mask of the longer side to the case's rows (the last ones) and columns (the first ones). */
static void take_square(attention_case *c, fm_mask *square) {
    fm_mask *cut = NULL;
    const int64_t n = longest(c);
    succeed(fm_mask_slice(square, n - c->rows, n, 0, c->columns, NULL, &cut));
    fm_mask_free(square);
    c->mask = cut;
}

/* Splits up to `total` into 1 .. MOST_PARTS lengths, zeros among them; returns the count, *rest is what is left over. */
static int64_t draw_lengths(test_random *r, int64_t total, int64_t lengths[MOST_PARTS], int64_t *rest) {
    const int64_t count = random_integer(r, 1, MOST_PARTS);
    *rest = total;
    for (int64_t k = 0; k < count; k++) {
        const int64_t most = *rest < 2 * total / count + 1 ? *rest : 2 * total / count + 1;
        lengths[k] = random_chance(r, 0.1) ? 0 : random_integer(r, 0, most);
        *rest -= lengths[k];
    }
    if (random_chance(r, 0.5)) { /* half of the time nothing is left over */
        lengths[count - 1] += *rest;
        *rest = 0;
    }
    return count;
}

/* Ascending spans inside [0, total) that do not overlap. */
static int64_t draw_spans(test_random *r, int64_t total, int64_t offset[MOST_PARTS], int64_t length[MOST_PARTS]) {
    int64_t at = 0, count = 0;
    while (count < MOST_PARTS / 2 && at < total) {
        offset[count] = random_integer(r, at, total - 1);
        length[count] = random_integer(r, 1, (total - offset[count] + 1) / 2);
        at = offset[count] + length[count];
        count++;
    }
    return count;
}

static void no_mask(test_random *r, attention_case *c) {
    (void)r;
    (void)c;
}

static void causal_flag(test_random *r, attention_case *c) {
    (void)r;
    c->causal = true;
}

static void window_flags(test_random *r, attention_case *c) {
    c->window_left = random_integer(r, -1, c->columns);
    c->window_right = random_integer(r, -1, c->columns / 2);
}

static void random_intervals(test_random *r, attention_case *c, int32_t intervals, int64_t batch, int64_t heads) {
    c->mask = random_mask(r, (fm_mask_shape){batch, heads, c->rows, c->columns}, intervals, NULL);
}

static void one_interval(test_random *r, attention_case *c) { random_intervals(r, c, 1, 1, 1); }
static void two_intervals(test_random *r, attention_case *c) { random_intervals(r, c, 2, c->batch, 1); }
static void three_intervals_per_key_head(test_random *r, attention_case *c) { random_intervals(r, c, 3, 1, c->heads_kv); }
static void four_intervals_per_head(test_random *r, attention_case *c) { random_intervals(r, c, 4, c->batch, c->heads); }
static void fallback(test_random *r, attention_case *c) { random_intervals(r, c, 9, c->batch, c->heads_kv); }

static void fallback_with_flags(test_random *r, attention_case *c) {
    random_intervals(r, c, 12, 1, 1);
    c->causal = true;
    c->window_left = random_integer(r, 0, c->columns);
}

static void nothing_visible(test_random *r, attention_case *c) { random_intervals(r, c, 0, 1, 1); }

static void full(test_random *r, attention_case *c) {
    (void)r;
    succeed(fm_mask_full(c->rows, c->columns, (fm_mask **)&c->mask));
}

static void causal(test_random *r, attention_case *c) {
    (void)r;
    succeed(fm_mask_causal(c->rows, c->columns, (fm_mask **)&c->mask));
}

static void sliding_window(test_random *r, attention_case *c) {
    succeed(fm_mask_sliding_window(c->rows, c->columns, random_integer(r, 0, c->columns), random_integer(r, -1, 3),
                                   (fm_mask **)&c->mask));
}

static void sink_window(test_random *r, attention_case *c) {
    succeed(fm_mask_sink_window(c->rows, c->columns, random_integer(r, 0, 5), random_integer(r, 1, c->columns),
                                (fm_mask **)&c->mask));
}

static void global_window(test_random *r, attention_case *c) {
    const int64_t least = c->rows < c->columns ? c->rows : c->columns;
    succeed(fm_mask_global_window(c->rows, c->columns, random_integer(r, 0, least), random_integer(r, 0, c->columns / 2),
                                  random_integer(r, 0, c->columns / 2), (fm_mask **)&c->mask));
}

static void documents(test_random *r, attention_case *c, bool is_causal) {
    int64_t lengths[MOST_PARTS], rest;
    const int64_t n = draw_lengths(r, longest(c), lengths, &rest);
    fm_mask *square = NULL;
    succeed(fm_mask_documents(n, lengths, is_causal, rest, &square));
    take_square(c, square);
}

static void causal_documents(test_random *r, attention_case *c) { documents(r, c, true); }
static void bidirectional_documents(test_random *r, attention_case *c) { documents(r, c, false); }

static void documents_sink_window(test_random *r, attention_case *c) {
    int64_t lengths[MOST_PARTS], rest;
    const int64_t n = draw_lengths(r, longest(c), lengths, &rest);
    fm_mask *square = NULL;
    succeed(fm_mask_documents_sink_window(n, lengths, 2, random_integer(r, 1, longest(c)), rest, &square));
    take_square(c, square);
}

static void prefix_lm(test_random *r, attention_case *c) {
    succeed(fm_mask_prefix_lm(c->rows, c->columns, random_integer(r, 0, c->columns), (fm_mask **)&c->mask));
}

static void prefix_documents(test_random *r, attention_case *c) {
    int64_t lengths[MOST_PARTS], prefix[MOST_PARTS], rest;
    const int64_t n = draw_lengths(r, longest(c), lengths, &rest);
    for (int64_t k = 0; k < n; k++) {
        prefix[k] = random_integer(r, 0, lengths[k]);
    }
    fm_mask *square = NULL;
    succeed(fm_mask_prefix_documents(n, prefix, lengths, rest, &square));
    take_square(c, square);
}

static void share_question(test_random *r, attention_case *c) {
    int64_t lengths[MOST_PARTS], rest;
    const int64_t n = draw_lengths(r, longest(c), lengths, &rest);
    const int64_t first = n > 3 ? n / 2 : n; /* one question over the first half, one over the second */
    const fm_question questions[] = {{lengths[0], first - 1, lengths + 1},
                                     {lengths[first % n], n - first - 1, lengths + first + 1}};
    fm_mask *square = NULL;
    succeed(fm_mask_share_question(first < n ? 2 : 1, questions, random_chance(r, 0.5), rest, &square));
    take_square(c, square);
}

static void prefix_tree(test_random *r, attention_case *c) {
    int64_t lengths[MOST_PARTS], parent[MOST_PARTS], rest;
    const int64_t n = draw_lengths(r, longest(c), lengths, &rest);
    lengths[0] += rest;
    for (int64_t k = 0; k < n; k++) {
        parent[k] = random_integer(r, -1, k - 1);
    }
    fm_mask *square = NULL;
    succeed(fm_mask_prefix_tree(n, parent, lengths, NULL, &square));
    take_square(c, square);
}

static void causal_blockwise(test_random *r, attention_case *c) {
    int64_t lengths[MOST_PARTS], rest;
    const int64_t n = draw_lengths(r, longest(c), lengths, &rest);
    lengths[n - 1] += rest;
    fm_mask *square = NULL;
    succeed(fm_mask_causal_blockwise(n, lengths, &square));
    take_square(c, square);
}

static void qk_sparse(test_random *r, attention_case *c) {
    int64_t offset[MOST_PARTS], length[MOST_PARTS];
    const int64_t spans = draw_spans(r, c->columns, offset, length);
    succeed(fm_mask_qk_sparse(c->rows, c->columns, spans, offset, length, (fm_mask **)&c->mask));
}

static void hash_sparse(test_random *r, attention_case *c) {
    const int64_t n = longest(c);
    int32_t *bucket = malloc((size_t)n * sizeof *bucket);
    assert_non_null(bucket);
    for (int64_t i = 0; i < n; i++) {
        bucket[i] = i > 0 && random_chance(r, 0.7) ? bucket[i - 1] : (int32_t)random_integer(r, 0, 5);
    }
    fm_mask *square = NULL;
    succeed(fm_mask_hash_sparse(n, bucket, NULL, &square));
    free(bucket);
    take_square(c, square);
}

static void random_eviction(test_random *r, attention_case *c) {
    const int64_t n = longest(c);
    fm_mask *square = NULL;
    succeed(fm_mask_random_eviction(n, c->heads_kv, n / 2 + 1 > n ? n : n / 2 + 1, random_bits(r), &square));
    take_square(c, square);
}

static void head_windows(test_random *r, attention_case *c) {
    int64_t left[MOST_HEADS], right[MOST_HEADS];
    for (int64_t h = 0; h < c->heads; h++) {
        left[h] = random_integer(r, 0, c->columns);
        right[h] = random_integer(r, 0, 2);
    }
    succeed(fm_mask_head_windows(c->rows, c->columns, c->heads, left, right, (fm_mask **)&c->mask));
}

static void padding(test_random *r, attention_case *c) {
    int64_t left[MOST_PARTS], right[MOST_PARTS];
    const int64_t least = c->rows < c->columns ? c->rows : c->columns;
    for (int64_t b = 0; b < c->batch; b++) {
        left[b] = random_integer(r, 0, least / 2);
        right[b] = random_integer(r, 0, least / 2);
    }
    succeed(fm_mask_padding(c->batch, c->rows, c->columns, left, right, (fm_mask **)&c->mask));
    c->causal = true;
}

static void blocks(test_random *r, attention_case *c) {
    const int64_t block = 16 * random_integer(r, 1, 9);
    const fm_mask_shape shape = {c->batch, 1, c->rows, c->columns};
    const int64_t cells = c->batch * ((c->rows + block - 1) / block) * ((c->columns + block - 1) / block);
    uint8_t *keep = malloc((size_t)cells);
    assert_non_null(keep);
    for (int64_t i = 0; i < cells; i++) {
        keep[i] = random_chance(r, 0.5);
    }
    succeed(fm_mask_blocks(shape, block, keep, NULL, (fm_mask **)&c->mask));
    free(keep);
}

static void bigbird(test_random *r, attention_case *c) {
    succeed(fm_mask_bigbird(c->rows, c->columns, 32, 1, 1, 2, random_bits(r), NULL, (fm_mask **)&c->mask));
}

static void image_spans(test_random *r, attention_case *c) {
    int64_t offset[MOST_PARTS], length[MOST_PARTS];
    const int64_t n = longest(c), spans = draw_spans(r, n, offset, length);
    fm_mask *square = NULL;
    succeed(fm_mask_image_spans(1, &n, spans, offset, length, &square));
    take_square(c, square);
}

static void random_sparse(test_random *r, attention_case *c) {
    succeed(fm_mask_random_sparse(c->rows, c->columns, 0.3, random_bits(r), NULL, (fm_mask **)&c->mask));
}

const mask_kind mask_kinds[] = {
    {"no mask", no_mask},
    {"causal flag", causal_flag},
    {"window flags", window_flags},
    {"1 interval", one_interval},
    {"2 intervals, per item", two_intervals},
    {"3 intervals, per key head", three_intervals_per_key_head},
    {"4 intervals, per item and head", four_intervals_per_head},
    {"fallback, per item and key head", fallback},
    {"fallback, causal and window flags", fallback_with_flags},
    {"nothing visible", nothing_visible},
    {"full", full},
    {"causal", causal},
    {"sliding window", sliding_window},
    {"sink and window", sink_window},
    {"global and window", global_window},
    {"causal documents", causal_documents},
    {"documents", bidirectional_documents},
    {"documents with sink and window", documents_sink_window},
    {"prefix lm", prefix_lm},
    {"prefix documents", prefix_documents},
    {"share question", share_question},
    {"prefix tree", prefix_tree},
    {"causal blockwise", causal_blockwise},
    {"qk sparse", qk_sparse},
    {"hash sparse", hash_sparse},
    {"random eviction", random_eviction},
    {"head windows", head_windows},
    {"padding", padding},
    {"blocks", blocks},
    {"bigbird", bigbird},
    {"image spans", image_spans},
    {"random sparse", random_sparse},
};
const int mask_kind_count = (int)(sizeof mask_kinds / sizeof *mask_kinds);
