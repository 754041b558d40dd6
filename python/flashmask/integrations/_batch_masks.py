"""Masks that a batch of flashmask.collate brings into a model's call, model(**batch), and Mask and DeviceMask as attention_mask.

transformers hands keys that it does not know on to the attention of every layer. There mask_vectors take the place of the documents
that position ids tell of, which cannot say that two answers share a prompt. What else a layer hides (padding, a sliding window) holds
as well; a window goes by position ids, so that an answer sees as much of its prompt as if it stood directly behind it.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

import torch
from torch import Tensor

from .. import _lib as lib
from ..device_mask import DeviceMask
from ..mask import Mask
from . import _mask_functions as functions

VECTORS = "mask_vectors"
ATTENTION = "full_attention", "sliding_attention", "chunked_attention"  # types of layers which masks say everything of


# ---- what a call brings ----


def brought(module: torch.nn.Module, kwargs: dict[str, Any], window: int | None) -> tuple[Tensor | None, int | None]:
    """(vectors for this layer, window to cut them to) among the arguments of a model's call; (None, window) if there are none.
    mask_vectors_NAME, of a collator's windows, are for layers of that type and are not cut; mask_vectors for all others."""
    named = {name: value for name, value in kwargs.items() if name.startswith(VECTORS) and value is not None}
    if not named:
        if kwargs.get("document_ids") is not None:
            raise ValueError("flashmask: document_ids without the mask_vectors of their batch say nothing of answers")
        return None, window
    kinds = types_of(module, window)
    if others := sorted(set(kinds) - set(ATTENTION)):
        raise NotImplementedError(f"flashmask: {VECTORS} in a model with layers of {', '.join(others)}, which take no such mask")
    unknown = [name for name in named if name != VECTORS and name[len(VECTORS) + 1 :] not in kinds]
    if unknown:
        raise ValueError(
            f"flashmask: {', '.join(unknown)}: the model has no layers of that type, it has {', '.join(sorted(set(kinds)))}; name a "
            "collator's windows so, or leave them out: mask_vectors are cut to a layer's own window"
        )
    own = f"{VECTORS}_{kinds[layer_of(module, kinds)]}"
    if own in named:
        return named[own], None
    if VECTORS not in named:
        raise ValueError(f"flashmask: the call has {', '.join(named)}, but no {VECTORS} for this layer")
    return named[VECTORS], window


def types_of(module: torch.nn.Module, window: int | None) -> list[str]:
    """The types of the model's layers, or that of this one."""
    kinds = getattr(getattr(module, "config", None), "layer_types", None)
    return list(kinds) if kinds else ["full_attention" if window is None else "sliding_attention"]


def layer_of(module: torch.nn.Module, kinds: list[str]) -> int:
    if len(kinds) == 1:
        return 0
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise NotImplementedError("flashmask: a layer that does not know its layer_idx, for mask_vectors of a batch")
    return layer


def check_vectors(vectors: Any, batch: int, heads: int, rows: int, columns: int) -> None:
    if not isinstance(vectors, Tensor):
        raise TypeError(f"flashmask: {VECTORS} are a {type(vectors).__name__}, need a torch tensor")
    if vectors.dtype != torch.int32:
        raise TypeError(f"flashmask: {VECTORS} are {vectors.dtype}, need torch.int32")
    shape = list(vectors.shape)
    right = len(shape) == 4 and shape[0] in (1, batch) and 0 < shape[1] <= heads and heads % shape[1] == 0
    if not right or shape[2] != columns or shape[3] not in (2, 4, 6, 8):
        raise ValueError(
            f"flashmask: {VECTORS} have shape {shape}, need [{batch} or 1, 1, {columns}, 2, 4, 6 or 8] for {columns} keys"
        )
    if rows != columns:
        raise ValueError(f"flashmask: {VECTORS} for {rows} queries and {columns} keys: a batch needs a call without a filled cache")


# ---- models that do not hand masks on ----

_call = threading.local()  # keys: of the mask_vectors of the model call that this thread is in


def watch_calls(model: type, name: str) -> None:
    """Some models take every argument and hand none on to attention, which then cannot know that there was a mask: calls of class
    model with mask_vectors are remembered until they end. Not inside torch.compile."""
    original = model.__call__
    if hasattr(original, "flashmask"):
        return

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        vectors = kwargs.get(VECTORS)
        if vectors is None or torch.compiler.is_compiling() or self.config._attn_implementation != name:
            return original(self, *args, **kwargs)
        outer, _call.keys = getattr(_call, "keys", None), vectors.shape[-2] if getattr(vectors, "ndim", 0) > 1 else None
        try:
            return original(self, *args, **kwargs)
        finally:
            _call.keys = outer

    call.flashmask = True
    model.__call__ = call


def check_handed_on(module: torch.nn.Module, rows: int) -> None:
    """For attention without vectors, of as many rows as the call has vectors for."""
    if not torch.compiler.is_compiling() and getattr(_call, "keys", None) == rows:
        raise NotImplementedError(
            f"flashmask: {type(module).__name__} is not handed the {VECTORS} of the model's call: give them as attention_mask"
        )


# ---- what the layer's own mask adds ----


def spans(vectors: Tensor, given: Tensor | None, position_ids: Tensor | None, window: int | None) -> Tensor:
    """int32 [B or 1, Hm, S, 2 M]: vectors without padding keys and what is out of the window. given: of the mask interface, or None:
    uint32 [B or 1, 1, S, 4]."""
    if window is not None and vectors.shape[2] > window:
        vectors = windowed(vectors, position_ids, window)
    if given is not None:
        real = given.view(torch.int32)[..., -1:].bool()
        vectors = torch.where(real, vectors, 0)
    return vectors


def check_layer(given: Tensor, cut: Callable, position_ids: Tensor | None, rows: int, window: int | None) -> None:
    """NotImplementedError where given, a layer's own mask, hides or shows more than a causal one with this window, padding and the
    documents of position ids. cut: cuts numbers like given to these."""
    if given.dtype != torch.uint32 or given.shape[3] != 4 or given.shape[2] != rows:
        raise NotImplementedError(
            f"flashmask: {VECTORS} beside an attention_mask that is a mask of its own, or in a layer that is not causal: give "
            "padding alone, [batch, tokens], or put all into one mask"
        )
    numbers = given.view(torch.int32)
    place = torch.arange(rows, dtype=torch.int32, device=given.device)[None, None, :, None].expand(*numbers.shape[:3], 1)
    end = torch.full_like(place, rows) if window is None else (place + window).clamp(max=rows)
    real = numbers[..., -1:]
    plain = torch.where(real.bool(), torch.cat((place, end), -1), 0)
    plain = torch.cat((plain, place, real), -1)
    same = (cut(numbers, position_ids, rows) == cut(plain, position_ids, rows)).all() & (numbers[..., 2:3] == place).all()
    require(
        same,
        f"flashmask: {VECTORS} in a layer whose own mask is more than causal, a window and padding (chunks, images, functions)",
    )


def require(right: Tensor, message: str) -> None:
    if torch.compiler.is_compiling() or (right.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        torch._assert_async(right, message)
    elif not right:
        raise NotImplementedError(message)


def windowed(vectors: Tensor, position_ids: Tensor | None, window: int) -> Tensor:
    """vectors without rows whose position is window or more behind the key's. Positions rise by one but where an answer or a
    document starts, so that what is left of a span is the beginning of each such run of rows in it."""
    rows = vectors.shape[2]
    if position_ids is None or position_ids.dim() != 2 or position_ids.shape[1] != rows:
        raise NotImplementedError(f"flashmask: {VECTORS} in a layer with a window need position_ids [batch, {rows}]")
    batch = max(vectors.shape[0], position_ids.shape[0])
    shape = batch, *vectors.shape[1:3], vectors.shape[3] // 2
    ids = position_ids.to(vectors.device, torch.int64).expand(batch, -1)
    _, run_end = functions.spans_of_starts(torch.cat((torch.ones_like(ids[:, :1]), ids.diff(dim=1)), 1) != 1)
    start, end = vectors.long().unflatten(3, (-1, 2)).expand(*shape, 2).unbind(-1)

    def at(numbers: Tensor, place: Tensor) -> Tensor:
        return numbers.gather(1, place.clamp(0, rows - 1).flatten(1)).view(shape)

    limit = (ids + window)[:, None, :, None]
    found: list[Tensor] = []
    while more(start < end, len(found)):
        last = torch.minimum(end, at(run_end, start))
        stop = torch.minimum(last, start + (limit - at(ids, start)).clamp(min=0))
        found.append(torch.stack((start, torch.maximum(start, stop)), -1))
        start = last
    if not found:
        return torch.zeros_like(vectors)
    return fewest(torch.cat(found, 3), start < end)


def more(left: Tensor, done: int) -> bool:
    """In a graph nobody can look: as many runs as vectors can hold."""
    return done < lib.MAX_INTERVALS if torch.compiler.is_compiling() else bool(left.any())


def fewest(pairs: Tensor, left: Tensor) -> Tensor:
    """int32 [B, Hm, S, 2 M] of pairs [B, Hm, S, n, 2], without empty ones where keys have fewer. left: what was not looked at."""
    some = pairs[..., 0] < pairs[..., 1]
    count = some.sum(-1)
    message = f"flashmask: a window leaves a key more than {lib.MAX_INTERVALS} spans of rows: fewer answers a prompt"
    require((count <= lib.MAX_INTERVALS).all() & ~left.any(), message)
    kept = lib.MAX_INTERVALS if torch.compiler.is_compiling() else max(1, int(count.max()))
    order = some.int().argsort(dim=3, descending=True, stable=True)[..., :kept, None].expand(-1, -1, -1, -1, 2)
    return pairs.gather(3, order).flatten(3).int()


# ---- flashmask's masks as attention_mask ----


def take_masks(masking_utils: Any, name: str) -> None:
    """transformers asks attention_mask for its dimensions where it prepares masks: a Mask or DeviceMask becomes a tensor there."""
    original = masking_utils._preprocess_mask_arguments
    if hasattr(original, "flashmask"):
        return

    @functools.wraps(original)
    def preprocess(config: Any, inputs_embeds: Tensor, attention_mask: Any, *args: Any, **kwargs: Any) -> tuple:
        if isinstance(attention_mask, (Mask, DeviceMask)):
            if config._attn_implementation != name:
                raise TypeError(f"attention_mask is a flashmask mask, attn_implementation is {config._attn_implementation!r}")
            attention_mask = as_tensor(attention_mask, inputs_embeds.shape[1], inputs_embeds.device)
        return original(config, inputs_embeds, attention_mask, *args, **kwargs)

    preprocess.flashmask = True
    masking_utils._preprocess_mask_arguments = preprocess


def as_tensor(mask: Mask | DeviceMask, rows: int, device: torch.device) -> Tensor:
    """uint32 [Bm, Hm, Sk, 2 M + 1], as the mask interface makes them for layers whose documents are not those of position ids; bool
    if vectors do not suffice."""
    if mask.shape[2] != rows:
        raise ValueError(f"flashmask: attention_mask is a mask of {mask.shape[2]} x {mask.shape[3]} for {rows} queries")
    if isinstance(mask, DeviceMask) and mask.format != lib.VECTORS_INTERVALS:
        vectors = mask.vectors.cpu()
        if mask.format == lib.VECTORS_STARTEND:
            mask = Mask.from_startend_row_indices(vectors, causal=mask.causal, rows=rows)
        else:
            first, last = vectors.unflatten(3, (-1, 2)).transpose(2, 3).unbind(-1)
            mask = Mask.from_fms_fme(first.contiguous(), last.contiguous(), rows=rows)
    if isinstance(mask, DeviceMask):
        vectors = mask.vectors.to(device)
    elif mask.has_fallback:
        return torch.from_numpy(mask.dense()).to(device, torch.bool)
    else:
        vectors = mask.vectors(device)
    return torch.nn.functional.pad(vectors, (0, 1)).view(torch.uint32)
