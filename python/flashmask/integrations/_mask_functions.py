"""Row spans of Hugging Face transformers' mask functions, fn(batch_idx, head_idx, q_idx, kv_idx) -> bool.

transformers composes causal, window, chunk and document functions. Each of these hides all rows of a key but one span, so that a
composition by "and" is an intersection, in O(keys) on the tensors' device and without waiting for it. A function is known by its
code, so that one which transformers or a user changes is not mistaken for another: bounds() is None for it.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Callable

import torch
from torch import Tensor
from transformers import masking_utils as hf

FAR = 2**40  # beyond every row

Bounds = tuple[Tensor, Tensor]  # int64 [batch or 1, keys]: the first row that sees a key, the row after the last one


def contents(fn: Callable) -> dict[str, Any]:
    """What the function has from around it, by name."""
    return dict(zip(fn.__code__.co_freevars, (cell.cell_contents for cell in fn.__closure__ or ())))


def causal(keys: Tensor) -> Bounds:
    return keys, torch.full_like(keys, FAR)


def everything(keys: Tensor) -> Bounds:
    return torch.full_like(keys, -FAR), torch.full_like(keys, FAR)


def window(keys: Tensor, sliding_window: int) -> Bounds:
    """kv > q - w: a row sees w keys, its own included."""
    return torch.full_like(keys, -FAR), keys + sliding_window


def window_both_ways(keys: Tensor, sliding_window: int) -> Bounds:
    return keys - sliding_window, keys + sliding_window + 1


def chunks(keys: Tensor, chunk_size: int, left_padding: Tensor) -> Bounds:
    first = left_padding.to(keys)[:, None]
    first = first + (keys - first).div(chunk_size, rounding_mode="floor") * chunk_size
    return first, first + chunk_size


def spans_of_starts(starts: Tensor) -> Bounds:
    """bool [batch, n], True where a document starts (position 0 starts one anyway): the document of each position."""
    n = starts.shape[1]
    place = torch.arange(n, device=starts.device).expand_as(starts)
    first = torch.where(starts, place, 0).cummax(1).values
    next_start = torch.where(starts, place, n).roll(-1, 1)
    next_start = torch.cat((next_start[:, :-1], next_start.new_full((starts.shape[0], 1), n)), 1)
    return first, next_start.flip(1).cummin(1).values.flip(1)


def documents(keys: Tensor, packed_sequence_mask: Tensor) -> Bounds:
    """Of a number for each token, equal inside a document, whose tokens are neighbours. keys are 0, 1, .."""
    ids = packed_sequence_mask
    return spans_of_starts(torch.cat((torch.ones_like(ids[:, :1]), ids.diff(dim=1)), 1) != 0)


def remapped(keys: Tensor, mask_function: Callable, position_ids: Tensor) -> Bounds | None:
    """mask_function of the positions inside a document instead of places in the row: both rise by one from token to token."""
    found = bounds(mask_function, position_ids.to(keys))
    if found is None:
        return None
    shift = keys - position_ids
    return found[0] + shift, found[1] + shift


def intersection(keys: Tensor, mask_functions: tuple[Callable, ...]) -> Bounds | None:
    kinds = [KINDS.get(getattr(fn, "__code__", None)) for fn in mask_functions]
    if remapped in kinds and documents not in kinds:
        return None  # positions of different documents would be compared
    first, end = everything(keys)
    for fn in mask_functions:
        found = bounds(fn, keys)
        if found is None:
            return None
        first, end = torch.maximum(first, found[0]), torch.minimum(end, found[1])
    return first, end


# An instance of each function: only its code is looked at, but for REFERENCES of check().
_ids = torch.tensor([[4, 5, 6, 0, 1, 0, 1, 2]])
_packed = hf.find_packed_sequence_indices(_ids)
REFERENCES: list[tuple[Callable, Callable]] = [
    (hf.causal_mask_function, causal),
    (hf.bidirectional_mask_function, everything),
    (hf.sliding_window_overlay(3), window),
    (hf.sliding_window_bidirectional_overlay(3), window_both_ways),
    (hf.chunked_overlay(3, torch.tensor([2])), chunks),
    (hf.packed_sequence_mask_function(_packed), documents),
    (hf.and_masks(hf.causal_mask_function, hf.sliding_window_overlay(2)), intersection),
]
KINDS: dict[CodeType | None, Callable] = {fn.__code__: kind for fn, kind in REFERENCES}
if hasattr(hf, "remap_positions_for_packed_sequence"):  # older versions have places in the row where newer ones have positions
    _remap = hf.remap_positions_for_packed_sequence(hf.chunked_causal_mask_function(2, torch.tensor([0])), _ids)
    KINDS[_remap.__code__] = remapped
    REFERENCES.append((hf.and_masks(_remap, hf.packed_sequence_mask_function(_packed)), intersection))


def bounds(fn: Callable, keys: Tensor) -> Bounds | None:
    """The rows, numbered like keys, that see each key; None if they are not known to be one span. keys: int64 [batch or 1, keys]."""
    kind = KINDS.get(getattr(fn, "__code__", None))
    return None if kind is None else kind(keys, **contents(fn))


def check() -> None:
    """Every known function against what it answers for 8 x 8 pairs; ImportError if transformers means something else by it."""
    place = torch.arange(8)
    zero = torch.zeros(1, 1, dtype=torch.int64)
    for fn, kind in REFERENCES:
        first, end = bounds(fn, place[None])
        ours = (place[:, None] >= first) & (place[:, None] < end)
        theirs = fn(zero, zero, place[:, None], place[None]).expand(8, 8)
        if not torch.equal(ours, theirs):
            raise ImportError(f"flashmask does not know the {kind.__name__} masks of this version of transformers")


def traced_spans(fn: Callable, shape: tuple[int, int, int], q_offset: Any, kv_offset: Any, use_vmap: bool, device: Any) -> Tensor:
    """int64 [batch, keys, 2] inside torch.compile, where a function's contents cannot be read: from all pairs, asserting (when the
    graph runs) that each key's rows are one span. shape: batch, rows, keys."""
    batch, rows, columns = shape
    offsets = {"q_offset": q_offset, "kv_offset": kv_offset}
    options = {"mask_function": fn, "allow_is_causal_skip": False, "use_vmap": use_vmap, "device": device}
    visible = hf.sdpa_mask(batch, rows, columns, **offsets, **options)[:, 0]
    place = torch.arange(rows, device=device)[None, :, None]
    end = torch.where(visible, place + 1, 0).amax(1)
    first = torch.minimum(torch.where(visible, place, rows).amin(1), end)
    torch._assert_async(
        (visible.sum(1) == end - first).all(),
        "flashmask: in a compiled graph a key's visible rows must be one span; this mask works outside of torch.compile",
    )
    return torch.stack((first, end), -1)


def by_vmap(fn: Callable) -> Callable:
    """fn for index arrays [n, 1] and [1, m], where fn takes one index each: users' functions may be written so."""
    inner = torch.vmap(torch.vmap(fn, (None, None, None, 0)), (None, None, 0, None))

    def of_arrays(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        with hf.TransformGetItemToIndex():
            return inner(b, h, q.flatten(), kv.flatten())

    return of_arrays
