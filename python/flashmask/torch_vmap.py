"""torch.func.vmap over attention: the mapped dimension becomes a part of the batch. What has no batch can not be mapped."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from .torch_masks import batch_of

MAPPED = "flashmask: vmap over {} is not implemented; make the mapped dimension a part of the batch yourself"

Dims = Sequence[Any]  # for each argument the dimension that is mapped, None: none


def fold(tensors: Sequence[Tensor | None], dims: Dims, size: int) -> list[Any]:
    """[size * B, ..] of each [B, ..], of which those that are not mapped are repeated."""

    def one(tensor: Tensor, dim: int | None) -> Tensor:
        mapped = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return mapped.flatten(0, 1)

    return [None if tensor is None else one(tensor, dim) for tensor, dim in zip(tensors, dims)]


def items(tensor: Tensor, dim: int | None) -> int:
    """B of a tensor that fold takes."""
    return tensor.shape[1 if dim == 0 else 0]


def unfold(tensors: Sequence[Tensor], size: int, batch: int) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    """What fold has folded, and which dimension is mapped; of tensors without elements, which nobody wants, none."""
    parted = tuple(t.unflatten(0, (size, batch)) if t.dim() > 1 else t for t in tensors)
    return parted, tuple(0 if t.dim() > 1 else None for t in tensors)


def unwrapped(vectors: Tensor) -> Tensor:
    """vectors, which have no gradients, without what torch.func's transforms have put around them; refused where they are mapped,
    as their plan would be."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(vectors):
        if functorch.is_batchedtensor(vectors):
            raise NotImplementedError(MAPPED.format("mask"))
        if torch._is_functional_tensor(vectors):
            torch._sync(vectors)  # type: ignore[attr-defined]  # changes through its views
        vectors = functorch.get_unwrapped(vectors)
    return vectors


def check(mask: Tensor | None, form: Sequence[int], dims: Dims) -> None:
    """dims: of sinks and mask."""
    for name, dim in zip(("sinks", "mask"), dims):
        if dim is not None:
            raise NotImplementedError(MAPPED.format(name))
    if mask is not None and batch_of(mask, form) != 1:
        raise NotImplementedError(
            f"flashmask: vmap with a mask of {batch_of(mask, form)} batch items is not implemented, needs a mask of batch 1; or make "
            "the mapped dimension a part of the batch yourself"
        )
