"""What losses read of a model's outputs for a batch of flashmask.collate: log probabilities of tokens and answers, rewards."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ._arrays import mapping

Batch = Mapping[str, torch.Tensor]


def entry(batch: Batch, name: str) -> torch.Tensor:
    """batch[name]; ValueError says what is there instead."""
    if name not in mapping(batch, "batch"):
        raise ValueError(f"the batch has no {name!r}; it has {', '.join(map(repr, batch))}")
    return batch[name]


def token_log_probs(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """f32 [T]: log probability of each of target_tokens. logits: [B, S, vocabulary]; only the rows that predict are read."""
    _check_extents(logits, 3, "logits", batch)
    rows = logits.flatten(0, 1)[entry(batch, "target_rows")].float()
    return -torch.nn.functional.cross_entropy(rows, entry(batch, "target_tokens"), reduction="none")


def answer_log_probs(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """f32 [A]: log probability of each answer, the sum over its tokens; 0 for an empty one. logits: [B, S, vocabulary]."""
    terms = token_log_probs(logits, batch)
    return terms.new_zeros(len(entry(batch, "answer_ends"))).index_add(0, entry(batch, "target_answer"), terms)


def answer_rewards(values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """[A]: the value at the last token of each answer. values: [B, S] or [B, S, 1], what a reward head gives for each token."""
    _check_extents(values, 2, "values", batch)
    if values.numel() != entry(batch, "input_ids").numel():
        raise ValueError(f"values have shape {list(values.shape)}, need one number a token")
    return values.reshape(-1)[entry(batch, "answer_ends")]


def _check_extents(outputs: torch.Tensor, rank: int, name: str, batch: Batch) -> None:
    """Rows of a batch are found by their place in [B, S]: outputs that were shifted or cut would give those of others."""
    if not isinstance(outputs, torch.Tensor):
        raise TypeError(f"{name} are a {type(outputs).__name__}, need a torch tensor")
    tokens = entry(batch, "input_ids").shape
    if outputs.dim() < rank or outputs.shape[:2] != tokens:
        raise ValueError(f"{name} have shape {list(outputs.shape)}, need {list(tokens)} for the tokens of the batch first")
