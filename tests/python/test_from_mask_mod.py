"""Masks from FlexAttention predicates."""

import time
import tracemalloc

import numpy as np
import pytest

from flashmask import Mask


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx <= 100) & (q_idx >= kv_idx)


def documents(b, h, q_idx, kv_idx):
    ids = np.repeat(np.arange(4), [100, 28, 200, 72])
    if not isinstance(q_idx, np.ndarray):
        ids = q_idx.new_tensor(ids)
    return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)


def prefix(b, h, q_idx, kv_idx):
    return (kv_idx < 50) | (q_idx >= kv_idx)


@pytest.mark.parametrize(
    ("fn", "mask"),
    [
        (causal, Mask.causal(400)),
        (window, Mask.sliding_window(400, left=100, right=0)),
        (documents, Mask.documents([100, 28, 200, 72], causal=True)),
        (prefix, Mask.prefix_lm(400, prefix=50)),
        (lambda b, h, q, k: True, Mask.full(400)),
        (lambda b, h, q, k: k < 0, Mask.full(400).shift(400)),
        (lambda b, h, q, k: q >= 7, Mask.full(400).shift(7)),
    ],
    ids=["causal", "window", "documents", "prefix", "full", "nothing", "rows alone"],
)
@pytest.mark.parametrize("indices", ["numpy", "torch"])
def test_known_masks(fn, mask, indices):
    if indices == "torch":
        pytest.importorskip("torch")
    made = Mask.from_mask_mod(fn, 400, indices=indices)
    assert made == mask and hash(made) == hash(mask) and made.nbytes == mask.nbytes


@pytest.mark.parametrize("shape", [(300, 500), (129, 1), (1, 257), (0, 5), (5, 0)])
@pytest.mark.parametrize("density", [0.01, 0.5, 0.99])
def test_random_matrices(shape, density):
    """Some stripes of 128 keys are bitmaps, some are not."""
    dense = np.random.default_rng(shape[0]).random(shape) < density
    dense[:, 128:256] = True
    mask = Mask.from_mask_mod(lambda b, h, q, k: dense[q, k], *shape, indices="numpy")
    assert mask == Mask.from_dense(dense) and mask.nbytes == Mask.from_dense(dense).nbytes


def test_batch_and_heads():
    lengths = np.array([3, 7])
    left = np.array([1, 2, 5])

    def fn(b, h, q_idx, kv_idx):
        return (kv_idx < lengths[b]) & (q_idx - kv_idx <= left[h]) & (q_idx >= kv_idx)

    mask = Mask.from_mask_mod(fn, 10, batch=2, heads=3, indices="numpy")
    i, j = np.arange(10)[:, None], np.arange(10)
    expected = (j < lengths[:, None, None, None]) & (i - j <= left[:, None, None]) & (i >= j)
    assert mask.shape == (2, 3, 10, 10) and np.array_equal(mask.dense(), expected)


def test_torch_predicates():
    torch = pytest.importorskip("torch")
    ids = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])

    def fn(b, h, q_idx, kv_idx):
        return torch.logical_and(ids[b, q_idx] == ids[b, kv_idx], q_idx >= kv_idx)

    assert Mask.from_mask_mod(fn, 5, batch=2) == Mask.from_document_ids(ids, causal=True)


def test_agrees_with_flex_attention():
    """create_mask of torch is what FlexAttention itself shows of a predicate."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    def fn(b, h, q_idx, kv_idx):
        return ((q_idx * 7 + kv_idx * 3 + b + h) % 5 < 2) | (q_idx == kv_idx)

    theirs = flex.create_mask(fn, 2, 2, 150, 170, device="cpu")
    assert Mask.from_mask_mod(fn, 150, 170, batch=2, heads=2) == Mask.from_dense(theirs)


def test_single_pairs_are_seen():
    """Whatever lies between the pairs that one would probe."""
    for row, key in ((999, 0), (500, 501), (63, 640), (998, 999)):
        mask = Mask.from_mask_mod(lambda b, h, q, k: (q >= k) ^ ((q == row) & (k == key)), 1000, indices="numpy")
        assert mask.visible_pairs == 1000 * 1001 // 2 + (1 if key > row else -1)


def test_limit():
    with pytest.raises(ValueError, match="raise verify_limit"):
        Mask.from_mask_mod(causal, 32769, indices="numpy")
    with pytest.raises(ValueError, match="raise verify_limit"):
        Mask.from_mask_mod(causal, 100, verify_limit=99, indices="numpy")
    assert Mask.from_mask_mod(causal, 100, verify_limit=100, indices="numpy") == Mask.causal(100)
    assert Mask.from_mask_mod(causal, 10, 1000, verify_limit=100, indices="numpy").shape == (1, 1, 10, 1000)
    with pytest.raises(MemoryError):
        Mask.from_mask_mod(lambda b, h, q, k: (q * q + k) % 3 < 1, 1024, indices="numpy", fallback_limit=100)


def test_memory_is_bounded():
    """8192 x 8192 pairs in one array of indices would take 512 MiB."""
    tracemalloc.start()
    start = time.perf_counter()
    mask = Mask.from_mask_mod(window, 8192, indices="numpy")
    elapsed, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mask == Mask.sliding_window(8192, left=100, right=0)
    assert peak < 64e6, peak
    assert elapsed < 60


def test_wrong_predicates():
    for fn, kind, text in (
        (lambda b, h, q, k: q - k, TypeError, "returned int64, needs bool"),
        (lambda b, h, q, k: [[True], [True, False]], TypeError, "predicate returned is a list .*; needs bool of shape"),
        (lambda b, h, q, k: None, TypeError, "returned object, needs bool of shape"),
        (lambda b, h, q, k: 1.0, TypeError, "float64"),
        (lambda b, h, q, k: np.ones(3, bool), ValueError, r"returned shape \[3\]"),
        (lambda b, h, q, k: np.ma.array(q >= k, mask=True), TypeError, "predicate returned is a masked array"),
        (lambda q, k: q >= k, TypeError, "positional"),
        ("causal", TypeError, "fn is a str"),
        (lambda b, h, q, k: 1 // 0, ZeroDivisionError, "zero"),
    ):
        with pytest.raises(kind, match=text):
            Mask.from_mask_mod(fn, 10, indices="numpy")
    for wrong in (dict(indices="jax"), dict(batch=0), dict(heads=-1), dict(indices="numpy", device="cpu")):
        with pytest.raises(ValueError):
            Mask.from_mask_mod(causal, 10, **wrong)
    with pytest.raises(TypeError):
        Mask.from_mask_mod(causal, 10.0)


def test_predicates_may_change_their_arguments():
    def shifted(b, h, q, k):
        k -= 5
        return q >= k

    rows = 16384 + 40  # more than one block of rows
    corner = Mask.from_mask_mod(shifted, rows, 64).slice((16384 - 8, rows), (0, 64))
    assert corner.equal(Mask.from_mask_mod(lambda b, h, q, k: q >= k - 5, rows, 64).slice((16384 - 8, rows), (0, 64)))
    late = Mask.from_mask_mod(shifted, rows, rows).slice((16384, rows), (16384, rows)).dense()[0, 0]
    assert np.array_equal(late, np.tri(40, 40, 5, dtype=bool))
