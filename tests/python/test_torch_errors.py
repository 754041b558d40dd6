"""Bad input gets a clear exception and never an answer."""

import pickle

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch_cases import DEVICES, Shape, document_ends, inputs, startend

from flashmask import DeviceMask, Mask, attention, flashmask_attention, torch_masks
from flashmask.numpy_attention import NumpyAttention

MASK = Mask.causal(65)


def raises(kind, match, *args, **options):
    with pytest.raises(kind, match=match):
        attention(*args, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_mask_of_another_length(device):
    """https://github.com/meta-pytorch/attention-gym/issues/34 https://github.com/pytorch/pytorch/issues/139462
    https://github.com/facebookresearch/xformers/issues/1122"""
    q, k, v = inputs(Shape(), device=device)
    for mask in (Mask.causal(256), startend(document_ends([256]), device)):
        raises(ValueError, "mask.* 256 rows, query has 65", q, k, v, mask)
        raises(ValueError, "mask.* 256 rows, query has 65", q, k[:, :20], v[:, :20], mask)
    raises(ValueError, "mask.* 65 columns, key has 20", q, k[:, :20], v[:, :20], MASK)
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]
    for mask in (MASK, startend(document_ends([65]), device)):
        raises(ValueError, "mask has 65 rows, query has 4 rows of 65 heads: is it in layout='bhsd'", *heads_first, mask)


@pytest.mark.parametrize("device", DEVICES)
def test_counts(device):
    q, k, v = inputs(Shape(), device=device)
    raises(ValueError, "mask.* 3 batch items, needs 1 or query's 2", q, k, v, Mask.stack_batch([MASK] * 3))
    raises(ValueError, "mask.* 3 heads, needs 1, key's 2 or query's 4", q, k, v, MASK.repeat_heads(3))
    raises(ValueError, "key: has 2 heads, of which query's 3", q[:, :, :3], k, v)
    raises(ValueError, "value: shape", q, k, v[:, :64])
    raises(ValueError, "key: shape", q, k[..., :8], v)
    raises(ValueError, "key: shape", q, k[:1], v)
    raises(ValueError, "query: has 3 dimensions, needs 4", q[0], k, v)
    wide = inputs(Shape(dim=264), device=device)
    raises(ValueError, "query: head_dim is 264", *wide)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_head_dims_of_a_gpu():
    """https://github.com/unslothai/unsloth/issues/4036"""
    raises(ValueError, "query: head_dim is 31, .* multiple of 8", *inputs(Shape(dim=31), device="cuda"))
    raises(TypeError, "f64", *inputs(Shape(), torch.float64, "cuda"))


def test_dimensions_of_heads_first():
    raises(ValueError, r"query: has 1 dimensions, needs 4: \[batch, heads", *[torch.zeros(8)] * 3, layout="bhsd")


def test_meta_tensors():
    """Shapes without memory go through attention; beside tensors with memory they are an error, not memory of any content."""
    q, k, v = inputs(Shape())
    meta = [t.to("meta") for t in (q, k, v)]
    assert attention(*meta, MASK).shape == (2, 65, 4, 24) and attention(*meta, MASK).device.type == "meta"
    raises(RuntimeError, "key: is on meta, query is on cpu", q, meta[1], v)
    raises(RuntimeError, "sinks: is on meta", q, k, v, sinks=torch.zeros(4, device="meta"))


def test_tensors_that_are_not_dense():
    q, k, v = (t.detach() for t in inputs(Shape()))
    for make, kind in (
        (torch.Tensor.to_sparse, "of layout torch.sparse_coo"),
        (torch.Tensor.to_mkldnn, "of layout torch._mkldnn"),
        (lambda t: torch.nested.nested_tensor(list(t)), "nested"),
        (lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "quantized"),
    ):
        raises(TypeError, f"query is {kind}, needs a dense tensor", make(q), k, v)
        raises(TypeError, f"query is {kind}, needs a dense tensor", make(q), k, v, MASK)
        raises(TypeError, f"value is {kind}, needs a dense tensor", q, k, make(v))
    raises(TypeError, "query is of layout", q.transpose(1, 2).to_sparse(), k.mT, v, layout="bhsd")
    raises(TypeError, "sinks is of layout", q, k, v, sinks=torch.zeros(4).to_sparse())
    with pytest.raises(TypeError, match="vectors is of layout torch.sparse_coo, needs a dense tensor"):
        DeviceMask(startend(document_ends([65])).vectors.to_sparse(), 65, 0, True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_tensors(device):
    """They have shapes and no contents: nothing is computed, uploaded or kept, on a GPU that need not exist."""
    mask, real, sinks = Mask.documents([30, 35], causal=True), inputs(Shape()), torch.zeros(4)
    vectors, grads = startend(document_ends([30, 35])), device in DEVICES  # torch's autograd needs the GPU
    with FakeTensorMode() as mode:
        fake = [torch.empty(t.shape, device=device, requires_grad=grads) for t in real]
        ends = torch.zeros(1, 1, 65, 1, dtype=torch.int32, device=device)
        for known in (None, mask, DeviceMask.from_startend_row_indices(ends, causal=True)):
            output, lse = attention(*fake, known, return_lse=True)
            assert output.shape == (2, 65, 4, 24) and lse.shape == (2, 4, 65) and output.device.type == device
            if grads:
                assert [g.shape for g in torch.autograd.grad(output.sum(), fake)] == [t.shape for t in fake]
        for known in (None, mask):
            raises(TypeError, "query is no fake tensor, and a FakeTensorMode is on: .* from_tensor", *real, known)
            raises(TypeError, "value is no fake tensor", *fake[:2], real[2], known)
        raises(TypeError, "sinks is no fake tensor", *fake, sinks=sinks)
        if device == "cpu":
            raises(TypeError, "mask is no fake tensor", *fake, vectors)
            assert attention(*(mode.from_tensor(t) for t in real), mask).shape == (2, 65, 4, 24)
    assert attention(*fake, mask).shape == (2, 65, 4, 24) and not mask._device_plans
    assert torch.equal(attention(*real, mask), attention(*real, vectors))


def test_freed_memory():
    """As sharded training frees parameters: without an address they would be left out, or others be read."""
    freed = [torch.zeros(4), torch.zeros(2, 4, 65), torch.tensor(document_ends([30, 35]))]
    vectors = startend(freed[2])
    for tensor in freed:
        tensor.untyped_storage().resize_(0)
    tensors = inputs(Shape())
    raises(ValueError, "sinks: the memory was freed", *tensors, sinks=freed[0])
    output, lse = attention(*tensors, return_lse=True)
    with pytest.raises(ValueError, match="grad_lse: the memory was freed"):
        torch.autograd.grad((output, lse), tensors, (torch.ones_like(output), freed[1]))
    raises(ValueError, "mask: the memory was freed", *tensors, vectors)


def test_traces_with_fake_tensors():
    """Wrappers of fake tensors are fake; a trace would record a token that names nothing, or another mask."""
    tensors = inputs(Shape(), requires_grad=False)
    for kind in ("fake", "symbolic"):
        for function in (lambda *t: attention(*t), torch.func.grad(lambda *t: attention(*t).sum())):
            traced = make_fx(function, tracing_mode=kind)(*tensors)
            torch.testing.assert_close(traced(*tensors), function(*tensors))
        with pytest.raises(NotImplementedError, match="a Mask in a trace with fake tensors .* pass mask.to"):
            make_fx(lambda *t: attention(*t, MASK), tracing_mode=kind)(*tensors)
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(t) for t in tensors)
        assert torch.func.vmap(lambda x: attention(x, k, v))(torch.stack([q, q])).shape == (2, 2, 65, 4, 24)
        assert torch.func.grad(lambda x: attention(x, k, v, MASK).sum())(q).shape == q.shape


@pytest.mark.parametrize("device", DEVICES)
def test_dtypes(device):
    q, k, v = inputs(Shape(), device=device)
    raises(TypeError, "key: dtype is bf16, needs f32", q, k.bfloat16(), v)
    raises(TypeError, "query: dtype is torch.int32", *(t.detach().int() for t in (q, k, v)))
    raises(TypeError, "query: dtype is torch.complex64", *(t.detach().to(torch.complex64) for t in (q, k, v)))


def test_kinds():
    q, k, v = inputs(Shape())
    raises(TypeError, "key is a ndarray", q, k.detach().numpy(), v)
    raises(TypeError, "query is a list", [1.0], k, v)
    raises(TypeError, "mask is a Tensor.*Mask.from_dense", q, k, v, torch.ones(65, 65, dtype=torch.bool))
    raises(TypeError, "mask is a str", q, k, v, "causal")
    raises(ValueError, "layout is 'sbhd'", q, k, v, layout="sbhd")
    raises(TypeError, "causal is 1", q, k, v, causal=1)
    for name in ("deterministic", "return_lse"):
        raises(TypeError, f"{name} is 1", q, k, v, **{name: 1})
    for name in ("softmax_scale", "softcap"):
        for wrong in ("1", True, [1.0], 1j, torch.tensor(1.0, requires_grad=True)):
            raises(TypeError, name, q, k, v, **{name: wrong})
        raises(ValueError, name, q, k, v, **{name: 10**400})
        raises(ValueError, name, q, k, v, **{name: torch.ones(2)})
    raises(TypeError, "sinks have dtype torch.complex64", q, k, v, sinks=torch.zeros(4, dtype=torch.complex64))
    raises(TypeError, "sinks are a list", q, k, v, sinks=[0.0] * 4)


@pytest.mark.parametrize("device", DEVICES)
def test_values(device):
    q, k, v = inputs(Shape(), device=device)
    for softcap in (-1.0, float("nan"), float("inf"), 1e300, 1e-300):  # the last is 0 in float32: off
        raises(ValueError, "softcap", q, k, v, softcap=softcap)
    raises(ValueError, "softmax_scale", q, k, v, softmax_scale=float("inf"))
    raises(ValueError, "softmax_scale", q, k, v, softmax_scale=float("nan"))
    raises(ValueError, r"sinks: shape is \[3\], needs \[4\]", q, k, v, sinks=torch.zeros(3, device=device))


WINDOWS = [
    (3, TypeError, "window_size is 3, needs"),
    ("ab", TypeError, "window_size is 'ab', needs"),
    (torch.tensor([1, 0]), TypeError, "window_size is tensor"),
    ((), ValueError, "two integers"),
    ((1,), ValueError, "two integers"),
    ([1, 0, 0], ValueError, "two integers"),
    ((1.5, 0), TypeError, r"window_size\[0\] is 1.5"),
    ((0, None), TypeError, r"window_size\[1\] is None"),
    ((True, 0), TypeError, r"window_size\[0\] is True"),
    ((0, False), TypeError, r"window_size\[1\] is False"),
    ((-2, 0), ValueError, r"window_size is \(-2, 0\), needs 0 or more"),
    ((0, -(2**62)), ValueError, "needs 0 or more"),
    ((2**63, 0), ValueError, r"window_size\[0\] is 9223372036854775808"),
]
q8 = torch.ones(1, 8, 1, 8)
LIKE_ATTENTION = {
    "attention": lambda **x: attention(q8, q8, q8, **x),
    "attention with a mask": lambda **x: attention(q8, q8, q8, Mask.causal(8), **x),
    "attention of NumPy": lambda **x: attention(*[q8.numpy()] * 3, **x),
    "attention of NumPy with a mask": lambda **x: attention(*[q8.numpy()] * 3, Mask.causal(8), **x),
    "NumpyAttention": lambda **x: NumpyAttention(*[q8.numpy()] * 3, **x),
    "plan": lambda **x: Mask.causal(8).plan(**x),
    "stats": lambda **x: Mask.causal(8).stats(**x),
}


@pytest.mark.parametrize("call", LIKE_ATTENTION)
@pytest.mark.parametrize(("size", "kind", "match"), WINDOWS, ids=lambda x: str(x) if isinstance(x, tuple) else "")
def test_windows(call, size, kind, match):
    with pytest.raises(kind, match=match):
        LIKE_ATTENTION[call](window_size=size)


def test_windows_of_paddle():
    """One integer is a window on both sides there, None is no window, and nothing is unlimited."""
    for size, kind, match in WINDOWS[3:]:
        with pytest.raises(kind, match=match):
            flashmask_attention(q8, q8, q8, window_size=size)
    for size, kind in (("ab", TypeError), (1.5, TypeError), (True, TypeError), (-1, ValueError), ((-1, 0), ValueError)):
        with pytest.raises(kind, match="window_size is"):
            flashmask_attention(q8, q8, q8, window_size=size)


def test_windows_without_end():
    """Sizes beyond every row are no window."""
    for call in LIKE_ATTENTION.values():
        call(window_size=(2**63 - 1, 2**63 - 1))
    for causal in (False, True):
        expected = attention(q8, q8, q8, causal=causal)
        assert torch.equal(attention(q8, q8, q8, causal=causal, window_size=(2**63 - 1, 2**63 - 1)), expected)
        assert torch.equal(attention(q8, q8, q8, Mask.full(8), causal=causal, window_size=(2**63 - 1, 2**63 - 1)), expected)
        assert torch.equal(flashmask_attention(q8, q8, q8, causal=causal, window_size=2**63 - 1), expected)


@pytest.mark.parametrize("layout", ["sbhd", "BSHD", "", None, 0, ("bshd",), np.array(["bshd", "bhsd"])], ids=str)
def test_layouts(layout):
    calls = [call for name, call in LIKE_ATTENTION.items() if name not in ("plan", "stats")]
    for call in (*calls, lambda layout: flashmask_attention(q8, q8, q8, layout=layout)):
        with pytest.raises(ValueError, match="layout is .*, needs 'bshd'"):
            call(layout=layout)


@pytest.mark.parametrize("device", DEVICES)
def test_vectors(device):
    ends = torch.from_numpy(document_ends([30, 35])).reshape(1, 1, -1, 1).to(device)
    from_startend = DeviceMask.from_startend_row_indices
    for wrong, kind, match in [
        (ends.long(), TypeError, "torch.int64, needs torch.int32"),
        (ends.float().requires_grad_(), TypeError, "torch.float32, needs torch.int32"),
        (ends[0], ValueError, "needs 4 dimensions"),
        (ends.expand(1, 1, 65, 3), ValueError, "1 or 2 with causal"),
        ([[1]], TypeError, "is a list"),
    ]:
        with pytest.raises(kind, match=match):
            from_startend(wrong, causal=True)
    with pytest.raises(ValueError, match="2 or 4 without causal"):
        from_startend(ends, causal=False)
    with pytest.raises(TypeError, match="causal is 1"):
        from_startend(ends, causal=1)
    for rows in ("65", 65.0, True):
        with pytest.raises(TypeError, match="rows is"):
            from_startend(ends, causal=True, rows=rows)
    with pytest.raises(ValueError, match="5 a key"):
        DeviceMask.from_intervals(torch.zeros(1, 1, 5, 65, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="shapes"):
        DeviceMask.from_fms_fme(ends[0, 0, :, 0], ends[0, 0, :9, 0])


def test_vectors_out_of_range():
    """On the CPU contents are checked; on a GPU they are clamped."""
    q, k, v = inputs(Shape())
    pairs = torch.tensor([5, 3], dtype=torch.int32).expand(1, 1, 1, 65, 2)
    raises(ValueError, "start", q, k, v, DeviceMask.from_intervals(pairs))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_devices():
    """https://github.com/flashinfer-ai/flashinfer/issues/452"""
    q, k, v = inputs(Shape(), device="cuda")
    raises(RuntimeError, "mask is on cpu, query is on cuda:0", q, k, v, startend(document_ends([65])))
    raises(RuntimeError, "mask is on cuda:0, query is on cpu", q.cpu(), k.cpu(), v.cpu(), startend(document_ends([65]), "cuda"))
    raises(RuntimeError, "key: is on device", q, k.cpu(), v)
    raises(RuntimeError, "sinks: is on cpu", q, k, v, sinks=torch.zeros(4))


def test_operators_alone():
    """Callers of the operators get messages too."""
    q, k, v = inputs(Shape())
    rest = False, -1, -1, None, 0.0, False, False
    for mask, form, match in [
        (torch.zeros(65, 65, dtype=torch.bool), [], "needs vectors"),
        (torch.zeros(1, 1, 65, 1, dtype=torch.int32), [], "needs vectors"),
        (torch.zeros(1, 1, 65, 3, dtype=torch.int32), [65, 2, 0], "need 2, 4, 6 or 8"),
        (torch.zeros(1, 1, 65, 2, dtype=torch.int32), [64, 2, 0], "64 rows"),
    ]:
        with pytest.raises(ValueError, match=match):
            torch.ops.flashmask.forward(q, k, v, None, mask, form, *rest)
    with pytest.raises(TypeError, match="sinks: dtype"):
        torch.ops.flashmask.forward(q, k, v, torch.zeros(4).double(), None, [], *rest)
    with pytest.raises(RuntimeError, match="token 0 names no mask"):
        torch.ops.flashmask.hold(torch.tensor(0))
    with pytest.raises(NotImplementedError, match="bitmap|column|key"):
        torch_masks.hold(Mask.random_sparse(65, 65, density=0.4, seed=1).vectors())


def test_lse_of_the_backward_operator():
    """The library gets its address alone."""
    q, k, v = (t.detach() for t in inputs(Shape()))
    rest = None, None, [], False, -1, -1, None, 0.0, False
    output, lse = torch.ops.flashmask.forward(q, k, v, *rest, False)
    for wrong, kind, match in [
        (lse.half(), TypeError, "dtype is torch.float16"),
        (lse[:, :1], ValueError, r"shape is \[2, 1, 65\]"),
        (lse[:0], ValueError, r"shape is \[0, 4, 65\]"),
        (lse.mT.contiguous().mT, ValueError, ".* strides"),
    ]:
        with pytest.raises(kind, match=f"^lse: {match}"):
            torch.ops.flashmask.backward(output, None, output, wrong, q, k, v, *rest, [True] * 4)
    with pytest.raises(TypeError, match="^grad_lse: dtype"):
        torch.ops.flashmask.backward(output, lse.double(), output, lse, q, k, v, *rest, [True] * 4)


def test_a_token_does_not_travel():
    """Pickled masks are new masks."""
    copy = pickle.loads(pickle.dumps(MASK))
    assert copy == MASK and int(copy._token) != int(MASK._token)


def test_masks_that_were_never_built():
    q = torch.ones(1, 4, 1, 8)
    with pytest.raises(ValueError, match="never built"):
        attention(q, q, q, Mask.__new__(Mask))
