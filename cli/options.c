#include "options.h"

#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind { TEXT, NUMBER, REAL, SEED, DTYPE, BACKEND, CHOICE, TILE, FLAG } option_kind;

typedef struct option_row {
    const char *name, *value, *help; /* value NULL: a flag */
    unsigned commands;
    option_kind kind;
    size_t offset; /* in fm_options */
    int64_t min, max;
} option_row;

enum { ANY_MASK = FM_SHOW | FM_CHECK | FM_RUN, EVERY = ANY_MASK | FM_DEMO | FM_BENCH, SIZED = FM_SHOW | FM_CHECK };
enum { MAX_HEADS = 1 << 20, MAX_TILE = 1 << 20, MAX_THREADS = 1024 };

#define AT(member) offsetof(fm_options, member)

/* clang-format off */
#define ARRAY(name, array_id, help) {name, "FILE.npy", help, FM_RUN, TEXT, AT(array[array_id]), 0, 0}
/* clang-format on */

static const option_row rows[] = {
    {"mask", "SPEC", "NAME:key=value,...; 'flashmask masks' lists the names", ANY_MASK, TEXT, AT(mask), 0, 0},
    {"mask", "NAME,...", "only these masks", FM_BENCH, TEXT, AT(mask), 0, 0},
    {"vectors", "FILE.npy", "startend_row_indices, int32 [Sk, C] or [B, Hm, Sk, C], instead of --mask", ANY_MASK, TEXT,
     AT(vectors), 0, 0},
    {"causal", "0|1", "what --vectors mean; needed with them", SIZED, NUMBER, AT(causal), 0, 1},
    {"causal", "0|1", "1: keys up to the row's own; needed with --vectors, whose meaning it decides", FM_RUN, NUMBER, AT(causal),
     0, 1},
    ARRAY("query", FM_RUN_QUERY, "float32, float16, bfloat16 (or float64 for --backend reference) [B, Sq, Hq, D]"),
    ARRAY("key", FM_RUN_KEY, "[B, Sk, Hkv, D]"),
    ARRAY("value", FM_RUN_VALUE, "[B, Sk, Hkv, Dv]"),
    ARRAY("sinks", FM_RUN_SINKS, "float32 [Hq]: one more logit a head in the denominator"),
    ARRAY("grad-output", FM_RUN_GRAD_OUTPUT, "[B, Sq, Hq, Dv]: runs backward too"),
    ARRAY("grad-lse", FM_RUN_GRAD_LSE, "float32 [B, Hq, Sq]"),
    {"tensors", "FILE.safetensors", "query, key, value[, sinks, grad_output, grad_lse] instead of the above", FM_RUN, TEXT,
     AT(tensors), 0, 0},
    {"output", "FILE", "result, needed: .npy, or with --tensors .safetensors with all results", FM_RUN, TEXT,
     AT(array[FM_RUN_OUTPUT]), 0, 0},
    ARRAY("lse", FM_RUN_LSE, "result, float32 [B, Hq, Sq]"),
    ARRAY("grad-query", FM_RUN_GRAD_QUERY, "result"),
    ARRAY("grad-key", FM_RUN_GRAD_KEY, "result"),
    ARRAY("grad-value", FM_RUN_GRAD_VALUE, "result"),
    ARRAY("grad-sinks", FM_RUN_GRAD_SINKS, "result, float32 [Hq]"),
    {"scale", "X", "of the scores (default: 1 / sqrt(D))", FM_RUN, REAL, AT(scale), -(1 << 20), 1 << 20},
    {"softcap", "X", "scores become X tanh(score / X) (default: 0, off)", FM_RUN, REAL, AT(softcap), 0, 1 << 20},
    {"backend", "cpu|reference", "which one computes (default: cpu)", FM_RUN, BACKEND, AT(backend), 0, 0},
    {"seq", "N", "keys (default: what the mask's lengths sum to, else 1024)", SIZED, NUMBER, AT(seq), 1, FM_MAX_EXTENT},
    {"seq", "N", "tokens of a packed sequence (default: 8192)", FM_DEMO, NUMBER, AT(seq), 64, 1 << 20},
    {"seq", "N", "4096 (the default), 8192, 32768, 131072 or 1048576 tokens", FM_BENCH, NUMBER, AT(seq), 1, FM_MAX_EXTENT},
    {"rows", "N", "query rows (default: as many as keys)", SIZED, NUMBER, AT(rows), 1, FM_MAX_EXTENT},
    {"heads", "N", "heads of masks that differ from head to head (default: 1)", FM_SHOW, NUMBER, AT(heads), 1, MAX_HEADS},
    {"heads", "N", "query heads (default: 1)", FM_CHECK | FM_BENCH, NUMBER, AT(heads), 1, MAX_HEADS},
    {"heads-kv", "N", "key heads (default: as many as query heads)", FM_CHECK | FM_BENCH, NUMBER, AT(heads_kv), 1, MAX_HEADS},
    {"head-dim", "N", "of query and key (default: 64)", FM_CHECK, NUMBER, AT(head_dim), 1, 256},
    {"head-dim", "N", "of query, key and value (default: 128)", FM_BENCH, NUMBER, AT(head_dim), 1, 256},
    {"head-dim-v", "N", "of value (default: that of query and key)", FM_CHECK, NUMBER, AT(head_dim_v), 1, 256},
    {"dtype", "f32|f16|bf16", "of the tensors (default: f32)", FM_CHECK | FM_DEMO | FM_BENCH, DTYPE, AT(dtype), 0, 0},
    {"tile", "MxN", "rows and keys of a tile (default: the CPU backend's)", FM_SHOW, TILE, 0, 0, 0},
    {"width", "N", "characters across the picture, 0: none (default: 64)", FM_SHOW, NUMBER, AT(width), 0, 512},
    {"png", "FILE", "a picture of the mask and its tiles", FM_SHOW, TEXT, AT(png), 0, 0},
    {"svg", "FILE", "the same with axes and a legend", FM_SHOW, TEXT, AT(svg), 0, 0},
    {"runs", "N", "timed runs (default: 20, and at least 3 when 20 take over 10 s)", FM_BENCH, NUMBER, AT(runs), 1, 1 << 20},
    {"samples", "N", "of the 5 document lists, or sequences of a real pack (default: 1)", FM_BENCH, NUMBER, AT(samples), 1, 5},
    {"plan-only", NULL, "masks and plans, bytes and time, at 131072 and 1048576 tokens or --seq", FM_BENCH, FLAG, AT(plan_only),
     0, 0},
    {"fallback", NULL, "random sparse masks of 1%, 10% and 50% instead: what bitmaps cost", FM_BENCH, FLAG, AT(fallback), 0, 0},
    {"data", "DIR", "where the length files are", FM_DEMO | FM_BENCH, TEXT, AT(data), 0, 0},
    {"sequences", "N", "of each kind that run (default: 4)", FM_DEMO, NUMBER, AT(sequences), 1, 1 << 20},
    {"kind", "documents|pairs|questions", "what a record of FILE is; needed", FM_PACK, CHOICE, AT(kind), 0, 0},
    {"capacity", "N", "tokens of a packed sequence; needed", FM_PACK, NUMBER, AT(capacity), 1, FM_MAX_EXTENT},
    {"output", "OUT", "OUT.safetensors, or the beginning of the names of .npy files; needed", FM_PACK, TEXT, AT(output), 0, 0},
    {"policy", "best_fit|arrival", "fullest sequence that has room, or file order (default: best_fit)", FM_PACK, CHOICE,
     AT(policy), 0, 0},
    {"overlong", "refuse|split", "documents longer than a sequence (default: refuse)", FM_PACK, CHOICE, AT(overlong), 0, 0},
    {"seed", "N", "of everything that is drawn (default: 0)", EVERY, SEED, AT(seed), 0, 0},
    {"threads", "N", "of the CPU backend (default: OpenMP's choice)", EVERY & ~FM_SHOW, NUMBER, AT(threads), 1, MAX_THREADS},
    {"json", NULL, "one JSON object instead of text", ANY_MASK, FLAG, AT(json), 0, 0},
    {"json", NULL, "one JSON object a line, on a terminal too", FM_BENCH, FLAG, AT(json), 0, 0},
    {"help", NULL, "this text", EVERY | FM_PACK, FLAG, AT(help), 0, 0},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static const struct {
    const char *name;
    fm_dtype dtype;
} dtypes[] = {{"f32", FM_F32}, {"f16", FM_F16}, {"bf16", FM_BF16}, {"f64", FM_F64}};

const char *fm_dtype_text(fm_dtype dtype) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (dtypes[i].dtype == dtype) {
            return dtypes[i].name;
        }
    }
    return "?";
}

static bool parse_dtype(const char *what, const char *text, fm_dtype *out) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (dtypes[i].dtype != FM_F64 && strcmp(dtypes[i].name, text) == 0) {
            *out = dtypes[i].dtype;
            return true;
        }
    }
    return fm_cli_fail("%s: '%.40s' is none of f32, f16, bf16", what, text);
}

static bool parse_backend(const char *what, const char *text, fm_backend_id *out) {
    *out = strcmp(text, "cpu") == 0 ? FM_BACKEND_CPU : strcmp(text, "reference") == 0 ? FM_BACKEND_REFERENCE : FM_BACKEND_AUTO;
    return *out != FM_BACKEND_AUTO || fm_cli_fail("%s: '%.40s' is none of cpu, reference", what, text);
}

/* Which of the words a|b|c it is. */
static bool parse_choice(const char *what, const char *text, const char *words, int *out) {
    const size_t length = strlen(text);
    int index = 0;
    for (const char *at = words; at != NULL; index++) {
        if (strcspn(at, "|") == length && strncmp(at, text, length) == 0) {
            *out = index;
            return true;
        }
        at = strchr(at, '|');
        at = at != NULL ? at + 1 : NULL;
    }
    return fm_cli_fail("%s: '%.40s' is none of %s", what, text, words);
}

static bool parse_tile(const char *what, const char *text, fm_options *out) {
    char first[24];
    int64_t m = 0, n = 0;
    const size_t length = strcspn(text, "x");
    if (text[length] != 'x' || length >= sizeof first) {
        return fm_cli_fail("%s: '%.40s' is not MxN", what, text);
    }
    memcpy(first, text, length);
    first[length] = '\0';
    if (!fm_number_parse(what, first, 1, MAX_TILE, &m) || !fm_number_parse(what, text + length + 1, 1, MAX_TILE, &n)) {
        return false;
    }
    out->tile_m = (int32_t)m;
    out->tile_n = (int32_t)n;
    return true;
}

static bool apply(const option_row *row, const char *text, fm_options *out) {
    char what[32];
    void *member = (char *)out + row->offset;
    snprintf(what, sizeof what, "--%s", row->name);
    switch (row->kind) {
    case TEXT: *(const char **)member = text; return *text != '\0' || fm_cli_fail("%s: is empty", what);
    case NUMBER: return fm_number_parse(what, text, row->min, row->max, member);
    case REAL: return fm_real_parse(what, text, (double)row->min, (double)row->max, member);
    case SEED: return fm_seed_parse(what, text, member);
    case DTYPE: return parse_dtype(what, text, member);
    case BACKEND: return parse_backend(what, text, member);
    case CHOICE: return parse_choice(what, text, row->value, member);
    case TILE: return parse_tile(what, text, out);
    case FLAG: *(bool *)member = true; return true;
    }
    return false;
}

/* Above FIRST_VAL: rows. By val, so that getopt's complaint about a missing value can be worded. */
enum { AN_ARGUMENT = 1, NOT_AN_OPTION = '?', VALUE_IS_MISSING = ':', FIRST_VAL = 256 };

/* getopt's own view of the rows of one command. */
static void long_options(fm_command_bit command, struct option *out) {
    int n = 0;
    for (int i = 0; i < ROWS; i++) {
        if ((rows[i].commands & command) != 0) {
            out[n++] =
                (struct option){rows[i].name, rows[i].value != NULL ? required_argument : no_argument, NULL, i + FIRST_VAL};
        }
    }
    out[n] = (struct option){0};
}

/* What is no option: the file of pack, once. */
static bool take_argument(const char *name, const char *text, fm_command_bit command, fm_options *out) {
    if (command != FM_PACK || out->file != NULL || *text == '\0') {
        return fm_cli_fail("%s: unexpected argument '%.80s'", name, text);
    }
    out->file = text;
    return true;
}

/* A letter among several, as in -abc, is named alone: getopt has not passed the argument then. */
static bool unknown_option(char **argv) {
    const char letter[] = {'-', (char)optopt, '\0'};
    const bool is_letter = optopt > 0 && optopt < FIRST_VAL;
    return fm_cli_fail("%s: no option '%.80s'; see 'flashmask %s --help'", argv[0], is_letter ? letter : argv[optind - 1],
                       argv[0]);
}

bool fm_options_parse(int argc, char **argv, fm_command_bit command, fm_options *out) {
    struct option known[ROWS + 1];
    bool seen[ROWS] = {false};
    fm_options options = {.causal = -1, .width = -1, .sequences = -1, .dtype = FM_F32, .scale = NAN, .kind = -1};
    long_options(command, known);
    opterr = 0;
    optind = 0; /* glibc: start over */
    for (int found = 0; (found = getopt_long(argc, argv, "-:h", known, NULL)) != -1;) {
        if (found == 'h' || (found == AN_ARGUMENT && take_argument(argv[0], optarg, command, &options))) {
            options.help = options.help || found == 'h';
            continue;
        }
        if (found == AN_ARGUMENT) {
            return false;
        }
        if (found == NOT_AN_OPTION) {
            return unknown_option(argv);
        }
        if (found == VALUE_IS_MISSING) {
            return fm_cli_fail("%.80s: its value is missing", argv[optind - 1]);
        }
        const int row = found - FIRST_VAL;
        if (seen[row] && rows[row].kind != FLAG) {
            return fm_cli_fail("--%s: is given twice", rows[row].name);
        }
        seen[row] = true;
        if (!apply(&rows[row], optarg, &options)) {
            return false;
        }
    }
    for (; optind < argc; optind++) {
        if (!take_argument(argv[0], argv[optind], command, &options)) {
            return false;
        }
    }
    *out = options;
    return true;
}

void fm_options_print(FILE *to, fm_command_bit command) {
    for (int i = 0; i < ROWS; i++) {
        if ((rows[i].commands & command) != 0) {
            char left[40];
            snprintf(left, sizeof left, "--%s %s", rows[i].name, rows[i].value != NULL ? rows[i].value : "");
            fprintf(to, "  %-28s%s %s\n", left, strlen(left) > 28 ? "\n                              " : "", rows[i].help);
        }
    }
}

const char *fm_options_mask_name(const fm_options *options) { return options->mask != NULL ? options->mask : options->vectors; }

bool fm_options_mask(const fm_options *options, fm_mask **out) {
    const fm_mask_context context = {
        .seq = options->seq,
        .rows = options->rows,
        .heads = options->heads_kv != 0 ? options->heads_kv : options->heads,
        .seed = options->seed,
    };
    if ((options->mask == NULL) == (options->vectors == NULL)) {
        return fm_cli_fail(options->mask == NULL ? "no mask given: --mask SPEC or --vectors FILE.npy is needed"
                                                 : "--mask and --vectors are given, but one of them is needed");
    }
    if (options->mask != NULL) {
        return options->causal < 0 ? fm_mask_spec_build(options->mask, &context, out)
                                   : fm_cli_fail("--causal: goes with --vectors only; name a causal mask instead");
    }
    return options->causal >= 0 ? fm_mask_vectors_build(options->vectors, options->causal == 1, &context, out)
                                : fm_cli_fail("--vectors: --causal 0 or 1 must say what they mean");
}
