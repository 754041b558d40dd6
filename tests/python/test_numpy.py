"""Attention on NumPy arrays, forward and backward, against a dense softmax in f64."""

import itertools

import numpy as np
import pytest

from flashmask import Mask
from flashmask.numpy_attention import NumpyAttention, attention


def dense_attention(q, k, v, visible, scale=None, softcap=0.0, sinks=None):
    """q, k, v: f64 [B, S, H, D]; visible: bool that broadcasts to [B, H, Sq, Sk]. Output, lse and what backward needs."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat(group, axis=2), v.repeat(group, axis=2)
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    raw = np.einsum("bihd,bjhd->bhij", q, k) * scale
    s = softcap * np.tanh(raw / softcap) if softcap else raw
    s = np.where(visible, s, -np.inf)
    top = np.maximum(s.max(axis=-1, initial=-np.inf, keepdims=True), -1e300)
    p = np.exp(s - top)
    total = p.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    bottom = total if sinks is None else total + np.exp(np.where(total > 0, sinks[None, :, None, None] - top, -np.inf))
    weight = np.divide(p, bottom, out=np.zeros_like(p), where=bottom > 0)
    share = np.divide(p, total, out=np.zeros_like(p), where=total > 0)
    return np.einsum("bhij,bjhd->bihd", weight, v), lse, (weight, share, raw, k, v, scale, group)


def dense_gradients(q, k, v, visible, grad_output, grad_lse, scale=None, softcap=0.0, sinks=None):
    """By query, key, value and sinks."""
    out, _, (weight, share, raw, kk, vv, scale, group) = dense_attention(q, k, v, visible, scale, softcap, sinks)
    grad_v = np.einsum("bhij,bihd->bjhd", weight, grad_output)
    dp = np.einsum("bihd,bjhd->bhij", grad_output, vv)
    delta = np.einsum("bihd,bihd->bhi", grad_output, out)
    ds = weight * (dp - delta[..., None]) + share * grad_lse[..., None]
    grad_sinks = None
    if sinks is not None:
        visible_rows = share.sum(axis=-1) > 0
        grad_sinks = (-(1 - weight.sum(axis=-1)) * delta * visible_rows).sum(axis=(0, 2))
    if softcap:
        ds = ds * (1 - np.tanh(raw / softcap) ** 2)
    grad_q = np.einsum("bhij,bjhd->bihd", ds, kk) * scale
    grad_k = np.einsum("bhij,bihd->bjhd", ds, q) * scale

    def grouped(grad):
        return grad.reshape(*grad.shape[:2], -1, group, grad.shape[3]).sum(axis=3)

    return grad_q, grouped(grad_k), grouped(grad_v), grad_sinks


def tensors(shape_q, shape_k, dim_v=None, seed=0):
    """q, k, v of [B, S, H, D] shapes in f32."""
    draw = np.random.default_rng(seed)
    shape_v = (*shape_k[:3], dim_v or shape_k[3])
    return [draw.standard_normal(shape).astype(np.float32) for shape in (shape_q, shape_k, shape_v)]


MASKS = {
    "none": (None, 40, 40),
    "documents": (Mask.documents([7, 20, 9], causal=True, padding=4), 40, 40),
    "question": (Mask.share_question([(10, 8, 12), (3, 4)], padding=3), 40, 40),
    "tall": (Mask.causal(70, 45), 70, 45),
    "bitmaps": (Mask.random_sparse(66, 130, density=0.3, seed=4), 66, 130),
    "batch": (Mask.stack_batch([Mask.full(33), Mask.documents([11, 22], causal=False)]), 33, 33),
    "kv heads": (Mask.head_windows(48, left=[3, -1], right=[0, 2]), 48, 48),
    "query heads": (Mask.random_eviction(50, heads=4, start=10), 50, 50),
}


def visible_of(mask, rows, columns):
    if mask is None:
        return np.ones((1, 1, rows, columns), bool)
    dense = mask.dense()
    return dense.repeat(4 // dense.shape[1], axis=1) if dense.shape[1] > 1 else dense


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 1.5, "sinks": np.array([0.3, -1, 2, 0], np.float32)}, {"softmax_scale": -0.4}]
)
def test_forward_and_backward(name, options):
    mask, rows, columns = MASKS[name]
    q, k, v = tensors((2, rows, 4, 24), (2, columns, 2, 24), 20)
    visible = visible_of(mask, rows, columns)
    wide = [a.astype(np.float64) for a in (q, k, v)]
    plain = {"scale": options.get("softmax_scale"), "softcap": options.get("softcap", 0.0), "sinks": options.get("sinks")}
    output, lse, _ = dense_attention(*wide, visible, **plain)
    ours = NumpyAttention(q, k, v, mask, **options)
    assert ours.output.dtype == np.float32 and ours.output.shape == (2, rows, 4, 20)
    np.testing.assert_allclose(ours.output, output, atol=2e-6)
    np.testing.assert_allclose(ours.lse, lse, atol=3e-6)
    draw = np.random.default_rng(9)
    grad_output = draw.standard_normal(output.shape).astype(np.float32)
    grad_lse = draw.standard_normal(lse.shape).astype(np.float32)
    wanted = dense_gradients(*wide, visible, grad_output.astype(np.float64), grad_lse.astype(np.float64), **plain)
    got = ours.backward(grad_output, grad_lse)
    for ours_is, ought in zip(got, wanted, strict=True):
        if ought is None:
            assert ours_is is None
        else:
            np.testing.assert_allclose(ours_is, ought, atol=3e-5)


@pytest.mark.parametrize(("causal", "window"), [(True, (-1, -1)), (False, (5, 3)), (True, (9, -1)), (False, (-1, 0))])
@pytest.mark.parametrize("mask", [None, Mask.documents([20, 30], causal=False)], ids=["none", "documents"])
def test_flags_intersect_with_the_mask(mask, causal, window):
    q, k, v = tensors((1, 50, 2, 16), (1, 50, 2, 16))
    i, j = np.arange(50)[:, None], np.arange(50)
    visible = (np.ones((50, 50), bool) if mask is None else mask.dense()[0, 0]) & ((j <= i) | (not causal))
    visible &= (window[0] < 0) | (j >= i - window[0])
    visible &= (window[1] < 0) | (j <= i + window[1])
    ours = NumpyAttention(q, k, v, mask, causal=causal, window_size=window)
    same = NumpyAttention(q, k, v, Mask.from_dense(visible))
    assert np.array_equal(ours.output, same.output) and np.array_equal(ours.lse, same.lse)
    for a, b in zip(ours.backward(ours.output)[:3], same.backward(same.output)[:3], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_empty_rows():
    """https://github.com/pytorch/pytorch/issues/41508: rows that see nothing leave no trace, forward or backward."""
    mask = Mask.documents([5], causal=True, padding=3)
    q, k, v = tensors((1, 8, 1, 4), (1, 8, 1, 4))
    k[:, 5:] = v[:, 5:] = np.nan
    ours = NumpyAttention(q, k, v, mask)
    assert (ours.output[:, 5:] == 0).all() and (ours.lse[..., 5:] == -np.inf).all()
    grads = ours.backward(np.ones_like(q))
    assert all((grad[:, 5:] == 0).all() and np.isfinite(grad).all() for grad in grads[:3])
    alone = NumpyAttention(q[:, :5], k[:, :5], v[:, :5], causal=True)
    np.testing.assert_array_equal(ours.output[:, :5], alone.output)


def test_layouts_are_views():
    q, k, v = tensors((2, 30, 4, 8), (2, 30, 2, 8))
    mask = Mask.documents([10, 20], causal=True)
    ours = NumpyAttention(q, k, v, mask)
    turned = NumpyAttention(*(a.swapaxes(1, 2) for a in (q, k, v)), mask, layout="bhsd")
    assert turned.output.shape == (2, 4, 30, 8)
    np.testing.assert_array_equal(turned.output, ours.output.swapaxes(1, 2))
    assert NumpyAttention(*(a.swapaxes(1, 2).copy() for a in (q, k, v)), layout="bhsd").output.flags.c_contiguous
    for a, b in zip(turned.backward(turned.output)[:3], ours.backward(ours.output)[:3], strict=True):
        np.testing.assert_array_equal(a, b.swapaxes(1, 2))


def test_any_strides():
    """https://github.com/flagos-ai/FlagAttention/issues/45: the same values in other places give the same bits."""
    q, k, v = tensors((2, 20, 4, 8), (2, 20, 4, 8))
    same = NumpyAttention(q, k, v, causal=True)
    spread = np.zeros((2, 40, 4, 24), np.float32)
    spread[:, ::2, :, ::3] = k
    backwards = q[:, ::-1].copy()[:, ::-1]
    raw = np.zeros(v.nbytes + 1, np.uint8)[1:]
    odd = raw.view(np.float32).reshape(v.shape)
    odd[:] = v
    assert odd.ctypes.data % 4 == 1 and backwards.strides[1] < 0
    ours = NumpyAttention(backwards, spread[:, ::2, :, ::3], odd, causal=True)
    np.testing.assert_array_equal(ours.output, same.output)
    one = np.broadcast_to(np.float32(1), same.output.shape)  # strides 0: https://github.com/Dao-AILab/flash-attention/issues/355
    for a, b in zip(ours.backward(one)[:3], same.backward(np.ones_like(q))[:3], strict=True):
        np.testing.assert_array_equal(a, b)


def test_inputs_are_not_copied():
    q, k, v = tensors((1, 64, 2, 16), (1, 64, 2, 16))
    ours = NumpyAttention(q, k, v)
    assert all(np.shares_memory(a, b) for a, b in zip(ours._inputs, (q, k, v), strict=True))


def test_half():
    q, k, v = (a.astype(np.float16) for a in tensors((1, 100, 2, 32), (1, 100, 1, 32)))
    mask = Mask.documents([40, 60], causal=True)
    output, lse, _ = dense_attention(*(a.astype(np.float64) for a in (q, k, v)), mask.dense())
    ours = NumpyAttention(q, k, v, mask)
    assert ours.output.dtype == np.float16 and ours.lse.dtype == np.float32
    np.testing.assert_allclose(ours.output, output, atol=2e-3)
    np.testing.assert_allclose(ours.lse, lse, atol=1e-5)
    assert all(grad.dtype == np.float16 for grad in ours.backward(ours.output)[:3])


def test_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = (a.astype(bfloat16) for a in tensors((1, 100, 2, 32), (1, 100, 1, 32)))
    output, _, _ = dense_attention(*(a.astype(np.float64) for a in (q, k, v)), Mask.causal(100).dense())
    ours = NumpyAttention(q, k, v, causal=True)
    assert ours.output.dtype == bfloat16 and ours.backward(ours.output).key.dtype == bfloat16
    np.testing.assert_allclose(ours.output.astype(np.float64), output, atol=1.6e-2)


def test_double():
    """By the reference backend; gradients are exact to f64, so finite differences meet them."""
    q, k, v = (a.astype(np.float64) for a in tensors((1, 9, 2, 4), (1, 9, 1, 4)))
    mask, sinks = Mask.sink_window(9, sink=1, window=3), np.array([0.5, -0.5], np.float32)
    output, lse, _ = dense_attention(q, k, v, mask.dense(), sinks=sinks)
    ours = NumpyAttention(q, k, v, mask, sinks=sinks)
    np.testing.assert_allclose(ours.output, output, rtol=1e-13)
    np.testing.assert_allclose(ours.lse, lse, atol=1e-6)
    wanted = dense_gradients(q, k, v, mask.dense(), np.ones_like(q), np.zeros_like(lse), sinks=sinks)
    for a, b in zip(ours.backward(np.ones_like(q))[:3], wanted[:3], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-13)


def test_packed_documents_equal_each_alone():
    """https://github.com/huggingface/nanoVLM/pull/204: a document is computed as if it were alone; to the bit."""
    lengths = [3, 61, 64, 100]
    q, k, v = tensors((1, sum(lengths), 4, 16), (1, sum(lengths), 2, 16))
    packed = attention(q, k, v, Mask.documents(lengths, causal=True))
    for first, end in itertools.pairwise([0, *np.cumsum(lengths).tolist()]):
        alone = attention(*(a[:, first:end] for a in (q, k, v)), causal=True)
        np.testing.assert_allclose(packed[:, first:end], alone, atol=1e-6)
    other = k.copy()
    other[:, :3] = 7
    again = attention(q, other, v, Mask.documents(lengths, causal=True))
    np.testing.assert_array_equal(again[:, 3:], packed[:, 3:])


def test_attention_returns_lse_when_asked():
    q, k, v = tensors((1, 5, 1, 4), (1, 5, 1, 4))
    output, lse = attention(q, k, v, causal=True, return_lse=True)
    assert np.array_equal(output, attention(q, k, v, causal=True)) and lse.shape == (1, 1, 5)


def test_sizes_of_zero():
    q, k, v = tensors((2, 3, 2, 4), (2, 0, 2, 4))
    ours = NumpyAttention(q, k, v)
    assert (ours.output == 0).all() and (ours.lse == -np.inf).all() and ours.backward(ours.output).key.shape == (2, 0, 2, 4)
    assert attention(q[:, :0], q, q).shape == (2, 0, 2, 4)
    assert attention(q[:0], q[:0], q[:0]).shape == (0, 3, 2, 4)


def test_masks_of_another_length():
    """https://github.com/meta-pytorch/attention-gym/issues/34, https://github.com/pytorch/pytorch/issues/139462,
    https://github.com/facebookresearch/xformers/issues/1122: refused, never cut or stretched."""
    q, k, v = tensors((2, 8, 2, 4), (2, 8, 2, 4))
    shared = Mask.full(8)
    for mask in (Mask.full(16), Mask.full(8, 9), Mask.full(7, 8), Mask.stack_batch([shared] * 3), shared.repeat_heads(3)):
        with pytest.raises(ValueError, match="mask"):
            NumpyAttention(q, k, v, mask)
    with pytest.raises(ValueError):
        NumpyAttention(q, k[:, :4], v[:, :4], Mask.full(8))


def test_wrong_input():
    q, k, v = tensors((1, 8, 3, 4), (1, 8, 1, 4))
    value_errors = {
        "4 dimensions": lambda: attention(q[0], k, v),
        "layout": lambda: attention(q, k, v, layout="sbhd"),
        "heads": lambda: attention(q, np.repeat(k, 2, axis=2), np.repeat(v, 2, axis=2)),
        "key": lambda: attention(q, k[..., :3], v),
        "value": lambda: attention(q, k, v[:, :7]),
        "softmax_scale": lambda: attention(q, k, v, softmax_scale=np.nan),
        "softcap": lambda: attention(q, k, v, softcap=-1.0),
        "softcap is 1e-300": lambda: NumpyAttention(q, k, v, softcap=1e-300),  # 0 in float32: off
        "sinks": lambda: attention(q, k, v, sinks=np.zeros(2, np.float32)),
        "window_size": lambda: attention(q, k, v, window_size=(-3, 0)),
        "grad_output": lambda: NumpyAttention(q, k, v).backward(q[:, :4]),
        "grad_lse": lambda: NumpyAttention(q, k, v).backward(q, np.zeros((1, 8, 3), np.float32)),
    }
    for text, wrong in value_errors.items():
        with pytest.raises(ValueError, match=text):
            wrong()
    type_errors = {
        "value": lambda: attention(q, k, v.astype(np.float16)),
        "int64": lambda: attention(q.astype(np.int64), k, v),
        ">f4": lambda: attention(q.astype(">f4"), k, v),
        "query is a list": lambda: attention(q.tolist(), k, v),
        "mask is a str": lambda: attention(q, k, v, "causal"),
        "mask is a ndarray": lambda: attention(q, k, v, np.ones((8, 8), bool)),
        "window_size": lambda: attention(q, k, v, window_size=4),
        "causal": lambda: attention(q, k, v, causal=None),
        "deterministic": lambda: attention(q, k, v, deterministic=1),
        "softmax_scale is": lambda: NumpyAttention(q, k, v, softmax_scale="1"),
        "softcap is": lambda: NumpyAttention(q, k, v, softcap=None),
        "sinks": lambda: attention(q, k, v, sinks=[1, 2, 3]),
        "grad_output": lambda: NumpyAttention(q, k, v).backward(q.astype(np.float16)),
        "dropout": lambda: attention(q, k, v, dropout=0.1),
    }
    for text, wrong in type_errors.items():
        with pytest.raises(TypeError, match=text):
            wrong()


def test_arguments_are_not_written():
    arrays = tensors((1, 70, 2, 8), (1, 70, 2, 8))
    before = [a.copy() for a in arrays]
    for a in arrays:
        a.flags.writeable = False
    ours = NumpyAttention(*arrays, Mask.causal(70))
    ours.backward(ours.output)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))


def test_masked_arrays_are_refused():
    """Their mask would be lost."""
    q = np.ma.array(np.ones((1, 4, 1, 8), np.float32), mask=False)
    with pytest.raises(TypeError, match="MaskedArray"):
        attention(q, q, q)
    with pytest.raises(TypeError, match="masked array"):
        Mask.from_dense(np.ma.array(np.ones((2, 2), bool), mask=[[1, 0], [0, 0]]))
    with pytest.raises(TypeError, match="sinks is a masked array"):
        attention(q.filled(), q.filled(), q.filled(), sinks=np.ma.array([0.5], mask=[True]))


def test_complex_scales_are_refused():
    q = np.ones((1, 4, 1, 8), np.float32)
    with pytest.raises(TypeError, match="softmax_scale"):
        attention(q, q, q, softmax_scale=np.complex64(1))


def test_results_cannot_be_bound_anew():
    """backward reads them."""
    q = np.random.default_rng(0).standard_normal((1, 40, 2, 8), np.float32)
    done = NumpyAttention(q, q, q, causal=True)
    for name in ("output", "lse"):
        with pytest.raises(AttributeError):
            setattr(done, name, None)
        with pytest.raises(AttributeError):
            delattr(done, name)
