/* flashmask show: what a mask holds and how its tiles fall. */
#include "commands.h"
#include "image.h"
#include "json_out.h"
#include "output_files.h"

#include <inttypes.h>
#include <math.h>

enum { COMMON_TILE = 128, DEFAULT_WIDTH = 64 };

typedef struct report {
    const fm_options *options;
    fm_mask *mask;
    fm_mask_shape shape;
    fm_plan *plan, *common_plan; /* common_plan: 128x128 tiles; NULL where plan's are */
    fm_plan_stats stats, common;
    fm_picture picture; /* cells NULL: not wanted */
} report;

static void free_report(report *r) {
    fm_picture_free(&r->picture);
    fm_plan_free(r->plan);
    fm_plan_free(r->common_plan);
    fm_mask_free(r->mask);
}

static bool make_plan(const fm_mask *mask, int32_t block_m, int32_t block_n, fm_plan **plan, fm_plan_stats *stats) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.block_m = block_m;
    options.block_n = block_n;
    *stats = (fm_plan_stats)FM_PLAN_STATS_INIT;
    return fm_cli_ok(fm_plan_create(mask, &options, plan), "--tile") && fm_cli_ok(fm_plan_get_stats(*plan, stats), "--tile");
}

static bool is_common(const fm_plan_stats *stats) { return stats->block_m == COMMON_TILE && stats->block_n == COMMON_TILE; }

static bool make_picture(report *r) {
    const int64_t width = r->options->width >= 0 ? r->options->width : DEFAULT_WIDTH;
    if (r->options->json || width == 0 || r->stats.tiles == 0) {
        return true;
    }
    /* A character is about twice as high as wide. */
    const fm_picture_request request = {.plan = r->plan, .rows = (width + 1) / 2, .columns = width};
    return fm_picture_make(r->mask, &request, &r->picture);
}

static bool save_images(const report *r, const fm_picture *picture) {
    const char *paths[] = {r->options->png, r->options->svg}, *temporary = NULL;
    char title[512];
    fm_output_files files = {0};
    snprintf(title, sizeof title, "%.440s%s", fm_options_mask_name(r->options),
             r->shape.batch * r->shape.heads > 1 ? ", batch item 0, head 0" : "");
    const fm_image image = {title, r->shape, r->stats, picture};
    bool ok = true;
    for (int i = 0; ok && i < 2; i++) {
        ok = paths[i] == NULL || (fm_output_files_add(&files, paths[i], &temporary) &&
                                  (i == 0 ? fm_image_save_png(temporary, &image) : fm_image_save_svg(temporary, &image)));
    }
    ok = ok && fm_output_files_commit(&files);
    fm_output_files_free(&files);
    return ok;
}

static bool make_images(const report *r) {
    const fm_picture_request request = {.plan = r->plan, .rows = FM_IMAGE_CELLS, .columns = FM_IMAGE_CELLS};
    fm_picture picture = {0};
    if (r->options->png == NULL && r->options->svg == NULL) {
        return true;
    }
    if (r->stats.tiles == 0) {
        return fm_cli_fail("--%s: the mask has no pairs, nothing to draw", r->options->png != NULL ? "png" : "svg");
    }
    const bool ok = fm_picture_make(r->mask, &request, &picture) && save_images(r, &picture);
    fm_picture_free(&picture);
    return ok;
}

static bool make_report(const fm_options *options, report *r) {
    r->options = options;
    if (!fm_options_mask(options, &r->mask) || !make_plan(r->mask, options->tile_m, options->tile_n, &r->plan, &r->stats)) {
        return false;
    }
    r->shape = fm_mask_get_shape(r->mask);
    if (!is_common(&r->stats) && !make_plan(r->mask, COMMON_TILE, COMMON_TILE, &r->common_plan, &r->common)) {
        return false;
    }
    return make_picture(r);
}

/* ---- text ---------------------------------------------------------------------------------------------------------- */

static void print_tiles(const char *label, const fm_plan_stats *s) {
    fm_number_buffer a, b, c, d, e;
    printf("%-9s %" PRId32 "x%" PRId32 ": %s tile%s, %s skipped, %s full, %s partial; efficiency %.1f%%; plan %s\n", label,
           s->block_m, s->block_n, fm_number_text(s->tiles, &a), s->tiles == 1 ? "" : "s", fm_number_text(s->skipped, &b),
           fm_number_text(s->full, &c), fm_number_text(s->partial, &d), 100 * s->tile_efficiency,
           fm_bytes_text(s->plan_bytes, &e));
}

static void print_storage(const report *r) {
    fm_number_buffer a, b;
    const int32_t intervals = fm_mask_interval_count(r->mask);
    const int64_t vector = 4 * r->shape.columns * r->shape.batch * r->shape.heads;
    printf("mask      %s bytes: up to %" PRId32 " interval%s a key", fm_number_text(r->stats.mask_bytes, &a), intervals,
           intervals == 1 ? "" : "s");
    if (intervals > 0) {
        printf(", %" PRId32 " vectors of %s bytes", 2 * intervals, fm_number_text(vector, &b));
    }
    if (fm_mask_has_fallback(r->mask)) {
        printf(", bitmaps of %s", fm_bytes_text(fm_mask_fallback_bytes(r->mask), &b));
    }
    printf("\ndense     %s, a byte a pair", fm_bytes_text(r->stats.dense_bytes, &a));
    if (r->stats.mask_bytes > 0) {
        const double times = (double)r->stats.dense_bytes / (double)r->stats.mask_bytes;
        if (times < 100) {
            printf(": %.3g times as much", times);
        } else {
            printf(": %s times as much", fm_number_text(llround(times), &b));
        }
    }
    printf("\n");
}

static void print_text(const report *r) {
    fm_number_buffer a, b;
    const fm_mask_shape s = r->shape;
    printf("spec      %s\n", fm_options_mask_name(r->options));
    printf("shape     batch %" PRId64 ", heads %" PRId64 ", rows %s, keys %s\n", s.batch, s.heads, fm_number_text(s.rows, &a),
           fm_number_text(s.columns, &b));
    printf("visible   %s of %s pairs, density %.4g\n", fm_number_text(r->stats.visible_pairs, &a),
           fm_number_text(r->stats.dense_bytes, &b), r->stats.density);
    print_storage(r);
    print_tiles("tiles", &r->stats);
    if (r->common_plan != NULL) {
        print_tiles("", &r->common);
    }
    if (r->picture.cells != NULL) {
        printf("\n");
        fm_picture_print(stdout, &r->picture);
        if (s.batch * s.heads > 1) {
            printf("shown: batch item 0, head 0\n");
        }
    }
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------- */

static json_t *tiles_json(const fm_plan_stats *s) {
    return json_pack("{si si sI sI sI sI sf sI}", "block_m", s->block_m, "block_n", s->block_n, "tiles", (json_int_t)s->tiles,
                     "skipped", (json_int_t)s->skipped, "full", (json_int_t)s->full, "partial", (json_int_t)s->partial,
                     "efficiency", s->tile_efficiency, "plan_bytes", (json_int_t)s->plan_bytes);
}

static json_t *make_json(const report *r) {
    const fm_mask_shape s = r->shape;
    json_t *tiles = r->common_plan != NULL ? json_pack("[o o]", tiles_json(&r->stats), tiles_json(&r->common))
                                           : json_pack("[o]", tiles_json(&r->stats));
    return json_pack("{ss sI sI sI sI si sI sI sI sI sf so}", "mask", fm_options_mask_name(r->options), "batch",
                     (json_int_t)s.batch, "heads", (json_int_t)s.heads, "rows", (json_int_t)s.rows, "keys", (json_int_t)s.columns,
                     "intervals", (int)fm_mask_interval_count(r->mask), "mask_bytes", (json_int_t)r->stats.mask_bytes,
                     "fallback_bytes", (json_int_t)fm_mask_fallback_bytes(r->mask), "dense_bytes",
                     (json_int_t)r->stats.dense_bytes, "visible_pairs", (json_int_t)r->stats.visible_pairs, "density",
                     r->stats.density, "tiles", tiles);
}

/* The object is made before images are written: if it cannot be made, nothing is left behind. */
static bool print_and_save(const report *r) {
    json_t *json = NULL;
    if (r->options->json && (json = make_json(r)) == NULL) {
        return fm_json_print(NULL);
    }
    if (!make_images(r)) {
        json_decref(json);
        return false;
    }
    if (json != NULL) {
        return fm_json_print(json);
    }
    print_text(r);
    return true;
}

fm_exit fm_command_show(const fm_options *options) {
    report r = {0};
    const bool ok = make_report(options, &r) && print_and_save(&r);
    free_report(&r);
    return ok ? FM_EXIT_OK : FM_EXIT_BAD;
}
