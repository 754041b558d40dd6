"""torch.func: transforms of attention, and those that are refused."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch_cases import DEVICES, Shape, document_ends, inputs, startend

from flashmask import DeviceMask, Mask, attention

TINY = Shape(batch=1, rows=3, columns=4, heads=2, heads_kv=1, dim=8, dim_v=8)


@pytest.mark.parametrize("device", DEVICES)
def test_func(device):
    q, k, v = inputs(Shape(), device=device)
    mask = Mask.documents([30, 35], causal=True)

    def loss(q, k, v, sinks):
        output, lse = attention(q, k, v, mask, sinks=sinks, return_lse=True, deterministic=True)
        return output.square().sum() + lse.sum()

    sinks = torch.zeros(4, device=device, requires_grad=True)
    expected = torch.autograd.grad(loss(q, k, v, sinks), (q, k, v, sinks))
    plain = [t.detach() for t in (q, k, v, sinks)]
    ours = grad(loss, argnums=(0, 1, 2, 3))(*plain)
    _, pull = vjp(loss, *plain)
    for a, b, c in zip(ours, expected, pull(torch.ones((), device=device))):
        assert torch.equal(a, b) and torch.equal(c, b)


def close(ours, expected):
    """To the rounding of f32: batches of another size may be added up in another order."""
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def stacked(device):
    """query, key, value of three items, [3, B, S, H, D]."""
    return [torch.stack(parts) for parts in zip(*(inputs(Shape(), device=device, seed=n, requires_grad=False) for n in range(3)))]


def masks_of(device):
    """None, by token or plan with intervals and with bitmaps, by vectors, and of a mask for each head."""
    yield None
    yield Mask.documents([30, 35], causal=True)
    yield Mask.random_sparse(65, 65, density=0.4, seed=1)
    yield startend(document_ends([30, 35]), device)
    yield Mask.head_windows(65, left=[5, 60], right=[0, 3])


@pytest.mark.parametrize("device", DEVICES)
def test_vmap(device):
    """The mapped dimension, wherever it stands, becomes a part of the batch."""
    q, k, v = stacked(device)
    for mask in masks_of(device):

        def run(q, k, v, mask=mask):
            return attention(q, k, v, mask, causal=True, return_lse=True)

        expected = [torch.stack(parts) for parts in zip(*map(run, q, k, v))]
        close(vmap(run)(q, k, v), expected)
        moved = vmap(run, in_dims=(2, 4, 1), out_dims=(3, 2))(q.movedim(0, 2), k.movedim(0, 4), v.movedim(0, 1))
        close((moved[0].movedim(3, 0), moved[1].movedim(2, 0)), expected)
        shared = vmap(run, in_dims=(0, None, None))(q, k[0], v[0])
        close(shared[:1], [torch.stack([run(item, k[0], v[0])[0] for item in q])])
        twice = vmap(vmap(run))(*(t[:, None] for t in (q, k, v)))
        close([t[:, 0] for t in twice], expected)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_each_item(device):
    q, k, v = stacked(device)
    for mask in masks_of(device):

        def loss(q, k, v, mask=mask):
            output, lse = attention(q, k, v, mask, return_lse=True, deterministic=True)
            return output.square().sum() + torch.where(lse.isinf(), 0.0, lse).sum()

        each = grad(loss, argnums=(0, 1, 2))
        expected = [torch.stack(parts) for parts in zip(*map(each, q, k, v))]
        close(vmap(each)(q, k, v), expected)
        shared = vmap(each, in_dims=(0, None, None))(q, k[0], v[0])
        close(shared, [torch.stack(parts) for parts in zip(*(each(item, k[0], v[0]) for item in q))])
        mapped = grad(lambda *t, loss=loss: vmap(loss)(*t).sum(), argnums=(0, 1, 2))
        close(mapped(q, k, v), expected)
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        close(torch.autograd.grad(vmap(loss)(*leaves).sum(), leaves), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_jacobians(device):
    q, k, v = inputs(TINY, device=device, requires_grad=False)

    def run(q):
        return attention(q, k, v, causal=True)

    rows = torch.autograd.functional.jacobian(run, q)
    torch.testing.assert_close(jacrev(run)(q), rows)
    torch.testing.assert_close(torch.autograd.functional.jacobian(run, q, vectorize=True), rows)


@pytest.mark.parametrize("device", DEVICES)
def test_what_vmap_refuses(device):
    q, k, v = stacked(device)
    sinks = torch.zeros(3, 4, device=device)
    vectors = startend(document_ends([30, 35]), device).vectors.expand(3, 1, 1, 65, 1)
    pair = Mask.stack_batch([Mask.causal(65)] * 2)
    six = Mask.stack_batch([Mask.causal(65)] * 6)  # 3 items of batch 2: not what it was made for

    def by_vectors(q, k, v, vectors):
        return attention(q, k, v, DeviceMask.from_startend_row_indices(vectors, causal=True))

    with pytest.raises(NotImplementedError, match="vmap over sinks .* part of the batch yourself"):
        vmap(lambda q, k, v, s: attention(q, k, v, sinks=s))(q, k, v, sinks)
    with pytest.raises(NotImplementedError, match="vmap over the gradient of sinks"):
        vmap(grad(lambda s, *t: attention(*t, sinks=s).sum()), in_dims=(None, 0, 0, 0))(sinks[0], q, k, v)
    with pytest.raises(NotImplementedError, match="vmap over mask .* part of the batch yourself"):
        vmap(by_vectors)(q, k, v, vectors)
    for mask in (pair, six, pair.to(device)):
        with pytest.raises(NotImplementedError, match="a mask of [26] batch items .* needs a mask of batch 1"):
            vmap(lambda *t, mask=mask: attention(*t, mask))(q, k, v)
    assert vmap(lambda *t: attention(*t, sinks=sinks[0]))(q, k, v).shape == (3, 2, 65, 4, 24)


@pytest.mark.parametrize("device", DEVICES)
def test_derivatives_forward_in_time_are_refused(device):
    """Not taken for zero."""
    q, k, v = inputs(TINY, device=device, requires_grad=False)
    one = torch.ones_like(q)

    def run(q):
        return attention(q, k, v)

    for wrong in (
        lambda: jvp(run, (q,), (one,)),
        lambda: jacfwd(run)(q),
        lambda: hessian(lambda q: run(q).sum())(q),
        lambda: jvp(grad(lambda q: run(q).sum()), (q,), (one,)),
    ):
        with pytest.raises(NotImplementedError, match="forward in time .*; use those backward: .* vjp or jacrev"):
            wrong()
    for leaf in (q, q.clone().requires_grad_()):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(leaf, one)
            with pytest.raises(NotImplementedError, match="forward in time .*; use those backward"):
                run(dual)
            assert run(q).shape == (1, 3, 2, 8)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_in_batches(device):
    q = torch.randn(1, 4, 2, 8, device=device, requires_grad=True)
    output = attention(q, q, q, causal=True)
    batch = torch.randn(3, *output.shape, device=device)
    together = torch.autograd.grad(output, q, batch, is_grads_batched=True, retain_graph=True)[0]
    for one, given in zip(together, batch):
        close([one], torch.autograd.grad(output, q, given, retain_graph=True))
    again = torch.autograd.grad(output, q, batch, is_grads_batched=True, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="gradient of a gradient"):  # and not a gradient that lacks a term
        (q.square().sum() + again.square().sum()).backward()


@pytest.mark.parametrize("device", DEVICES)
def test_vmap_over_nothing(device):
    for mask in masks_of(device):
        none = [t[:0] for t in stacked(device)]
        output, lse = vmap(lambda *t, mask=mask: attention(*t, mask, return_lse=True))(*none)
        assert output.shape == (0, 2, 65, 4, 24) and lse.shape == (0, 2, 4, 65)
        grads = vmap(grad(lambda *t, mask=mask: attention(*t, mask).sum(), argnums=(0, 1, 2)))(*none)
        assert [g.shape for g in grads] == [t.shape for t in none]


@pytest.mark.parametrize("device", DEVICES)
def test_the_operator_inside_transforms(device):
    """As graphs call it, whose code has no transforms of its own any more."""
    q, k, v = inputs(Shape(), device=device, requires_grad=False)
    rest = None, None, [], True, -1, -1, None, 0.0, True, False

    def by_name(q, k, v):
        output, lse = torch.ops.flashmask.forward(q, k, v, *rest)
        return output.square().sum() + lse.sum()

    def by_attention(q, k, v):
        output, lse = attention(q, k, v, causal=True, deterministic=True, return_lse=True)
        return output.square().sum() + lse.sum()

    for take in (lambda f: grad(f, argnums=(0, 1, 2))(q, k, v), lambda f: vjp(f, q, k, v)[1](torch.ones((), device=device))):
        close(take(by_name), take(by_attention))
    with pytest.raises(NotImplementedError, match="gradient of a gradient"):
        grad(lambda q: grad(by_name)(q, k, v).sum())(q)
    with pytest.raises(NotImplementedError, match="forward in time"):
        jvp(lambda q: by_name(q, k, v), (q,), (q,))
