#include "mask/fallback.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_LIMIT (INT64_C(4) << 30) /* bytes: what 185,000 random tokens take, counted in seconds */

int64_t fm_fallback_bytes(fm_mask_shape shape, int64_t slots, int64_t block_count) {
    const int64_t stripes = fm_ceil_divide(shape.columns, FM_STRIPE), row_blocks = fm_ceil_divide(shape.rows, FM_STRIPE);
    return (shape.batch * shape.heads * stripes + slots * row_blocks) * (int64_t)sizeof(int32_t) +
           block_count * FM_BLOCK_WORDS * (int64_t)sizeof(uint64_t);
}

void fm_fallback_free(fm_fallback *f) {
    free(f->stripes);
    free(f->block_index);
    free(f->blocks);
    free(f->hashes);
    free(f->table);
    *f = (fm_fallback){0};
}

/* Four chains side by side: one alone waits for its own multiplications. */
static uint64_t hash_block(const uint64_t *words) {
    uint64_t hash[4] = {0, 1, 2, 3}, all = 0;
    for (int i = 0; i < FM_BLOCK_WORDS; i++) {
        uint64_t *h = &hash[i % 4];
        *h = (*h ^ words[i]) * UINT64_C(0x9fb21c651e98df25);
        *h ^= *h >> 29;
    }
    for (int i = 0; i < 4; i++) {
        all = (all ^ hash[i]) * UINT64_C(0x9fb21c651e98df25);
        all ^= all >> 29;
    }
    return all;
}

static fm_status rebuild_table(fm_fallback *f, int64_t size) {
    int32_t *table;
    FM_TRY(fm_allocate("fallback block table", size, sizeof *table, (void **)&table));
    memset(table, 0xff, (size_t)size * sizeof *table);
    for (int64_t i = 0; i < f->block_count; i++) {
        int64_t at = (int64_t)(f->hashes[i] & (uint64_t)(size - 1));
        while (table[at] >= 0) {
            at = (at + 1) & (size - 1);
        }
        table[at] = (int32_t)i;
    }
    free(f->table);
    f->table = table;
    f->table_size = size;
    return FM_OK;
}

static bool same_block(const fm_fallback *f, int32_t block, uint64_t hash, const uint64_t *words) {
    return f->hashes[block] == hash &&
           (f->past_limit || memcmp(f->blocks + (int64_t)block * FM_BLOCK_WORDS, words, FM_BLOCK_WORDS * sizeof *words) == 0);
}

/* The bytes so far; once they pass both the limit and COUNT_LIMIT, nobody waits for the rest of the count. */
static fm_status check_limit(fm_fallback *f) {
    const int64_t bytes = fm_fallback_bytes(f->shape, f->slots, f->block_count);
    f->past_limit = f->past_limit || bytes > f->limit;
    FM_CHECK(!f->past_limit || bytes <= COUNT_LIMIT, FM_ERROR_LIMIT, "fallback: needs at least %lld bytes, the limit is %lld",
             (long long)bytes, (long long)f->limit);
    return FM_OK;
}

/* Index of a block, which is added if it is new. */
static fm_status intern_block(fm_fallback *f, const uint64_t *words, int32_t *index) {
    if (2 * (f->block_count + 1) > f->table_size) {
        FM_TRY(rebuild_table(f, f->table_size > 0 ? 2 * f->table_size : 1024));
    }
    const uint64_t hash = hash_block(words);
    int64_t at = (int64_t)(hash & (uint64_t)(f->table_size - 1));
    for (; f->table[at] >= 0; at = (at + 1) & (f->table_size - 1)) {
        if (same_block(f, f->table[at], hash, words)) {
            *index = f->table[at];
            return FM_OK;
        }
    }
    FM_CHECK(f->block_count < INT32_MAX, FM_ERROR_LIMIT, "fallback: more than 2^31 - 1 different blocks");
    const int64_t block = f->block_count;
    FM_TRY(fm_grow("fallback hashes", block + 1, sizeof hash, (void **)&f->hashes, &f->hash_capacity));
    if (!f->past_limit && fm_fallback_bytes(f->shape, f->slots, block + 1) <= f->limit) {
        FM_TRY(fm_grow("fallback blocks", block + 1, FM_BLOCK_WORDS * sizeof *words, (void **)&f->blocks, &f->block_capacity));
        memcpy(f->blocks + block * FM_BLOCK_WORDS, words, FM_BLOCK_WORDS * sizeof *words);
    }
    f->hashes[block] = hash;
    f->table[at] = *index = (int32_t)f->block_count++;
    return check_limit(f);
}

static int64_t pairs_in(const uint64_t *words) {
    uint64_t pairs = 0;
    for (int i = 0; i < FM_BLOCK_WORDS; i++) { /* as sums of 2, 4 and 8 bits, which compilers turn into vectors */
        uint64_t x = words[i];
        x -= x >> 1 & UINT64_C(0x5555555555555555);
        x = (x & UINT64_C(0x3333333333333333)) + (x >> 2 & UINT64_C(0x3333333333333333));
        x = (x + (x >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
        pairs += x * UINT64_C(0x0101010101010101) >> 56;
    }
    return (int64_t)pairs;
}

/* Makes room for the index of one more stripe. */
static fm_status open_stripe(fm_fallback *f, int64_t plane, int64_t stripe) {
    const int64_t slot = f->slots;
    FM_CHECK(slot < INT32_MAX, FM_ERROR_LIMIT, "fallback: more than 2^31 - 1 stripes");
    FM_TRY(fm_grow("fallback stripes", slot + 1, sizeof *f->stripes, (void **)&f->stripes, &f->stripe_capacity));
    f->stripes[slot] = (fm_bitmap_stripe){plane, stripe, slot};
    f->slots++;
    FM_TRY(check_limit(f));
    if (f->past_limit) {
        return FM_OK;
    }
    return fm_grow("fallback index", f->slots * fm_ceil_divide(f->shape.rows, FM_STRIPE), sizeof *f->block_index,
                   (void **)&f->block_index, &f->index_capacity);
}

/* Files block r of the stripe opened last; words is read only where the block is partly visible. */
static fm_status file_block(fm_fallback *f, int64_t r, const uint64_t *words, int64_t pairs) {
    const int64_t row_blocks = fm_ceil_divide(f->shape.rows, FM_STRIPE), slot = f->slots - 1;
    const int64_t keys = fm_stripe_keys(f->shape.columns, f->stripes[slot].stripe);
    int32_t index = pairs == 0 ? FM_BLOCK_HIDDEN : FM_BLOCK_VISIBLE;
    if (pairs > 0 && pairs < fm_smaller(f->shape.rows - r * FM_STRIPE, FM_STRIPE) * keys) {
        FM_TRY(intern_block(f, words, &index));
    }
    if (!f->past_limit) {
        f->block_index[slot * row_blocks + r] = index;
    }
    f->visible_pairs += pairs;
    return FM_OK;
}

fm_status fm_fallback_add(fm_fallback *f, int64_t plane, int64_t stripe, const fm_stripe_blocks *s) {
    FM_TRY(open_stripe(f, plane, stripe));
    for (int64_t r = 0; r * FM_STRIPE < s->rows; r++) {
        const uint64_t *words = s->words + r * FM_BLOCK_WORDS;
        const int32_t kind = fm_stripe_kind(s, r);
        FM_TRY(file_block(f, r, words,
                          kind == FM_BLOCK_MIXED     ? pairs_in(words)
                          : kind == FM_BLOCK_VISIBLE ? fm_stripe_block_rows(s, r) * s->keys
                                                     : 0));
    }
    return FM_OK;
}

static int by_place(const void *a, const void *b) {
    const fm_bitmap_stripe *x = a, *y = b;
    if (x->plane != y->plane) {
        return x->plane < y->plane ? -1 : 1;
    }
    return x->stripe < y->stripe ? -1 : x->stripe > y->stripe;
}

/* Stripes that were added in order have their slots, and so their blocks, in order too. */
static bool is_in_order(const fm_fallback *f) {
    int64_t s = 1;
    while (s < f->slots && by_place(&f->stripes[s - 1], &f->stripes[s]) < 0) {
        s++;
    }
    return s >= f->slots;
}

/* Gives back the spare room that an array grew with. */
static void *trim(void *array, int64_t count, size_t element_bytes) {
    void *trimmed = realloc(array, count > 0 ? (size_t)count * element_bytes : 1);
    return trimmed != NULL ? trimmed : array;
}

/* Moves block i to place[i]; place is used up. */
static void permute_blocks(fm_fallback *f, int32_t *place) {
    uint64_t moving[FM_BLOCK_WORDS];
    for (int64_t i = 0; i < f->block_count; i++) {
        while (place[i] != i) {
            const int32_t to = place[i];
            uint64_t *here = f->blocks + i * FM_BLOCK_WORDS, *there = f->blocks + (int64_t)to * FM_BLOCK_WORDS;
            memcpy(moving, there, sizeof moving);
            memcpy(there, here, sizeof moving);
            memcpy(here, moving, sizeof moving);
            place[i] = place[to];
            place[to] = to;
        }
    }
}

/* Sorts the slots and numbers the blocks by first use in the sorted order. */
static fm_status put_in_order(fm_fallback *f) {
    const int64_t row_blocks = fm_ceil_divide(f->shape.rows, FM_STRIPE);
    int32_t *index = NULL, *place = NULL, used = 0;
    fm_status status;
    FM_TRY_DONE(fm_allocate("fallback index", f->slots * row_blocks, sizeof *index, (void **)&index));
    FM_TRY_DONE(fm_allocate("fallback block order", f->block_count, sizeof *place, (void **)&place));
    memset(place, 0xff, (size_t)f->block_count * sizeof *place);
    qsort(f->stripes, (size_t)f->slots, sizeof *f->stripes, by_place);
    for (int64_t s = 0; s < f->slots; s++) {
        if (s > 0 && by_place(&f->stripes[s - 1], &f->stripes[s]) == 0) {
            status = fm_fail(FM_ERROR_INTERNAL, "stripe %lld of plane %lld was written twice", (long long)f->stripes[s].stripe,
                             (long long)f->stripes[s].plane);
            goto done;
        }
        for (int64_t r = 0; r < row_blocks; r++) {
            const int32_t block = f->block_index[f->stripes[s].slot * row_blocks + r];
            if (block >= 0 && place[block] < 0) {
                place[block] = used++;
            }
            index[s * row_blocks + r] = block >= 0 ? place[block] : block;
        }
    }
    permute_blocks(f, place);
    free(f->block_index);
    f->block_index = index;
    index = NULL;
done:
    free(index);
    free(place);
    return status;
}

fm_status fm_fallback_finish(fm_fallback *f, int32_t **stripe_slot) {
    const int64_t stripes = fm_ceil_divide(f->shape.columns, FM_STRIPE), planes = f->shape.batch * f->shape.heads;
    FM_CHECK(!f->past_limit, FM_ERROR_LIMIT,
             "fallback: needs %lld bytes (%lld stripes of 128 keys, %lld different 128 x 128 blocks), the limit is %lld",
             (long long)fm_fallback_bytes(f->shape, f->slots, f->block_count), (long long)f->slots, (long long)f->block_count,
             (long long)f->limit);
    int32_t *slots;
    FM_TRY(fm_allocate("fallback stripes", planes * stripes, sizeof *slots, (void **)&slots));
    const fm_status status = is_in_order(f) ? FM_OK : put_in_order(f);
    if (status != FM_OK) {
        free(slots);
        return status;
    }
    f->blocks = trim(f->blocks, f->block_count, FM_BLOCK_WORDS * sizeof *f->blocks);
    f->block_index = trim(f->block_index, f->slots * fm_ceil_divide(f->shape.rows, FM_STRIPE), sizeof *f->block_index);
    memset(slots, 0xff, (size_t)(planes * stripes) * sizeof *slots);
    for (int64_t s = 0; s < f->slots; s++) {
        slots[f->stripes[s].plane * stripes + f->stripes[s].stripe] = (int32_t)s;
    }
    *stripe_slot = slots;
    return FM_OK;
}
