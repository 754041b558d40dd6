/* Masks from hostile vectors: accepted or refused exactly as the header says, equal to their definition pair by pair, and
 * planned into tiles of the right class. */
#include <flashmask/flashmask.h>

#include "fuzz_data.h"

#include <string.h>

enum { MOST_ROWS = 200, MOST_COLUMNS = 200, MOST_PLANES = 4 };

typedef enum form { STARTEND, FMS_FME, INTERVALS, FORMS } form;

typedef struct input {
    form form;
    fm_mask_shape shape;
    int32_t count; /* vectors or intervals */
    bool causal;
    int32_t first[MOST_PLANES * MOST_COLUMNS * FM_MAX_INTERVALS];
    int32_t last[MOST_PLANES * MOST_COLUMNS * FM_MAX_INTERVALS];
} input;

static void read_input(fuzz_data *data, input *in) {
    in->form = (form)fuzz_integer(data, 0, FORMS - 1);
    in->count = fuzz_integer(data, 0, FM_MAX_INTERVALS);
    in->causal = fuzz_byte(data) & 1;
    in->shape = (fm_mask_shape){fuzz_integer(data, 1, 2), fuzz_integer(data, 1, 2), fuzz_integer(data, 0, MOST_ROWS),
                                fuzz_integer(data, 0, MOST_COLUMNS)};
    const int64_t values = in->shape.batch * in->shape.heads * in->shape.columns * in->count;
    for (int64_t i = 0; i < values; i++) {
        in->first[i] = fuzz_bound(data, (int32_t)in->shape.rows);
        in->last[i] = in->form == STARTEND ? 0 : fuzz_bound(data, (int32_t)in->shape.rows);
    }
}

static fm_status make_mask(const input *in, fm_mask **out) {
    if (in->form == STARTEND) {
        return fm_mask_from_startend_row_indices(in->shape, in->count, in->causal, in->first, out);
    }
    if (in->form == FMS_FME) {
        return fm_mask_from_fms_fme(in->shape, in->count, in->first, in->last, out);
    }
    const int64_t values = in->shape.batch * in->shape.heads * in->shape.columns * in->count;
    fm_interval *v = malloc((size_t)values * sizeof *v + 1);
    FUZZ_REQUIRE(v != NULL);
    for (int64_t i = 0; i < values; i++) {
        v[i] = (fm_interval){in->first[i], in->last[i]};
    }
    const fm_status status = fm_mask_from_intervals(in->shape, in->count, v, out);
    free(v);
    return status;
}

static bool is_valid(const input *in) {
    if (in->form == STARTEND) {
        return in->causal ? in->count == 1 || in->count == 2 : in->count == 2 || in->count == 4;
    }
    if (in->form == FMS_FME) {
        return in->count >= 1;
    }
    const int64_t values = in->shape.batch * in->shape.heads * in->shape.columns * in->count;
    for (int64_t i = 0; i < values; i++) {
        if (in->first[i] < 0 || in->first[i] > in->last[i] || in->last[i] > in->shape.rows) {
            return false;
        }
    }
    return true;
}

/* Element c of column j: [plane, Sk, C] for startend_row_indices, [plane, C, Sk] for the others. */
static int64_t element(const input *in, int64_t plane, int64_t j, int32_t c) {
    return in->form == STARTEND ? (plane * in->shape.columns + j) * in->count + c
                                : (plane * in->count + c) * in->shape.columns + j;
}

static bool startend_visible(const input *in, int64_t plane, int64_t i, int64_t j) {
    const int32_t *v = in->first + element(in, plane, j, 0);
    if (in->causal) {
        return j <= i + in->shape.columns - in->shape.rows && !(i >= v[0] && (in->count == 1 || i < v[1]));
    }
    if (in->count == 2) {
        return i < v[0] && i >= v[1];
    }
    return !(i >= v[0] && i < v[1]) && !(i >= v[2] && i < v[3]);
}

static bool visible(const input *in, int64_t plane, int64_t i, int64_t j) {
    if (in->form == STARTEND) {
        return startend_visible(in, plane, i, j);
    }
    for (int32_t c = 0; c < in->count; c++) {
        const int64_t e = element(in, plane, j, c);
        const int64_t end = in->form == FMS_FME ? (int64_t)in->last[e] + 1 : in->last[e];
        if (i >= in->first[e] && i < end) {
            return true;
        }
    }
    return false;
}

/* The mask pair by pair against the definition; leaves it in dense. */
static void check_pairs(const input *in, const fm_mask *mask, uint8_t *dense, int64_t capacity) {
    const int64_t planes = in->shape.batch * in->shape.heads;
    int64_t pairs = 0, counted = -1;
    FUZZ_REQUIRE(fm_mask_to_dense(mask, dense, capacity) == FM_OK);
    for (int64_t plane = 0; plane < planes; plane++) {
        for (int64_t i = 0; i < in->shape.rows; i++) {
            for (int64_t j = 0; j < in->shape.columns; j++) {
                const bool seen = dense[(plane * in->shape.rows + i) * in->shape.columns + j] != 0;
                FUZZ_REQUIRE(seen == visible(in, plane, i, j));
                pairs += seen;
            }
        }
    }
    FUZZ_REQUIRE(fm_mask_visible_pairs(mask, &counted) == FM_OK && counted == pairs);
}

static void check_round_trip(const input *in, const fm_mask *mask) {
    const int32_t intervals = fm_mask_interval_count(mask);
    const int64_t values = in->shape.batch * in->shape.heads * in->shape.columns * intervals;
    fm_interval *v = malloc((size_t)values * sizeof *v + 1);
    fm_mask *again = NULL;
    FUZZ_REQUIRE(v != NULL && fm_mask_to_intervals(mask, intervals, v, values) == FM_OK);
    FUZZ_REQUIRE(fm_mask_from_intervals(in->shape, intervals, v, &again) == FM_OK);
    FUZZ_REQUIRE(fm_mask_equal(mask, again) && fm_mask_hash(mask) == fm_mask_hash(again));
    fm_mask_free(again);
    free(v);
}

/* Class of one tile by looking at every pair. A tile cut by the last column is never full. */
static fm_tile_class class_of(const input *in, const uint8_t *dense, const fm_plan_stats *s, int64_t row0, int64_t column0) {
    bool any = false, all = column0 + s->block_n <= in->shape.columns;
    for (int64_t i = row0; i < row0 + s->block_m && i < in->shape.rows; i++) {
        for (int64_t j = column0; j < column0 + s->block_n && j < in->shape.columns; j++) {
            const bool seen = dense[i * in->shape.columns + j] != 0;
            any = any || seen;
            all = all && seen;
        }
    }
    return !any ? FM_TILE_SKIPPED : all ? FM_TILE_FULL : FM_TILE_PARTIAL;
}

static void check_tile_row(const input *in, const uint8_t *plane, const fm_plan_stats *s, int64_t tile_row,
                           const fm_tile_run *runs, int64_t count) {
    const int64_t tiles = (in->shape.columns + s->block_n - 1) / s->block_n;
    int64_t run = 0;
    for (int64_t tile = 0; tile < tiles; tile++) {
        while (run < count && tile >= runs[run].first + runs[run].count) {
            run++;
        }
        const bool inside = run < count && tile >= runs[run].first;
        const fm_tile_class kind = inside ? runs[run].kind : FM_TILE_SKIPPED;
        FUZZ_REQUIRE(kind == class_of(in, plane, s, tile_row * s->block_m, tile * s->block_n));
    }
}

static void check_plan(fuzz_data *data, const input *in, const fm_mask *mask, const uint8_t *dense) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.block_m = fuzz_integer(data, 1, MOST_ROWS);
    options.block_n = fuzz_integer(data, 1, MOST_COLUMNS);
    fm_plan *plan = NULL;
    fm_plan_stats s = FM_PLAN_STATS_INIT;
    FUZZ_REQUIRE(fm_plan_create(mask, &options, &plan) == FM_OK && fm_plan_get_stats(plan, &s) == FM_OK);
    FUZZ_REQUIRE(s.full + s.partial + s.skipped == s.tiles);
    const int64_t tile_rows = (in->shape.rows + s.block_m - 1) / s.block_m, planes = in->shape.batch * in->shape.heads;
    for (int64_t line = 0; line < planes * tile_rows; line++) {
        const int64_t plane = line / tile_rows;
        const fm_tile_run *runs = NULL;
        int64_t count = -1;
        FUZZ_REQUIRE(fm_plan_row_runs(plan, plane / in->shape.heads, plane % in->shape.heads, line % tile_rows, &runs, &count) ==
                     FM_OK);
        check_tile_row(in, dense + plane * in->shape.rows * in->shape.columns, &s, line % tile_rows, runs, count);
    }
    fm_plan_free(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static input in;
    static uint8_t dense[MOST_PLANES * MOST_ROWS * MOST_COLUMNS];
    fuzz_data data = {bytes, size};
    fm_mask *mask = NULL;
    read_input(&data, &in);
    const fm_status status = make_mask(&in, &mask);
    FUZZ_REQUIRE((status == FM_OK) == is_valid(&in));
    if (status != FM_OK) {
        FUZZ_REQUIRE(status == FM_ERROR_ARGUMENT && mask == NULL && strlen(fm_error_message()) > 0);
        return 0;
    }
    check_pairs(&in, mask, dense, (int64_t)sizeof dense);
    check_round_trip(&in, mask);
    check_plan(&data, &in, mask, dense);
    fm_mask_free(mask);
    return 0;
}
