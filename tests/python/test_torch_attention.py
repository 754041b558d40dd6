"""flashmask.attention on torch tensors against dense attention: values and gradients."""

import math

import numpy as np
import pytest
import torch
from torch_cases import DEVICES, DTYPES, Options, Shape, check, dense_attention, document_ends, inputs, like, startend, visible

from flashmask import DeviceMask, Mask, attention

MASKS = {
    "none": lambda s: None,
    "documents": lambda s: Mask.documents([s.columns // 3, s.columns - s.columns // 3], causal=True),
    "share_question": lambda s: Mask.share_question([[s.columns - 21, 10, 11]]),
    "empty rows": lambda s: Mask.documents([s.columns - 9], causal=True, padding=9),
    "heads": lambda s: Mask.stack_heads([Mask.causal(s.rows), Mask.sliding_window(s.rows, left=7, right=3)]),
    "batch": lambda s: Mask.stack_batch([Mask.causal(s.rows), Mask.full(s.rows)]),
    "fallback": lambda s: Mask.random_sparse(s.rows, s.columns, density=0.4, seed=3),
}


def run_with(mask, options, **more):
    def run(query, key, value, sinks=None):
        return attention(query, key, value, mask, sinks=sinks, return_lse=True, **options.keywords(), **more)

    return run


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, dtype, device):
    shape, options = Shape(), Options()
    mask = MASKS[name](shape)
    check(run_with(mask, options), inputs(shape, dtype, device), visible(mask, shape, options, device), options)


OPTIONS = {
    "causal": Options(causal=True),
    "window": Options(window_size=(9, 4)),
    "causal window": Options(causal=True, window_size=(5, -1)),
    "scale": Options(softmax_scale=-0.3),
    "softcap": Options(softcap=1.5, causal=True),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, masked, device):
    shape, options = Shape(), OPTIONS[name]
    mask = MASKS["documents"](shape) if masked else None
    check(run_with(mask, options), inputs(shape, device=device), visible(mask, shape, options, device), options)


@pytest.mark.parametrize("device", DEVICES)
def test_prefixes_that_differ_in_a_batch(device):
    """https://github.com/vllm-project/vllm/issues/30786: images both ways, text causal: a slow kernel elsewhere, one call here."""
    shape, options, prefixes = Shape(), Options(), (40, 0)
    mask = Mask.stack_batch([Mask.prefix_lm(65, prefix=prefix) for prefix in prefixes])
    i, j = torch.arange(65, device=device)[:, None], torch.arange(65, device=device)
    seen = torch.stack([(j <= i) | (j < prefix) for prefix in prefixes])[:, None].expand(2, shape.heads, 65, 65)
    tensors = inputs(shape, device=device)
    for form in (mask, mask.to(device)):
        check(run_with(form, options), tensors, seen, options)
    with torch.inference_mode():
        once = attention(*tensors, mask)
    assert torch.equal(once, attention(*tensors, mask))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows, columns", [(1, 70), (70, 1), (33, 130), (130, 33)])
def test_other_lengths(rows, columns, device):
    shape, options = Shape(rows=rows, columns=columns), Options(causal=True)
    check(run_with(None, options), inputs(shape, device=device), visible(None, shape, options, device), options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads, heads_kv", [(4, 4), (6, 1), (12, 2)])
def test_sinks(heads, heads_kv, dtype, device):
    """Groups of 6 heads: https://github.com/pytorch/pytorch/issues/143117 https://github.com/pytorch/pytorch/issues/151359"""
    shape, options = Shape(heads=heads, heads_kv=heads_kv), Options(causal=True)
    mask = MASKS["empty rows"](shape)
    sinks = torch.linspace(-2, 2, heads, device=device).requires_grad_()
    check(run_with(mask, options), inputs(shape, dtype, device), visible(mask, shape, options, device), options, sinks)


@pytest.mark.parametrize("device", DEVICES)
def test_sinks_of_another_dtype(device):
    q, k, v = inputs(Shape(), torch.bfloat16, device)
    sinks = torch.linspace(-1, 1, 4, device=device, dtype=torch.bfloat16).requires_grad_()
    attention(q, k, v, sinks=sinks).sum().backward()
    assert sinks.grad.dtype == torch.bfloat16
    wide = sinks.detach().float().requires_grad_()
    attention(q, k, v, sinks=wide).sum().backward()
    assert torch.equal(sinks.grad, wide.grad.bfloat16())


def device_forms(mask, device):
    """The same mask, of documents, in every form of vectors."""
    pairs = torch.from_numpy(mask.intervals()).to(device)
    ends = torch.from_numpy(mask.to_startend_row_indices(vectors=1, causal=True)).to(device)
    yield DeviceMask.from_intervals(pairs)
    yield DeviceMask.from_startend_row_indices(ends, causal=True)
    yield DeviceMask.from_fms_fme(pairs[..., 0], pairs[..., 1] - 1)
    yield DeviceMask.from_fms_fme(pairs[:, :, 0, :, 0], pairs[:, :, 0, :, 1] - 1)
    yield DeviceMask.from_fms_fme(pairs[0, 0, 0, :, 0], pairs[0, 0, 0, :, 1] - 1)


@pytest.mark.parametrize("device", DEVICES)
def test_vectors_equal_the_mask(device):
    shape = Shape()
    mask, tensors = MASKS["documents"](shape), inputs(shape, device=device)
    grad = like(attention(*tensors), 1)
    expected = attention(*tensors, mask)
    expected_grads = torch.autograd.grad(expected, tensors, grad, retain_graph=True)
    for form in device_forms(mask, device):
        assert form.shape == mask.shape
        output = attention(*tensors, form, deterministic=True)
        assert torch.equal(output, expected)
        for ours, other in zip(torch.autograd.grad(output, tensors, grad), expected_grads):
            assert torch.equal(ours, other) if device == "cpu" else torch.allclose(ours, other, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_vectors_changed_in_place(device):
    """Layers share what is made of a mask until its contents change."""
    q, k, v = inputs(Shape(), device=device, requires_grad=False)
    mask = startend(document_ends([30, 35]), device)
    for lengths in ([30, 35], [64, 1], [5, 60]):
        mask.vectors.copy_(torch.from_numpy(document_ends(lengths)).reshape(1, 1, -1, 1))
        assert torch.equal(attention(q, k, v, mask), attention(q, k, v, Mask.documents(lengths, causal=True)))


def test_vectors_changed_before_backward():
    """The rule of torch for what backward needs. (A GPU's backward has the plan of its forward.)"""
    q, k, v = inputs(Shape())
    mask = startend(document_ends([30, 35]))
    output = attention(q, k, v, mask)
    mask.vectors.fill_(65)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_strides_of_vectors(device):
    """Heads that share vectors without a copy: https://github.com/sgl-project/SpecForge/issues/452"""
    tensors = inputs(Shape(), device=device)
    ends = torch.from_numpy(document_ends([30, 35])).to(device)
    expected = attention(*tensors, Mask.documents([30, 35], causal=True))
    spread = torch.zeros(2, 65, 3, dtype=torch.int32, device=device)
    spread[:, :, 1] = ends
    for vectors in (ends.expand(1, 4, 65)[..., None], ends.expand(2, 2, 65)[..., None], spread[:, None, :, 1:2]):
        assert torch.equal(attention(*tensors, DeviceMask.from_startend_row_indices(vectors, causal=True)), expected)


def test_memory_that_numpy_shares():
    """On the CPU even a change that torch cannot see is seen."""
    q, k, v = inputs(Shape(), requires_grad=False)
    ends = document_ends([30, 35])
    mask = startend(torch.from_numpy(ends))
    attention(q, k, v, mask)
    ends[:] = document_ends([20, 45])
    assert torch.equal(attention(q, k, v, mask), attention(q, k, v, Mask.documents([20, 45], causal=True)))


# ---- layouts and strides ----


@pytest.mark.parametrize("device", DEVICES)
def test_bhsd(device):
    q, k, v = inputs(Shape(), device=device)
    mask = MASKS["documents"](Shape())
    expected, lse = attention(q, k, v, mask, return_lse=True)
    swapped = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
    output, same_lse = attention(*swapped, mask, return_lse=True, layout="bhsd")
    assert torch.equal(output, expected.transpose(1, 2)) and torch.equal(lse, same_lse)
    grad = like(expected, 1)
    grads = torch.autograd.grad(expected, (q, k, v), grad)
    for ours, other in zip(torch.autograd.grad(output, swapped, grad.transpose(1, 2)), grads):
        torch.testing.assert_close(ours, other.transpose(1, 2))


def strided(tensor, kind):
    """The same values in other memory."""
    b, s, h, d = tensor.shape
    if kind == "every second row":  # https://github.com/flagos-ai/FlagAttention/issues/45
        out = tensor.new_full((b, 2 * s, h, d), float("nan"))[:, ::2]
    elif kind == "every second element":  # https://github.com/pytorch/pytorch/pull/187506
        out = tensor.new_full((b, s, h, 2 * d), float("nan"))[..., ::2]
    elif kind == "fused":
        out = tensor.new_full((b, s, 3, h, d), float("nan"))[:, :, 1]
    elif kind == "sequence first":
        out = tensor.new_full((s, b, h, d), float("nan")).transpose(0, 1)
    else:
        out = tensor.new_full((b, d, s, h), float("nan")).permute(0, 2, 3, 1)
    return out.copy_(tensor)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["every second row", "every second element", "fused", "sequence first", "dim before sequence"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_strides(which, kind, device):
    tensors = [t.detach() for t in inputs(Shape(), device=device)]
    mask = MASKS["documents"](Shape())
    expected, grads = output_and_grads(tensors, mask)
    tensors[which] = strided(tensors[which], kind)
    output, same = output_and_grads(tensors, mask)
    assert torch.equal(output, expected)
    for ours, other in zip(same, grads):
        torch.testing.assert_close(ours, other)


def output_and_grads(tensors, mask, grad=None):
    leaves = [t.detach().requires_grad_() for t in tensors]
    output = attention(*leaves, mask, deterministic=True)
    return output.detach(), torch.autograd.grad(output, leaves, like(output, 1) if grad is None else grad)


@pytest.mark.parametrize("device", DEVICES)
def test_broadcast_inputs(device):
    q, k, v = (t.detach() for t in inputs(Shape(), device=device))
    one = k[:1, :, :1]
    output, _ = output_and_grads((q, one.expand_as(k), v), None)
    expected, _ = output_and_grads((q, one.expand_as(k).contiguous(), v), None)
    assert torch.equal(output, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_strides_of_grad_output(device):
    """https://github.com/Dao-AILab/flash-attention/issues/355"""
    tensors, mask = [t.detach() for t in inputs(Shape(), device=device)], MASKS["documents"](Shape())
    output, _ = output_and_grads(tensors, mask)
    for grad in (torch.ones(1, device=device).expand_as(output), like(output, 2).transpose(1, 2).contiguous().transpose(1, 2)):
        _, grads = output_and_grads(tensors, mask, grad)
        _, same = output_and_grads(tensors, mask, grad.contiguous())
        assert all(torch.equal(a, b) for a, b in zip(grads, same))


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_to_do(device):
    """Extents of 0: without keys every row is empty."""
    for shape in (Shape(rows=0), Shape(columns=0), Shape(batch=0)):
        tensors = inputs(shape, device=device)
        output, lse = attention(*tensors, return_lse=True)
        assert output.shape == (shape.batch, shape.rows, 4, 24) and not output.any() and (lse == -np.inf).all()
        grads = torch.autograd.grad(output.sum(), tensors)
        assert all(g.shape == t.shape and not g.any() for g, t in zip(grads, tensors))


@pytest.mark.parametrize("device", DEVICES)
def test_only_the_gradients_asked_for(device):
    full = inputs(Shape(), device=device)
    mask = MASKS["documents"](Shape())
    output = attention(*full, mask, deterministic=True)
    grad = like(output, 1)
    expected = torch.autograd.grad(output, full, grad)
    for k in range(3):
        some = [t.detach().requires_grad_(i == k) for i, t in enumerate(full)]
        (ours,) = torch.autograd.grad(attention(*some, mask, deterministic=True), some[k], grad)
        assert torch.equal(ours, expected[k])


@pytest.mark.parametrize("device", DEVICES)
def test_repeated_backward(device):
    """https://github.com/Dao-AILab/flash-attention/issues/359"""
    tensors = inputs(Shape(batch=4, rows=128, columns=64, dim=64, dim_v=64), device=device)
    output = attention(*tensors, causal=True, deterministic=True)
    grad = like(output, 1)
    first = torch.autograd.grad(output, tensors, grad, retain_graph=True)
    for _ in range(50):
        again = torch.autograd.grad(output, tensors, grad, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_numpy_arrays():
    q, k, v = (t.detach() for t in inputs(Shape()))
    mask = MASKS["documents"](Shape())
    output, lse = attention(q.numpy(), k.numpy(), v.numpy(), mask, return_lse=True, causal=True)
    expected, expected_lse = attention(q, k, v, mask, return_lse=True, causal=True)
    assert isinstance(output, np.ndarray)
    assert np.array_equal(output, expected.numpy()) and np.array_equal(lse, expected_lse.numpy())


@pytest.mark.parametrize(("dim", "options"), [(16, {"softmax_scale": 0.1}), (16, {"softcap": 1.3}), (24, {})])
def test_scale_and_softcap_are_rounded_to_f32(dim, options):
    """With f64 tensors too, by no more than the documentation says, and by nothing else."""
    q, k, v = inputs(Shape(dim=dim), torch.float64, requires_grad=False)
    options = {"softmax_scale": 1 / math.sqrt(dim), "softcap": 0.0, **options}
    rounded = {name: float(np.float32(value)) for name, value in options.items()}
    assert rounded != options and all(abs(rounded[name] - value) <= 6e-8 * value for name, value in options.items())
    seen = torch.ones(1, 4, 65, 65, dtype=torch.bool)
    given = {name: value for name, value in options.items() if value != 1 / math.sqrt(dim)}
    output = attention(q, k, v, **given)
    exact, expected = (dense_attention(q, k, v, seen, Options(**numbers))[0] for numbers in (options, rounded))
    assert (output - expected).abs().max() < 1e-14 < (output - exact).abs().max() < 1e-6
