/* Three packed documents of 48, 80 and 128 tokens, causal. */
#include <flashmask/flashmask.h>
#include <flashmask/masks.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 256, HEADS = 2, D = 64 };
static float q[N * HEADS * D], k[N * HEADS * D], v[N * HEADS * D], o[N * HEADS * D];

static void check(fm_status status) {
    if (status != FM_OK) {
        fprintf(stderr, "%s: %s\n", fm_status_name(status), fm_error_message());
        exit(1);
    }
}

int main(void) {
    for (int i = 0; i < N * HEADS * D; i++) {
        const int token = i / (HEADS * D);
        v[i] = (float)token; /* q and k are 0: a row gets the mean of the token numbers that it sees */
    }
    const int64_t lengths[] = {48, 80, 128};
    fm_mask *mask;
    fm_plan *plan;
    check(fm_mask_documents(3, lengths, true, 0, &mask));
    check(fm_plan_create(mask, NULL, &plan)); /* once per mask, for every layer, forward and backward */

    fm_attention_forward_args args = FM_ATTENTION_FORWARD_ARGS_INIT;
    args.query = fm_tensor_contiguous(q, FM_F32, 1, N, HEADS, D);
    args.key = fm_tensor_contiguous(k, FM_F32, 1, N, HEADS, D);
    args.value = fm_tensor_contiguous(v, FM_F32, 1, N, HEADS, D);
    args.output = fm_tensor_contiguous(o, FM_F32, 1, N, HEADS, D);
    args.plan = plan;
    check(fm_attention_forward(&args));

    fm_plan_stats stats = FM_PLAN_STATS_INIT;
    check(fm_plan_get_stats(plan, &stats));
    printf("%d of %d tiles skipped\n", (int)stats.skipped, (int)stats.tiles);
    printf("row 100 sees tokens 48 .. 100, mean %g\n", (double)o[100 * HEADS * D]);
    fm_plan_free(plan);
    fm_mask_free(mask);
    return 0;
}
