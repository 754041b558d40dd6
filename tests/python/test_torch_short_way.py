"""Plain tensors go to the kernel without torch's dispatcher; what looks at operators, or changes tensors on their way, gets them."""

import contextlib

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch_cases import DEVICES, Shape, document_ends, inputs, startend

from flashmask import Mask, attention, torch_ops

FORWARD, BACKWARD = torch.ops.flashmask.forward.default, torch.ops.flashmask.backward.default


def both_ways(tensors, mask=None, **options):
    """Output and gradients."""
    output = attention(*tensors, mask, deterministic=True, **options)
    return [output, *torch.autograd.grad(output.sum(), tensors)]


def equal(ours, expected):
    return all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


@pytest.fixture
def dispatched(monkeypatch):
    """Counts operators that take the long way."""
    count, long_way = [], torch_ops.below_autograd
    monkeypatch.setattr(torch_ops, "below_autograd", lambda op, *rest: count.append(op) or long_way(op, *rest))
    return count


@pytest.mark.skipif(not torch_ops.HAS_SHORT_WAY, reason="not with this torch")
@pytest.mark.parametrize("device", DEVICES)
def test_plain_tensors(device, dispatched):
    tensors = inputs(Shape(), device=device)
    sinks = torch.nn.Parameter(torch.zeros(4, device=device))
    for mask in (None, Mask.documents([30, 35], causal=True), startend(document_ends([30, 35]), device)):
        both_ways(tensors, mask)
        both_ways([torch.nn.Parameter(t) for t in tensors], mask, sinks=sinks)
        with torch.no_grad():
            attention(*tensors, mask)
        with torch.inference_mode():
            attention(*tensors, mask)
            attention(*[t.clone() for t in tensors], mask)
        with torch.autocast(device, dtype=torch.bfloat16):
            both_ways(tensors, mask)
    assert not dispatched


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", DEVICES)
def test_onlookers(device):
    tensors = inputs(Shape(), device=device)
    expected = both_ways(tensors)
    for mode in (Operators, Functions):
        with mode() as onlooker:
            assert equal(both_ways(tensors), expected)
            with torch.no_grad():
                attention(*tensors)
        assert onlooker.seen.count(FORWARD) == 2
        assert onlooker.seen.count(BACKWARD) == (mode is Operators)  # backward calls no functions
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        both_ways(tensors)
        with torch.no_grad():
            attention(*tensors)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["flashmask::forward"] == 2 and counts["flashmask::backward"] == 1


@pytest.mark.parametrize("kind", [Mask, None])
def test_traces(kind):
    """make_fx records the operators, and what it recorded runs."""
    tensors = inputs(Shape(), requires_grad=False)
    mask = Mask.documents([30, 35], causal=True) if kind is Mask else startend(document_ends([30, 35]))
    traced = make_fx(lambda *t: attention(*t, mask))(*tensors)
    assert FORWARD in [node.target for node in traced.graph.nodes]
    other = inputs(Shape(), seed=1, requires_grad=False)
    assert torch.equal(traced(*other), attention(*other, mask))


def test_onlookers_of_a_compiled_backward():
    """Modes that come after a step was compiled see its backward too."""
    tensors = inputs(Shape())
    outside = torch.compiler.disable(attention)

    @torch.compile(backend="eager")
    def step(*t):
        outside(*t).sum().backward()

    step(*tensors)
    with Operators() as onlooker:
        step(*tensors)
    assert onlooker.seen.count(FORWARD) == 1 and onlooker.seen.count(BACKWARD) == 1


class Named(torch.Tensor):
    """A subclass that torch functions keep."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("position", range(3))
def test_odd_tensors(position, device):
    """Which have no memory of their own, or another one than they seem."""
    tensors = inputs(Shape(), device=device, requires_grad=False)
    plain = tensors[position]
    wrapped = []
    torch.func.grad(lambda x: wrapped.append(x * 1) or x.sum())(plain)  # outlives its transform
    odd = [
        (torch._neg_view(plain), -plain),
        (torch._efficientzerotensor(plain.shape, device=device), torch.zeros_like(plain)),
        (wrapped[0], plain),
        (plain.as_subclass(Named), plain),
    ]
    for tensor, same in odd:
        for grad in (False, True):
            few = [t.clone().requires_grad_(grad) for t in tensors]
            few[position] = tensor
            ours = attention(*few)
            few[position] = same
            assert torch.equal(ours, attention(*few)) and isinstance(ours, Named) == isinstance(tensor, Named)


def test_calls_inside_a_call(monkeypatch):
    """As a finalizer makes them: the structs of the outer call stay its own."""
    tensors, other = inputs(Shape(), requires_grad=False), inputs(Shape(), seed=1, requires_grad=False)
    expected, inner = attention(*tensors), []
    fill = torch_ops.calls.Forward.fill

    def interrupted(self, *arguments):
        alive = fill(self, *arguments)
        if not inner:
            inner.append(None)
            inner[0] = attention(*other)
        return alive

    monkeypatch.setattr(torch_ops.calls.Forward, "fill", interrupted)
    assert torch.equal(attention(*tensors), expected)
    monkeypatch.undo()
    assert torch.equal(inner[0], attention(*other)) and torch.equal(attention(*tensors), expected)


def test_strides_of_single_elements():
    """Contiguous tensors share a struct, whatever the strides of dimensions of 1 are."""
    shape = Shape(batch=1, heads=1, heads_kv=1)
    tensors = inputs(shape, requires_grad=False)
    strange = [t.as_strided(t.shape, (7, t.shape[3], 3, 1)) for t in tensors]
    for order in ((strange, tensors), (tensors, strange)):
        torch_ops.calls._calls.known.clear()
        assert torch.equal(attention(*order[0]), attention(*order[1]))


@pytest.mark.parametrize("where", [contextlib.nullcontext, torch.no_grad])
def test_calls_that_fail_leave_nothing(where):
    q, k, v = inputs(Shape())
    with where():
        for _ in range(2):
            with pytest.raises(ValueError, match="64 rows"):
                attention(q, k, v, Mask.full(64, 65))
        expected = attention(q, k, v)
        with pytest.raises(ValueError, match="softcap"):
            attention(q, k, v, softcap=-1.0)
        assert torch.equal(attention(q, k, v), expected)
