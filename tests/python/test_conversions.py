"""Conversions into masks and out of them, against NumPy; wrong input; what users report of ids."""

import numpy as np
import pytest

from flashmask import Mask


def rows_of(n):
    return np.arange(n)[:, None]


def test_startend_row_indices():
    draw = np.random.default_rng(0)
    i, causal = rows_of(9), np.arange(7) <= rows_of(9) - 2
    for vectors, is_causal in ((1, True), (2, True), (2, False), (4, False)):
        v = draw.integers(-2, 12, (2, 3, 7, vectors))
        a = [v[:, :, None, :, c] for c in range(vectors)]
        masked = {
            (1, True): lambda: i >= a[0],
            (2, True): lambda: (i >= a[0]) & (i < a[1]),
            (2, False): lambda: (i >= a[0]) | (i < a[1]),
            (4, False): lambda: (i >= a[0]) & (i < a[1]) | (i >= a[2]) & (i < a[3]),
        }[vectors, is_causal]()
        visible = ~masked & causal if is_causal else ~masked
        mask = Mask.from_startend_row_indices(v, causal=is_causal, rows=9)
        assert mask.shape == (2, 3, 9, 7) and np.array_equal(mask.dense(), visible)
    window = Mask.sliding_window(8, left=2, right=0)
    v = window.to_startend_row_indices(1, causal=True)
    assert v.shape == (1, 1, 8, 1) and Mask.from_startend_row_indices(v, causal=True) == window
    with pytest.raises(ValueError, match="vectors"):
        Mask.from_startend_row_indices(np.zeros((1, 1, 4, 3), int), causal=False)
    with pytest.raises(ValueError, match="4 dimensions"):
        Mask.from_startend_row_indices(np.zeros((1, 4, 1), int), causal=True)


def test_fms_fme():
    mask = Mask.from_fms_fme([0, 1, 5], [2, 1, 4], rows=4)
    assert mask.dense()[0, 0].T.tolist() == [[True, True, True, False], [False, True, False, False], [False] * 4]
    assert Mask.from_fms_fme(np.array([[[0, 1, 5]]]), np.array([[[2, 1, 4]]]), rows=4) == mask
    two = Mask.from_fms_fme([[[[0], [3]]]], [[[[0], [9]]]], rows=5)
    assert two.dense()[0, 0, :, 0].tolist() == [True, False, False, True, True]
    assert Mask.from_fms_fme(*two.to_fms_fme(2), rows=5) == two
    with pytest.raises(NotImplementedError, match="column 0"):
        two.to_fms_fme(1)
    with pytest.raises(ValueError, match="shapes"):
        Mask.from_fms_fme([0, 1], [2])
    with pytest.raises(ValueError, match="needs"):
        Mask.from_fms_fme([[0]], [[2]])


def test_intervals():
    mask = Mask.documents_sink_window([20, 30], sink=2, window=5)
    v = mask.intervals()
    assert v.shape == (1, 1, mask.interval_count, 50, 2) and v.dtype == np.int32
    i = rows_of(50)
    assert np.array_equal(((i >= v[0, 0, :, None, :, 0]) & (i < v[0, 0, :, None, :, 1])).any(axis=0), mask.dense()[0, 0])
    assert Mask.from_intervals(v) == mask and mask.intervals(4).shape[2] == 4
    assert Mask.full(3, 0).intervals().shape == (1, 1, 1, 0, 2)
    with pytest.raises(ValueError, match=r"\(start, end\)"):
        Mask.from_intervals(np.zeros((1, 1, 1, 4, 3), int))
    with pytest.raises(ValueError, match="fm_mask_from_intervals"):
        Mask.from_intervals([[[[[3, 2]]]]])
    with pytest.raises(NotImplementedError):
        Mask.random_sparse(200, density=0.5).intervals()
    with pytest.raises(ValueError):
        mask.intervals(-1)


def test_row_ranges():
    start, end = np.array([[[[0, 0, 2], [3, 5, 5]]]]), np.array([[[[1, 2, 4], [4, 5, 6]]]])
    mask = Mask.from_row_ranges(start, end, 6)
    assert mask.picture() == "x..x..\nxx....\n..xx.x"
    assert Mask.from_row_ranges(*mask.to_row_ranges(2), 6) == mask
    with pytest.raises(NotImplementedError, match="row"):
        mask.to_row_ranges(1)
    with pytest.raises(ValueError):
        Mask.from_row_ranges(start, end)  # 3 rows, 3 keys
    assert Mask.from_row_ranges(np.empty((1, 1, 0, 3), int), np.empty((1, 1, 0, 3), int)).visible_pairs == 0


def test_cu_seqlens():
    mask = Mask.from_cu_seqlens([0, 2, 6], causal=True, rows=8, columns=8)
    assert mask == Mask.documents([2, 4], causal=True, padding=2)
    cu_q, cu_k = mask.to_cu_seqlens(causal=True)
    assert cu_q.tolist() == cu_k.tolist() == [0, 2, 6]
    cross = Mask.from_cu_seqlens([0, 1, 3], [0, 3, 4], causal=True)
    assert cross.picture() == "xxx.\n....\n...x"
    for wrong in ([1, 2], [0, 3, 2], []):
        with pytest.raises(ValueError):
            Mask.from_cu_seqlens(wrong, causal=True)
    with pytest.raises(ValueError, match="shapes"):
        Mask.from_cu_seqlens([0, 1], [0, 1, 2], causal=True)
    with pytest.raises(NotImplementedError):
        Mask.sliding_window(8, left=1, right=0).to_cu_seqlens(causal=True)


def test_document_ids():
    ids = np.random.default_rng(0).integers(-1, 3, (3, 40))
    same = (ids[:, None, :, None] == ids[:, None, None, :]) & (ids >= 0)[:, None, None, :]
    assert np.array_equal(Mask.from_document_ids(ids, causal=False).dense(), same)
    assert np.array_equal(Mask.from_document_ids(ids, causal=True).dense(), np.tril(same))
    assert Mask.from_document_ids(ids + 5, causal=True, padding_id=4) == Mask.from_document_ids(ids, causal=True)
    assert Mask.from_document_ids([0, 0, -100], causal=True, padding_id=-100) == Mask.documents([2], causal=True, padding=1)
    assert Mask.from_document_ids([0, 0, 7], causal=True, padding_id=None) == Mask.documents([2, 1], causal=True)
    for wrong in (dict(padding_id=None), dict(padding_id=-2)):
        with pytest.raises(ValueError):
            Mask.from_document_ids([0, -1], causal=True, **wrong)


def test_numbered_documents_with_zero_for_padding():
    """https://github.com/hiyouga/LlamaFactory/pull/7318: packs that number their documents from 1."""
    mask = Mask.from_document_ids([[1, 1, 1, 2, 2, 0, 0]], causal=True, padding_id=0)
    assert mask == Mask.documents([3, 2], causal=True, padding=2)


def test_position_ids():
    assert Mask.from_position_ids([[0, 1, 2, 0, 1]], causal=True) == Mask.documents([3, 2], causal=True)
    with pytest.raises(ValueError):
        Mask.from_position_ids([0, -1], causal=True)


def test_position_ids_that_start_at_two():
    """https://github.com/huggingface/transformers/pull/47525: a document may start at any position."""
    assert Mask.from_position_ids([2, 3, 4, 2, 3], causal=True) == Mask.documents([3, 2], causal=True)


def test_tails_of_zeros():
    """https://github.com/axolotl-ai-cloud/axolotl/pull/2739: padding with position 0 is padding, or documents of one token."""
    ids = np.concatenate([np.arange(10), np.zeros(54, int)])
    assert Mask.from_position_ids(ids, causal=True, padding=True) == Mask.documents([10], causal=True, padding=54)
    assert Mask.from_position_ids(ids, causal=True) == Mask.documents([10] + [1] * 54, causal=True)
    assert Mask.from_position_ids(np.zeros(131072, int), causal=True).visible_pairs == 131072


def test_position_ids_of_three_axes():
    """https://github.com/QwenLM/Qwen3.8/issues/104: three axes of positions are not a batch."""
    with pytest.raises(ValueError, match=r"shape \[3, 1, 8\], needs \[batch, length\]"):
        Mask.from_position_ids(np.zeros((3, 1, 8), int), causal=True)


def test_image_spans():
    """https://github.com/huggingface/transformers/issues/39389: one image sees itself both ways, not the next image."""
    dense = Mask.image_spans([10], offset=[2, 6], length=[3, 3]).dense()[0, 0]
    expected = np.tril(np.ones((10, 10), bool))
    expected[2:5, 2:5] = expected[6:9, 6:9] = True
    assert np.array_equal(dense, expected)


def test_pairs_of_tokens_behind_a_prefix():
    """https://github.com/SandAI-org/MagiAttention/issues/316: chunks that see themselves both ways and all before, there a range each."""
    prefix, chunk, n = 100, 2, 200
    end = np.arange(n)
    end = np.where(end < prefix, end + 1, end // chunk * chunk + chunk)
    mask = Mask.from_row_ranges(np.zeros_like(end)[None, None, None], end[None, None, None], columns=n)
    assert np.array_equal(mask.dense()[0, 0], np.arange(n) < end[:, None])
    assert mask.interval_count == 1 and not mask.has_fallback


def test_windows_of_w_keys():
    """https://github.com/huggingface/transformers/issues/39408: a window of w keys has the row's own among them."""
    assert Mask.sliding_window(8, left=3, right=0).dense()[0, 0].sum(axis=1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4]


def test_dense():
    dense = np.random.default_rng(0).random((2, 1, 30, 20)) < 0.4
    mask = Mask.from_dense(dense)
    assert mask.dense().dtype == np.bool_ and np.array_equal(mask.dense(), dense)
    assert Mask.from_dense(dense[0, 0].astype(np.int64) * 256) == Mask.from_dense(dense[0, 0])
    assert Mask.from_dense(dense[:, :, ::-2, 1::2]) == Mask.from_dense(dense[:, :, ::-2, 1::2].copy())
    with pytest.raises(TypeError, match="additive"):
        Mask.from_dense(np.where(dense, 0, -np.inf))
    with pytest.raises(ValueError):
        Mask.from_dense(dense[0])


def test_what_arrays_may_be():
    lists, expected = [[0, 0, 1], [0, 1, 1]], Mask.from_document_ids([[0, 0, 1], [0, 1, 1]], causal=True)
    for dtype in (np.int8, np.uint8, np.int16, np.uint32, np.int64, ">i4"):
        assert Mask.from_document_ids(np.array(lists, dtype), causal=True) == expected
    assert Mask.from_document_ids(np.array(lists)[:, ::-1][:, ::-1], causal=True) == expected
    for wrong in ([[0.0, 1.0]], [["a"]], [[0], [0, 1]], None, object()):
        with pytest.raises(TypeError):
            Mask.from_document_ids(wrong, causal=True)
    for wrong in ([[2**31]], np.array([[2**63]], np.uint64), [[[0]]], np.int64(3)):
        with pytest.raises(ValueError):
            Mask.from_document_ids(wrong, causal=True)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    ids = torch.tensor([[0, 0, 1]])
    assert Mask.from_document_ids(ids, causal=True) == Mask.documents([2, 1], causal=True)
    assert Mask.from_cu_seqlens(torch.tensor([0, 2, 3], dtype=torch.int32), causal=True) == Mask.documents([2, 1], causal=True)
    assert Mask.from_dense(torch.ones(3, 3, dtype=torch.bool).tril()) == Mask.causal(3)
    with pytest.raises(ValueError, match=r"ids is on meta; masks are built from host memory: pass ids.cpu\(\)"):
        Mask.from_document_ids(ids.to("meta"), causal=True)
    with pytest.raises(TypeError):
        Mask.from_document_ids(ids.to(torch.bfloat16), causal=True)


def test_vectors():
    torch = pytest.importorskip("torch")
    import flashmask

    mask = Mask.documents_sink_window([20, 30], sink=2, window=5)
    pairs = torch.from_numpy(mask.intervals()).permute(0, 1, 3, 2, 4)
    assert mask.vectors().dtype == torch.int32 and torch.equal(mask.vectors(), pairs.reshape(1, 1, 50, -1))
    there = mask.to("cpu")
    q, k, v = torch.randn(3, 1, 50, 2, 8)
    assert torch.equal(flashmask.attention(q, k, v, there), flashmask.attention(q, k, v, mask))
    assert mask.to("meta").vectors.device.type == "meta"
    for wrong in (Mask.random_sparse(200, density=0.5).vectors, lambda: Mask.random_sparse(200, density=0.5).to("cpu")):
        with pytest.raises(NotImplementedError):
            wrong()
