"""flashmask's operators in torch's machinery: opcheck, gradcheck, autocast."""

import ctypes

import pytest
import torch
from torch_cases import DEVICES, Shape, document_ends, inputs, like, startend

from flashmask import Mask, _lib, attention, torch_masks, torch_ops

SMALL = Shape(batch=1, rows=7, columns=7, heads=2, heads_kv=1, dim=8, dim_v=8)


def masks_of(device):
    """Every way in which a mask reaches the operators, as (name, tensor, form)."""
    yield "none", None, []
    mask = Mask.documents([3, 4], causal=True)
    vectors = startend(document_ends([3, 4]), device)
    if device == "cpu":
        yield "token", torch_masks.hold(mask), []
        yield "vectors", vectors.vectors, [7, vectors.format, 1]
        return
    flags = (False, -1, -1)
    yield "mask", torch_masks.plan_from_mask(mask, torch.device(device, 0), flags), list(mask._form)
    form = torch_masks.vectors_form(vectors.vectors, 7, vectors.format, True)
    yield "vectors", torch_masks.plan_from_vectors(vectors.vectors, 7, vectors.format, True, flags), form


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sinks", [False, True])
def test_opcheck_attention(sinks, device):
    for _, mask, form in masks_of(device):
        q, k, v = inputs(SMALL, device=device)
        s = torch.zeros(2, device=device, requires_grad=True) if sinks else None
        rest = mask, form, False, -1, -1, None, 0.0, True, False
        torch.library.opcheck(torch.ops.flashmask.forward.default, (q, k, v, s, *rest))
        q, k, v = (t.detach() for t in (q, k, v))
        s = None if s is None else s.detach()
        output, lse = torch.ops.flashmask.forward(q, k, v, s, *rest)
        wanted = [True, False, True, sinks]
        args = like(output, 1), like(lse, 2), output, lse, q, k, v, s, *rest[:-1], wanted
        torch.library.opcheck(torch.ops.flashmask.backward.default, args)


def test_opcheck_hold():
    torch.library.opcheck(torch.ops.flashmask.hold.default, (torch_masks.hold(Mask.causal(8)),))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_opcheck_plans():
    mask, flags = Mask.random_sparse(300, 300, density=0.5, seed=1), (True, 100, -1)
    checks = "test_schema", "test_autograd_registration", "test_faketensor"  # contents past the plan's end are not defined
    arguments = torch_masks.hold(mask), torch.device("cuda", 0), list(mask._form), *flags
    torch.library.opcheck(torch.ops.flashmask.plan_from_mask.default, arguments, test_utils=checks)
    vectors = startend(document_ends([100, 200]), "cuda")
    arguments = vectors.vectors, 300, vectors.format, True, *flags
    torch.library.opcheck(torch.ops.flashmask.plan_from_vectors.default, arguments, test_utils=checks)


@pytest.mark.parametrize("device", DEVICES)
def test_results_in_f32(device):
    """For callers that merge partial results."""
    q, k, v = inputs(Shape(), torch.bfloat16, device)
    rest = None, None, [], True, -1, -1, None, 0.0, False
    wide, lse = torch.ops.flashmask.forward(q, k, v, *rest, True)
    output, same = torch.ops.flashmask.forward(q, k, v, *rest, False)
    assert wide.dtype == torch.float32 and torch.equal(wide.bfloat16(), output) and torch.equal(lse, same)
    grads = torch.autograd.grad(wide, (q, k, v), like(wide, 1))
    assert all(g.dtype == torch.bfloat16 and g.isfinite().all() for g in grads)


# ---- derivatives ----


@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 2.0}, {"window_size": (2, 1), "softmax_scale": 0.7}])
@pytest.mark.parametrize(
    "mask", [None, Mask.documents([3, 3], causal=True, padding=1), Mask.random_sparse(7, 7, density=0.5, seed=2)]
)
def test_gradcheck(mask, options):
    """The reference backend takes f64. Any mask has a backward: https://github.com/Dao-AILab/flash-attention/issues/352,
    https://github.com/facebookresearch/xformers/issues/1093; and on a CPU: https://github.com/pytorch/pytorch/issues/148752,
    https://github.com/pytorch/pytorch/issues/169224"""
    tensors = inputs(SMALL, torch.float64)
    assert torch.autograd.gradcheck(lambda *t: attention(*t, mask, **options), tensors)


def test_gradcheck_of_lse_and_sinks():
    """Both are f32, so steps and tolerances are wide; test_torch_attention compares them with f64."""
    tensors = inputs(SMALL, torch.float64)
    sinks = torch.tensor([0.3, -0.2], requires_grad=True)
    mask = Mask.documents([3, 4], causal=True)

    def run(q, k, v):
        return attention(q, k, v, mask, sinks=sinks, return_lse=True)[1].double()

    assert torch.autograd.gradcheck(run, tensors, eps=1e-2, atol=1e-3, rtol=1e-2)
    q, k, v = (t.detach() for t in tensors)
    assert torch.autograd.gradcheck(lambda s: attention(q, k, v, mask, sinks=s), sinks, eps=1e-2, atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_second_derivatives_are_refused(device):
    q, k, v = inputs(Shape(), device=device)
    (grad,) = torch.autograd.grad(attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="gradient of a gradient"):
        grad.sum().backward()
    output, lse = (t.detach() for t in attention(q, k, v, return_lse=True))
    rest = None, None, [], False, -1, -1, None, 0.0, False, [True, True, True, False]
    grads = torch.ops.flashmask.backward(output, None, output, lse, q, k, v, *rest)
    with pytest.raises(NotImplementedError, match="gradient of a gradient"):
        grads[0].sum().backward()
    with pytest.raises(NotImplementedError, match="gradient of a gradient"):
        torch.func.grad(lambda x: torch.func.grad(lambda y: attention(y, k, v).sum())(x).sum())(q)


@pytest.mark.parametrize("device", DEVICES)
def test_inference_mode(device):
    """Refused elsewhere: https://github.com/vllm-project/vllm/pull/46558"""
    q, k, v = inputs(Shape(), device=device)
    expected = attention(q, k, v, startend(document_ends([30, 35]), device))
    with torch.inference_mode():
        mask = startend(document_ends([30, 35]), device)
        assert torch.equal(attention(q, k, v, mask), expected)
        mask.vectors.copy_(torch.from_numpy(document_ends([65])).reshape(1, 1, -1, 1))
        assert torch.equal(attention(q, k, v, mask), attention(q, k, v, causal=True))
    assert not attention(*(t.detach() for t in (q, k, v))).requires_grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype, device):
    q, k, v = inputs(Shape(), device=device)
    sinks = torch.ones(4, device=device, requires_grad=True)
    halves = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
    expected = attention(*halves, sinks=sinks)
    with torch.autocast(device, dtype=dtype):
        output = attention(q, k.detach().bfloat16(), v, sinks=sinks)
        same = attention(q, k, v, sinks=sinks)
    assert output.dtype == dtype and torch.equal(same, expected)
    same.sum().backward()
    assert q.grad.dtype == torch.float32 and torch.equal(q.grad, torch.autograd.grad(expected.sum(), halves[0])[0].float())
    wide = [t.detach().double() for t in (q, k, v)]
    if device == "cpu":
        with torch.autocast(device, dtype=dtype):
            assert attention(*wide).dtype == torch.float64


# ---- masks behind tokens ----


def test_token_keeps_its_mask():
    tensors = inputs(Shape())
    mask = Mask.random_sparse(65, 65, density=0.4, seed=3)
    expected = torch.autograd.grad(attention(*tensors, mask).sum(), tensors)
    output = attention(*tensors, mask)
    number = int(mask._token)
    del mask
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(output.sum(), tensors), expected))
    del output
    with pytest.raises(RuntimeError, match=f"token {number} names no mask"):
        torch.ops.flashmask.forward(*tensors, None, torch.tensor(number), [], False, -1, -1, None, 0.0, False, False)


# ---- plans on a GPU, as far as they can be checked without one ----


@pytest.mark.parametrize("rows, columns", [(1, 1), (0, 5), (64, 65), (1000, 3000), (131072, 131072), (1048576, 1048576)])
def test_plan_bytes(rows, columns):
    for batch, heads, intervals, blocks in [(1, 1, 1, 0), (3, 8, 4, 0), (2, 4, 3, 1000)]:
        exact, options = ctypes.c_size_t(), _lib.PlanOptions(fallback_blocks=blocks)
        _lib.call("fm_plan_device_bytes", _lib.MaskShape(batch, heads, rows, columns), intervals, options, exact)
        size = torch_masks.plan_bytes(batch, heads, rows, columns, intervals, blocks)
        assert exact.value <= size <= 1.01 * exact.value + 8192


def test_intervals_of_vectors():
    for format, causal, counts in [(0, True, (1, 2)), (0, False, (2, 4)), (1, False, (2, 4, 6, 8)), (2, False, (2, 4, 6, 8))]:
        for count in counts:
            vectors, intervals = torch.zeros(2, 3, 5, count, dtype=torch.int32), ctypes.c_int32()
            struct = torch_masks.vectors_struct(vectors, 9, format, causal)
            struct.device = _lib.Device(_lib.CUDA, 0)
            _lib.call("fm_mask_vectors_intervals", ctypes.byref(struct), ctypes.byref(intervals))
            assert torch_masks.vectors_form(vectors, 9, format, causal) == [2, 3, 9, 5, intervals.value, 0]


def test_fakes_of_cuda():
    """Shapes and devices of what the operators return, on a GPU that need not exist."""
    mask = Mask.documents([30, 35], causal=True)
    with torch._subclasses.FakeTensorMode():
        vectors = torch.empty(1, 1, 65, 1, dtype=torch.int32, device="cuda")
        plan = torch.ops.flashmask.plan_from_vectors(vectors, 65, 0, True, False, -1, -1)
        size = torch_masks.plan_bytes(1, 1, 65, 65, 1, 0)
        assert plan.is_cuda and plan.dtype == torch.uint8 and plan.shape == (size,)
        token = torch.empty((), dtype=torch.int64)
        plan = torch.ops.flashmask.plan_from_mask(token, torch.device("cuda:0"), list(mask._form), False, -1, -1)
        assert plan.is_cuda and plan.shape == (size,)
        q, k = (torch.empty(2, 65, heads, 16, device="cuda", dtype=torch.bfloat16) for heads in (4, 2))
        rest = None, plan, list(mask._form), False, -1, -1, None, 0.0, False
        output, lse = torch_ops.apply((q, k, k, *rest[:2]), (*rest[2:], False))
        assert output.is_cuda and output.shape == q.shape and lse.shape == (2, 4, 65) and lse.dtype == torch.float32
        grads = torch.ops.flashmask.backward(output, None, output, lse, q, k, k, *rest, [True, False, True, False])
        assert [g.shape for g in grads] == [q.shape, (0,), k.shape, (0,)] and grads[0].is_cuda
