"""flashmask.packing against brute force, and user reports on packing and position ids."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from flashmask import Mask, pack, pack_questions
from flashmask.numpy_attention import NumpyAttention

DATA = Path(__file__).parents[2] / "examples" / "data"


def chat_lengths():
    return [sum(json.loads(line)) for line in (DATA / "chat_turn_lengths.jsonl").read_text().splitlines()]


def preference_lengths():
    lines = (DATA / "preference_lengths.tsv").read_text().splitlines()
    return [tuple(map(int, line.split())) for line in lines if line[0].isdigit()]


def dense_of(packing, causal=True, window=None):
    """[sequences, capacity, capacity] from the definition, pair by pair of parts."""
    out = np.zeros((len(packing), packing.capacity, packing.capacity), bool)
    for dense, pieces in zip(out, packing, strict=True):
        for piece in pieces:
            parts = [piece.length] if packing.questions is None else packing.questions[piece.document]
            position = np.concatenate([np.arange(parts[0])] + [parts[0] + np.arange(n) for n in parts[1:]])
            part = np.repeat(np.arange(len(parts)), parts)
            own, question = part[:, None] == part[None, :], part[None, :] == 0
            before = position[None, :] <= position[:, None]
            # A row sees its own part causally, an answer's row the whole question; the question may see itself both ways.
            visible = (own & before) | (question & (part[:, None] > 0))
            if not causal:
                visible |= question & (part[:, None] == 0)
            if window is not None:
                visible &= position[:, None] - position[None, :] <= window
            dense[piece.offset : piece.offset + piece.length, piece.offset : piece.offset + piece.length] = visible
    return out


def random_questions(rng, n, answers=4):
    return [tuple(int(x) for x in rng.integers(0, 9, 1 + rng.integers(0, answers + 1))) for _ in range(n)]


@pytest.mark.parametrize("policy", ["best_fit", "arrival"])
@pytest.mark.parametrize("causal", [True, False])
def test_masks_and_arrays_of_documents(policy, causal):
    rng = np.random.default_rng(1)
    for _ in range(20):
        lengths = rng.integers(0, 60, rng.integers(1, 12)).tolist()
        packing = pack(lengths, 40, policy, "split")
        assert packing.tokens == sum(lengths) == int((packing.document_ids >= 0).sum())
        assert sorted(p.document for pieces in packing for p in pieces if p.start == 0) == [k for k, n in enumerate(lengths) if n]
        if not len(packing):
            continue
        assert np.array_equal(packing.mask(causal=causal).dense()[:, 0], dense_of(packing, causal))
        for k, pieces in enumerate(packing):
            used = sum(p.length for p in pieces)
            assert [p.offset for p in pieces] == np.cumsum([0] + [p.length for p in pieces])[:-1].tolist()
            assert packing.position_ids[k, :used].tolist() == [t for p in pieces for t in range(p.length)]
            assert packing.document_ids[k].tolist() == [n for n, p in enumerate(pieces) for _ in range(p.length)] + [-1] * (
                40 - used
            )
            assert not packing.labels[k, used:].any() and (packing.predicted_by[k, used:] == -1).all()


def test_arrays_of_questions():
    packing = pack_questions([(2, 2, 3), (1, 1)], 10)
    assert packing.document_ids.tolist() == [[0, 0, 0, 0, 0, 0, 0, 1, 1, -1]]
    assert packing.position_ids.tolist() == [[0, 1, 2, 3, 2, 3, 4, 0, 1, 0]]
    assert packing.predicted_by.tolist() == [[-1, 0, 1, 2, 1, 4, 5, -1, 7, -1]]
    assert packing.labels.tolist() == [[0, 0, 1, 1, 1, 1, 1, 0, 1, 0]]
    assert packing.utilisation == 0.9 and "2 questions in 1 sequences of 10 tokens, 90.00% used" in repr(packing)


@pytest.mark.parametrize("window", [None, 0, 1, 3, 100])
def test_masks_of_questions(window):
    rng = np.random.default_rng(2)
    for _ in range(30):
        packing = pack_questions(random_questions(rng, 5), 50)
        if len(packing):
            assert np.array_equal(packing.mask(window=window).dense()[:, 0], dense_of(packing, window=window))
    packing = pack_questions(random_questions(rng, 5), 50)
    assert np.array_equal(packing.mask(causal=False).dense()[:, 0], dense_of(packing, causal=False))


@pytest.mark.parametrize("window", [0, 2, 7, 1 << 40])
def test_window_of_documents(window):
    packing = pack([5, 17, 3, 20], 24)
    assert np.array_equal(packing.mask(window=window).dense()[:, 0], dense_of(packing, window=window))
    assert packing.vectors(window=window).shape == (2, 1, 24, 2)


def test_vectors_are_the_mask():
    packing = pack_questions([(30, 5, 9), (4, 4, 4, 4)], 32 + 16)
    for window, m in ((None, 1), (8, 2), (5, 3)):
        v = packing.vectors(window=window)
        assert v.dtype == np.int32 and v.shape == (2, 1, 48, 2 * m)
        rows = np.arange(48)[:, None]
        seen = sum((v[:, 0, None, :, 2 * k] <= rows) & (rows < v[:, 0, None, :, 2 * k + 1]) for k in range(m))
        assert np.array_equal(seen, dense_of(packing, window=window).astype(seen.dtype))
    least, fixed = packing.vectors(window=5), packing.vectors(window=5, intervals=4)
    assert np.array_equal(fixed[..., : least.shape[3]], least) and fixed.shape[3] == 8
    assert (fixed[..., least.shape[3] :] == packing.capacity).all()
    with pytest.raises(NotImplementedError, match="visible intervals, more than 1"):
        packing.vectors(window=5, intervals=1)
    for wrong, error in ((0, ValueError), (5, ValueError), (1.0, TypeError)):
        with pytest.raises(error, match="intervals is"):
            packing.vectors(intervals=wrong)
    part = packing.vectors(1, 1)
    assert np.array_equal(part, packing.vectors()[1:])


def test_window_of_many_answers_needs_the_fallback():
    packing = pack_questions([(4,) + (3,) * 9], 40)
    mask = packing.mask(window=3)
    assert mask.has_fallback and np.array_equal(mask.dense()[:, 0], dense_of(packing, window=3))
    with pytest.raises(NotImplementedError):
        packing.vectors(window=3)


def test_lay_out():
    packing = pack([3, 0, 7], 5, overlong="split")
    out = packing.lay_out([[1, 2, 3], [], range(10, 17)], -1)
    assert out.dtype == np.int64 and sorted(out[out >= 0].tolist()) == [1, 2, 3, 10, 11, 12, 13, 14, 15, 16]
    for k, pieces in enumerate(packing):
        for p in pieces:
            assert out[k, p.offset] == (1 if p.document == 0 else 10 + p.start)
    with pytest.raises(ValueError, match="2 entries.*made of 3"):
        packing.lay_out([[1], [2]])
    with pytest.raises(ValueError, match=r"records\[0\] has 2 values.*made of 3"):
        packing.lay_out([[1, 2], [], range(7)])


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: pack([5], 4), ValueError, "5"),
        (lambda: pack([-1], 4), ValueError, "-1"),
        (lambda: pack([1], 0), ValueError, "capacity"),
        (lambda: pack([1.5], 4), TypeError, "lengths"),
        (lambda: pack([1], 4.0), TypeError, "capacity"),
        (lambda: pack([[1]], 4), ValueError, "lengths"),
        (lambda: pack([1], 4, "first_fit"), ValueError, "first_fit.*best_fit.*arrival"),
        (lambda: pack([1], 4, overlong="drop"), ValueError, "drop.*refuse.*split"),
        (lambda: pack_questions([(3, 2)], 4), ValueError, "4"),
        (lambda: pack_questions([()], 4), ValueError, r"questions\[0\]"),
        (lambda: pack([1], 4).mask(0, 2), ValueError, "count: is 2"),
        (lambda: pack([1], 4).mask(1), ValueError, "first_sequence: is 1"),
        (lambda: pack([1], 4).mask(0, 2, window=1), ValueError, "of 1"),
        (lambda: pack([1], 4).mask(window=-1), ValueError, "window"),
        (lambda: pack([1], 4).mask(causal=False, window=1), ValueError, "causal"),
        (lambda: pack([1], 4).mask(causal=1), TypeError, "causal"),
        (lambda: pack([1], 4).mask(causal=1, window=1), TypeError, "causal"),
        (lambda: pack([1], 4, policy=["arrival"]), ValueError, "policy"),
        (lambda: pack([1], 4)[1], IndexError, "1 of 1"),
        (lambda: pack([1], 4)[0.0], TypeError, "sequence is 0.0"),
    ],
)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_real_lengths_fill_their_sequences():
    chats = pack(chat_lengths(), 8192)
    assert len(chats) == 42 and f"{chats.utilisation:.4f}" == "0.9943"
    pairs = pack_questions(preference_lengths(), 8192)
    assert len(pairs) == 59 and f"{pairs.utilisation:.4f}" == "0.9875"
    assert pairs.vectors(0, 2).shape == (2, 1, 8192, 2)


def test_a_packing_outlives_nothing_that_its_masks_need():
    packing = pack([2, 3], 5)
    mask = packing.mask()
    expected = dense_of(packing)
    del packing
    assert np.array_equal(mask.dense()[:, 0], expected)


# ---- user reports: packed attention equals that of each document alone ----


@pytest.mark.parametrize(
    "packing",
    [pack([3, 9, 4], 8, "arrival", "split"), pack([7, 0, 5, 3], 8), pack_questions([[1, 2, 3], [2, 0]], 8), pack([], 8)],
)
def test_pickle(packing):
    copy = pickle.loads(pickle.dumps(packing))
    assert list(copy) == list(packing) and copy.lengths == packing.lengths and copy.questions == packing.questions
    assert copy.capacity == packing.capacity and np.array_equal(copy.position_ids, packing.position_ids)


def test_lengths_of_narrow_integers():
    """The sum of a question and its answers may pass what their own dtype holds."""
    packing = pack_questions([np.array([200, 100], np.uint8), np.array([30000, 30000], np.int16)], 65536)
    assert packing.lengths == [300, 60000] and packing.tokens == 60300


def alone(q, k, v, grad, rows, keys, causal):
    """Output and gradients of one document, computed by itself, in float64."""
    run = NumpyAttention(q[:, rows], k[:, keys], v[:, keys], causal=causal)
    return run.output, run.backward(grad[:, rows])


def random_inputs(rows, keys, heads=1, heads_kv=1, dim=8, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, n, h, dim)) for n, h in ((rows, heads), (keys, heads_kv), (keys, heads_kv), (rows, heads))]


@pytest.mark.parametrize("cu_q, cu_k, causal, heads, heads_kv, dim, slack", [
    # https://github.com/Dao-AILab/flash-attention/issues/2562: queries without tokens, backward of head dim 256
    ([0, 0, 3, 5, 5], [0, 2, 4, 6, 9], False, 4, 1, 256, 0),
    # https://github.com/Dao-AILab/flash-attention/issues/1254: backward hung on these
    ([0, 0, 0, 7], [0, 0, 1, 14], True, 1, 1, 128, 0),
    # https://github.com/Dao-AILab/flash-attention/issues/1537: no document longer than one query
    ([0, 1, 1, 2], [0, 3, 3, 8], True, 9, 3, 64, 0),
    # https://github.com/pytorch/pytorch/pull/186786, https://github.com/Dao-AILab/flash-attention/pull/2324: tokens past the end
    ([0, 14, 43, 94], None, True, 2, 2, 16, 2),
    # https://github.com/facebookresearch/xformers/issues/722: documents of any length gave NaN
    ([0, 5, 6, 16], None, True, 1, 1, 8, 0),
])  # fmt: skip
def test_documents_of_any_length(cu_q, cu_k, causal, heads, heads_kv, dim, slack):
    rows, columns = cu_q[-1] + slack, (cu_k or cu_q)[-1] + slack
    q, k, v, grad = random_inputs(rows, columns, heads, heads_kv, dim)
    mask = Mask.from_cu_seqlens(cu_q, cu_k, causal=causal, rows=rows, columns=columns)
    run = NumpyAttention(q, k, v, mask)
    output, expected = np.zeros_like(run.output), [np.zeros_like(x) for x in (q, k, v)]
    for a, b, c, d in zip(cu_q, cu_q[1:], cu_k or cu_q, (cu_k or cu_q)[1:], strict=False):
        own = slice(a, b), slice(c, d), slice(c, d)
        output[:, own[0]], found = alone(q, k, v, grad, own[0], own[1], causal)
        for total, part, gradient in zip(expected, own, found[:3], strict=True):
            total[:, part] = gradient
    np.testing.assert_allclose(run.output, output, rtol=1e-12, atol=1e-12)
    for gradient, total in zip(run.backward(grad)[:3], expected, strict=True):
        np.testing.assert_allclose(gradient, total, rtol=1e-11, atol=1e-12)
    single = NumpyAttention(*(x.astype(np.float32) for x in (q, k, v)), mask)
    np.testing.assert_allclose(single.output, output, rtol=1e-4, atol=1e-5)
    for gradient, total in zip(single.backward(grad.astype(np.float32))[:3], expected, strict=True):
        np.testing.assert_allclose(gradient, total, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("prompt, answers", [(3, (2, 4)), (3, (0, 4)), (0, (2, 4)), (3, (2, 4, 1))])
@pytest.mark.parametrize("window", [None, 2])
def test_a_shared_prompt_equals_separate_runs(prompt, answers, window):
    """https://github.com/huggingface/trl/issues/3549, https://github.com/linkedin/Liger-Kernel/issues/476,
    https://github.com/frankxwang/dpo-prefix-sharing/issues/2: outputs are those of [prompt | answer] for each answer, gradients
    of the prompt are the sums of theirs."""
    packing = pack_questions([(prompt, *answers)], prompt + sum(answers))
    q, k, v, grad = random_inputs(packing.capacity, packing.capacity, seed=prompt)
    grad[:, :prompt] = 0  # what the prompt itself predicts counts once, not once an answer
    run = NumpyAttention(q, k, v, packing.mask(window=window))
    expected, at = [np.zeros_like(x) for x in (q, k, v)], prompt
    for length in answers:
        own = np.r_[0:prompt, at : at + length]
        single = NumpyAttention(q[:, own], k[:, own], v[:, own], causal=True, window_size=(-1 if window is None else window, -1))
        np.testing.assert_allclose(run.output[:, own], single.output, rtol=1e-12, atol=1e-12)
        for total, gradient in zip(expected, single.backward(grad[:, own])[:3], strict=True):
            total[:, own] += gradient
        at += length
    for gradient, total in zip(run.backward(grad)[:3], expected, strict=True):
        np.testing.assert_allclose(gradient, total, rtol=1e-11, atol=1e-12)


def test_one_vector_expresses_a_prefix_tree():
    """https://github.com/huggingface/trl/pull/7328: k <= q < tout[k] in depth-first order."""
    v = pack_questions([(3, 2, 4)], 9).vectors()[0, 0]
    assert v[:, 0].tolist() == list(range(9)) and v[:, 1].tolist() == [9, 9, 9, 5, 5, 9, 9, 9, 9]
