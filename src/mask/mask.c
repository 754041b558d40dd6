#include "mask/mask.h"

#include "core/memory.h"
#include "mask/fallback.h"
#include "mask/stripe.h"

#include <stdlib.h>
#include <string.h>

fm_status fm_mask_shape_check(fm_mask_shape s) {
    const struct {
        const char *name;
        int64_t value, least;
    } extents[] = {{"batch", s.batch, 1}, {"heads", s.heads, 1}, {"rows", s.rows, 0}, {"columns", s.columns, 0}};
    for (int i = 0; i < 4; i++) {
        FM_CHECK(extents[i].value >= extents[i].least && extents[i].value <= INT32_MAX, FM_ERROR_ARGUMENT,
                 "shape.%s: is %lld, needs %lld .. 2^31 - 1", extents[i].name, (long long)extents[i].value,
                 (long long)extents[i].least);
    }
    const int64_t planes = s.batch * s.heads;
    FM_CHECK(fm_multiply(planes, s.rows * s.columns) >= 0, FM_ERROR_LIMIT, "shape: %lld x %lld x %lld x %lld pairs pass 2^63",
             (long long)s.batch, (long long)s.heads, (long long)s.rows, (long long)s.columns);
    FM_CHECK(planes <= INT32_MAX, FM_ERROR_LIMIT, "shape: %lld batch items x %lld heads, the limit is 2^31 - 1",
             (long long)s.batch, (long long)s.heads);
    return FM_OK;
}

fm_mask *fm_mask_retain(const fm_mask *mask) {
    fm_mask *shared = (fm_mask *)mask; /* only the count changes */
    atomic_fetch_add_explicit(&shared->references, 1, memory_order_relaxed);
    return shared;
}

void fm_mask_free(fm_mask *mask) {
    if (mask == NULL || atomic_fetch_sub_explicit(&mask->references, 1, memory_order_acq_rel) > 1) {
        return;
    }
    free((void *)mask->view.bounds);
    free((void *)mask->view.stripe_slot);
    free((void *)mask->view.block_index);
    free((void *)mask->view.blocks);
    free(mask);
}

fm_mask_shape fm_mask_get_shape(const fm_mask *mask) { return mask != NULL ? mask->view.shape : (fm_mask_shape){0}; }

int32_t fm_mask_interval_count(const fm_mask *mask) { return mask != NULL ? mask->view.intervals : 0; }

bool fm_mask_has_fallback(const fm_mask *mask) { return mask != NULL && mask->view.stripe_slot != NULL; }

int64_t fm_mask_fallback_bytes(const fm_mask *mask) {
    if (!fm_mask_has_fallback(mask)) {
        return 0;
    }
    return fm_fallback_bytes(mask->view.shape, mask->view.slots, mask->view.block_count);
}

int64_t fm_mask_bytes(const fm_mask *mask) {
    if (mask == NULL) {
        return 0;
    }
    const fm_mask_view *v = &mask->view;
    const int64_t intervals = v->shape.batch * v->shape.heads * v->intervals * v->shape.columns;
    return intervals * (int64_t)sizeof(fm_interval) + fm_mask_fallback_bytes(mask);
}

uint64_t fm_mask_hash(const fm_mask *mask) { return mask != NULL ? mask->hash : 0; }

/* An array of no elements may be NULL. */
static bool same_elements(const void *a, const void *b, int64_t count, size_t element_bytes) {
    return count == 0 || memcmp(a, b, (size_t)count * element_bytes) == 0;
}

bool fm_mask_equal(const fm_mask *a, const fm_mask *b) {
    if (a == NULL || b == NULL || a == b) {
        return a == b;
    }
    const fm_mask_view *va = &a->view, *vb = &b->view;
    if (a->hash != b->hash || va->intervals != vb->intervals || va->slots != vb->slots || va->block_count != vb->block_count ||
        memcmp(&va->shape, &vb->shape, sizeof va->shape) != 0) {
        return false;
    }
    const int64_t planes = va->shape.batch * va->shape.heads, slots = va->slots > 0 ? planes * va->stripes : 0;
    return same_elements(va->bounds, vb->bounds, planes * va->intervals * va->shape.columns, sizeof *va->bounds) &&
           same_elements(va->stripe_slot, vb->stripe_slot, slots, sizeof *va->stripe_slot) &&
           same_elements(va->block_index, vb->block_index, va->slots * va->row_blocks, sizeof *va->block_index) &&
           same_elements(va->blocks, vb->blocks, va->block_count * FM_BLOCK_WORDS, sizeof *va->blocks);
}

fm_status fm_mask_visible_pairs(const fm_mask *mask, int64_t *pairs) {
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_REQUIRE(pairs);
    *pairs = mask->visible_pairs;
    return FM_OK;
}

static fm_status bitmap_column(const fm_mask_view *v, int64_t batch, int64_t head, int64_t column,
                               fm_interval out[FM_MAX_INTERVALS], int32_t *count) {
    fm_stripe_columns columns = {0};
    fm_status status = fm_mask_read_stripe(v, batch, head, column / FM_STRIPE, &columns);
    if (status == FM_OK) {
        const int64_t first = columns.first[column % FM_STRIPE], n = columns.first[column % FM_STRIPE + 1] - first;
        if (n > FM_MAX_INTERVALS) {
            status = fm_fail(FM_ERROR_CANNOT_EXPRESS, "column %lld has %lld visible intervals, more than %d", (long long)column,
                             (long long)n, FM_MAX_INTERVALS);
        } else {
            *count = (int32_t)n;
            for (int64_t i = 0; i < n; i++) {
                out[i] = columns.intervals[first + i];
            }
        }
    }
    fm_stripe_columns_free(&columns);
    return status;
}

fm_status fm_mask_column(const fm_mask *mask, int64_t batch, int64_t head, int64_t column, fm_interval out[FM_MAX_INTERVALS],
                         int32_t *count) {
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_REQUIRE(out);
    FM_REQUIRE(count);
    const fm_mask_view *v = &mask->view;
    FM_CHECK(batch >= 0 && batch < v->shape.batch, FM_ERROR_ARGUMENT, "batch: is %lld, the mask has %lld", (long long)batch,
             (long long)v->shape.batch);
    FM_CHECK(head >= 0 && head < v->shape.heads, FM_ERROR_ARGUMENT, "head: is %lld, the mask has %lld", (long long)head,
             (long long)v->shape.heads);
    FM_CHECK(column >= 0 && column < v->shape.columns, FM_ERROR_ARGUMENT, "column: is %lld, the mask has %lld", (long long)column,
             (long long)v->shape.columns);
    if (fm_mask_slot(v, batch, head, column / FM_STRIPE) == FM_NO_SLOT) {
        *count = fm_mask_read_column(v, batch, head, column, out);
        return FM_OK;
    }
    return bitmap_column(v, batch, head, column, out, count);
}

void fm_mask_stripe_row(const fm_mask_view *v, int32_t slot, int64_t stripe, int64_t row, uint64_t bits[2]) {
    const int32_t block = v->block_index[slot * v->row_blocks + row / FM_STRIPE];
    if (block >= 0) {
        const uint64_t *words = v->blocks + (int64_t)block * FM_BLOCK_WORDS + 2 * (row % FM_STRIPE);
        bits[0] = words[0];
        bits[1] = words[1];
        return;
    }
    const int64_t keys = block == FM_BLOCK_VISIBLE ? fm_stripe_keys(v->shape.columns, stripe) : 0;
    bits[0] = fm_low_bits(keys);
    bits[1] = fm_low_bits(keys - 64);
}

/* What a pass over a bitmap stripe does at each interval: count it, or also note its two ends. */
typedef struct stripe_pass {
    int64_t *next;          /* [FM_STRIPE] of each column: intervals counted, or where its next one goes */
    fm_interval *intervals; /* NULL while counting */
} stripe_pass;

/* `changed` columns turn from hidden to visible at this row, or back where `visible` lacks their bit. */
static void note_changes(stripe_pass *pass, int64_t word, uint64_t changed, uint64_t visible, int64_t row) {
    for (; changed != 0; changed &= changed - 1) {
        const int64_t c = 64 * word + __builtin_ctzll(changed);
        const bool starts = (visible & changed & -changed) != 0;
        if (pass->intervals != NULL && starts) {
            pass->intervals[pass->next[c]].start = (int32_t)row;
        } else if (pass->intervals != NULL) {
            pass->intervals[pass->next[c]].end = (int32_t)row;
        }
        pass->next[c] += !starts;
    }
}

static void walk_bitmap(const fm_mask_view *v, int32_t slot, int64_t stripe, stripe_pass *pass) {
    const int64_t rows = v->shape.rows;
    uint64_t before[2] = {0, 0}, now[2] = {0, 0};
    for (int64_t row = 0; row < rows; row++) {
        fm_mask_stripe_row(v, slot, stripe, row, now);
        for (int64_t word = 0; word < 2; word++) {
            note_changes(pass, word, now[word] ^ before[word], now[word], row);
            before[word] = now[word];
        }
        if (v->block_index[slot * v->row_blocks + row / FM_STRIPE] < 0) {
            row |= FM_STRIPE - 1; /* all rows of the block are alike */
        }
    }
    note_changes(pass, 0, now[0], 0, rows);
    note_changes(pass, 1, now[1], 0, rows);
}

/* Counts in next[] become first[]. intervals is not NULL then, so that adding 0 to it is defined. */
static fm_status make_room(const int64_t *next, fm_stripe_columns *out) {
    out->first[0] = 0;
    for (int64_t c = 0; c < FM_STRIPE; c++) {
        out->first[c + 1] = out->first[c] + next[c];
    }
    return fm_grow("stripe intervals", out->first[FM_STRIPE] + 1, sizeof *out->intervals, (void **)&out->intervals,
                   &out->capacity);
}

fm_status fm_mask_read_stripe(const fm_mask_view *v, int64_t b, int64_t h, int64_t stripe, fm_stripe_columns *out) {
    const int64_t column0 = stripe * FM_STRIPE, columns = fm_stripe_keys(v->shape.columns, stripe);
    const int32_t slot = fm_mask_slot(v, b, h, stripe);
    int64_t next[FM_STRIPE] = {0};
    if (slot != FM_NO_SLOT) {
        walk_bitmap(v, slot, stripe, &(stripe_pass){.next = next});
        FM_TRY(make_room(next, out));
        memcpy(next, out->first, sizeof next);
        walk_bitmap(v, slot, stripe, &(stripe_pass){.next = next, .intervals = out->intervals});
        return FM_OK;
    }
    fm_interval column[FM_MAX_INTERVALS];
    for (int64_t c = 0; c < columns; c++) {
        next[c] = fm_mask_read_column(v, b, h, column0 + c, column);
    }
    FM_TRY(make_room(next, out));
    for (int64_t c = 0; c < columns; c++) {
        if (next[c] > 0) {
            fm_mask_read_column(v, b, h, column0 + c, column);
            memcpy(out->intervals + out->first[c], column, (size_t)next[c] * sizeof *column);
        }
    }
    return FM_OK;
}

void fm_stripe_columns_free(fm_stripe_columns *columns) {
    free(columns->intervals);
    *columns = (fm_stripe_columns){0};
}
