"""Small models made from scratch, and what the tests of the Hugging Face integration compare."""

import copy
import functools

import torch
from torch_cases import assert_close
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from flashmask.integrations.transformers import register

register()

VOCABULARY = 61
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LLAMA4 = {"attention_chunk_size": 4, "layer_types": ["chunked_attention", "full_attention"], "intermediate_size_mlp": 24}
ALTERNATE = ["sliding_attention", "full_attention"]

MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 4}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, {"sliding_window": 4, "layer_types": ALTERNATE, "attn_logit_softcapping": 1.5}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"use_sliding_window": True, "sliding_window": 5, "layer_types": ALTERNATE}),
    "gpt_oss": (GptOssConfig, GptOssForCausalLM, {**EXPERTS, "sliding_window": 4, "layer_types": ALTERNATE}),
    "llama4": (Llama4TextConfig, Llama4ForCausalLM, {**EXPERTS, **LLAMA4, "moe_layers": []}),
}


@functools.cache
def built(kind):
    config, model, changes = MODELS[kind]
    torch.manual_seed(0)
    made = model(config(**{**COMMON, **changes}, experts_implementation="eager"))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() < 2:
                parameter.uniform_(-0.5, 0.5)  # norms, biases and sinks, which would be 0 or 1
    return made


def model_of(kind, implementation="flashmask", dtype=torch.float32):
    """A copy, in training mode, of the one model of this kind."""
    model = copy.deepcopy(built(kind)).to(dtype).train()
    model.set_attn_implementation(implementation)
    return model


def tokens(batch, length, seed=1):
    return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def logits(model, ids, **inputs):
    return model(input_ids=ids, **{"use_cache": False, **inputs}).logits


def results(model, run, real=None):
    """The logits of run(model), 0 where not real, and the gradients of a fixed function of them by all parameters."""
    output = run(model)
    if real is not None:
        output = output * real[..., None].to(output.dtype)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output.dtype)
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad))
    grads = torch.autograd.grad((output * weights).sum(), parameters, allow_unused=True)
    zeros = (torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters))
    return {"logits": output.detach(), **dict(zip(names, zeros))}


def compare(kind, run, other=None, real=None):
    """run on flashmask against other (run, if None) on eager attention: as near to that in float64 as that in float32."""
    other = other or run
    ours = results(model_of(kind), run, real)
    plain = results(model_of(kind, "eager"), other, real)
    oracle = results(model_of(kind, "eager", torch.float64), other, real)
    assert ours.keys() == plain.keys()
    for name in ours:
        assert_close(ours[name], plain[name], oracle[name], torch.float32, ours["logits"].numel(), f"{kind} {name}")
    return ours["logits"]


def positions(lengths):
    return torch.cat([torch.arange(n) for n in lengths])[None]


def alone(ids, lengths):
    """What a packed row should give: every document by itself."""

    def run(model):
        return torch.cat([logits(model, part) for part in ids.split(lengths, 1)], 1)

    return run


def without_padding(ids, real):
    """What a padded batch should give for its real tokens: each row without the padding at its ends."""

    def run(model):
        rows = []
        for k, row in enumerate(real.bool()):
            (places,) = row.nonzero(as_tuple=True)
            first, end = places[0], places[-1] + 1
            part = logits(model, ids[k : k + 1, first:end])
            rows.append(torch.nn.functional.pad(part, (0, 0, first, len(row) - end)))
        return torch.cat(rows)

    return run
