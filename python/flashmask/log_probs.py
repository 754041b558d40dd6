"""What losses read of a model's outputs for a batch of flashmask.collate: log probabilities of tokens and answers, rewards."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ._arrays import mapping

Batch = Mapping[str, torch.Tensor]


def entry(batch: Batch, name: str) -> torch.Tensor:
    """batch[name], a tensor; ValueError says what is there instead."""
    if name not in mapping(batch, "batch"):
        raise ValueError(f"the batch has no {name!r}; it has {', '.join(map(repr, batch))}")
    if not isinstance(batch[name], torch.Tensor):
        raise TypeError(f"{name} of the batch is a {type(batch[name]).__name__}, needs a torch tensor")
    return batch[name]


def token_log_probs(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """f32 [T]: log probability of each of target_tokens. logits: [B, S, vocabulary]; only the rows that predict are read.
    ValueError for a token outside the vocabulary; on a GPU, which nothing waits for, it is torch's device-side assert."""
    _check_extents(logits, 3, 3, "logits", batch)
    rows, tokens = logits.flatten(0, 1)[entry(batch, "target_rows")].float(), entry(batch, "target_tokens")
    vocabulary = logits.shape[2]
    if tokens.is_cpu and not torch.compiler.is_compiling() and ((tokens < 0) | (tokens >= vocabulary)).any():
        raise ValueError(
            f"target_tokens are {int(tokens.min())} .. {int(tokens.max())}, logits have a vocabulary of {vocabulary}: "
            f"tokens must be in 0 .. {vocabulary - 1}"
        )
    return -torch.nn.functional.cross_entropy(rows, tokens, reduction="none")


def answer_log_probs(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """f32 [A]: log probability of each answer, the sum over its tokens; 0 for an empty one. logits: [B, S, vocabulary]."""
    terms = token_log_probs(logits, batch)
    return terms.new_zeros(len(entry(batch, "answer_ends"))).index_add(0, entry(batch, "target_answer"), terms)


def answer_rewards(values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """[A]: the value at the last token of each answer. values: [B, S] or [B, S, 1], what a reward head gives for each token."""
    _check_extents(values, 2, 3, "values", batch)
    if values.numel() != entry(batch, "input_ids").numel():
        raise ValueError(f"values have shape {list(values.shape)}, need one number a token")
    return values.reshape(-1)[entry(batch, "answer_ends")]


def _check_extents(outputs: torch.Tensor, least: int, most: int, name: str, batch: Batch) -> None:
    """Rows of a batch are found by their place in [B, S]: outputs that were shifted or cut would give those of others."""
    if not isinstance(outputs, torch.Tensor):
        raise TypeError(f"{name} are a {type(outputs).__name__}, need a torch tensor")
    tokens = entry(batch, "input_ids").shape
    if not least <= outputs.dim() <= most:
        ranks = f"{least} or {most}" if least < most else f"{most}"
        raise ValueError(f"{name} have shape {list(outputs.shape)}, need {ranks} dimensions")
    if outputs.shape[:2] != tokens:
        raise ValueError(f"{name} have shape {list(outputs.shape)}, need {list(tokens)} for the tokens of the batch first")
