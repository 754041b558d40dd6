"""Batches of flashmask.collate in models of Hugging Face transformers: model(**batch) against separate documents."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")
from torch.testing import assert_close
from transformers import (
    LlamaForTokenClassification,
    NemotronConfig,
    NemotronForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Trainer,
    TrainingArguments,
)
from transformers_cases import COMMON, MODELS, compare, logits, model_of, tokens

from flashmask import DeviceMask, KTOCollator, Mask, PreferenceCollator, SFTCollator
from flashmask.collate import answer_log_probs, answer_rewards
from flashmask.integrations import transformers as ours

KINDS = [kind for kind in MODELS if kind != "llama4"]  # chunks, see test_chunks_are_refused
PAIRS = [
    {"prompt": [5, 6, 7], "chosen": [8, 9], "rejected": [10, 11, 12]},
    {"prompt": [13, 14], "chosen": [15, 16, 17, 18], "rejected": [19, 20]},
    {"prompt": [21, 22, 23, 24, 25, 26], "chosen": [27, 28, 29, 30], "rejected": [31, 32, 33, 34, 35]},
]
RANKED = [{"prompt": [5, 6, 7, 8, 9], "answers": [[10, 11, 12], [13], [14, 15, 16, 17, 18]]}]
TEXTS = [{"input_ids": list(range(first, first + n))} for first, n in ((3, 7), (20, 5), (30, 9), (50, 2))]
GOOD = [{"prompt": p["prompt"], "completion": p["chosen"], "label": True} for p in PAIRS]
BATCHES = {
    "sft": SFTCollator(16)(TEXTS),
    "preference": PreferenceCollator(18)(PAIRS),
    "ranked": PreferenceCollator(18)(RANKED),
    "kto": KTOCollator(20, kl=True)(GOOD),
}


@pytest.fixture(autouse=True)
def few_threads():
    torch.set_num_threads(1)


def separate(batch):
    """What a batch should give: each row of the mask, the places that a token sees and itself the last, as a sequence; padding 0."""
    dense = Mask.from_intervals(batch["mask_vectors"].unflatten(3, (-1, 2)).transpose(2, 3).numpy()).dense()[:, 0]

    def run(model):
        out = torch.zeros(*batch["input_ids"].shape, COMMON["vocab_size"], dtype=model.dtype)
        for row, place in real_of(batch).nonzero().tolist():
            seen = dense[row, place].nonzero()[0]
            out[row, place] = logits(model, batch["input_ids"][row, seen][None])[0, -1]
        return out

    return run


def answers_of(batch):
    """(prompt, answer) of each answer of the batch of PAIRS."""
    names = ["rejected" if k in batch["rejected"] else "chosen" for k in range(len(batch["answer_record"]))]
    return [(PAIRS[record]["prompt"], PAIRS[record][name]) for record, name in zip(batch["answer_record"], names, strict=True)]


def real_of(batch):
    return batch["document_ids"] >= 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_equals_separate_sequences(kind, name):
    batch = BATCHES[name]
    compare(kind, lambda m: m(**batch).logits, separate(batch), real=real_of(batch))


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_log_probs_of_answers(kind):
    batch, model = BATCHES["preference"], model_of(kind).eval()
    found = answer_log_probs(model(**batch).logits, batch)
    for k, (prompt, answer) in enumerate(answers_of(batch)):
        terms = logits(model, torch.tensor([prompt + answer]))[0].log_softmax(-1)
        alone = terms[len(prompt) - 1 : -1].gather(1, torch.tensor(answer)[:, None]).sum()
        assert_close(found[k], alone, rtol=1e-4, atol=1e-4)


def test_rewards():
    """A batch without its labels, which are tokens."""
    torch.manual_seed(0)
    config, _, _ = MODELS["llama"]
    model = LlamaForTokenClassification(config(**COMMON, num_labels=1, attn_implementation="flashmask")).eval()
    batch = {name: t for name, t in BATCHES["preference"].items() if name != "labels"}
    found = answer_rewards(model(**batch).logits, batch)
    alone = [model(input_ids=torch.tensor([sum(parts, [])])).logits[0, -1, 0] for parts in answers_of(batch)]
    assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-5)


def test_gradient_checkpointing():
    batch, found = BATCHES["preference"], []
    for checkpoint in (False, True):
        model = model_of("gemma2")
        if checkpoint:
            model.gradient_checkpointing_enable()
        model(**batch, use_cache=False).loss.backward()
        found.append([p.grad for p in model.parameters()])
    assert_close(*found)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_compiled(kind):
    torch._dynamo.reset()
    model, batch = model_of(kind).eval(), BATCHES["preference"]
    inputs = {name: batch[name] for name in ("input_ids", "position_ids", "mask_vectors")}
    run = torch.compile(lambda **inputs: logits(model, inputs.pop("input_ids"), **inputs), fullgraph=True, backend="aot_eager")
    assert_close(run(**inputs), logits(model, **{"ids": inputs.pop("input_ids"), **inputs}))


def test_padding_holds_as_well():
    """What a user hides beside mask_vectors is hidden: as if the token were another one."""
    batch, model = dict(BATCHES["preference"]), model_of("gemma2").eval()
    real = torch.ones_like(batch["input_ids"])
    assert_close(model(**batch, attention_mask=real).logits, model(**batch).logits)
    real[0, 1] = 0
    one = model(**batch, attention_mask=real).logits
    batch["input_ids"] = batch["input_ids"].clone()
    batch["input_ids"][0, 1] += 1
    other = model(**batch, attention_mask=real).logits
    assert torch.equal(one[0, 2:], other[0, 2:]) and not torch.equal(one[0, 1], other[0, 1])


@pytest.mark.parametrize("window", [1, 2, 4, 6])
def test_windows_are_those_of_the_collator(window):
    """Of the layer and cut here, or of the collator, under the layers' type."""
    config, cls, changes = MODELS["gemma2"]
    torch.manual_seed(0)
    model = cls(config(**{**COMMON, **changes, "sliding_window": window}, attn_implementation="flashmask")).eval()
    for records in (PAIRS, RANKED):
        plain = PreferenceCollator(18)(records)
        named = PreferenceCollator(18, windows={"sliding_attention": window - 1})(records)
        assert_close(model(**named).logits, model(**plain).logits)


def test_the_trainer(tmp_path):
    """Keys of records and of batches reach collator and model."""
    pytest.importorskip("accelerate")
    options = {"remove_unused_columns": False, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(str(tmp_path), max_steps=1, per_device_train_batch_size=3, max_grad_norm=0.0, **options)
    model, losses = model_of("gemma2"), []
    expected = model_of("gemma2").train()(**BATCHES["preference"]).loss.item()

    class Losses(Trainer):
        def compute_loss(self, *given, **told):
            loss = super().compute_loss(*given, **told)
            losses.append(loss.item())
            return loss

    Losses(model, arguments, train_dataset=[PAIRS[0]] * 3, data_collator=lambda _: PreferenceCollator(18)(PAIRS)).train()
    assert losses == pytest.approx([expected], rel=1e-4)


# ---- refusals ----


def changed(batch, **changes):
    return {name: t for name, t in {**batch, **changes}.items() if t is not None}


VECTORS = BATCHES["sft"]["mask_vectors"]
REFUSALS = {
    "columns": ({"mask_vectors": VECTORS[:, :, 1:]}, ValueError, "need .* for 16 keys"),
    "batch": ({"mask_vectors": VECTORS.repeat(3, 1, 1, 1)}, ValueError, "have shape"),
    "dimensions": ({"mask_vectors": VECTORS[:, 0]}, ValueError, "have shape"),
    "odd": ({"mask_vectors": VECTORS[..., :1]}, ValueError, "have shape"),
    "dtype": ({"mask_vectors": VECTORS.long()}, TypeError, "int32"),
    "a list": ({"mask_vectors": VECTORS.tolist()}, TypeError, "torch tensor"),
    "two masks": ({"attention_mask": VECTORS}, NotImplementedError, "mask of its own"),
    "a dense mask": ({"attention_mask": torch.ones(1, 1, 16, 16, dtype=torch.bool)}, NotImplementedError, "mask of its own"),
    "cu_seq_lens": ({"cu_seq_lens_q": torch.tensor([0, 16]), "cu_seq_lens_k": torch.tensor([0, 16])}, ValueError, "beside"),
    "another window": ({"mask_vectors_local": VECTORS}, ValueError, "no layers of that type"),
    "no mask": ({"mask_vectors": None}, ValueError, "document_ids without"),
    "a window alone": ({"mask_vectors": None, "mask_vectors_sliding_attention": VECTORS}, ValueError, "no mask_vectors"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    changes, error, message = REFUSALS[name]
    with pytest.raises(error, match=message):
        model_of("gemma2")(**changed(BATCHES["sft"], **changes))


def test_chunks_are_refused():
    with pytest.raises(NotImplementedError, match="chunks"):
        model_of("llama4")(**BATCHES["sft"])


@pytest.mark.parametrize("config, cls", [(StableLmConfig, StableLmForCausalLM), (NemotronConfig, NemotronForCausalLM)])
def test_models_that_hand_nothing_on_are_never_wrong(config, cls):
    """Refused, where this transformers does not hand keys on to attention; then the vectors go in as attention_mask."""
    torch.manual_seed(0)
    batch = BATCHES["preference"]
    try:
        model = cls(config(**COMMON, attn_implementation="flashmask")).eval()
    except KeyError:
        pytest.skip("this transformers has a fixed list of attentions for the model")
    expected = separate(batch)(model)
    try:
        found = model(**batch).logits
    except NotImplementedError as error:
        assert "give them as attention_mask" in str(error)
        found = logits(model, batch["input_ids"], attention_mask=batch["mask_vectors"].clone(), position_ids=batch["position_ids"])
    assert_close(found[real_of(batch)], expected[real_of(batch)], rtol=1e-4, atol=1e-4)
    assert logits(model, batch["input_ids"]).isfinite().all()  # the call before is forgotten


def test_layers_that_are_not_attention_are_refused():
    """State that goes from token to token would go from answer to answer."""
    module, q = torch.nn.Module(), torch.randn(1, 2, 6, 8)
    module.config, module.layer_idx = SimpleNamespace(layer_types=["full_attention", "linear_attention"]), 0
    with pytest.raises(NotImplementedError, match="linear_attention"):
        ours.attention_forward(module, q, q, q, None, mask_vectors=Mask.causal(6).vectors())


def test_layers_that_are_not_causal_are_refused():
    q, vectors = torch.randn(1, 2, 6, 8), Mask.causal(6).vectors()
    for seen in (None, ours.mask(1, 6, 6, allow_is_bidirectional_skip=False)):
        with pytest.raises(NotImplementedError, match="not causal"):
            ours.attention_forward(torch.nn.Module(), q, q, q, seen, is_causal=False, mask_vectors=vectors)


def test_a_filled_cache_is_refused():
    model = model_of("llama").eval()
    for n, message in ((6, "for 8 keys"), (8, "filled cache")):
        cache = model(tokens(1, 6), use_cache=True).past_key_values
        with pytest.raises(ValueError, match=message):
            model(tokens(1, 2), past_key_values=cache, mask_vectors=Mask.causal(n).vectors())


def test_too_many_answers_in_a_window_are_refused():
    records = [{"prompt": [1, 2], "answers": [[3, 4]] * 5}]
    with pytest.raises(NotImplementedError, match="fewer answers"):
        model_of("mistral")(**PreferenceCollator(16)(records))


# ---- flashmask's masks as attention_mask ----


def masks():
    mask = Mask.documents([4, 5], causal=True)
    vectors = mask.vectors()
    ends = torch.from_numpy(mask.to_startend_row_indices(1, causal=True)).view(1, 1, 9, 1)
    return {
        "Mask": mask,
        "on a device": mask.to("cpu"),
        "startend": DeviceMask.from_startend_row_indices(ends, causal=True),
        "fms, fme": DeviceMask.from_fms_fme(vectors[..., 0], vectors[..., 1] - 1),
    }


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
@pytest.mark.parametrize("name", masks())
def test_masks_as_attention_mask(kind, name):
    model, ids, mask = model_of(kind).eval(), tokens(1, 9), masks()[name]
    dense = torch.from_numpy(Mask.documents([4, 5], causal=True).dense()).bool()
    assert_close(logits(model, ids, attention_mask=mask), logits(model, ids, attention_mask=dense))


def test_a_mask_with_scattered_rows():
    seen = torch.rand(9, 9, generator=torch.Generator().manual_seed(3)) < 0.5
    seen |= torch.eye(9, dtype=torch.bool)
    seen[0::2, 8] = seen[1::2, 0] = True
    seen[1::2, 8] = seen[0::2, 0] = False
    mask = Mask.from_dense(seen)
    assert mask.has_fallback
    model, ids = model_of("llama").eval(), tokens(1, 9)
    assert_close(logits(model, ids, attention_mask=mask), logits(model, ids, attention_mask=seen[None, None]))


def test_a_mask_of_two_columns():
    model, ids = model_of("llama").eval(), tokens(1, 2)
    assert_close(logits(model, ids, attention_mask=Mask.causal(2)), logits(model, ids))


def test_masks_that_do_not_fit():
    with pytest.raises(ValueError, match="7 x 7 for 6 queries"):
        logits(model_of("llama"), tokens(1, 6), attention_mask=Mask.causal(7))
    with pytest.raises(NotImplementedError, match="6 x 6"):
        logits(model_of("llama"), tokens(1, 6), attention_mask=Mask.causal(6, 7))
    with pytest.raises(TypeError, match="eager"):
        logits(model_of("llama", "eager"), tokens(1, 6), attention_mask=Mask.causal(6))
