/* A training step's attention: five packed documents and padding, four query heads on two key heads, forward and backward.
 * Tensors lie as PyTorch's scaled_dot_product_attention has them, [batch, heads, sequence, head_dim]. */
#include <flashmask/flashmask.h>
#include <flashmask/masks.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 300, PADDING = 24, HEADS = 4, HEADS_KV = 2, D = 32 };
static float q[HEADS * N * D], k[HEADS_KV * N * D], v[HEADS_KV * N * D], o[HEADS * N * D], lse[HEADS * N];
static float grad_q[HEADS * N * D], grad_k[HEADS_KV * N * D], grad_v[HEADS_KV * N * D], grad_o[HEADS * N * D];

static void check(fm_status status) {
    if (status != FM_OK) {
        fprintf(stderr, "%s: %s\n", fm_status_name(status), fm_error_message());
        exit(1);
    }
}

/* [1, heads, N, D] in memory, [1, N, heads, D] for the library: strides say where the next token and the next head are. */
static fm_tensor tensor(float *data, int64_t heads) {
    fm_tensor t = fm_tensor_contiguous(data, FM_F32, 1, N, heads, D);
    t.stride[1] = D;
    t.stride[2] = (int64_t)N * D;
    return t;
}

static void fill(float *data, int count) {
    for (int i = 0; i < count; i++) {
        data[i] = (float)rand() / (float)RAND_MAX * 2 - 1;
    }
}

static double sum(const float *data, int heads, int first, int count) { /* over tokens first .. first + count - 1 */
    double total = 0;
    for (int h = 0; h < heads; h++) {
        for (int i = first * D; i < (first + count) * D; i++) {
            total += (double)data[h * N * D + i];
        }
    }
    return total;
}

/* Each row's weights sum to 1, so a document hands on to its values all that arrives at its outputs. */
static bool report(int documents, const int64_t *lengths) {
    bool agree = true;
    int first = 0;
    for (int d = 0; d < documents; d++) {
        const int length = (int)lengths[d];
        const double in = sum(grad_o, HEADS, first, length), out = sum(grad_v, HEADS_KV, first, length);
        printf("document %d: gradient of outputs %8.4f, of values %8.4f\n", d, in, out);
        agree = agree && fabs(in - out) < 1e-3;
        first += length;
    }
    printf("padding: output %g, gradients %g %g %g, lse %g\n", sum(o, HEADS, first, PADDING), sum(grad_q, HEADS, first, PADDING),
           sum(grad_k, HEADS_KV, first, PADDING), sum(grad_v, HEADS_KV, first, PADDING), (double)lse[first]);
    return agree;
}

int main(void) {
    const int64_t lengths[] = {37, 64, 100, 5, 70}; /* 276 tokens, then padding up to N */
    fm_mask *mask;
    fm_plan *plan;
    check(fm_mask_documents(5, lengths, true, PADDING, &mask));
    check(fm_plan_create(mask, NULL, &plan));
    fill(q, HEADS * N * D);
    fill(k, HEADS_KV * N * D);
    fill(v, HEADS_KV * N * D);
    fill(grad_o, HEADS * N * D); /* the loss's gradient; in padding it may hold anything */

    fm_attention_forward_args forward = FM_ATTENTION_FORWARD_ARGS_INIT;
    forward.query = tensor(q, HEADS);
    forward.key = tensor(k, HEADS_KV);
    forward.value = tensor(v, HEADS_KV);
    forward.output = tensor(o, HEADS);
    forward.lse = lse; /* backward needs it */
    forward.plan = plan;
    check(fm_attention_forward(&forward));

    fm_attention_backward_args backward = FM_ATTENTION_BACKWARD_ARGS_INIT;
    backward.forward = &forward;
    backward.grad_output = tensor(grad_o, HEADS);
    backward.grad_query = tensor(grad_q, HEADS);
    backward.grad_key = tensor(grad_k, HEADS_KV);
    backward.grad_value = tensor(grad_v, HEADS_KV);
    check(fm_attention_backward(&backward));

    const bool agree = report(5, lengths);
    fm_plan_free(plan);
    fm_mask_free(mask);
    return agree ? 0 : 1;
}
