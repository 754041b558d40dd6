"""Wrong values for each argument of every public call that needs NumPy alone."""

import numpy as np
import pytest
from bad_arguments import check

from flashmask import Mask, attention, pack, pack_questions
from flashmask.numpy_attention import NumpyAttention

MASK, PACKING = Mask.causal(4), pack([1, 2, 3], 8)
SIZE = {"rows": 4, "columns": 4}
ARRAY = np.ones((1, 4, 2, 8), np.float32)
INPUTS = {"query": ARRAY, "key": ARRAY, "value": ARRAY}

CALLS = {
    "full": (Mask.full, SIZE),
    "causal": (Mask.causal, SIZE),
    "sliding_window": (Mask.sliding_window, {**SIZE, "left": 1, "right": 1}),
    "sink_window": (Mask.sink_window, {**SIZE, "sink": 1, "window": 1}),
    "documents_sink_window": (Mask.documents_sink_window, {"lengths": [2, 2], "sink": 1, "window": 1, "padding": 0}),
    "global_window": (Mask.global_window, {**SIZE, "global_tokens": 1, "left": 1, "right": 1}),
    "documents": (Mask.documents, {"lengths": [2, 2], "causal": True, "padding": 0}),
    "prefix_lm": (Mask.prefix_lm, {**SIZE, "prefix": 2}),
    "prefix_documents": (Mask.prefix_documents, {"prefix": [1, 1], "lengths": [2, 2], "padding": 0}),
    "share_question": (Mask.share_question, {"questions": [(1, 2, 3)], "bidirectional_question": False, "padding": 0}),
    "prefix_tree": (Mask.prefix_tree, {"parent": [-1, 0], "length": [1, 2]}),
    "causal_blockwise": (Mask.causal_blockwise, {"lengths": [2, 2]}),
    "qk_sparse": (Mask.qk_sparse, {**SIZE, "offset": [1], "length": [1]}),
    "hash_sparse": (Mask.hash_sparse, {"bucket": [1, 2], "fallback_limit": 0}),
    "random_eviction": (Mask.random_eviction, {"length": 4, "heads": 1, "start": 1, "seed": 0}),
    "head_windows": (Mask.head_windows, {**SIZE, "left": [1], "right": [1]}),
    "padding": (Mask.padding, {**SIZE, "left": [1], "right": [1]}),
    "blocks": (Mask.blocks, {"keep": [[[[1]]]], **SIZE, "block": 128, "fallback_limit": 0}),
    "bigbird": (Mask.bigbird, {"rows": 128, "block": 64, "global_blocks": 1, "window": 1, "random": 1, "seed": 0}),
    "image_spans": (Mask.image_spans, {"lengths": [4], "offset": [1], "length": [2]}),
    "random_sparse": (Mask.random_sparse, {**SIZE, "density": 0.5, "seed": 0, "fallback_limit": 2**20}),
    "from_intervals": (Mask.from_intervals, {"intervals": MASK.intervals(), "rows": 4}),
    "from_startend": (
        Mask.from_startend_row_indices,
        {"startend_row_indices": np.full((1, 1, 4, 1), 4), "causal": True, "rows": 4},
    ),
    "from_fms_fme": (Mask.from_fms_fme, {"fms": [0] * 4, "fme": [3] * 4, "rows": 4}),
    "from_row_ranges": (
        Mask.from_row_ranges,
        {"start": np.zeros((1, 1, 1, 4), int), "end": np.full((1, 1, 1, 4), 4), "columns": 4, "fallback_limit": 0},
    ),
    "from_cu_seqlens": (Mask.from_cu_seqlens, {"cu_q": [0, 4], "cu_k": [0, 4], "causal": True, **SIZE}),
    "from_document_ids": (Mask.from_document_ids, {"ids": [0, 0, 1], "causal": True, "padding_id": -1}),
    "from_position_ids": (Mask.from_position_ids, {"ids": [0, 1, 0], "causal": True, "padding": False}),
    "from_dense": (Mask.from_dense, {"visible": np.ones((4, 4), bool), "fallback_limit": 0}),
    "from_mask_mod": (
        lambda **x: Mask.from_mask_mod(lambda b, h, i, j: i >= j, indices="numpy", **x),
        {**SIZE, "batch": 1, "heads": 1, "verify_limit": 64, "fallback_limit": 0},
    ),
    "intersection": (MASK.intersection, {"other": MASK, "fallback_limit": 0}),
    "union": (MASK.union, {"other": MASK, "fallback_limit": 0}),
    "shift": (MASK.shift, {"rows": 1, "columns": 1, "fallback_limit": 0}),
    "slice": (MASK.slice, {"rows": (0, 2), "columns": (0, 2), "fallback_limit": 0}),
    "slice_batch": (MASK.slice_batch, {"first": 0, "end": 1}),
    "repeat_heads": (MASK.repeat_heads, {"heads": 2}),
    "stack_heads": (Mask.stack_heads, {"masks": [MASK]}),
    "stack_batch": (Mask.stack_batch, {"masks": [MASK]}),
    "intervals": (MASK.intervals, {"count": 1}),
    "to_startend": (MASK.to_startend_row_indices, {"vectors": 1, "causal": True}),
    "to_fms_fme": (MASK.to_fms_fme, {"intervals": 1}),
    "to_row_ranges": (MASK.to_row_ranges, {"ranges": 1}),
    "to_cu_seqlens": (Mask.documents([2, 2], causal=True).to_cu_seqlens, {"causal": True}),
    "plan": (MASK.plan, {"causal": True, "window_size": (1, 1)}),
    "stats": (MASK.stats, {"tile": (2, 2), "causal": True, "window_size": (1, 1)}),
    "picture": (MASK.picture, {"size": 4}),
    "pack": (pack, {"lengths": [1, 2], "capacity": 8}),
    "pack_questions": (pack_questions, {"questions": [(1, 2, 3)], "capacity": 8}),
    "packing.mask": (PACKING.mask, {"first": 0, "count": 1, "causal": True, "window": 2}),
    "packing.vectors": (PACKING.vectors, {"first": 0, "count": 1, "causal": True, "window": 2, "intervals": 1}),
    "packing.lay_out": (PACKING.lay_out, {"records": [[1], [1, 2], [1, 2, 3]]}),
    "attention": (
        attention,
        {**INPUTS, "causal": True, "softmax_scale": 0.5, "softcap": 1.0, "window_size": (1, 1), "return_lse": True},
    ),
    "NumpyAttention": (NumpyAttention, {**INPUTS, "causal": True, "sinks": np.zeros(2, np.float32)}),
    "backward": (NumpyAttention(**INPUTS).backward, {"grad_output": ARRAY, "grad_lse": np.zeros((1, 2, 4), np.float32)}),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_values(name):
    check(*CALLS[name])


def test_values_that_an_array_cannot_hold():
    """Not cut to what it can."""
    for records, dtype, error in (
        ([[1], [1, 2], [1, 2, 2**40]], np.int32, ValueError),
        ([[1], [1, 2], [1, 2, 0.5]], np.int64, TypeError),
        ([[1], [1, 2], [1, 2, -1]], np.uint8, ValueError),
        ([[1], [1, 2], ["a", "b", "c"]], np.int64, TypeError),
    ):
        with pytest.raises(error, match=r"records\[2\]"):
            PACKING.lay_out(records, dtype=dtype)
    for fill, error in ((0.5, TypeError), (2**40, ValueError), (None, TypeError), ([0], ValueError)):
        with pytest.raises(error, match="fill"):
            PACKING.lay_out([[1], [1, 2], [1, 2, 3]], fill, np.int32)
    laid = PACKING.lay_out([[1], (1, 2), np.array([1, 2, 3], np.uint64)], -1, np.int16)
    assert laid.dtype == np.int16 and sorted(laid[0].tolist()) == [-1, -1, 1, 1, 1, 2, 2, 3]
    assert PACKING.lay_out([[0.5], [1.5, 2], [1, 2, 3]], dtype=np.float32).sum() == 10


def test_messages_name_what_python_callers_gave():
    q = np.zeros((1, 32, 2, 8), np.float32)
    for mask, message in (
        (Mask.causal(31), "^fm_attention_forward: mask: has 31 rows, query has 32$"),
        (np.ones((32, 32), bool), "^mask is a ndarray, needs a flashmask.Mask; see Mask.from_dense$"),
        ("causal", "^mask is a str, needs a flashmask.Mask$"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            attention(q, q, q, mask)
    with pytest.raises(ValueError, match=r'lengths\[0\]: is 50, capacity is 16 \(overlong="split" cuts longer documents\)'):
        pack([50], 16)
    for make in (Mask.share_question, lambda questions: pack_questions(questions, 16)):
        for nested in ((3, [2, 2]), [(3, 2)], [3, np.array([2])]):
            with pytest.raises(TypeError, match=r"questions\[0\] holds sequences.*\(question, answer, answer, \.\.\)"):
                make([nested])


def test_sequences_of_any_kind():
    """Generators too, read once."""
    assert Mask.share_question(q for q in [(1, 2, 3)]) == Mask.share_question([(1, 2, 3)])
    assert pack_questions((q for q in [(1, 2, 3)]), 8).lengths == [6]
    assert Mask.stack_heads(m for m in (MASK, MASK)).shape == (1, 2, 4, 4)


def test_masks_without_end_are_not_tried():
    for batch, heads in ((2**31, 1), (2**16, 2**16)):
        with pytest.raises(MemoryError, match="more than"):
            Mask.from_mask_mod(lambda b, h, i, j: i >= j, 2, batch=batch, heads=heads, indices="numpy")
