/* Small attention, forward and backward, on any mask, shape, dtype and layout: the CPU backend against the f64 reference
 * within the derived tolerance, and the same bits without skipping. */
#include "fuzz_data.h"
#include "support/mask_kinds.h"

enum { MOST_SEQUENCE = 140, MOST_HEAD_DIM = 24 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    return setenv("CMOCKA_TEST_ABORT", "1", 1); /* an assertion of the test support aborts, which the fuzzer reports */
}

/* Mostly short, for speed; long enough for three tiles one time in four. */
static int32_t read_length(fuzz_data *data) { return fuzz_integer(data, 0, fuzz_byte(data) % 4 == 3 ? MOST_SEQUENCE : 40); }

static fm_mask *mask_from_bytes(fuzz_data *data, const attention_case *c) {
    enum { MOST = 2 * MOST_SEQUENCE * 2 };
    const int32_t rows = (int32_t)c->rows, intervals = fuzz_integer(data, 1, 2);
    static int32_t first[MOST], last[MOST];
    const fm_mask_shape shape = {c->batch, 1, c->rows, c->columns};
    fm_mask *mask = NULL;
    for (int64_t i = 0; i < c->batch * intervals * c->columns; i++) {
        first[i] = fuzz_integer(data, 0, rows);
        last[i] = fuzz_integer(data, 0, rows) - 1;
    }
    FUZZ_REQUIRE(fm_mask_from_fms_fme(shape, intervals, first, last, &mask) == FM_OK);
    return mask;
}

static attention_case read_case(fuzz_data *data) {
    static const fm_dtype dtypes[] = {FM_F32, FM_F16, FM_BF16};
    attention_case c = {.batch = fuzz_integer(data, 1, 2),
                        .rows = read_length(data),
                        .columns = read_length(data),
                        .heads_kv = fuzz_integer(data, 1, 2),
                        .head_dim = fuzz_integer(data, 1, MOST_HEAD_DIM),
                        .head_dim_v = fuzz_integer(data, 1, MOST_HEAD_DIM),
                        .dtype = dtypes[fuzz_integer(data, 0, 2)],
                        .layout = (test_layout)fuzz_integer(data, 0, LAYOUT_COUNT - 1),
                        .window_left = -1,
                        .window_right = -1};
    c.heads = c.heads_kv * fuzz_integer(data, 1, 2);
    c.scale = (float)fuzz_integer(data, -8, 8) / 16.0F;
    const uint8_t flags = fuzz_byte(data);
    c.softcap = flags & 1 ? 2.0F : 0.0F;
    c.with_sinks = flags & 2;
    c.with_grad_lse = flags & 4;
    c.f32_results = flags & 8;
    return c;
}

static void check_case(const attention_case *c, const attention_inputs *in) {
    attention_inputs wide = attention_inputs_widen(c, in);
    attention_results oracle = attention_run(c, &wide, (attention_run_options){.backend = FM_BACKEND_REFERENCE});
    attention_results plain = attention_run(c, in, (attention_run_options){.backend = FM_BACKEND_REFERENCE});
    attention_results ours = attention_run(c, in, (attention_run_options){.backend = FM_BACKEND_CPU, .num_threads = 1});
    attention_results unskipped =
        attention_run(c, in, (attention_run_options){.backend = FM_BACKEND_CPU, .num_threads = 1, .no_skip = true});
    attention_assert_close(c, &ours, &plain, &oracle);
    attention_assert_same_bits(&ours, &unskipped);
    attention_results_free(&unskipped);
    attention_results_free(&ours);
    attention_results_free(&plain);
    attention_results_free(&oracle);
    attention_inputs_free(&wide);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    fuzz_data data = {bytes, size};
    attention_case c = read_case(&data);
    test_random random = {.state = fuzz_word(&data)};
    const int32_t kind = fuzz_integer(&data, 0, mask_kind_count);
    if (kind < mask_kind_count) {
        mask_kinds[kind].make(&random, &c);
    } else {
        c.mask = mask_from_bytes(&data, &c);
    }
    attention_inputs in = attention_inputs_make(&c, &random);
    check_case(&c, &in);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
    return 0;
}
