#include "image.h"

#include <errno.h>
#include <inttypes.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

enum { PNG_SIDE = 1024, LEAST_TILE = 8, GRID = FM_CELL_KINDS, FRAME, COLORS };

/* Blue: full tiles. Orange: partial ones, the darker the more of a cell is visible. Told apart with any colour vision. */
static const unsigned char colors[COLORS][3] = {
    [FM_CELL_SKIPPED] = {247, 248, 250},
    [FM_CELL_HIDDEN] = {253, 232, 206},
    [FM_CELL_PARTLY] = {244, 177, 96},
    [FM_CELL_VISIBLE] = {217, 119, 6},
    [FM_CELL_FULL] = {29, 100, 171},
    [GRID] = {203, 208, 216},
    [FRAME] = {71, 80, 94},
};

static bool finish(FILE *file, const char *path, bool ok) {
    int reason = errno;
    if (fclose(file) != 0 && ok) {
        reason = errno;
        ok = false;
    }
    return ok || fm_cli_fail("%s: cannot be written: %s", path, strerror(reason));
}

static FILE *open_file(const char *path) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        fm_cli_fail("%s: %s", path, strerror(errno));
    }
    return file;
}

/* ---- PNG ----------------------------------------------------------------------------------------------------------- */

/* A frame of one pixel around cells of scale x scale pixels. A tile's first pixel row and column are its grid lines. */
typedef struct canvas {
    const fm_picture *picture;
    int64_t scale, width, height;
    int64_t tile_height, tile_width; /* pixels between grid lines; 0: none */
} canvas;

/* Pixels of a tile, or 0 where cells hold several tiles or lines would crowd. */
static int64_t tile_pixels(int64_t block, int64_t cell, int64_t scale) {
    return block >= cell && block / cell * scale >= LEAST_TILE ? block / cell * scale : 0;
}

static canvas make_canvas(const fm_image *image) {
    const fm_picture *p = image->picture;
    const int64_t longer = p->rows > p->columns ? p->rows : p->columns;
    canvas c = {.picture = p, .scale = longer < PNG_SIDE ? PNG_SIDE / longer : 1};
    c.width = p->columns * c.scale + 2;
    c.height = p->rows * c.scale + 2;
    c.tile_height = tile_pixels(image->stats.block_m, p->cell_rows, c.scale);
    c.tile_width = tile_pixels(image->stats.block_n, p->cell_columns, c.scale);
    return c;
}

static void fill_line(const canvas *c, int64_t y, unsigned char *line) {
    const bool edge = y == 0 || y == c->height - 1;
    const bool grid = !edge && y > 1 && c->tile_height > 0 && (y - 1) % c->tile_height == 0;
    for (int64_t x = 0; x < c->width; x++) {
        if (edge || x == 0 || x == c->width - 1) {
            line[x] = FRAME;
        } else if (grid || (x > 1 && c->tile_width > 0 && (x - 1) % c->tile_width == 0)) {
            line[x] = GRID;
        } else {
            line[x] = c->picture->cells[(y - 1) / c->scale * c->picture->columns + (x - 1) / c->scale];
        }
    }
}

static void fill_palette(png_color palette[COLORS]) {
    for (int i = 0; i < COLORS; i++) {
        palette[i] = (png_color){colors[i][0], colors[i][1], colors[i][2]};
    }
}

/* libpng reports errors by longjmp to here; nothing that it could skip over is owned by this function. */
static bool write_png(png_structp png, png_infop info, FILE *file, const canvas *c, unsigned char *line) {
    png_color palette[COLORS];
    if (setjmp(png_jmpbuf(png)) != 0) {
        return false;
    }
    fill_palette(palette);
    png_init_io(png, file);
    png_set_IHDR(png, info, (png_uint_32)c->width, (png_uint_32)c->height, 8, PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_PLTE(png, info, palette, COLORS);
    png_write_info(png, info);
    for (int64_t y = 0; y < c->height; y++) {
        fill_line(c, y, line);
        png_write_row(png, line);
    }
    png_write_end(png, NULL);
    return true;
}

static void ignore_warning(png_structp png, png_const_charp text) {
    (void)png;
    (void)text;
}

static void leave(png_structp png, png_const_charp text) {
    (void)text;
    png_longjmp(png, 1);
}

bool fm_image_save_png(const char *path, const fm_image *image) {
    const canvas c = make_canvas(image);
    unsigned char *line = fm_cli_allocate(c.width, 1);
    FILE *file = line != NULL ? open_file(path) : NULL;
    if (file == NULL) {
        free(line);
        return false;
    }
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, leave, ignore_warning);
    png_infop info = png != NULL ? png_create_info_struct(png) : NULL;
    const bool ok = info != NULL && write_png(png, info, file, &c, line);
    png_destroy_write_struct(&png, &info);
    free(line);
    return finish(file, path, ok);
}

/* ---- SVG ----------------------------------------------------------------------------------------------------------- */

enum {
    PLOT = 640,
    LEFT = 84,
    TOP = 84,
    LEGEND = 28,
    LEGEND_WIDTH = 250,
    BOTTOM = 24,
    TEXT_SIZE = 13,
    LEAST_HEIGHT = 250,
    TITLE_CHARACTER = 10
};

typedef struct plot {
    FILE *file;
    const fm_image *image;
    double width, height; /* of the cells, in SVG units */
} plot;

/* Bytes of the UTF-8 character at text, 0 if it is none that XML takes (RFC 3629; XML 1.0, section 2.2). */
static int character_bytes(const char *text) {
    const unsigned char *b = (const unsigned char *)text;
    const int bytes = b[0] < 0x80 ? 1 : b[0] < 0xc2 ? 0 : b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : b[0] < 0xf5 ? 4 : 0;
    uint32_t code = bytes == 1 ? b[0] : b[0] & (0x7fu >> bytes);
    for (int i = 1; i < bytes; i++) {
        if ((b[i] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (b[i] & 0x3fu);
    }
    const bool is_shortest = code >= (bytes == 4 ? 0x10000u : bytes == 3 ? 0x800u : 0x20u);
    return is_shortest && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) && code != 0xfffe && code != 0xffff ? bytes : 0;
}

/* Cut, with dots, where it would be wider than the picture. What is no character becomes a question mark. */
static void print_title(FILE *file, const char *text, int most) {
    for (int i = 0; *text != '\0'; i++) {
        if (i == most) {
            fputs("...", file);
            return;
        }
        const int bytes = character_bytes(text);
        switch (bytes > 0 ? *text : '?') {
        case '&': fputs("&amp;", file); break;
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        case '?': fputc('?', file); break;
        default: fwrite(text, 1, (size_t)bytes, file);
        }
        text += bytes > 0 ? bytes : 1;
    }
}

static void print_color(FILE *file, int color) {
    fprintf(file, "#%02x%02x%02x", colors[color][0], colors[color][1], colors[color][2]);
}

/* All cells of one kind as one path: rectangles one cell high, in units of cells. */
static void print_cells(const plot *p, fm_cell kind) {
    const fm_picture *cells = p->image->picture;
    bool any = false;
    for (int64_t r = 0; r < cells->rows; r++) {
        const unsigned char *row = cells->cells + r * cells->columns;
        for (int64_t c = 0, end = 0; c < cells->columns; c = end) {
            for (end = c + 1; end < cells->columns && row[end] == row[c];) {
                end++;
            }
            if (row[c] != kind) {
                continue;
            }
            if (!any) {
                fputs("<path fill=\"", p->file);
                print_color(p->file, (int)kind);
                fputs("\" d=\"", p->file);
            }
            any = true;
            fprintf(p->file, "M%" PRId64 " %" PRId64 "h%" PRId64 "v1h-%" PRId64 "z", c, r, end - c, end - c);
        }
    }
    fputs(any ? "\"/>\n" : "", p->file);
}

static void print_grid(const plot *p) {
    const fm_picture *cells = p->image->picture;
    const double down = p->height / (double)(cells->rows * cells->cell_rows) * p->image->stats.block_m;
    const double across = p->width / (double)(cells->columns * cells->cell_columns) * p->image->stats.block_n;
    fputs("<path fill=\"none\" stroke-opacity=\"0.75\" stroke-width=\"0.75\" stroke=\"", p->file);
    print_color(p->file, GRID);
    fprintf(p->file, "\" d=\"M%d %d", LEFT, TOP);
    for (int64_t i = 1; down >= LEAST_TILE && (double)i * down < p->height - 0.5; i++) {
        fprintf(p->file, "M%d %.2fh%.2f", LEFT, TOP + (double)i * down, p->width);
    }
    for (int64_t i = 1; across >= LEAST_TILE && (double)i * across < p->width - 0.5; i++) {
        fprintf(p->file, "M%.2f %dv%.2f", LEFT + (double)i * across, TOP, p->height);
    }
    fputs("\"/>\n", p->file);
}

/* A power of two that gives at most eight steps. */
static int64_t tick_step(int64_t extent) {
    int64_t step = 1;
    while (step * 8 < extent) {
        step *= 2;
    }
    return step;
}

static void print_ticks(const plot *p, bool keys) {
    const fm_picture *cells = p->image->picture;
    const int64_t extent = keys ? p->image->shape.columns : p->image->shape.rows, step = tick_step(extent);
    const double covered = (double)(keys ? cells->columns * cells->cell_columns : cells->rows * cells->cell_rows);
    const double unit = (keys ? p->width : p->height) / covered;
    for (int64_t value = 0; value <= extent; value += step) {
        const double at = (double)value * unit;
        if (keys) {
            fprintf(p->file, "<path d=\"M%.2f %dv-5\"/><text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%" PRId64 "</text>\n",
                    LEFT + at, TOP, LEFT + at, TOP - 9, value);
        } else {
            fprintf(p->file, "<path d=\"M%d %.2fh-5\"/><text x=\"%d\" y=\"%.2f\" text-anchor=\"end\">%" PRId64 "</text>\n", LEFT,
                    TOP + at, LEFT - 9, TOP + at + 4, value);
        }
    }
}

static void print_axes(const plot *p) {
    fputs("<g stroke=\"", p->file);
    print_color(p->file, FRAME);
    fprintf(p->file, "\" fill=\"none\"><rect x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%.2f\"/></g>\n", LEFT, TOP, p->width,
            p->height);
    fputs("<g font-size=\"11\" class=\"ticks\">\n", p->file);
    print_ticks(p, true);
    print_ticks(p, false);
    fprintf(p->file, "</g>\n<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">keys</text>\n", LEFT + p->width / 2, TOP - 30);
    fprintf(p->file, "<text transform=\"translate(%d %.2f) rotate(-90)\" text-anchor=\"middle\">query rows</text>\n", 20,
            TOP + p->height / 2);
}

static const char *const labels[FM_CELL_KINDS] = {
    [FM_CELL_SKIPPED] = "skipped tiles",    [FM_CELL_HIDDEN] = "partial: hidden", [FM_CELL_PARTLY] = "partial: partly visible",
    [FM_CELL_VISIBLE] = "partial: visible", [FM_CELL_FULL] = "full tiles",
};

static void print_legend(const plot *p) {
    static const fm_cell order[FM_CELL_KINDS] = {FM_CELL_FULL, FM_CELL_VISIBLE, FM_CELL_PARTLY, FM_CELL_HIDDEN, FM_CELL_SKIPPED};
    const fm_plan_stats *s = &p->image->stats;
    const double x = LEFT + p->width + LEGEND;
    double y = TOP;
    for (int i = 0; i < FM_CELL_KINDS; i++, y += 24) {
        fprintf(p->file, "<rect x=\"%.2f\" y=\"%.2f\" width=\"16\" height=\"16\" stroke=\"#47505e\" stroke-width=\"0.5\" fill=\"",
                x, y);
        print_color(p->file, (int)order[i]);
        fprintf(p->file, "\"/><text x=\"%.2f\" y=\"%.2f\">%s</text>\n", x + 26, y + 12.5, labels[order[i]]);
    }
    y += 24;
    const char *const format = "<text x=\"%.2f\" y=\"%.2f\">%s %" PRId64 " (%.1f%%)</text>\n";
    const double all = s->tiles > 0 ? 0.01 * (double)s->tiles : 1;
    fprintf(p->file, "<text x=\"%.2f\" y=\"%.2f\">%" PRId64 " tiles of %" PRId32 " x %" PRId32 "</text>\n", x, y, s->tiles,
            s->block_m, s->block_n);
    fprintf(p->file, format, x, y + 20, "full", s->full, (double)s->full / all);
    fprintf(p->file, format, x, y + 40, "partial", s->partial, (double)s->partial / all);
    fprintf(p->file, format, x, y + 60, "skipped", s->skipped, (double)s->skipped / all);
    fprintf(p->file, "<text x=\"%.2f\" y=\"%.2f\">tile efficiency %.1f%%</text>\n", x, y + 84, 100 * s->tile_efficiency);
    fprintf(p->file, "<text x=\"%.2f\" y=\"%.2f\">visible pairs %.2f%%</text>\n", x, y + 104, 100 * s->density);
}

static void print_svg(const plot *p) {
    const fm_picture *cells = p->image->picture;
    const double height = p->height < LEAST_HEIGHT ? LEAST_HEIGHT : p->height;
    fprintf(p->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
            "font-size=\"%d\" fill=\"#1f2733\">\n<style>.ticks path { stroke: #47505e; fill: none; }</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            LEFT + p->width + LEGEND + LEGEND_WIDTH, TOP + height + BOTTOM, TEXT_SIZE);
    fprintf(p->file, "<text x=\"%d\" y=\"26\" font-size=\"16\" font-weight=\"bold\">", LEFT);
    print_title(p->file, p->image->title, (int)((p->width + LEGEND + LEGEND_WIDTH) / TITLE_CHARACTER));
    fprintf(p->file, "</text>\n<g shape-rendering=\"crispEdges\" transform=\"translate(%d %d) scale(%.6f %.6f)\">\n", LEFT, TOP,
            p->width / (double)cells->columns, p->height / (double)cells->rows);
    for (int kind = 0; kind < FM_CELL_KINDS; kind++) {
        print_cells(p, (fm_cell)kind);
    }
    fputs("</g>\n", p->file);
    print_grid(p);
    print_axes(p);
    print_legend(p);
    fputs("</svg>\n", p->file);
}

bool fm_image_save_svg(const char *path, const fm_image *image) {
    const fm_picture *cells = image->picture;
    const double longer = (double)(cells->rows > cells->columns ? cells->rows : cells->columns);
    const plot p = {.file = open_file(path),
                    .image = image,
                    .width = PLOT * (double)cells->columns / longer,
                    .height = PLOT * (double)cells->rows / longer};
    if (p.file == NULL) {
        return false;
    }
    print_svg(&p);
    return finish(p.file, path, ferror(p.file) == 0);
}
