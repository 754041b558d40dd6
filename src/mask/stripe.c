#include "mask/stripe.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

fm_status fm_stripe_blocks_open(fm_stripe_blocks *s, int64_t rows) {
    *s = (fm_stripe_blocks){.rows = rows};
    FM_TRY(fm_allocate("stripe", fm_ceil_divide(rows, FM_STRIPE), sizeof *s->kinds, (void **)&s->kinds));
    const fm_status status = fm_allocate("stripe", fm_stripe_words(rows), sizeof *s->words, (void **)&s->words);
    if (status != FM_OK) {
        fm_stripe_blocks_close(s);
    }
    return status;
}

void fm_stripe_blocks_close(fm_stripe_blocks *s) {
    free(s->kinds);
    free(s->words);
    *s = (fm_stripe_blocks){0};
}

void fm_stripe_begin(fm_stripe_blocks *s, int64_t keys) {
    s->keys = keys;
    for (int64_t r = 0; r * FM_STRIPE < s->rows; r++) {
        s->kinds[r] = FM_BLOCK_HIDDEN; /* until fm_stripe_end: no interval begins or ends in it */
    }
}

static void flip_row(fm_stripe_blocks *s, int64_t row, const uint64_t columns[2]) {
    const int64_t block = row / FM_STRIPE;
    if (s->kinds[block] != FM_BLOCK_MIXED) {
        s->kinds[block] = FM_BLOCK_MIXED;
        memset(s->words + block * FM_BLOCK_WORDS, 0, FM_BLOCK_WORDS * sizeof *s->words);
    }
    s->words[2 * row] ^= columns[0];
    s->words[2 * row + 1] ^= columns[1];
}

void fm_stripe_add_columns(fm_stripe_blocks *s, const uint64_t columns[2], fm_interval v) {
    flip_row(s, v.start, columns);
    if (v.end < s->rows) {
        flip_row(s, v.end, columns);
    }
}

void fm_stripe_add(fm_stripe_blocks *s, int64_t c, int64_t columns, fm_interval v) {
    const uint64_t bits[2] = {fm_low_bits(c + columns) & ~fm_low_bits(c), fm_low_bits(c + columns - 64) & ~fm_low_bits(c - 64)};
    fm_stripe_add_columns(s, bits, v);
}

void fm_stripe_end(fm_stripe_blocks *s) {
    const uint64_t all[2] = {fm_low_bits(s->keys), fm_low_bits(s->keys - 64)};
    uint64_t now[2] = {0, 0};
    for (int64_t block = 0; block * FM_STRIPE < s->rows; block++) {
        const bool flips = s->kinds[block] == FM_BLOCK_MIXED;
        if (!flips && (now[0] | now[1]) == 0) {
            continue;
        }
        if (!flips && now[0] == all[0] && now[1] == all[1]) {
            s->kinds[block] = FM_BLOCK_VISIBLE;
            continue;
        }
        s->kinds[block] = FM_BLOCK_MIXED;
        uint64_t *words = s->words + block * FM_BLOCK_WORDS;
        for (int64_t r = 0; r < fm_stripe_block_rows(s, block); r++) {
            words[2 * r] = now[0] ^= flips ? words[2 * r] : 0;
            words[2 * r + 1] = now[1] ^= flips ? words[2 * r + 1] : 0;
        }
    }
}

void fm_stripe_cut_diagonal(fm_stripe_blocks *s, int64_t block) {
    uint64_t *words = s->words + block * FM_BLOCK_WORDS;
    for (int64_t r = 0; r < fm_stripe_block_rows(s, block); r++) {
        fm_stripe_row(s, block * FM_STRIPE + r, words + 2 * r);
        words[2 * r] &= fm_low_bits(r + 1);
        words[2 * r + 1] &= fm_low_bits(r + 1 - 64);
    }
    s->kinds[block] = FM_BLOCK_MIXED;
}

static void read_bitmap(const fm_mask_view *v, int32_t slot, fm_stripe_blocks *out) {
    for (int64_t r = 0; r < v->row_blocks; r++) {
        const int32_t block = v->block_index[slot * v->row_blocks + r];
        out->kinds[r] = block < 0 ? block : FM_BLOCK_MIXED;
        if (block >= 0) {
            memcpy(out->words + r * FM_BLOCK_WORDS, v->blocks + (int64_t)block * FM_BLOCK_WORDS,
                   FM_BLOCK_WORDS * sizeof *out->words);
        }
    }
}

void fm_mask_read_blocks(const fm_mask_view *v, int64_t b, int64_t h, int64_t stripe, fm_stripe_blocks *out) {
    const int64_t column0 = stripe * FM_STRIPE;
    const bool exists = stripe >= 0 && stripe < v->stripes;
    fm_stripe_begin(out, exists ? fm_stripe_keys(v->shape.columns, stripe) : 0);
    const int32_t slot = exists ? fm_mask_slot(v, b, h, stripe) : FM_NO_SLOT;
    if (slot != FM_NO_SLOT) {
        read_bitmap(v, slot, out);
        return;
    }
    for (int64_t c = 0; c < out->keys; c++) {
        fm_interval column[FM_MAX_INTERVALS];
        const int32_t count = fm_mask_read_column(v, b, h, column0 + c, column);
        for (int32_t m = 0; m < count; m++) {
            fm_stripe_add(out, c, 1, column[m]);
        }
    }
    fm_stripe_end(out);
}

/* Counts each column's interval starts with bit-sliced counters: bit c of (four, two, one) is the count of column c. */
bool fm_stripe_needs_bitmap(const fm_stripe_blocks *s) {
    _Static_assert(FM_MAX_INTERVALS == 4, "a fifth start is one that finds `four` set");
    uint64_t one[2] = {0, 0}, two[2] = {0, 0}, four[2] = {0, 0}, before[2] = {0, 0}, over = 0;
    for (int64_t row = 0; row < s->rows && over == 0; row++) {
        uint64_t now[2];
        fm_stripe_row(s, row, now);
        for (int w = 0; w < 2; w++) {
            const uint64_t starts = now[w] & ~before[w];
            const uint64_t carry = one[w] & starts;
            before[w] = now[w];
            over |= four[w] & starts;
            four[w] |= two[w] & carry;
            one[w] ^= starts;
            two[w] ^= carry;
        }
        if (fm_stripe_kind(s, row / FM_STRIPE) != FM_BLOCK_MIXED) {
            row |= FM_STRIPE - 1; /* all rows of the block are alike */
        }
    }
    return over != 0;
}
