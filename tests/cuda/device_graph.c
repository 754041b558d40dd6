#include "device_graph.h"

void device_capture_begin(cudaStream_t stream) {
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
}

cudaGraphExec_t device_capture_end(cudaStream_t stream) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return executable;
}

void device_replay(cudaGraphExec_t graph, cudaStream_t stream) {
    CUDA(cudaGraphLaunch(graph, stream));
    CUDA(cudaStreamSynchronize(stream));
}
