/* Masks in blocks: a block mask, and BigBird. */
#include "core/memory.h"
#include "core/random.h"
#include "mask/builders.h"

#include <stdlib.h>
#include <string.h>

static fm_status check_block(int64_t block) {
    FM_CHECK(block > 0 && block <= INT32_MAX && block % 16 == 0, FM_ERROR_ARGUMENT,
             "block: is %lld, needs a multiple of 16 in 16 .. 2^31 - 1", (long long)block);
    return FM_OK;
}

/* Blocks b0 .. b1 - 1 as rows or columns, cut to extent. */
static fm_interval block_span(int64_t b0, int64_t b1, int64_t block, int64_t extent) {
    return (fm_interval){(int32_t)fm_smaller(b0 * block, extent), (int32_t)fm_smaller(b1 * block, extent)};
}

/* Columns of blocks that are read together: `keep` lies row after row, and one column of it takes a byte of each cache line. */
enum { TOGETHER = 64 };

/* The visible rows of some neighbouring columns of blocks. */
typedef struct block_columns {
    int64_t rows, columns;   /* in blocks, of the whole mask */
    bool is_open[TOGETHER];  /* the column's last interval has not ended */
    int64_t count[TOGETHER]; /* intervals of the column that have */
    fm_interval *visible;    /* [TOGETHER or fewer, rows] */
} block_columns;

/* Intervals begin or end at `row`, the first of a row of blocks; keep NULL: past the last, where all end. */
static void add_block_row(block_columns *b, const uint8_t *keep, int64_t columns, int64_t row) {
    for (int64_t c = 0; c < columns; c++) {
        const bool is_kept = keep != NULL && keep[c] != 0;
        if (is_kept == b->is_open[c]) {
            continue;
        }
        b->is_open[c] = is_kept;
        if (is_kept) {
            b->visible[c * b->rows + b->count[c]].start = (int32_t)row;
        } else {
            b->visible[c * b->rows + b->count[c]++].end = (int32_t)row;
        }
    }
}

/* One head of a block mask, from its [block rows, block columns] of keep. */
static fm_status write_blocks(fm_mask_writer *writer, int64_t plane, int64_t block, const uint8_t *keep, block_columns *b) {
    const fm_mask_shape shape = writer->shape;
    for (int64_t c0 = 0; c0 < b->columns; c0 += TOGETHER) {
        const int64_t columns = fm_smaller(b->columns - c0, TOGETHER);
        memset(b->count, 0, sizeof b->count);
        for (int64_t r = 0; r < b->rows; r++) {
            add_block_row(b, keep + r * b->columns + c0, columns, r * block);
        }
        add_block_row(b, NULL, columns, shape.rows);
        for (int64_t c = 0; c < columns; c++) {
            const fm_interval keys = block_span(c0 + c, c0 + c + 1, block, shape.columns);
            FM_TRY(fm_mask_writer_columns(writer, plane / shape.heads, plane % shape.heads, keys.start, keys.end - keys.start,
                                          b->visible + c * b->rows, b->count[c]));
            if (keys.end % FM_STRIPE == 0) {
                FM_TRY(fm_mask_writer_flush(writer));
            }
        }
    }
    return FM_OK;
}

fm_status fm_mask_blocks(fm_mask_shape shape, int64_t block, const uint8_t *keep, const fm_mask_options *options, fm_mask **out) {
    fm_mask_writer writer;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_mask_shape_check(shape));
    FM_TRY(check_block(block));
    block_columns b = {.rows = fm_ceil_divide(shape.rows, block), .columns = fm_ceil_divide(shape.columns, block)};
    const int64_t blocks = b.rows * b.columns;
    FM_CHECK(blocks == 0 || keep != NULL, FM_ERROR_ARGUMENT, "keep: is NULL, needs %lld entries a head", (long long)blocks);
    FM_TRY(fm_mask_writer_open(&writer, shape, INT32_MAX, options));
    fm_status status;
    const int64_t together = fm_smaller(b.columns, TOGETHER);
    FM_TRY_DONE(fm_allocate("block rows", together * b.rows, sizeof *b.visible, (void **)&b.visible));
    for (int64_t plane = 0; blocks > 0 && plane < shape.batch * shape.heads; plane++) {
        FM_TRY_DONE(write_blocks(&writer, plane, block, keep + plane * blocks, &b));
    }
done:
    free(b.visible);
    return fm_builder_finish(&writer, status, out);
}

/* BigBird in units of blocks: row r of blocks has its diagonal at column r + shift. */
typedef struct bigbird {
    int64_t rows, columns, shift, global, window, random;
    uint64_t seed;
    uint8_t *taken;  /* [columns], scratch of a row's draw, zero in between */
    int32_t *drawn;  /* [columns], a row's draw */
    int64_t *first;  /* [columns + 1]: column c was drawn by row_of[first[c] .. first[c + 1]), ascending */
    int32_t *row_of; /* [draws] */
} bigbird;

/* Draws columns for one row among those that are neither global nor in its window (Floyd's method); returns how many. */
static int64_t draw_row(bigbird *b, int64_t row, uint64_t *state) {
    if (row < b->global || b->global >= b->columns) {
        return 0;
    }
    const int64_t low = fm_clamp(row + b->shift - b->window, b->global, b->columns);
    const int64_t high = fm_clamp(row + b->shift + b->window + 1, low, b->columns);
    const int64_t others = b->columns - b->global - (high - low), count = fm_clamp(b->random, 0, others);
    for (int64_t k = 0; k < count; k++) {
        const int64_t newest = others - count + k, any = fm_random_below(state, newest + 1);
        const int64_t pick = b->taken[any] ? newest : any;
        b->taken[pick] = 1;
        b->drawn[k] = (int32_t)pick;
    }
    for (int64_t k = 0; k < count; k++) {
        const int64_t column = b->global + b->drawn[k];
        b->taken[b->drawn[k]] = 0;
        b->drawn[k] = (int32_t)(column < low ? column : column + high - low);
    }
    return count;
}

/* Every row draws twice, the second time to file its columns where the first has counted them. */
static fm_status draw_rows(bigbird *b) {
    FM_TRY(fm_allocate("bigbird", b->columns, sizeof *b->taken, (void **)&b->taken));
    FM_TRY(fm_allocate("bigbird", b->columns, sizeof *b->drawn, (void **)&b->drawn));
    FM_TRY(fm_allocate("bigbird", b->columns + 1, sizeof *b->first, (void **)&b->first));
    uint64_t state = b->seed;
    int64_t draws = 0;
    for (int64_t r = 0; r < b->rows; r++) {
        const int64_t count = draw_row(b, r, &state);
        for (int64_t k = 0; k < count; k++) {
            b->first[b->drawn[k]]++;
        }
        draws += count;
    }
    FM_TRY(fm_allocate("bigbird", draws, sizeof *b->row_of, (void **)&b->row_of));
    for (int64_t c = 0, at = 0; c <= b->columns; c++) { /* counts become ends, which the second pass moves to the firsts */
        at += b->first[c];
        b->first[c] = at;
    }
    state = b->seed;
    for (int64_t r = 0; r < b->rows; r++) {
        const int64_t count = draw_row(b, r, &state);
        for (int64_t k = 0; k < count; k++) {
            b->row_of[--b->first[b->drawn[k]]] = (int32_t)r;
        }
    }
    return FM_OK;
}

static fm_status write_bigbird(fm_mask_writer *writer, const bigbird *b, int64_t block, fm_interval *visible) {
    const int64_t Sq = writer->shape.rows, Sk = writer->shape.columns;
    for (int64_t c = 0; c < b->columns; c++) {
        const int64_t centre = c - b->shift;
        const fm_interval keys = block_span(c, c + 1, block, Sk);
        int64_t count = 0;
        visible[count++] = block_span(0, c < b->global ? b->rows : fm_clamp(b->global, 0, b->rows), block, Sq);
        visible[count++] =
            block_span(fm_clamp(centre - b->window, 0, b->rows), fm_clamp(centre + b->window + 1, 0, b->rows), block, Sq);
        for (int64_t k = b->first[c + 1]; k > b->first[c]; k--) { /* filed backwards: ascending rows for the writer's sort */
            visible[count++] = block_span(b->row_of[k - 1], b->row_of[k - 1] + 1, block, Sq);
        }
        FM_TRY(fm_mask_writer_columns(writer, 0, 0, keys.start, keys.end - keys.start, visible, count));
        if (keys.end % FM_STRIPE == 0) {
            FM_TRY(fm_mask_writer_flush(writer));
        }
    }
    return FM_OK;
}

static void free_bigbird(bigbird *b) {
    free(b->taken);
    free(b->drawn);
    free(b->first);
    free(b->row_of);
}

fm_status fm_mask_bigbird(int64_t Sq, int64_t Sk, int64_t block, int64_t global, int64_t window, int64_t random, uint64_t seed,
                          const fm_mask_options *options, fm_mask **out) {
    fm_mask_writer writer = {0};
    fm_interval *visible = NULL;
    bigbird b = {.seed = seed};
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_extent("Sq", Sq));
    FM_TRY(fm_check_extent("Sk", Sk));
    FM_TRY(check_block(block));
    FM_TRY(fm_check_reach("global", global, &b.global));
    FM_TRY(fm_check_reach("window", window, &b.window));
    FM_TRY(fm_check_reach("random", random, &b.random));
    b.rows = fm_ceil_divide(Sq, block);
    b.columns = fm_ceil_divide(Sk, block);
    b.shift = b.columns - b.rows;
    FM_TRY(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, Sq, Sk}, INT32_MAX, options));
    fm_status status;
    FM_TRY_DONE(draw_rows(&b));
    FM_TRY_DONE(fm_allocate("block rows", b.rows + 2, sizeof *visible, (void **)&visible));
    FM_TRY_DONE(write_bigbird(&writer, &b, block, visible));
done:
    free(visible);
    free_bigbird(&b);
    return fm_builder_finish(&writer, status, out);
}
