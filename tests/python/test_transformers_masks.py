"""The mask interface of the Hugging Face integration against the dense masks of transformers, and attention without a model."""

import inspect

import pytest
import torch

pytest.importorskip("transformers")
from torch.testing import assert_close
from transformers import BartConfig, BartModel, LlamaConfig, ModernBertConfig, ModernBertModel
from transformers import masking_utils as hf

from flashmask import Mask
from flashmask.integrations import _mask_functions as functions
from flashmask.integrations import transformers as ours

ours.register()
MODULE = torch.nn.Module()
FLOOR = {"rtol": 1e-5, "atol": 1e-5}


def dense(mask, rows, **inputs):
    """bool [B, 1, rows, columns] of what mask() made, as attention sees it."""
    query = torch.zeros(inputs.pop("batch", 1), 1, rows, 4)
    columns = mask.shape[3] if mask.dtype == torch.bool else mask.shape[2]
    documents = (inputs.get("position_ids"), inputs.get("cu_seq_lens_q"), inputs.get("cu_seq_lens_k"))
    made = ours.made(mask, documents, query, columns, False)
    if isinstance(made, Mask):
        return torch.from_numpy(made.dense()).bool()
    vectors = made.vectors.numpy()
    pairs = vectors.reshape(*vectors.shape[:3], -1, 2).transpose(0, 1, 3, 2, 4)
    return torch.from_numpy(Mask.from_intervals(pairs, rows).dense()).bool()


def holes(columns):
    real = torch.ones(2, columns, dtype=torch.bool)
    real[0, :3] = real[1, 5] = real[1, columns - 2 :] = False
    return real


def image_spans(b, h, q, kv):
    """Two images, [2, 5) and [6, 9), whose tokens see each other both ways."""
    first = (q >= 2) & (q < 5) & (kv >= 2) & (kv < 5)
    return first | ((q >= 6) & (q < 9) & (kv >= 6) & (kv < 9))


def scattered(b, h, q, kv):
    return (q * 7 + kv * 3) % 5 < 2


def for_one_pair(b, h, q, kv):
    """Written for single indices, as users may: on arrays it would be another function."""
    return torch.stack((q, kv)).sum() % 3 > 0


PADDING = torch.tensor([2, 0])
FUNCTIONS = {
    "causal": hf.causal_mask_function,
    "everything": hf.bidirectional_mask_function,
    "window": hf.sliding_window_causal_mask_function(4),
    "window of one": hf.sliding_window_causal_mask_function(1),
    "window both ways": hf.sliding_window_bidirectional_mask_function(3),
    "chunks": hf.chunked_causal_mask_function(5, PADDING),
    "images": hf.or_masks(hf.causal_mask_function, image_spans),
    "scattered": scattered,
}
if hasattr(hf, "blockwise_overlay"):
    BLOCKS = torch.tensor([[-1, 0, 0, -1, 1, 1, 1] + [-1] * 13] * 2)
    FUNCTIONS["blocks"] = hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(BLOCKS))
PLACES = {"square": (13, 13, 0, 0), "after a cache": (5, 13, 8, 0), "one token": (1, 13, 12, 0), "static": (4, 16, 3, 0),
          "static, tensor": (4, 16, torch.tensor(3), 0), "window of a cache": (3, 8, 10, 5), "prefix": (6, 11, 0, 0)}  # fmt: skip


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_against_dense(name, place, padded):
    rows, columns, q_offset, kv_offset = PLACES[place]
    real = holes(columns + kv_offset) if padded else None
    call = {"q_offset": q_offset, "kv_offset": kv_offset, "mask_function": FUNCTIONS[name], "attention_mask": real}
    theirs = hf.sdpa_mask(2, rows, columns, allow_is_causal_skip=False, **call)
    found = dense(ours.mask(2, rows, columns, **call), rows, batch=2).expand(2, 1, rows, columns)
    assert torch.equal(found, theirs)


@pytest.mark.parametrize("name", ["causal", "window", "window both ways", "chunks"])
def test_known_functions_are_not_evaluated(name, monkeypatch):
    monkeypatch.setattr(ours, "evaluated", None)
    ours.mask(2, 6, 6, mask_function=FUNCTIONS[name])


def test_functions_for_single_indices():
    call = {"mask_function": hf.and_masks(hf.causal_mask_function, for_one_pair), "use_vmap": True}
    theirs = hf.sdpa_mask(1, 9, 9, allow_is_causal_skip=False, **call)
    assert torch.equal(dense(ours.mask(1, 9, 9, **call), 9), theirs)


def test_a_changed_function_is_noticed(monkeypatch):
    changed = hf.sliding_window_overlay(4)  # as if transformers now meant 4 keys where it says 3
    entries = [(changed if kind is functions.window else fn, kind) for fn, kind in functions.REFERENCES]
    monkeypatch.setattr(functions, "window", None)
    monkeypatch.setattr(functions, "REFERENCES", entries)
    monkeypatch.setitem(functions.KINDS, changed.__code__, lambda keys, sliding_window: (keys - 99, keys + 3))
    with pytest.raises(ImportError, match="does not know"):
        functions.check()


def test_window_means_its_number_of_keys():
    """https://github.com/huggingface/transformers/issues/39408 https://github.com/huggingface/transformers/issues/29623
    https://github.com/vllm-project/vllm/issues/3385"""
    found = dense(ours.mask(1, 8, 8, mask_function=hf.sliding_window_causal_mask_function(4)), 8)
    assert found.sum(-1).flatten().tolist() == [1, 2, 3, 4, 4, 4, 4, 4]


def test_image_spans():
    """https://github.com/huggingface/transformers/issues/39389 https://github.com/huggingface/transformers/pull/38080"""
    found = dense(ours.mask(1, 10, 10, mask_function=FUNCTIONS["images"]), 10)[0, 0]
    assert found[2, 4] and found[6, 8] and found[8, 2] and not found[2, 6] and not found[0, 1]


NO_CACHE = {"cache" if "cache" in inspect.signature(hf.create_causal_mask).parameters else "past_key_values": None}


def config(**changes):
    made = LlamaConfig(hidden_size=8, num_attention_heads=2, **changes)
    made._attn_implementation = "flashmask"
    return made


def test_a_million_tokens():
    """https://github.com/axolotl-ai-cloud/axolotl/pull/2739: masks of packed rows in memory linear in the length."""
    n = 2**20
    ids = torch.arange(n)[None] % 1000
    embeddings = torch.zeros(1, 1, 1).expand(1, n, 1)
    for make, end in ((hf.create_causal_mask, 1000), (hf.create_sliding_window_causal_mask, 514)):
        numbers = make(config(sliding_window=512), embeddings, None, position_ids=ids, **NO_CACHE)
        assert numbers.shape == (1, 1, n, 4)
        assert numbers.view(torch.int32)[0, 0, 5002].tolist() == [5002, 5000 + min(end, 1000), 5002, 1]
    zeros = dense_vectors(
        hf.create_causal_mask(config(), embeddings, torch.ones(1, n), **NO_CACHE), torch.zeros(1, n, dtype=torch.long)
    )
    assert torch.equal(zeros[0, 0], torch.stack((torch.arange(n), torch.arange(n) + 1), 1).int())


def dense_vectors(numbers, position_ids):
    query = torch.zeros(1, 1, 1, 1).expand(1, 1, numbers.shape[2], 1)
    return ours.made(numbers, (position_ids, None, None), query, numbers.shape[2], False).vectors


def test_masks_too_large_to_evaluate_are_refused():
    with pytest.raises(NotImplementedError, match="every pair"):
        ours.mask(1, 40000, 40000, mask_function=scattered)


def test_generation_passes_masks_on():
    """transformers may make masks before the model runs: they come out of the model's own call as they went in."""
    numbers = hf.create_causal_mask(config(), torch.zeros(1, 6, 8), None, **NO_CACHE)
    assert hf.create_causal_mask(config(), torch.zeros(1, 6, 8), numbers, **NO_CACHE) is numbers


# ---- attention without a model ----


def tensors(rows, columns, batch=1):
    torch.manual_seed(0)
    return torch.randn(batch, 4, rows, 8), torch.randn(batch, 2, columns, 8), torch.randn(batch, 2, columns, 8)


def plain(query, key, value, seen=None, **options):
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, seen, **options).transpose(1, 2)


@pytest.mark.parametrize("causal", [True, False])
def test_without_a_mask(causal):
    q, k, v = tensors(9, 9)
    output, weights = ours.attention_forward(MODULE, q, k, v, None, is_causal=causal, scaling=0.3)
    assert_close(output, plain(q, k, v, is_causal=causal, scale=0.3), **FLOOR)
    assert weights is None and output.is_contiguous()


def test_one_query_without_a_mask():
    q, k, v = tensors(1, 9)
    assert_close(ours.attention_forward(MODULE, q, k, v, None)[0], plain(q, k, v), **FLOOR)


@pytest.mark.parametrize("causal", [True, False])
def test_cu_seq_lens_without_a_mask(causal):
    """As vision models call attention on several images."""
    q, k, v = tensors(9, 9)
    ends = torch.tensor([0, 4, 4, 7], dtype=torch.int32)
    output, _ = ours.attention_forward(MODULE, q, k, v, None, is_causal=causal, cu_seq_lens_q=ends, cu_seq_lens_k=ends)
    for first, end in ((0, 4), (4, 7)):
        part = (t[:, :, first:end] for t in (q, k, v))
        assert_close(output[:, first:end], plain(*part, is_causal=causal), **FLOOR)
    assert not output[:, 7:].any()  # behind the last document


def test_unclear_calls_are_refused():
    q, k, v = tensors(3, 9)
    with pytest.raises(NotImplementedError, match="needs a mask"):
        ours.attention_forward(MODULE, q, k, v, None)
    with pytest.raises(NotImplementedError, match="needs a mask"):
        ours.attention_forward(MODULE, q, k, v, None, is_causal=False, sliding_window=4)
    with pytest.raises(NotImplementedError, match="4 dimensions"):
        ours.attention_forward(MODULE, q, k, v, torch.ones(1, 9))
    ends = torch.tensor([0, 3])
    with pytest.raises(NotImplementedError, match="dense"):
        seen = torch.ones(1, 1, 3, 9, dtype=torch.bool)
        ours.attention_forward(MODULE, q, k, v, seen, cu_seq_lens_q=ends, cu_seq_lens_k=ends)


def test_positions_cut_what_follows_a_cache():
    """The first document of the new tokens goes on where the cache ends."""
    numbers = ours.mask(1, 5, 9, q_offset=4)
    seen = dense(numbers, 5, position_ids=torch.tensor([[4, 5, 0, 1, 2]]))[0, 0]
    assert seen.int().tolist() == [[1, 1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0, 0],
                                   [0, 0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 1, 1, 1]]  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["window", "chunks"])
def test_masks_wait_for_no_gpu(name):
    real, where = holes(13).cuda(), torch.tensor([[*range(6), *range(7)]] * 2, device="cuda")
    fn = hf.chunked_causal_mask_function(5, PADDING.cuda()) if name == "chunks" else FUNCTIONS[name]
    query = torch.zeros(2, 4, 13, 8, device="cuda")
    try:
        torch.cuda.set_sync_debug_mode("error")
        numbers = ours.mask(2, 13, 13, mask_function=fn, attention_mask=real, device="cuda")
        vectors = ours.made(numbers, (where, None, None), query, 13, False).vectors
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = ours.mask(2, 13, 13, mask_function=FUNCTIONS[name], attention_mask=real.cpu())
    assert torch.equal(vectors.cpu(), ours.made(expected, (where.cpu(), None, None), query.cpu(), 13, False).vectors)


# ---- encoders ----

SMALL = {"hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 4, "vocab_size": 61, "num_hidden_layers": 2}


def test_encoder_with_windows_and_padding():
    torch.manual_seed(0)
    specials = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    made = ModernBertConfig(**SMALL, **specials, local_attention=6, global_attn_every_n_layers=2, initializer_range=0.3)
    model, real = ModernBertModel(made).eval(), torch.ones(2, 13, dtype=torch.long)
    real[0, 9:] = 0
    ids = torch.randint(1, 61, (2, 13))
    found = {}
    for name in ("eager", "flashmask"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            found[name] = model(input_ids=ids, attention_mask=real).last_hidden_state[real.bool()]
    assert_close(found["flashmask"], found["eager"], rtol=1e-4, atol=1e-4)


def test_encoder_and_decoder():
    torch.manual_seed(0)
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"d_model": 32, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 61, "init_std": 0.3}
    model, real = BartModel(BartConfig(**layers, **sizes, pad_token_id=0)).eval(), torch.ones(2, 9, dtype=torch.long)
    real[1, 6:] = 0
    ids, answer = torch.randint(3, 61, (2, 9)), torch.randint(3, 61, (2, 5))
    found = {}
    for name in ("eager", "flashmask"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            found[name] = model(input_ids=ids, attention_mask=real, decoder_input_ids=answer).last_hidden_state
    assert_close(found["flashmask"], found["eager"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("write", ["numpy", "data"])
def test_masks_that_are_changed_unseen_are_made_anew(write):
    q, k, v = (torch.randn(1, 2, 20, 8) for _ in range(3))
    numbers = Mask.documents([10, 10], causal=True).vectors().numpy().copy()
    given, other = torch.from_numpy(numbers), Mask.causal(20).vectors()
    before, _ = ours.attention_forward(MODULE, q, k, v, given)
    if write == "numpy":
        numbers[...] = other.numpy()
    else:
        given.data.copy_(other)
    after, _ = ours.attention_forward(MODULE, q, k, v, given)
    assert_close(after, ours.attention_forward(MODULE, q, k, v, given.clone())[0], rtol=0, atol=0)
    assert not torch.equal(before, after)


def test_empty_cu_seq_lens_are_refused():
    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    none = torch.zeros(0, dtype=torch.int32)
    with pytest.raises(ValueError, match="empty"):
        ours.attention_forward(MODULE, q, k, v, None, cu_seq_lens_q=none, cu_seq_lens_k=none)


def test_inference_tensors_elsewhere_have_no_versions():
    with torch.inference_mode():
        there = torch.zeros(2, device="meta")
    assert ours.state_of(there) == 0
    assert ours.state_of(torch.zeros(2, device="meta")) == 0
