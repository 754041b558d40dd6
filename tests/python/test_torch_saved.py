"""What is saved for backward: checkpointing, hooks that copy or move it, masks that nobody else keeps."""

import contextlib
import gc
import weakref

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from torch_cases import DEVICES, Shape, document_ends, inputs, like, startend

from flashmask import DeviceMask, Mask, attention, torch_ops

# ---- checkpointing ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", [Mask, DeviceMask])
def test_checkpoint(kind, reentrant, device):
    """https://github.com/meta-pytorch/attention-gym/issues/53 https://github.com/pytorch/pytorch/issues/175258
    https://github.com/lightly-ai/lightly/pull/2050"""
    lengths = [30, 35]
    mask = Mask.documents(lengths, causal=True) if kind is Mask else startend(document_ends(lengths), device)
    tensors = inputs(Shape(), device=device)

    def run(q, k, v):
        return attention(q, k, v, mask, deterministic=True)

    expected = run(*tensors)
    grad = like(expected, 1)
    ours = checkpoint(run, *tensors, use_reentrant=reentrant)
    assert torch.equal(ours, expected)
    expected_grads = torch.autograd.grad(expected, tensors, grad)
    ours.backward(grad)
    assert all(torch.equal(t.grad, g) for t, g in zip(tensors, expected_grads))


@pytest.mark.skipif(not hasattr(torch.utils.checkpoint, "create_selective_checkpoint_contexts"), reason="needs torch 2.5")
@pytest.mark.parametrize("device", DEVICES)
def test_selective_checkpoint(device, monkeypatch):
    """A policy that keeps what attention returned: it runs once."""
    operator = torch.ops.flashmask.forward.default
    count = []
    monkeypatch.setattr(torch_ops.calls, "forward", lambda *args, run=torch_ops.calls.forward: count.append(1) or run(*args))
    tensors = inputs(Shape(), device=device)
    mask = Mask.documents([30, 35], causal=True)
    expected = torch.autograd.grad(attention(*tensors, mask, deterministic=True).sum(), tensors)
    count.clear()
    output = checkpoint(
        lambda *t: attention(*t, mask, deterministic=True),
        *tensors,
        use_reentrant=False,
        context_fn=lambda: torch.utils.checkpoint.create_selective_checkpoint_contexts([operator]),
    )
    grads = torch.autograd.grad(output.sum(), tensors)
    assert len(count) == 1 and all(torch.equal(a, b) for a, b in zip(grads, expected))


# ---- hooks on saved tensors ----


def copies(device):
    return saved_tensors_hooks(lambda t: t.clone().cpu(), lambda t: t.to(device) if t.dim() else t.clone())


def masks_of(device):
    """By token with intervals and with bitmaps, and by vectors."""
    yield Mask.documents([30, 35], causal=True)
    yield Mask.random_sparse(65, 65, density=0.4, seed=3)
    yield startend(document_ends([30, 35]), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "hooks", [copies, lambda _: save_on_cpu(), contextlib.nullcontext], ids=["copies", "save_on_cpu", "none"]
)
def test_masks_that_nobody_else_keeps(hooks, device):
    """Two layers, then the mask is forgotten: what backward reads of it, a copy of a token too, is still that mask."""
    tensors = inputs(Shape(), device=device)

    def two_layers(q, k, v, mask):
        x = attention(q, k, v, mask, deterministic=True)
        return attention(q, k, x.mean(2, keepdim=True).expand(2, 65, 2, 24), mask, deterministic=True)

    masks = list(masks_of(device))
    expected = [torch.autograd.grad(two_layers(*tensors, mask).sum(), tensors) for mask in masks]
    with hooks(device):
        outputs = [two_layers(*tensors, mask) for mask in masks]
    del masks
    gc.collect()
    for output, grads in zip(outputs, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(output.sum(), tensors), grads))


@pytest.mark.parametrize("hooks", [copies, lambda _: save_on_cpu()], ids=["copies", "save_on_cpu"])
def test_checkpoint_inside_hooks(hooks):
    tensors = inputs(Shape())
    for mask in masks_of("cpu"):
        expected = torch.autograd.grad(attention(*tensors, mask).sum(), tensors)
        with hooks("cpu"):
            held = [mask]
            output = checkpoint(lambda *t, held=held: attention(*t, held[0]), *tensors, use_reentrant=False)
        del mask, held
        gc.collect()
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(output.sum(), tensors), expected))


def test_hooks_of_a_compiled_graph():
    """There a copied token is all that is saved: while the Mask lives it is right, and then an error, never another mask."""
    tensors = inputs(Shape())
    run = torch.compile(lambda q, k, v, mask: attention(q, k, v, mask), fullgraph=True, backend="aot_eager")
    masks = [Mask.random_sparse(65, 65, density=0.4, seed=3)]
    expected = torch.autograd.grad(attention(*tensors, masks[0]).sum(), tensors)
    with copies("cpu"):
        first, second = run(*tensors, masks[0]), run(*tensors, masks[0])
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(first.sum(), tensors), expected))
    masks.clear()
    gc.collect()
    with pytest.raises(RuntimeError, match="names no mask; keep the Mask until its last use, the backward pass included"):
        torch.autograd.grad(second.sum(), tensors)


@pytest.mark.parametrize("kind", [Mask, DeviceMask])
def test_saved_masks_are_let_go(kind):
    """With the graph, no later."""
    tensors = inputs(Shape())
    mask = Mask.documents([30, 35], causal=True) if kind is Mask else startend(document_ends([30, 35]))
    output = attention(*tensors, mask)
    gone = []
    weakref.finalize(mask if kind is Mask else mask.vectors, gone.append, 1)
    del mask
    assert not gone
    del output
    gc.collect()
    assert gone == [1]


@pytest.mark.skipif(not hasattr(torch._C._autograd, "_get_current_graph_task_keep_graph"), reason="needs torch 2.5")
@pytest.mark.parametrize("hooks", [contextlib.nullcontext, lambda: copies("cpu")], ids=["none", "copies"])
@pytest.mark.parametrize("kind", [Mask, DeviceMask])
def test_backward_lets_saved_masks_go(kind, hooks):
    """As it does saved tensors, though the output lives; with retain_graph they stay."""
    tensors = inputs(Shape())
    mask = Mask.documents([30, 35], causal=True) if kind is Mask else startend(document_ends([30, 35]))
    with hooks():
        output = attention(*tensors, mask)
    gone = []
    weakref.finalize(mask if kind is Mask else mask.vectors, gone.append, 1)
    del mask
    first = torch.autograd.grad(output.sum(), tensors, retain_graph=True)
    assert not gone or (kind is DeviceMask and hooks is not contextlib.nullcontext)  # a copy of vectors is all that is needed
    second = torch.autograd.grad(output.sum(), tensors)
    assert gone == [1] and all(torch.equal(a, b) for a, b in zip(first, second))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(output.sum(), tensors)
