"""What only a GPU can show: streams, graphs, plans that layers share, no waiting, devices."""

import pytest
import torch
from torch_cases import Shape, document_ends, inputs, like, startend

from flashmask import DeviceMask, Mask, attention, torch_attention, torch_masks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
SHAPE = Shape(batch=1, rows=1000, columns=1000, heads=8, heads_kv=2, dim=64, dim_v=64)
LENGTHS = [[500, 500], [999, 1], [100, 200, 300, 400], [1000]]


def tensors_on(device="cuda", dtype=torch.bfloat16, **more):
    return inputs(SHAPE, dtype, device, **more)


def mask_of(kind, lengths, device="cuda"):
    return Mask.documents(lengths, causal=True) if kind is Mask else startend(document_ends(lengths), device)


def change(mask, lengths):
    mask.vectors.copy_(torch.from_numpy(document_ends(lengths)).reshape(1, 1, -1, 1))


@pytest.fixture
def builds(monkeypatch):
    """Counts plans that are built."""
    count = []
    for name in ("plan_from_mask", "plan_from_vectors"):
        real = getattr(torch_masks, name)
        monkeypatch.setattr(torch_masks, name, lambda *args, real=real: count.append(1) or real(*args))
    return count


@pytest.mark.parametrize("kind", [Mask, DeviceMask])
def test_layers_share_a_plan(kind, builds):
    q, k, v = tensors_on()
    mask = mask_of(kind, LENGTHS[0])
    x = q
    for _ in range(32):
        x = attention(x, k, v, mask)
    x.sum().backward()
    assert len(builds) == 1
    attention(q, k, v, mask, window_size=(128, 0))  # another set of flags is another plan
    attention(q, k, v, mask, window_size=(128, 0))
    assert len(builds) == 2
    with torch.cuda.stream(torch.cuda.Stream()):  # so is another stream
        attention(q, k, v, mask)
    assert len(builds) == 3


@pytest.mark.parametrize("kind", [Mask, DeviceMask])
def test_layers_with_windows_of_their_own(kind, builds):
    """Full and sliding layers in turn, forward and backward: one plan for each mask and window, whatever the number of layers."""
    tensors = tensors_on()
    windows = [(-1, -1), (255, 0), (-1, -1), (63, 0)] * 4
    masks = [mask_of(kind, lengths) for lengths in LENGTHS[:2]]
    for step in range(4):
        x = tensors[0]
        for window in windows:
            x = attention(x, *tensors[1:], masks[step % 2], window_size=window)
        x.sum().backward()
    assert len(builds) == 6
    for window in set(windows):
        slid = Mask.sliding_window(1000, left=window[0], right=window[1]) & mask_of(Mask, LENGTHS[0])
        assert torch.equal(attention(*tensors, masks[0], window_size=window), attention(*tensors, slid))


def test_layers_that_wrap_the_same_vectors(builds):
    q, k, v = tensors_on()
    ends = mask_of(DeviceMask, LENGTHS[0]).vectors
    for _ in range(4):
        attention(q, k, v, DeviceMask.from_startend_row_indices(ends, causal=True))
    assert len(builds) == 1
    attention(q, k, v, DeviceMask.from_startend_row_indices(ends.clone(), causal=True))
    assert len(builds) == 2


def test_vectors_changed_in_place(builds):
    q, k, v = tensors_on(requires_grad=False)
    mask = mask_of(DeviceMask, LENGTHS[0])
    for lengths in LENGTHS:
        change(mask, lengths)
        output = attention(q, k, v, mask)
        assert torch.equal(output, attention(q, k, v, mask_of(Mask, lengths)))
    assert len(builds) == 2 * len(LENGTHS)


@pytest.mark.parametrize("kind", [Mask, DeviceMask])
def test_training_after_an_evaluation(kind):
    """As for the reference model of DPO: the same mask, first in inference mode."""
    tensors, mask = tensors_on(), mask_of(kind, LENGTHS[0])
    with torch.inference_mode():
        expected = attention(*tensors, mask)
    output = attention(*tensors, mask)
    assert torch.equal(output, expected)
    output.sum().backward()


def test_backward_has_the_plan_of_forward():
    """Whatever happens to the mask in between."""
    tensors = tensors_on()
    mask = mask_of(DeviceMask, LENGTHS[0])
    expected = torch.autograd.grad(attention(*tensors, mask_of(Mask, LENGTHS[0]), deterministic=True).sum(), tensors)
    output = attention(*tensors, mask, deterministic=True)
    change(mask, LENGTHS[1])
    attention(*tensors, mask)
    del mask
    for _ in range(8):  # memory that was given back is used again
        torch.full((torch_masks.plan_bytes(1, 1, 1000, 1000, 1, 0),), 255, dtype=torch.uint8, device="cuda")
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(output.sum(), tensors), expected))


def test_busy_streams():
    """Masks die while kernels that use them wait in their streams."""
    tensors = tensors_on(requires_grad=False)
    expected = [attention(*tensors, mask_of(Mask, lengths)) for lengths in LENGTHS]
    torch.cuda.synchronize()
    streams, outputs = [torch.cuda.Stream() for _ in range(3)], []
    for n in range(24):
        with torch.cuda.stream(streams[n % 3]):
            torch.cuda._sleep(1_000_000)
            mask = mask_of((Mask, DeviceMask)[n % 2], LENGTHS[n % 4])
            outputs.append(attention(*tensors, mask))
            del mask
    torch.cuda.synchronize()
    assert all(torch.equal(output, expected[n % 4]) for n, output in enumerate(outputs))


def test_nothing_waits():
    tensors = tensors_on()
    masks = [mask_of(DeviceMask, lengths) for lengths in LENGTHS]
    host = mask_of(Mask, LENGTHS[0])
    for mask in (host, None, startend(document_ends(LENGTHS[0]), "cuda")):  # kernels are loaded when they first run
        attention(*tensors, mask).sum().backward()
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(1_000_000_000)
    busy.record()
    for mask in [*masks, host, None]:
        attention(*tensors, mask).sum().backward()
    assert not busy.query(), "a call waited for the GPU"


def captured(run):
    """A graph of run, after calls on a side stream as torch asks for, and what run returned in it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


def test_graph_reads_vectors_again():
    """https://github.com/Dao-AILab/flash-attention/issues/1164 https://github.com/pytorch/torchtitan/pull/3776"""
    tensors = tensors_on()
    mask = mask_of(DeviceMask, LENGTHS[0])
    grad = like(attention(*tensors), 1)

    def run(mask):
        output = attention(*tensors, mask, deterministic=True)
        return output, *torch.autograd.grad(output, tensors, grad)

    graph, results = captured(lambda: run(mask))
    for lengths in LENGTHS:
        change(mask, lengths)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(results, run(mask_of(Mask, lengths))))


def test_graph_of_a_host_mask():
    """Its plan must be there before: an upload is refused."""
    tensors = tensors_on(requires_grad=False)
    mask = mask_of(Mask, LENGTHS[0])
    expected = attention(*tensors, mask)
    graph, output = captured(lambda: attention(*tensors, mask))
    output.zero_()
    graph.replay()
    assert torch.equal(output, expected)
    new = mask_of(Mask, LENGTHS[1])
    with pytest.raises(RuntimeError, match="captured"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            attention(*tensors, new)


def test_replays_beside_calls():
    """A graph and eager calls of the same layout, which has more items than a GPU has processors, at once on two streams."""
    long = Shape(batch=2, rows=2048, columns=2048, heads=8, heads_kv=8, dim=64, dim_v=64)
    tensors = inputs(long, torch.bfloat16, "cuda", requires_grad=False)
    expected = attention(*tensors, causal=True)
    graph, replayed = captured(lambda: attention(*tensors, causal=True))
    streams, outputs = [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for _ in range(30):
        with torch.cuda.stream(streams[0]):
            graph.replay()
        with torch.cuda.stream(streams[1]):
            outputs.append(attention(*tensors, causal=True))
    torch.cuda.synchronize()
    assert torch.equal(replayed, expected) and all(torch.equal(output, expected) for output in outputs)


def test_graph_without_a_mask():
    tensors = tensors_on(requires_grad=False)
    graph, output = captured(lambda: attention(*tensors, causal=True))
    output.zero_()
    graph.replay()
    assert torch.equal(output, attention(*tensors, causal=True))


def test_pinned_vectors():
    tensors = tensors_on(requires_grad=False)
    host = mask_of(DeviceMask, LENGTHS[0], "cpu").pin_memory()
    assert host.vectors.is_pinned()
    mask = host.to("cuda", non_blocking=True)
    assert torch.equal(attention(*tensors, mask), attention(*tensors, mask_of(Mask, LENGTHS[0])))


def test_memory_is_linear():
    """Of a forward pass beyond its inputs and output: nothing but lse and the plan.
    A mask over many heads is not copied: https://github.com/sgl-project/SpecForge/issues/452"""
    shape = Shape(batch=1, rows=32768, columns=32768, heads=32, heads_kv=8, dim=128, dim_v=128)
    tensors = inputs(shape, torch.bfloat16, "cuda", requires_grad=False)
    mask = startend(document_ends([16384, 16384]), "cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output, lse = attention(*tensors, mask, return_lse=True)
    extra = torch.cuda.max_memory_allocated() - before - output.nbytes - lse.nbytes
    assert extra <= torch_masks.plan_bytes(1, 1, 32768, 32768, 1, 0) + 2**20


def test_memory_is_steady():
    """https://github.com/pytorch/pytorch/issues/141486: new lengths and masks at each step"""
    used = []
    for step in range(200):
        rows = 1 + step * 37 % 1000
        tensors = inputs(Shape(batch=1, rows=rows, columns=rows, dim=64, dim_v=64), torch.bfloat16, "cuda")
        attention(*tensors, Mask.documents([rows // 2, rows - rows // 2], causal=True)).sum().backward()
        del tensors
        used.append(torch.cuda.memory_allocated())
    assert max(used) == used[0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")
def test_another_device_than_the_current_one():
    """https://github.com/flashinfer-ai/flashinfer/issues/924 https://github.com/Dao-AILab/flash-attention/pull/1793"""
    first, second = tensors_on("cuda:0"), tensors_on("cuda:1")
    mask = mask_of(Mask, LENGTHS[0])
    expected = attention(*first, mask, deterministic=True)
    output = attention(*second, mask, deterministic=True)
    assert torch.cuda.current_device() == 0 and output.device.index == 1
    assert torch.equal(output.cpu(), expected.cpu())
    grads = [torch.autograd.grad(x.sum(), t) for x, t in ((expected, first), (output, second))]
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(*grads))
    assert torch_attention.plan_of_mask(mask, torch.device("cuda", 1), (False, -1, -1)).device.index == 1


def test_cpu_and_gpu_agree():
    """On empty rows too: https://github.com/pytorch/pytorch/issues/110213"""
    mask = Mask.documents([700], causal=True, padding=300)
    here, there = tensors_on("cpu", torch.float32), tensors_on("cuda", torch.float32)
    results = []
    for tensors in (here, there):
        output, lse = attention(*tensors, mask, return_lse=True)
        results.append([output, lse, *torch.autograd.grad(output.sum(), tensors)])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-4, atol=1e-4)
    assert not results[1][0][:, 700:].any() and (results[1][1][:, :, 700:] == -float("inf")).all()
