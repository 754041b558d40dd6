/* https://github.com/Dao-AILab/flash-attention/pull/1500: an output of more than 2^31 elements, lse of more than 2^28. All
 * items read the same 16,384 tokens, so that the output's 4.3 GB and lse's 1.1 GB are all the memory there is. */
#include <flashmask/masks.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/test_tensor.h"

#include <stdlib.h>
#include <string.h>

enum { B = 2049, S = 16384, H = 8, D = 8, DOCUMENT = 16 };

static void every_item_of_a_huge_output_is_the_same(void **state) {
    (void)state;
    const size_t item = (size_t)S * H * D, rows = (size_t)S * H;
    assert_true(B * item > (size_t)INT32_MAX);
    uint16_t *output = malloc(B * item * sizeof *output);
    float *lse = malloc(B * rows * sizeof *lse);
    if (output == NULL || lse == NULL) {
        free(output);
        free(lse);
        skip();
    }
    static int64_t lengths[S / DOCUMENT];
    for (int64_t k = 0; k < S / DOCUMENT; k++) {
        lengths[k] = DOCUMENT;
    }
    test_random random = {60};
    test_tensor in[3];
    fm_attention_forward_args f = FM_ATTENTION_FORWARD_ARGS_INIT;
    fm_tensor *views[] = {&f.query, &f.key, &f.value};
    for (int k = 0; k < 3; k++) {
        in[k] = test_tensor_make(LAYOUT_CONTIGUOUS, FM_BF16, 1, S, k == 0 ? H : 1, D);
        test_tensor_fill(&in[k], &random, 1.0);
        *views[k] = in[k].view;
        views[k]->shape[0] = B;
        views[k]->stride[0] = 0;
    }
    fm_mask *mask;
    succeed(fm_mask_documents(S / DOCUMENT, lengths, true, 0, &mask));
    f.mask = mask;
    f.output = fm_tensor_contiguous(output, FM_BF16, B, S, H, D);
    f.lse = lse;
    succeed(fm_attention_forward(&f));
    for (int64_t b = 1; b < B; b++) {
        assert_memory_equal(output, output + b * (int64_t)item, item * sizeof *output);
        assert_memory_equal(lse, lse + b * (int64_t)rows, rows * sizeof *lse);
    }
    /* and right: the first row of a document sees itself alone */
    for (int64_t row = 0; row < S; row += DOCUMENT) {
        for (int h = 0; h < H; h++) {
            assert_memory_equal(output + (row * H + h) * D, (uint16_t *)in[2].buffer + row * D, D * sizeof *output);
        }
    }
    fm_mask_free(mask);
    for (int k = 0; k < 3; k++) {
        test_tensor_free(&in[k]);
    }
    free(output);
    free(lse);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_of_a_huge_output_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
