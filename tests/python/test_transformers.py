"""attn_implementation="flashmask" in models of Hugging Face transformers, against eager attention."""

import gc
import inspect

import pytest
import torch

pytest.importorskip("transformers")
import torch_cases
import transformers
from torch.testing import assert_close
from transformers import DataCollatorWithFlattening, DynamicCache, masking_utils
from transformers_cases import COMMON, MODELS, alone, compare, logits, model_of, positions, tokens, without_padding

from flashmask import Mask
from flashmask.integrations import transformers as ours

KINDS = list(MODELS)
LENGTHS = [5, 1, 7]


@pytest.fixture(autouse=True)
def few_threads():
    torch.set_num_threads(1)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_causal(kind):
    ids = tokens(2, 13)
    compare(kind, lambda m: logits(m, ids))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding(kind, side):
    """https://github.com/huggingface/transformers/issues/29075"""
    ids, real = tokens(3, 13), torch.ones(3, 13, dtype=torch.long)
    if side != "right":
        real[0, :4] = 0
    if side != "left":
        real[1, 9:] = 0
        real[2, 12:] = 0
    compare(kind, lambda m: logits(m, ids, attention_mask=real), without_padding(ids, real), real=real)


@pytest.mark.parametrize("counted", [True, False])
def test_padding_inside(counted):
    """Padding between tokens, with positions that count it (the default) or pass it over: one document."""
    ids, real = tokens(2, 13), torch.ones(2, 13, dtype=torch.long)
    real[0, 3:6] = real[1, 7] = 0
    ids_of = None if counted else (real.cumsum(1) - 1).masked_fill(real == 0, 1)
    compare("mistral", lambda m: logits(m, ids, attention_mask=real, position_ids=ids_of), real=real)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_left_padding_changes_nothing(kind):
    """https://github.com/huggingface/transformers/issues/29075"""
    ids, real = tokens(2, 8), torch.ones(2, 8, dtype=torch.long)
    real[0, :3] = 0
    model = model_of(kind)
    where = (real.cumsum(1) - 1).clamp(min=0)
    padded = logits(model, ids, attention_mask=real, position_ids=where)
    assert_close(padded[:1, 3:], logits(model, ids[:1, 3:]), rtol=1e-4, atol=2e-5)


# ---- packed documents ----

PACKED = {
    "position_ids": {},
    "position_ids and a mask of ones": {"attention_mask": torch.ones(1, sum(LENGTHS), dtype=torch.long)},
    "position_ids and a cache": {"use_cache": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", PACKED)
def test_packed_equals_alone(kind, how):
    """https://github.com/huggingface/transformers/pull/46634 https://github.com/MeetKai/functionary/issues/265
    https://github.com/huggingface/nanoVLM/pull/204 https://github.com/modelscope/ms-swift/issues/5690"""
    if kind == "llama4" and (how != "position_ids" or not hasattr(masking_utils, "remap_positions_for_packed_sequence")):
        pytest.skip("transformers makes chunks of places in the row then")
    ids = tokens(1, sum(LENGTHS))
    compare(kind, lambda m: logits(m, ids, position_ids=positions(LENGTHS), **PACKED[how]), alone(ids, LENGTHS))


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "qwen2", "gpt_oss"])
@pytest.mark.parametrize("with_positions", [True, False])
def test_cu_seq_lens(kind, with_positions):
    ids = tokens(1, sum(LENGTHS))
    ends = torch.tensor([0, 5, 6, 13], dtype=torch.int32)
    inputs = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends.clone(), "max_length_q": 7, "max_length_k": 7}
    if with_positions:
        inputs["position_ids"] = positions(LENGTHS)
    compare(kind, lambda m: logits(m, ids, **inputs), alone(ids, LENGTHS))


def test_batch_of_packed_rows():
    ids, where = tokens(2, 8), torch.cat([positions([3, 5]), positions([6, 2])])

    def documents(model):
        return torch.cat([alone(ids[:1], [3, 5])(model), alone(ids[1:], [6, 2])(model)])

    compare("qwen2", lambda m: logits(m, ids, position_ids=where), documents)


@pytest.mark.parametrize("inputs", PACKED.values(), ids=PACKED)
def test_other_documents_do_not_matter(inputs):
    """https://github.com/MeetKai/functionary/issues/265 https://github.com/axolotl-ai-cloud/axolotl/pull/3796: to the last bit."""
    model, ids = model_of("llama").eval(), tokens(1, 13)
    changed = torch.cat((tokens(1, 5, seed=9), ids[:, 5:]), 1)
    with torch.no_grad():
        one, other = (logits(model, x, position_ids=positions(LENGTHS), **inputs) for x in (ids, changed))
    assert torch.equal(one[:, 5:], other[:, 5:]) and not torch.equal(one[:, :5], other[:, :5])


def test_many_documents_of_one_token():
    """https://github.com/axolotl-ai-cloud/axolotl/pull/2739 https://github.com/ByteDance-Seed/VeOmni/pull/746"""
    ids, where = tokens(1, 64), torch.cat((torch.arange(10), torch.zeros(54, dtype=torch.long)))[None]
    compare("llama", lambda m: logits(m, ids, position_ids=where), alone(ids, [10] + [1] * 54))


def test_positions_that_start_at_two():
    """https://github.com/huggingface/transformers/pull/47525"""
    ids = tokens(1, 5)
    compare("llama", lambda m: logits(m, ids, position_ids=positions([3, 2]) + 2), alone(ids, [3, 2]))


def test_positions_of_several_axes_are_no_documents():
    """https://github.com/QwenLM/Qwen3.8/issues/104"""
    query, key, value = torch.randn(3, 1, 2, 8, 4).unbind(0)
    ids = torch.randint(0, 3, (3, 1, 8))
    module = torch.nn.Module()
    output, _ = ours.attention_forward(module, query, key, value, ours.mask(1, 8, 8), position_ids=ids)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert_close(output, expected.transpose(1, 2))


def test_flattening_collator():
    """https://github.com/huggingface/trl/issues/2834: the loss of a flattened batch, with and without what FlashAttention is told."""
    records = [{"input_ids": tokens(1, n, seed=n)[0].tolist()} for n in LENGTHS]
    model = model_of("qwen2", "eager")
    losses = [model(input_ids=ids, labels=ids, use_cache=False).loss * (ids.shape[1] - 1) for ids in
              (torch.tensor([r["input_ids"]]) for r in records) if ids.shape[1] > 1]  # fmt: skip
    expected = sum(losses) / (sum(LENGTHS) - len(LENGTHS))
    for told in (True, False):
        batch = DataCollatorWithFlattening(return_flash_attn_kwargs=told, return_tensors="pt")(records)
        assert_close(model_of("qwen2")(**batch).loss, expected, rtol=1e-5, atol=1e-5)


# ---- masks that users give ----


def test_training_after_evaluation_with_the_same_batch():
    """What is kept of a mask that inference mode saw first must serve a backward pass."""
    model, ids = model_of("llama"), tokens(1, 9)
    where = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 4, 5]])
    batch = {"input_ids": ids, "attention_mask": Mask.share_question([[4, 3, 2]]).vectors(), "position_ids": where}
    with torch.inference_mode():
        expected = model(**batch).logits
    output = model(**batch, labels=ids)
    output.loss.backward()
    torch.testing.assert_close(output.logits.detach(), expected.clone())


def test_vectors_as_attention_mask():
    """https://github.com/huggingface/trl/issues/3549 https://github.com/linkedin/Liger-Kernel/issues/476: a prompt with two answers in
    one row equals two rows."""
    ids = tokens(1, 3 + 2 + 4)
    vectors = Mask.share_question([[3, 2, 4]]).vectors()
    where = torch.tensor([[0, 1, 2, 3, 4, 3, 4, 5, 6]])

    def two_rows(model):
        chosen, rejected = logits(model, ids[:, :5]), logits(model, torch.cat((ids[:, :3], ids[:, 5:]), 1))
        return torch.cat((chosen, rejected[:, 3:]), 1)

    compare("llama", lambda m: logits(m, ids, attention_mask=vectors, position_ids=where), two_rows)


def test_document_ids_with_padding():
    """https://github.com/hiyouga/LlamaFactory/pull/7318: padding sees nothing, all gradients are finite."""
    ids = tokens(1, 7)
    vectors = Mask.from_document_ids([[1, 1, 1, 2, 2, 0, 0]], causal=True, padding_id=0).vectors()
    real = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    compare("llama", lambda m: logits(m, ids, attention_mask=vectors), alone(ids, [3, 2, 1, 1]), real=real)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_dense_masks(dtype):
    ids, seen = tokens(2, 13), torch.rand(2, 1, 13, 13, generator=torch.Generator().manual_seed(0)) < 0.4
    seen |= torch.eye(13, dtype=torch.bool)
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    given = seen if dtype == torch.bool else added
    compare("llama", lambda m: logits(m, ids, attention_mask=given), lambda m: logits(m, ids, attention_mask=added.to(m.dtype)))


@pytest.mark.parametrize("inference", [True, False])
def test_masks_changed_in_place(inference):
    """A user's tensor may serve another batch, also where torch counts no changes."""
    q, module = torch.randn(1, 2, 6, 8), torch.nn.Module()
    for given, causal in ((torch.ones(1, 1, 6, 6, dtype=torch.bool), Mask.causal(6).dense()), (Mask.full(6).vectors(), None)):
        with torch.inference_mode(inference):
            given = given.clone()
            full, _ = ours.attention_forward(module, q, q, q, given)
            given.copy_(torch.from_numpy(causal) if causal is not None else Mask.causal(6).vectors())
            changed, _ = ours.attention_forward(module, q, q, q, given)
        assert_close(full, ours.attention_forward(module, q, q, q, None, is_causal=False)[0])
        assert_close(changed, ours.attention_forward(module, q, q, q, None, is_causal=True)[0])


# ---- generation ----


def chunked_masks_take_all_arguments():
    """transformers 5.17 hands them block_sequence_ids, which they do not take."""
    makers = masking_utils.create_masks_for_generate, masking_utils.create_chunked_causal_mask
    given, taken = ("block_sequence_ids" in inspect.signature(make).parameters for make in makers)
    return taken or not given


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"num_beams": 3}, {"use_cache": False}], ids=str)
def test_generation(kind, options):
    ids, real = tokens(2, 6), torch.ones(2, 6, dtype=torch.long)
    real[0, :3] = 0
    told = {"attention_mask": real, "max_new_tokens": 9, "do_sample": False, **options}
    if kind == "gpt_oss" and "cache_implementation" in options:
        told["disable_compile"] = True
    if kind == "llama4" and "cache_implementation" in options and not chunked_masks_take_all_arguments():
        pytest.skip("this transformers cannot generate so, with any attention")
    one, other = (model_of(kind, name).eval().generate(ids, **told) for name in ("flashmask", "eager"))
    assert one.shape == (2, 15) and torch.equal(one, other)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "llama4"])
def test_tokens_after_a_cache(kind):
    """Several queries with keys before them: aligned at the end."""
    model, ids = model_of(kind).eval(), tokens(2, 13)
    cache, parts = DynamicCache(config=model.config), []
    with torch.no_grad():
        for part in ids.split([3, 6, 1, 3], 1):
            parts.append(model(input_ids=part, past_key_values=cache, use_cache=True).logits)
        assert_close(torch.cat(parts, 1), logits(model, ids), rtol=1e-4, atol=2e-5)


# ---- training ----


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_gradient_checkpointing(kind, reentrant):
    ids = tokens(1, 13)

    def run(model):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return logits(model, ids, position_ids=positions(LENGTHS))

    if reentrant:
        model, plain = model_of(kind), model_of(kind)
        run(model).square().sum().backward()
        logits(plain, ids, position_ids=positions(LENGTHS)).square().sum().backward()
        for a, b in zip(model.parameters(), plain.parameters()):
            assert (a.grad is None) == (b.grad is None)
            assert a.grad is None or torch.equal(a.grad, b.grad)
    else:
        compare(kind, run, alone(ids, LENGTHS))


def test_layers_share_masks(monkeypatch):
    """Two masks for a batch, one of each kind of layer, for any number of layers, also when they are run again by checkpoints."""
    calls, made = [], ours.made
    monkeypatch.setattr(ours, "made", lambda *arguments: calls.append(1) or made(*arguments))
    config, cls, changes = MODELS["gemma2"]
    six = {**COMMON, **changes, "num_hidden_layers": 6, "layer_types": changes["layer_types"] * 3}
    model = cls(config(**six, attn_implementation="flashmask")).train()
    model.gradient_checkpointing_enable()
    for batch in (1, 2):
        logits(model, tokens(1, 13), position_ids=positions(LENGTHS)).sum().backward()
        assert len(calls) == 2 * batch


def test_masks_are_forgotten():
    model, ids, vectors = model_of("gemma2"), tokens(1, 13), Mask.causal(13).vectors()
    ends = torch.tensor([0, 13])
    for inputs in (
        {},
        {"position_ids": positions(LENGTHS)},
        {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends},
        {"attention_mask": vectors},
    ):
        logits(model, ids, **inputs)
    q = torch.randn(1, 2, 13, 8)
    ours.attention_forward(torch.nn.Module(), q, q, q, None, cu_seq_lens_q=ends, cu_seq_lens_k=ends)
    assert len(ours._made) == 2  # those whose tensors are still there
    del vectors, ends, inputs
    gc.collect()
    assert len(ours._made) == 0


@pytest.mark.parametrize("packed", [True, False])
def test_compiled_model(packed):
    torch._dynamo.reset()
    model, ids = model_of("qwen2"), tokens(1, 13)
    where = positions(LENGTHS) if packed else positions([13])
    run = torch.compile(lambda ids, where: logits(model, ids, position_ids=where), fullgraph=True, backend="aot_eager")
    assert_close(run(ids, where), logits(model, ids, position_ids=where))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_on_a_gpu(kind):
    ids = tokens(1, sum(LENGTHS))
    ours, plain = (model_of(kind, name, torch.bfloat16).cuda() for name in ("flashmask", "eager"))
    with torch.no_grad():
        found = logits(ours, ids.cuda(), position_ids=positions(LENGTHS).cuda())
        near, exact = alone(ids.cuda(), LENGTHS)(plain), alone(ids, LENGTHS)(model_of(kind, "eager"))
    torch_cases.assert_close(found, near, exact, torch.bfloat16, found.numel(), kind)


# ---- refusals ----


def test_dropout_is_refused():
    config, cls, _ = MODELS["llama"]
    model = cls(config(vocab_size=61, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, attention_dropout=0.1))
    model.set_attn_implementation("flashmask")
    with pytest.raises(NotImplementedError, match="attention_dropout=0.0"):
        logits(model.train(), tokens(1, 5))
    assert logits(model.eval(), tokens(1, 5)).isfinite().all()


@pytest.mark.parametrize(
    "inputs, error, message",
    [
        ({"attention_mask": torch.rand(1, 1, 6, 6)}, NotImplementedError, "biases"),
        ({"attention_mask": torch.ones(1, 1, 6, 6, dtype=torch.long)}, NotImplementedError, "vectors"),
        ({"attention_mask": torch.ones(1, 1, 6, 6, dtype=torch.int32)}, NotImplementedError, "vectors"),
        ({"attention_mask": torch.ones(1, 1, 5, 5, dtype=torch.bool)}, ValueError, "needs"),
        ({"attention_mask": Mask.causal(7).vectors()}, NotImplementedError, "of 6 x 6"),
        ({"attention_mask": torch.ones(1, 6, 6)}, NotImplementedError, "3 dimensions"),
        ({"cu_seq_lens_q": torch.tensor([0, 2, 6])}, ValueError, "need each other"),
        ({"cu_seq_lens_q": torch.tensor([0, 2, 6]), "cu_seq_lens_k": torch.tensor([0, 3, 6])}, NotImplementedError, "equal"),
        ({"cu_seq_lens_q": torch.tensor([0, 2, 9]), "cu_seq_lens_k": torch.tensor([0, 2, 9])}, NotImplementedError, "inside"),
        ({"position_bias": torch.zeros(1, 4, 6, 6)}, NotImplementedError, "position_bias"),
        ({"output_attentions": True}, NotImplementedError, "output_attentions"),
        ({"block_table": torch.zeros(1, 1)}, NotImplementedError, "block_table"),
    ],
    ids=lambda value: "" if isinstance(value, type) else None,
)
def test_refusals(inputs, error, message):
    with pytest.raises(error, match=message):
        logits(model_of("llama"), tokens(1, 6), **inputs)


def test_cu_seq_lens_of_a_batch_are_refused():
    ends = torch.tensor([0, 2, 6])
    with pytest.raises(ValueError, match="one flattened row"):
        logits(model_of("llama"), tokens(2, 6), cu_seq_lens_q=ends, cu_seq_lens_k=ends)


def test_name_is_not_taken_for_flash_attention():
    """transformers looks for the flash_attn package where a name has "flash" in it, in whatever module asks."""
    from transformers import modeling_utils
    from transformers.generation import utils

    for module in (modeling_utils, utils, transformers.utils.generic, transformers.masking_utils):
        asked = module.is_flash_attention_requested
        assert not asked(requested_attention_implementation="flashmask")
        assert asked(requested_attention_implementation="flash_attention_2")
    assert model_of("gpt_oss").config._attn_implementation == "flashmask"


def test_gradients_by_torch_func():
    """Tensors that are made inside torch.func.grad have no memory that could be read."""
    model, ids = model_of("llama"), tokens(1, 12)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    found = torch.func.grad(lambda p: torch.func.functional_call(model, p, (ids,)).logits.square().mean())(parameters)
    model(ids).logits.square().mean().backward()
    for name, p in model.named_parameters():
        assert_close(found[name], p.grad)
