/* Attention on a GPU: packed causal documents, forward and backward, on tensors in device memory.
 *
 * The plan is built once, from vectors on the device or, as here, from a host mask, and serves both directions, every layer and
 * every step with that mask. The library allocates no device memory: plan and workspace are the caller's. */
#include <cuda_runtime_api.h>
#include <flashmask/flashmask.h>
#include <flashmask/masks.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1024, HEADS = 4, D = 64, SKIPPED = 77 };

static void check(fm_status status) {
    if (status != FM_OK) {
        fprintf(stderr, "%s: %s\n", fm_status_name(status), fm_error_message());
        exit(1);
    }
}

static void check_cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static void *device_memory(size_t bytes) {
    void *memory = NULL;
    check_cuda(cudaMalloc(&memory, bytes + 1));
    return memory;
}

/* bf16 [1, N, HEADS, D] in device memory: the upper half of each f32. */
static fm_tensor tensor_of(const float *values) {
    uint16_t *halves = malloc((size_t)N * HEADS * D * sizeof *halves);
    for (int i = 0; halves != NULL && i < N * HEADS * D; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    fm_tensor tensor = fm_tensor_contiguous(device_memory((size_t)N * HEADS * D * sizeof *halves), FM_BF16, 1, N, HEADS, D);
    tensor.device = (fm_device){FM_CUDA, 0};
    check_cuda(cudaMemcpy(tensor.data, halves, (size_t)N * HEADS * D * sizeof *halves, cudaMemcpyHostToDevice));
    free(halves);
    return tensor;
}

static float value_at(const fm_tensor *tensor, int row) { /* head 0, dim 0 */
    uint16_t half;
    check_cuda(cudaMemcpy(&half, (uint16_t *)tensor->data + (size_t)row * HEADS * D, sizeof half, cudaMemcpyDeviceToHost));
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int main(void) {
    static float zeros[N * HEADS * D], ones[N * HEADS * D], tokens[N * HEADS * D];
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        puts("skipped: no CUDA device");
        return SKIPPED;
    }
    for (int i = 0; i < N * HEADS * D; i++) {
        ones[i] = 1.0f;
        const int token = i / (HEADS * D), eighth = token / 8;
        tokens[i] = (float)eighth; /* query and key are 0: a row gets the mean over the keys that it sees */
    }
    const fm_device device = {FM_CUDA, 0};
    const int64_t lengths[] = {256, 512, 256};
    fm_mask *mask;
    fm_plan *plan;
    size_t bytes;
    check(fm_mask_documents(3, lengths, true, 0, &mask));
    check(fm_plan_device_bytes(fm_mask_get_shape(mask), fm_mask_interval_count(mask), NULL, &bytes));
    void *plan_memory = device_memory(bytes);
    check(fm_plan_create_device(mask, NULL, device, plan_memory, bytes, NULL, &plan));

    fm_attention_forward_args forward = FM_ATTENTION_FORWARD_ARGS_INIT;
    forward.query = tensor_of(zeros);
    forward.key = tensor_of(zeros);
    forward.value = tensor_of(tokens);
    forward.output = tensor_of(zeros);
    forward.lse = device_memory((size_t)HEADS * N * sizeof(float)); /* backward needs it */
    forward.plan = plan;
    check(fm_attention_forward_workspace(&forward, &forward.workspace_bytes));
    forward.workspace = device_memory(forward.workspace_bytes);
    check(fm_attention_forward(&forward)); /* on the default stream */

    fm_attention_backward_args backward = FM_ATTENTION_BACKWARD_ARGS_INIT;
    backward.forward = &forward;
    backward.grad_output = tensor_of(ones);
    backward.grad_query = tensor_of(zeros);
    backward.grad_key = tensor_of(zeros);
    backward.grad_value = tensor_of(zeros);
    check(fm_attention_backward_workspace(&backward, &backward.workspace_bytes));
    backward.workspace = device_memory(backward.workspace_bytes);
    check(fm_attention_backward(&backward));
    check_cuda(cudaDeviceSynchronize());

    printf("row 255 gets the mean of its document so far: %g\n", (double)value_at(&forward.output, 255));
    printf("token 767, the last of its document, is seen by itself alone: its value's gradient is 1/512: %g\n",
           (double)value_at(&backward.grad_value, 767));
    fm_plan_free(plan);
    fm_mask_free(mask);
    check_cuda(cudaFree(forward.workspace));
    void *const memory[] = {
        plan_memory,       forward.query.data,        forward.key.data,         forward.value.data,     forward.output.data,
        forward.lse,       backward.grad_output.data, backward.grad_query.data, backward.grad_key.data, backward.grad_value.data,
        backward.workspace};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        check_cuda(cudaFree(memory[i]));
    }
    return 0;
}
