"""flashmask.paddle: every convention of Paddle's flashmask_attention against a dense mask, and the tutorial's classes."""

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from flashmask.paddle import FlashMaskAttention, FlashMaskRepresentation, flashmask_attention  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def masked_by(v, causal, rows):
    """bool [Bm, Hm, Sq, Sk], True = masked, from Paddle's documentation, without clamping."""
    i = torch.arange(rows, device=v.device)[:, None]
    r = [v[:, :, None, :, c] for c in range(v.shape[3])]
    columns = v.shape[2]
    if causal:
        out = (i >= r[0]) & (True if len(r) == 1 else i < r[1])
        return out | (torch.arange(columns, device=v.device) > i + columns - rows)
    if len(r) == 2:
        return (i >= r[0]) | (i < r[1])
    return ((i >= r[0]) & (i < r[1])) | ((i >= r[2]) & (i < r[3]))


def dense_attention(q, k, v, masked, scale=None):
    """Output [B, Sq, Hq, Dv] and lse [B, Hq, Sq] of [B, S, H, D] in float64; rows that see nothing give 0 and -inf."""
    heads = q.shape[2]
    q, k, v = (t.double().transpose(1, 2).repeat_interleave(heads // t.shape[2], 1) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores.masked_fill(masked.repeat_interleave(heads // masked.shape[1], 1), -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - torch.where(lse.isinf(), 0.0, lse)[..., None]).exp()
    return (weights @ v).transpose(1, 2), lse


def inputs(shape_q, shape_k, device="cpu", dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(s, dtype=dtype).to(device).requires_grad_() for s in (shape_q, shape_k, shape_k)]


def check(q, k, v, masked, scale=None, **arguments):
    """Output, lse and gradients through both against the dense mask."""
    out, lse = flashmask_attention(q, k, v, return_softmax_lse=True, softmax_scale=scale, **arguments)
    expected, expected_lse = dense_attention(q, k, v, masked, scale)
    assert out.shape == expected.shape and out.dtype == q.dtype and lse.shape == expected_lse.shape and lse.dtype == torch.float32
    assert torch.equal(lse.isinf(), expected_lse.isinf())
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)
    seen = ~lse.isinf()
    torch.manual_seed(1)
    weight, weight_lse = torch.randn(out.shape).to(out.device), torch.randn(lse.shape).to(out.device)
    ours = torch.autograd.grad((out * weight).sum() + (lse * weight_lse)[seen].sum(), (q, k, v))
    theirs = torch.autograd.grad((expected * weight).sum() + (expected_lse * weight_lse)[seen].sum(), (q, k, v))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mask_heads", [1, 2, 4])
@pytest.mark.parametrize("rows, columns", [(40, 40), (24, 40), (40, 24), (129, 130)])
@pytest.mark.parametrize("causal, vectors", [(True, 1), (True, 2), (False, 2), (False, 4)])
def test_vectors(causal, vectors, rows, columns, mask_heads, device):
    """Random values, also negative and past the end, in any order: intervals are empty, overlap or cover each other."""
    torch.manual_seed(rows + vectors)
    for batch in (1, 2):
        v = torch.randint(-5, rows + 6, (batch, mask_heads, columns, vectors), dtype=torch.int32).to(device)
        q, k, value = inputs((2, rows, 4, 16), (2, columns, 2, 16), device)
        check(q, k, value, masked_by(v, causal, rows), startend_row_indices=v, causal=causal)


FIGURES = {  # the examples of Paddle's documentation, 10 tokens
    "a": (True, [[5]] * 5 + [[10]] * 5),
    "b": (True, [[4]] * 4 + [[7]] * 3 + [[10]] * 3),
    "c": (True, [[10]] * 4 + [[7]] * 3 + [[10]] * 3),
    "d": (True, [[10], [4], [5], [6], [7], [8], [9], [10], [10], [10]]),
    "e": (True, [[4, 7]] * 4 + [[10, 10]] * 6),
    "f": (False, [[4, 0]] * 4 + [[7, 4]] * 3 + [[10, 7]] * 3),
    "g": (False, [[10, 10, 0, 0]] * 3 + [[3, 10, 0, 0]] + [[k, 10, 3, k] for k in range(4, 10)]),
    "h": (True, [[10], [4], [8], [6], [10], [7], [10], [9], [10], [10]]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_the_documentation(name):
    causal, rows = FIGURES[name]
    v = torch.tensor(rows, dtype=torch.int32)[None, None]
    check(*inputs((1, 10, 1, 8), (1, 10, 1, 8)), masked_by(v, causal, 10), startend_row_indices=v, causal=causal)


def test_every_row_masked():
    v = torch.zeros(1, 1, 33, 1, dtype=torch.int32)
    check(*inputs((1, 33, 2, 8), (1, 33, 2, 8)), masked_by(v, True, 33), startend_row_indices=v, causal=True)


@pytest.mark.parametrize("causal", [True, False])
def test_no_mask(causal):
    q, k, v = inputs((1, 20, 2, 8), (1, 30, 1, 8))
    masked = torch.arange(30) > torch.arange(20)[:, None] + 10 if causal else torch.zeros(20, 30, dtype=torch.bool)
    check(q, k, v, masked[None, None], causal=causal)
    check(q, k, v, masked[None, None], causal=causal, scale=-0.3)


@pytest.mark.parametrize("window_size", [0, 3, (2, 5), [4, 0], 100])
@pytest.mark.parametrize("causal", [True, False])
def test_window_keeps_one_more_key(causal, window_size):
    left, right = window_size if isinstance(window_size, (tuple, list)) else (window_size, window_size)
    i, j = torch.arange(24)[:, None], torch.arange(24)
    masked = (j < i - left) | (j > i + (0 if causal else right))
    assert int((~masked)[-1].sum()) == min(left, 23) + 1
    check(*inputs((2, 24, 2, 8), (2, 24, 2, 8)), masked[None, None], causal=causal, window_size=window_size)


@pytest.mark.parametrize("causal, vectors", [(True, 1), (False, 4)])
def test_block_mask(causal, vectors):
    torch.manual_seed(3)
    rows, columns = 300, 1300  # eleven columns of blocks, the last one cut
    v = torch.randint(0, rows + 1, (2, 2, columns, vectors), dtype=torch.int32)
    blocks = torch.randint(0, 2, (2, 2, 3, 11), dtype=torch.int32)
    dropped = blocks.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :rows, :columns] == 0
    masked = masked_by(v, causal, rows) | dropped
    check(*inputs((2, rows, 2, 8), (2, columns, 2, 8)), masked, startend_row_indices=v, causal=causal, block_mask=blocks)


@pytest.mark.parametrize("shape", [(40,), (3, 40), (2, 2, 40), (2, 1, 4, 40), (1, 4, 2, 40)])
@pytest.mark.parametrize("causal", [True, False])
def test_first_and_last_visible_row(shape, causal):
    torch.manual_seed(len(shape))
    fms, fme = (torch.randint(-4, 36, shape, dtype=torch.int32) for _ in range(2))
    intervals = {1: (1, 1, 1), 2: (1, 1, shape[0]), 3: (*shape[:2], 1)}.get(len(shape), shape[:3])
    first, last = fms.reshape(*intervals, 40), fme.reshape(*intervals, 40)
    i = torch.arange(32)[:, None, None]
    masked = ~((first.mT[:, :, None] <= i) & (i <= last.mT[:, :, None])).any(-1)
    if causal:
        masked = masked | (torch.arange(40) > torch.arange(32)[:, None] + 8)
    check(*inputs((2, 32, 4, 8), (2, 40, 2, 8)), masked, fms=fms, fme=fme, causal=causal)


def test_layout_bhsd_is_a_transposed_view():
    v = torch.randint(0, 25, (1, 1, 24, 1), dtype=torch.int32)
    q, k, value = inputs((2, 24, 4, 8), (2, 24, 2, 8))
    expected, lse = flashmask_attention(q, k, value, v, causal=True, return_softmax_lse=True)
    out, same = flashmask_attention(
        *(t.transpose(1, 2) for t in (q, k, value)), v, causal=True, return_softmax_lse=True, layout="bhsd"
    )
    assert torch.equal(out.transpose(1, 2), expected) and torch.equal(same, lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(dtype):
    v = torch.randint(0, 65, (1, 1, 64, 2), dtype=torch.int32)
    q, k, value = inputs((1, 64, 2, 32), (1, 64, 2, 32), dtype=dtype)
    out = flashmask_attention(q, k, value, v, causal=False)
    expected, _ = dense_attention(q, k, value, masked_by(v, False, 64))
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=2**-7, atol=2**-7)


def test_signature_is_paddles():
    """Names and order of paddle.nn.functional.flashmask_attention, then ours."""
    parameters = inspect.signature(flashmask_attention).parameters
    assert list(parameters) == [
        "query", "key", "value", "startend_row_indices", "dropout", "causal", "window_size", "return_softmax_lse",
        "return_seed_offset", "fixed_seed_offset", "rng_name", "training", "name", "softmax_scale", "block_mask",
        "fms", "fme", "layout",
    ]  # fmt: skip
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[4:])
    q, k, v = inputs((1, 4, 1, 8), (1, 4, 1, 8))
    assert torch.equal(flashmask_attention(q, k, v, None, training=False, name="layer"), flashmask_attention(q, k, v))
    assert isinstance(flashmask_attention(q, k, v, return_softmax_lse=True), list)


def test_compiled_once_for_all_contents():
    """The vectors are an input of the graph: other values compile nothing."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *x: flashmask_attention(*x, causal=True), backend=counter, fullgraph=True)
    q, k, value = inputs((1, 48, 2, 8), (1, 48, 2, 8))
    for seed in range(3):
        v = torch.randint(0, 49, (1, 1, 48, 1), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))
        out = compiled(q, k, value, v)
        torch.testing.assert_close(out, flashmask_attention(q, k, value, v, causal=True))
        compiled_grad = torch.autograd.grad(out.square().sum(), q)[0]
        torch.testing.assert_close(
            compiled_grad, torch.autograd.grad(flashmask_attention(q, k, value, v, causal=True).square().sum(), q)[0]
        )
    assert counter.frame_count == 1


def vectors_of(*shape, dtype=torch.int32):
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize("arguments, error, message", [
    ({"dropout": 0.1}, NotImplementedError, "dropout is 0.1"),
    ({"return_seed_offset": True}, NotImplementedError, "return_seed_offset"),
    ({"fixed_seed_offset": vectors_of(2)}, NotImplementedError, "fixed_seed_offset"),
    ({"rng_name": "local"}, NotImplementedError, "rng_name"),
    ({"startend_row_indices": vectors_of(2, 1, 8, 1)}, ValueError, "last dimension of 2 or 4"),
    ({"startend_row_indices": vectors_of(2, 1, 8, 4), "causal": True}, ValueError, "last dimension of 1 or 2"),
    ({"startend_row_indices": vectors_of(2, 1, 8, 3)}, ValueError, r"\[2, 1, 8, 3\]"),
    ({"startend_row_indices": vectors_of(2, 1, 8)}, ValueError, r"\[2, 1, 8\]"),
    ({"startend_row_indices": vectors_of(2, 1, 9, 2)}, ValueError, "needs? .*, 8, vectors"),
    ({"startend_row_indices": vectors_of(3, 1, 8, 2)}, ValueError, "1 or 2"),
    ({"startend_row_indices": vectors_of(2, 3, 8, 2)}, ValueError, "1, 2 or 4"),
    ({"startend_row_indices": vectors_of(2, 1, 8, 2, dtype=torch.int64)}, TypeError, "int64"),
    ({"startend_row_indices": [[1]]}, TypeError, "list"),
    ({"startend_row_indices": vectors_of(2, 1, 8, 2), "window_size": 3}, ValueError, "exclude"),
    ({"startend_row_indices": vectors_of(2, 1, 8, 2), "fms": vectors_of(8), "fme": vectors_of(8)}, ValueError, "exclude"),
    ({"window_size": -1}, ValueError, "-1"),
    ({"window_size": (1, 2, 3)}, ValueError, "left, right"),
    ({"window_size": 1.5}, TypeError, "1.5"),
    ({"block_mask": vectors_of(2, 1, 1, 1)}, ValueError, "needs startend_row_indices"),
    ({"startend_row_indices": vectors_of(2, 1, 8, 2), "block_mask": vectors_of(2, 2, 1, 1)}, ValueError, "block_mask has shape"),
    ({"startend_row_indices": vectors_of(2, 1, 8, 2), "block_mask": torch.ones(2, 1, 1, 1)}, TypeError, "float32"),
    ({"fms": vectors_of(8)}, ValueError, "come together"),
    ({"fms": vectors_of(8), "fme": vectors_of(1, 8)}, ValueError, "shapes"),
    ({"fms": vectors_of(9), "fme": vectors_of(9)}, ValueError, r"\[9\]"),
    ({"fms": vectors_of(5, 8), "fme": vectors_of(5, 8)}, ValueError, "5 a key"),
    ({"fms": torch.zeros(8), "fme": torch.zeros(8)}, TypeError, "float32"),
    ({"causal": 1}, TypeError, "causal"),
    ({"layout": "sbhd"}, ValueError, "sbhd"),
])  # fmt: skip
def test_bad_input(arguments, error, message):
    q, k, v = inputs((2, 8, 4, 8), (2, 8, 2, 8))
    with pytest.raises(error, match=message):
        flashmask_attention(q, k, v, **arguments)


def test_window_needs_as_many_queries_as_keys():
    q, k, v = inputs((1, 4, 1, 8), (1, 8, 1, 8))
    with pytest.raises(ValueError, match="4 queries and 8 keys"):
        flashmask_attention(q, k, v, causal=True, window_size=2)


# ---- the tutorial's classes ----


def test_representation_of_samples():
    lengths = [3, 0, 5, 1]
    for causal in (True, False):
        dense = FlashMaskRepresentation.from_packed_samples(lengths, causal).to_dense_mask()
        document = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
        expected = document[:, None] == document
        assert torch.equal(dense, expected.tril() if causal else expected)


def test_representation_of_a_pair():
    dense = FlashMaskRepresentation.from_dpo_pair(2, 2, 3).to_dense_mask()
    expected = torch.ones(7, 7, dtype=torch.bool).tril()
    expected[4:, 2:4] = False
    assert torch.equal(dense, expected)


def test_representation_of_several_intervals():
    fms = torch.tensor([[0, 0, 3], [2, 2, 0]])
    mask = FlashMaskRepresentation(3, fms, torch.tensor([[0, -1, 9], [2, 1, 0]]))
    assert mask.fms.dtype == torch.int32
    assert mask.to_dense_mask().tolist() == [[True, False, True], [False, False, False], [True, False, False]]
    assert mask.stats(1, 1) == {"total_tiles": 9, "skipped_tiles": 6, "computed_tiles": 3, "skip_ratio": 6 / 9}


def test_representation_of_wide_integers():
    """Numbers that stand for infinity do not wrap in int32."""
    mask = FlashMaskRepresentation(2, torch.tensor([0, -(2**40)]), torch.tensor([2**32, 2**31]))
    assert mask.to_dense_mask().all()


def test_representation_of_nothing():
    for mask in (FlashMaskRepresentation.from_packed_samples([]), FlashMaskRepresentation.from_dpo_pair(0, 0, 0)):
        assert mask.to_dense_mask().shape == (0, 0) and mask.stats(8, 8)["total_tiles"] == 0


@pytest.mark.parametrize("make, error", [
    (lambda: FlashMaskRepresentation(4, torch.zeros(3), torch.zeros(3)), TypeError),
    (lambda: FlashMaskRepresentation(4, [0] * 3, [0] * 3), ValueError),
    (lambda: FlashMaskRepresentation(4, [0] * 4, [[0] * 4]), ValueError),
    (lambda: FlashMaskRepresentation(2, [[[0, 0]]], [[[0, 0]]]), ValueError),
    (lambda: FlashMaskRepresentation.from_packed_samples([-1]), ValueError),
    (lambda: FlashMaskRepresentation.from_dpo_pair(1, -2, 3), ValueError),
    (lambda: FlashMaskAttention(10, 4), ValueError),
    (lambda: FlashMaskAttention(8, 4, block_r=0), ValueError),
])  # fmt: skip
def test_bad_representation(make, error):
    with pytest.raises(error):
        make()


def test_module_checks_its_shapes():
    mask = FlashMaskRepresentation.from_packed_samples([4])
    module = FlashMaskAttention(16, 2)
    assert not list(module.parameters()) and "block_r=64" in repr(module)
    q, short, wide = (torch.randn(1, 2, n, d) for n, d in ((4, 8), (3, 8), (4, 16)))
    with pytest.raises(ValueError, match="k has shape"):
        module(q, short, q, mask)
    with pytest.raises(ValueError, match="q has shape"):
        module(wide, q, q, mask)
    with pytest.raises(TypeError, match="mask is a Tensor"):
        module(q, q, q, mask.fms)


@pytest.mark.parametrize("device", DEVICES)
def test_module_gradients(device):
    mask = FlashMaskRepresentation.from_dpo_pair(9, 5, 6, device=device)
    q, k, v = inputs((2, 2, 20, 8), (2, 2, 20, 8), device)
    out, stats = FlashMaskAttention(16, 2, block_r=8, block_c=4)(q, k, v, mask)
    expected, _ = dense_attention(*(t.transpose(1, 2) for t in (q, k, v)), ~mask.to_dense_mask()[None, None])
    torch.testing.assert_close(out.double(), expected.transpose(1, 2), rtol=1e-5, atol=1e-5)
    ours = torch.autograd.grad(out.square().sum(), (q, k, v))
    for a, b in zip(ours, torch.autograd.grad(expected.square().sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    assert stats["total_tiles"] == 3 * 5 and stats["computed_tiles"] + stats["skipped_tiles"] == 15


def test_unsigned_numbers_that_stand_for_infinity():
    fms, fme = np.zeros(2, np.uint64), np.array([2**64 - 1, 2**63 - 1], np.uint64)
    assert FlashMaskRepresentation(2, fms, fme).to_dense_mask().all()


def test_representation_of_empty_lists_and_empty_tiles():
    assert FlashMaskRepresentation(0, [], []).to_dense_mask().numel() == 0
    with pytest.raises(ValueError, match="at least 1"):
        FlashMaskRepresentation(2, [0, 0], [2, 2]).stats(0, 64)
