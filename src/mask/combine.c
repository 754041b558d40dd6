/* Intersection and union of two masks. Both work on one stripe at a time: column by column on sorted interval lists where
 * neither mask has a bitmap there, else on blocks of bits. */
#include "mask/writer.h"

#include <string.h>

typedef struct combination {
    const fm_mask_view *a, *b;
    bool is_union;
    fm_mask_writer writer;
    fm_stripe_blocks blocks_a, blocks_b; /* one stripe each; open only if an operand has bitmaps */
} combination;

static fm_status check_extents(const char *name, int64_t a, int64_t b, bool may_broadcast) {
    FM_CHECK(a == b || (may_broadcast && (a == 1 || b == 1)), FM_ERROR_SHAPE, "%s: a has %lld, b has %lld, needs the same%s",
             name, (long long)a, (long long)b, may_broadcast ? " or 1" : "");
    return FM_OK;
}

/* Ascending lists of separated intervals; writes at most count_a + count_b - 1 and returns how many. */
static int32_t intersect(const fm_interval *a, int32_t count_a, const fm_interval *b, int32_t count_b, fm_interval *out) {
    int32_t count = 0;
    for (int32_t i = 0, k = 0; i < count_a && k < count_b;) {
        const fm_interval both = {a[i].start > b[k].start ? a[i].start : b[k].start, a[i].end < b[k].end ? a[i].end : b[k].end};
        if (both.start < both.end) {
            out[count++] = both;
        }
        if (a[i].end < b[k].end) {
            i++;
        } else {
            k++;
        }
    }
    return count;
}

static int64_t most_intervals(const combination *c) {
    const int64_t a = c->a->intervals, b = c->b->intervals;
    if (c->a->stripe_slot != NULL || c->b->stripe_slot != NULL) {
        return FM_MAX_INTERVALS + 1;
    }
    return c->is_union ? a + b : a == 0 || b == 0 ? 0 : a + b - 1;
}

static fm_status combine_column(combination *c, int64_t batch, int64_t head, int64_t column) {
    fm_interval a[2 * FM_MAX_INTERVALS], b[FM_MAX_INTERVALS], both[2 * FM_MAX_INTERVALS];
    const fm_mask_shape *sa = &c->a->shape, *sb = &c->b->shape;
    const int32_t count_a = fm_mask_read_column(c->a, batch % sa->batch, head % sa->heads, column, a);
    const int32_t count_b = fm_mask_read_column(c->b, batch % sb->batch, head % sb->heads, column, c->is_union ? a + count_a : b);
    if (c->is_union) {
        return fm_mask_writer_column(&c->writer, batch, head, column, a, count_a + count_b);
    }
    return fm_mask_writer_column(&c->writer, batch, head, column, both, intersect(a, count_a, b, count_b, both));
}

/* Block r of a becomes that of the result. */
static void combine_block(combination *c, int64_t r) {
    const int32_t absorbing = c->is_union ? FM_BLOCK_VISIBLE : FM_BLOCK_HIDDEN;
    int32_t *kind = &c->blocks_a.kinds[r];
    const int32_t other = c->blocks_b.kinds[r];
    uint64_t *words = c->blocks_a.words + r * FM_BLOCK_WORDS;
    const uint64_t *other_words = c->blocks_b.words + r * FM_BLOCK_WORDS;
    if (*kind == absorbing || other == absorbing) {
        *kind = absorbing;
    } else if (*kind != FM_BLOCK_MIXED) {
        *kind = other;
        if (other == FM_BLOCK_MIXED) {
            memcpy(words, other_words, FM_BLOCK_WORDS * sizeof *words);
        }
    } else if (other == FM_BLOCK_MIXED) {
        for (int i = 0; i < FM_BLOCK_WORDS; i++) {
            words[i] = c->is_union ? words[i] | other_words[i] : words[i] & other_words[i];
        }
    }
}

static fm_status combine_stripe(combination *c, int64_t batch, int64_t head, int64_t stripe) {
    const fm_mask_shape *sa = &c->a->shape, *sb = &c->b->shape;
    const int64_t batch_a = batch % sa->batch, head_a = head % sa->heads, batch_b = batch % sb->batch, head_b = head % sb->heads;
    if (fm_mask_slot(c->a, batch_a, head_a, stripe) == FM_NO_SLOT && fm_mask_slot(c->b, batch_b, head_b, stripe) == FM_NO_SLOT) {
        for (int64_t j = stripe * FM_STRIPE; j < (stripe + 1) * FM_STRIPE && j < sa->columns; j++) {
            FM_TRY(combine_column(c, batch, head, j));
        }
        return fm_mask_writer_flush(&c->writer);
    }
    fm_mask_read_blocks(c->a, batch_a, head_a, stripe, &c->blocks_a);
    fm_mask_read_blocks(c->b, batch_b, head_b, stripe, &c->blocks_b);
    for (int64_t r = 0; r < c->a->row_blocks; r++) {
        combine_block(c, r);
    }
    return fm_mask_writer_blocks(&c->writer, batch, head, stripe, &c->blocks_a);
}

static fm_status combine_stripes(combination *c) {
    const fm_mask_shape *shape = &c->writer.shape;
    for (int64_t batch = 0; batch < shape->batch; batch++) {
        for (int64_t head = 0; head < shape->heads; head++) {
            for (int64_t stripe = 0; stripe < c->a->stripes; stripe++) {
                FM_TRY(combine_stripe(c, batch, head, stripe));
            }
        }
    }
    return FM_OK;
}

static fm_status combine(const fm_mask *a, const fm_mask *b, bool is_union, const fm_mask_options *options, fm_mask **out) {
    fm_clear_error();
    FM_REQUIRE(a);
    FM_REQUIRE(b);
    FM_REQUIRE(out);
    combination c = {.a = &a->view, .b = &b->view, .is_union = is_union};
    fm_mask_shape shape = a->view.shape;
    const fm_mask_shape other = b->view.shape;
    FM_TRY(check_extents("batch", shape.batch, other.batch, true));
    FM_TRY(check_extents("heads", shape.heads, other.heads, true));
    FM_TRY(check_extents("rows", shape.rows, other.rows, false));
    FM_TRY(check_extents("columns", shape.columns, other.columns, false));
    shape.batch = shape.batch == 1 ? other.batch : shape.batch;
    shape.heads = shape.heads == 1 ? other.heads : shape.heads;
    const int64_t most = most_intervals(&c);
    FM_TRY(fm_mask_writer_open(&c.writer, shape, most, options));
    fm_status status;
    if (c.a->stripe_slot != NULL || c.b->stripe_slot != NULL) {
        FM_TRY_DONE(fm_stripe_blocks_open(&c.blocks_a, shape.rows));
        FM_TRY_DONE(fm_stripe_blocks_open(&c.blocks_b, shape.rows));
    }
    if (most > 0) { /* else nothing is visible, which takes no memory however large the extents are */
        FM_TRY_DONE(combine_stripes(&c));
    }
    FM_TRY_DONE(fm_mask_writer_finish(&c.writer, out));
done:
    fm_mask_writer_close(&c.writer);
    fm_stripe_blocks_close(&c.blocks_a);
    fm_stripe_blocks_close(&c.blocks_b);
    return status;
}

fm_status fm_mask_and(const fm_mask *a, const fm_mask *b, const fm_mask_options *options, fm_mask **out) {
    return combine(a, b, false, options, out);
}

fm_status fm_mask_or(const fm_mask *a, const fm_mask *b, const fm_mask_options *options, fm_mask **out) {
    return combine(a, b, true, options, out);
}
