"""Ways to run attention over a batch. A contender takes the batch and the model's dtype before the first layer, and returns
what the layers call and the bytes of its mask. All but padding read the same packed batch, whose mask_vectors say who sees
whom."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flashmask import attention, batch_mask
from flashmask.collate import Batch

from .model import Attend

STRIPE = 2048  # rows of a dense mask that are made at a time

Contender = Callable[[Batch, torch.dtype], tuple[Attend, int]]


def flashmask(batch: Batch, dtype: torch.dtype) -> tuple[Attend, int]:
    mask = batch_mask(batch)
    return lambda q, k, v: attention(q, k, v, mask), mask.vectors.nbytes


def heads_first(call: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Attend:
    """For functions that have heads before the sequence."""
    return lambda q, k, v: call(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


def sdpa(q: Tensor, k: Tensor, v: Tensor, **mask: Tensor | bool) -> Tensor:
    """Key heads are repeated: torch's kernels that take a mask have no grouped heads."""
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    return scaled_dot_product_attention(q, k, v, **mask)


def dense(batch: Batch, dtype: torch.dtype) -> tuple[Attend, int]:
    """torch's scaled_dot_product_attention with a dense mask, in the form in which its kernels read it: numbers to add."""
    bias = dense_bias(batch["mask_vectors"], dtype)
    return heads_first(lambda q, k, v: sdpa(q, k, v, attn_mask=bias)), bias.nbytes


def dense_bias(vectors: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, S, S], made in stripes so that nothing else of this size is needed. Padding sees itself: a row of torch's softmax
    needs something."""
    items, _, length, _ = vectors.shape
    keys = torch.arange(length, dtype=torch.int32, device=vectors.device)
    bias = torch.zeros(items, 1, length, length, dtype=dtype, device=vectors.device)
    for stripe, rows in zip(bias.split(STRIPE, 2), keys[:, None].split(STRIPE), strict=True):
        hidden = rows != keys
        for start, end in vectors.unflatten(-1, (-1, 2)).permute(3, 4, 0, 1, 2):  # [M, 2, B, 1, S]
            hidden = hidden & ((rows < start[..., None, :]) | (rows >= end[..., None, :]))
        stripe.masked_fill_(hidden, float("-inf"))
    return bias


def causal(batch: Batch, dtype: torch.dtype) -> tuple[Attend, int]:
    """For rows of one document each, padded at the end: what torch's causal kernel computes, no mask at all."""
    return heads_first(lambda q, k, v: sdpa(q, k, v, is_causal=True)), 0


class Flex:
    """torch's FlexAttention. Vectors of one shape share the tensors that mask_mod reads, and so one compilation. dynamic: what
    torch.compile makes of it; None: one more compilation serves all other lengths."""

    def __init__(self, dynamic: bool | None = False) -> None:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        self.create_block_mask = torch.compile(create_block_mask, dynamic=dynamic)
        self.flex_attention = torch.compile(flex_attention, dynamic=dynamic)
        self.known: dict[torch.Size, tuple[list[Tensor], Callable]] = {}

    def mask_mod(self, vectors: Tensor) -> Callable:
        """vectors: [B, 1, S, 2 M]. The predicate indexes with b and kv alone, which is what torch.compile can take."""
        bounds = vectors[:, 0].unbind(-1)
        if vectors.shape not in self.known:
            held = [torch.empty_like(bound) for bound in bounds]

            def mask_mod(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
                seen = (q >= held[0][b, kv]) & (q < held[1][b, kv])
                for start, end in zip(held[2::2], held[3::2]):
                    seen = seen | (q >= start[b, kv]) & (q < end[b, kv])
                return seen

            self.known[vectors.shape] = held, mask_mod
        held, mask_mod = self.known[vectors.shape]
        for own, bound in zip(held, bounds, strict=True):
            own.copy_(bound)
        return mask_mod

    def __call__(self, batch: Batch, dtype: torch.dtype) -> tuple[Attend, int]:
        vectors = batch["mask_vectors"]
        items, _, length, _ = vectors.shape
        blocks = self.create_block_mask(self.mask_mod(vectors), items, 1, length, length, vectors.device)
        parts = (part for part in blocks.as_tuple() if isinstance(part, Tensor))
        call = heads_first(lambda q, k, v: self.flex_attention(q, k, v, block_mask=blocks, enable_gqa=True))
        return call, sum(part.nbytes for part in parts)
