"""Masks and calls in threads, forked workers and copies."""

import copy
import pickle
import resource
import threading
from pathlib import Path

import pytest
import torch
from torch_cases import DEVICES, Shape, document_ends, inputs, like, startend

from flashmask import DeviceMask, Mask, attention, torch_ops
from flashmask import _lib as lib


@pytest.mark.parametrize("device", DEVICES)
def test_threads(device):
    """Each with lengths of its own and one mask in common; forward and backward."""
    mask = Mask.documents([30, 35], causal=True)
    wrong = []

    def work(seed):
        shape = Shape(batch=1 + seed % 3)
        tensors = inputs(shape, device=device, seed=seed)
        expected = torch.autograd.grad(attention(*tensors, mask, deterministic=True).sum(), tensors)
        for _ in range(20):
            again = torch.autograd.grad(attention(*tensors, mask, deterministic=True).sum(), tensors)
            if not all(torch.equal(a, b) for a, b in zip(again, expected)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_inside_another(monkeypatch):
    """As of a signal's handler or a finalizer, when the outer call has written its addresses; forward and backward."""
    num_threads, inner = lib.num_threads, []
    first, second = ([t.detach() for t in inputs(Shape(), seed=seed)] for seed in (0, 1))
    settings = None, None, [], True, -1, -1, None, 0.0, False

    def run(tensors, each=lambda: None):
        each()
        output, lse = torch_ops.ops.forward(*tensors, *settings, False)
        each()
        return [output, lse, *torch_ops.ops.backward(output, None, output, lse, *tensors, *settings, [True] * 3 + [False])]

    def interrupted():
        monkeypatch.setattr(lib, "num_threads", num_threads)
        inner.append(run(second))
        return num_threads()

    expected = run(first), run(second)
    found = run(first, lambda: monkeypatch.setattr(lib, "num_threads", interrupted))
    for ours, right in ((found, expected[0]), (inner[0], expected[1]), (inner[1], expected[1])):
        assert all(torch.equal(a, b) for a, b in zip(ours, right, strict=True))


class Batches(torch.utils.data.Dataset):
    """Uses masks in a worker: one from before the fork, and one made there."""

    def __init__(self):
        self.mask = Mask.documents([30, 35], causal=True)
        self.tensors = inputs(Shape(), requires_grad=False)
        attention(*self.tensors, self.mask)  # the threads of this process are not in the worker

    def __len__(self):
        return 4

    def __getitem__(self, n):
        made = Mask.documents([30, 35], causal=True)
        return attention(*self.tensors, self.mask), attention(*self.tensors, made), startend(document_ends([30, 35]))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers(context):
    data = Batches()
    expected = attention(*data.tensors, data.mask)
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=context, timeout=120)
    count = 0
    for before, made, vectors in loader:
        count += 1
        assert torch.equal(before, expected) and torch.equal(made, expected)
        assert torch.equal(attention(*data.tensors, vectors), expected)
    assert count == len(data)


@pytest.fixture
def one_thread():
    """Others would wait for each other at every step on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_memory_is_steady(one_thread):
    """New lengths and masks at each step, 1,000 of them: https://github.com/meta-pytorch/attention-gym/issues/159"""
    page = resource.getpagesize()

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    used = []
    for step in range(1000):
        rows = 1 + step * 37 % 200
        tensors = inputs(Shape(batch=1, rows=rows, columns=rows), seed=step)
        masks = Mask.documents([rows // 2, rows - rows // 2], causal=True), startend(document_ends([rows]))
        (attention(*tensors, masks[0]) + attention(*tensors, masks[1])).sum().backward()
        used.append(resident())
    assert used[-1] - used[499] < 2**23, f"{used[-1] - used[499]} bytes more after 500 more steps"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [Mask, DeviceMask])
def test_copies(kind, device):
    tensors = inputs(Shape(), device=device, requires_grad=False)
    mask = Mask.documents([30, 35], causal=True) if kind is Mask else startend(document_ends([30, 35]), device)
    expected = attention(*tensors, mask)
    for other in (copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert torch.equal(attention(*tensors, other), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_modules_that_hold_masks(device):
    """deepcopy, as for an average of weights."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = Mask.documents([30, 35], causal=True)
            self.vectors = startend(document_ends([30, 35]), device)
            self.weight = torch.nn.Parameter(torch.eye(16, device=device))

        def forward(self, q, k, v):
            return attention(q @ self.weight, k, v, self.mask) + attention(q, k, v, self.vectors)

    layer = Layer()
    tensors = inputs(Shape(), device=device)
    output = layer(*tensors)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(*tensors), output)
    output.backward(like(output, 1))
    assert layer.weight.grad is not None and twin.weight.grad is None


def test_copies_do_not_share_vectors():
    mask = startend(document_ends([30, 35]))
    twin = copy.deepcopy(mask)
    mask.vectors.fill_(0)
    assert twin.vectors.any()


@pytest.mark.parametrize("device", DEVICES)
def test_vectors(device):
    mask = Mask.documents([30, 35], causal=True)
    vectors = mask.vectors(device)
    assert vectors.shape == (1, 1, 65, 2) and vectors.dtype == torch.int32 and vectors.device.type == device
    pairs = DeviceMask.from_intervals(vectors.reshape(1, 1, 65, 1, 2).permute(0, 1, 3, 2, 4))
    assert pairs.to(device) is pairs
    tensors = inputs(Shape(), device=device)
    assert torch.equal(attention(*tensors, pairs), attention(*tensors, mask))
    assert repr(pairs) == f"DeviceMask(intervals, shape [1, 1, 65, 65], 2 numbers a key, on {vectors.device})"
