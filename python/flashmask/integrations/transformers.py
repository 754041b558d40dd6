"""attn_implementation="flashmask" in Hugging Face transformers.

    from flashmask.integrations.transformers import register
    register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="flashmask")

Masks travel through a model as tensors of four dimensions, which transformers passes on as they are:
  uint32 [B or 1, 1, Sk, C]    what mask() makes: M spans (start, end) of visible rows for each key; then, with C = 2 M + 2, for causal
                               attention, the query row of the key (below 0: it was there before) and 1 if it is not padding; with
                               C = 2 M + 1 a number without meaning. The bits of int32, in a dtype that no other mask has
  int32 [B or 1, Hm, Sk, 2 M]  the vectors of a flashmask.Mask, which a user may give as attention_mask
  bool or floating point       dense masks, of users and where spans do not suffice

The mask_vectors of a batch of flashmask.collate come to attention beside these, see _batch_masks.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from typing import Any, Callable

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..attention import attention
from ..device_mask import DeviceMask
from ..mask import Mask

try:
    from transformers import masking_utils
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface, PreTrainedModel
    from transformers.utils import generic

    from . import _batch_masks as batches
    from . import _mask_functions as functions
except (ImportError, AttributeError, TypeError) as error:
    raise ImportError(f"flashmask needs transformers >= 5.4 for this ({error})") from error

NAME = "flashmask"

# Arguments of attention functions that change the result and are not offered.
REFUSED = "position_bias", "block_table", "k_cache", "v_cache", "block_indices", "indices", "sinks", "output_attentions"

# What layers share: masks by the tensor they were made of.
_made: WeakIdKeyDictionary = WeakIdKeyDictionary()


def register() -> None:
    """Makes attn_implementation="flashmask" known to transformers. May be called again.

    ImportError if this version of transformers is not one that the masks are known of.
    """
    functions.check()
    not_flash_attention()
    batches.take_masks(masking_utils, NAME)
    batches.watch_calls(PreTrainedModel, NAME)
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, mask)


def not_flash_attention() -> None:
    """transformers takes every name with "flash" in it for the flash_attn package, which is then looked for, and which cannot do what
    flashmask can. Its test for that is told of the one exception, everywhere it was imported to."""
    original = generic.is_flash_attention_requested
    if hasattr(original, "flashmask"):
        return

    @functools.wraps(original)
    def is_flash_attention_requested(config=None, requested_attention_implementation=None, version=None):
        name = requested_attention_implementation if config is None else config._attn_implementation
        return name != NAME and original(config, requested_attention_implementation, version)

    is_flash_attention_requested.flashmask = True
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(original.__name__) is original:
            setattr(module, original.__name__, is_flash_attention_requested)


# ---- the mask interface ----


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: Any = "cpu",
    **kwargs: Any,
) -> Tensor:
    """The mask of mask_function for q_length rows and kv_length keys whose numbers start at the offsets, without the keys that are
    False in attention_mask [B, at most keys]. See the module for what comes out. Functions that are not of transformers are
    evaluated on every pair, at most 32768 x 32768."""
    if attention_mask is not None and attention_mask.dim() != 2:
        raise NotImplementedError(f"flashmask: attention_mask has {attention_mask.dim()} dimensions, needs 2 or 4")
    keys = torch.arange(kv_length, device=device)[None] + kv_offset
    real = torch.ones_like(keys, dtype=torch.bool)
    if attention_mask is not None:
        real = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset).bool()[:, keys[0]]
    shape = batch_size, q_length, kv_length
    if torch.compiler.is_compiling():
        spans = functions.traced_spans(mask_function, shape, q_offset, kv_offset, use_vmap, device)
    elif (bounds := functions.bounds(mask_function, keys)) is not None:
        first, end = ((bound - q_offset).clamp(0, q_length) for bound in bounds)
        spans = torch.stack((first, torch.maximum(first, end)), -1)
    else:
        visible = evaluated(mask_function, shape, q_offset, kv_offset, use_vmap, device)
        if visible.has_fallback:
            return torch.from_numpy(visible.dense()).to(device, torch.bool) & real[:, None, None]
        spans = visible.vectors(device)[:, 0].long()
    spans = torch.where(real[..., None], spans, 0)
    if "allow_is_bidirectional_skip" in kwargs:  # not causal: positions say nothing of documents
        others = torch.zeros_like(keys)[..., None]
    else:
        others = torch.stack(torch.broadcast_tensors(keys - q_offset, real.long()), -1)
    batch = max(spans.shape[0], others.shape[0])
    numbers = torch.cat((spans.expand(batch, -1, -1), others.expand(batch, -1, -1)), -1)
    return numbers.int().view(torch.uint32)[:, None]


def evaluated(
    fn: Callable, shape: tuple[int, int, int], q_offset: int | Tensor, kv_offset: int, use_vmap: bool, device: Any
) -> Mask:
    batch, rows, columns = shape
    fn = functions.by_vmap(fn) if use_vmap else fn

    def shifted(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return fn(b, h, q + q_offset, kv + kv_offset)

    try:
        return Mask.from_mask_mod(shifted, rows, columns, batch=batch, indices="torch", device=device)
    except ValueError as error:
        raise NotImplementedError(f"flashmask: this mask function cannot be used: {error}") from error


# ---- the attention interface ----


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [B, Hq, Sq, D], key and value [B, Hkv, Sk, D] -> (output [B, Sq, Hq, D], None). attention_mask: see the module; with
    None causal if is_causal (or the module's) and Sq > 1. Rows that see nothing have output 0. kwargs: those of the model's call, of
    which mask_vectors [B or 1, 1, Sk, 2 M] and mask_vectors_NAME are masks, see _batch_masks.

    NotImplementedError: dropout, attention weights, biases, paged caches, masks that are not understood.
    ValueError, TypeError: mask_vectors of another shape or dtype.
    """
    if dropout:
        raise NotImplementedError(f"flashmask: attention dropout is {dropout}, needs 0: set attention_dropout=0.0 in the config")
    for name in REFUSED:
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise NotImplementedError(f"flashmask: {name} is not offered; use another attn_implementation for this model")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    vectors, window = batches.brought(module, kwargs, sliding_window)
    documents = position_ids, cu_seq_lens_q, cu_seq_lens_k
    if vectors is not None:
        seen = batch_mask(attention_mask, (*documents, vectors), query, key.shape[2], causal, (sliding_window, window))
    else:
        if attention_mask is not None or causal:
            batches.check_handed_on(module, query.shape[2])
        seen = own_mask(attention_mask, documents, query, key.shape[2], causal, sliding_window)
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    return attention(query, key, value, seen, softmax_scale=scaling, softcap=softcap or 0.0, sinks=s_aux), None


def check_no_mask(rows: int, columns: int, causal: bool, sliding_window: int | None) -> None:
    """Without a mask the interface leaves open what some calls mean."""
    if causal and rows != columns:
        raise NotImplementedError(f"flashmask: causal attention of {rows} queries to {columns} keys needs a mask")
    if sliding_window is not None and columns > sliding_window:
        raise NotImplementedError(f"flashmask: sliding_window {sliding_window} for {columns} keys needs a mask")


Documents = tuple[Tensor | None, ...]  # position_ids, cu_seq_lens_q, cu_seq_lens_k; behind them mask_vectors, if a batch has them
Windows = tuple[int | None, int | None]  # with mask_vectors: that of the layer, and that to cut them to
Kind = bool | Windows  # bool: causal


def own_mask(
    given: Tensor | None, documents: Documents, query: Tensor, columns: int, causal: bool, sliding_window: int | None
) -> Mask | DeviceMask | None:
    """The mask of a call without mask_vectors."""
    causal = given is None and causal and query.shape[2] > 1
    if given is None:
        check_no_mask(query.shape[2], columns, causal, sliding_window)
    return mask_of(given, documents, query, columns, causal)


def batch_mask(
    given: Tensor | None, documents: Documents, query: Tensor, columns: int, causal: bool, windows: Windows
) -> Mask | DeviceMask | None:
    """The mask of a call with mask_vectors."""
    batch, heads, rows, _ = query.shape
    batches.check_vectors(documents[3], batch, heads, rows, columns)
    if documents[1] is not None or documents[2] is not None:
        raise ValueError("flashmask: cu_seq_lens beside mask_vectors: give one of them")
    if given is None and not causal:
        raise NotImplementedError("flashmask: mask_vectors in a layer that is not causal")
    return mask_of(given, documents, query, columns, windows)


def mask_of(given: Tensor | None, documents: Documents, query: Tensor, columns: int, kind: Kind) -> Mask | DeviceMask | None:
    """The mask of a call, made once for all layers that are called with the same tensors."""
    tensors = [t for t in (given, *documents) if t is not None]
    if not tensors or torch.compiler.is_compiling():
        return made(given, documents, query, columns, kind)
    ours = given is not None and given.dtype == torch.uint32  # made for one forward pass and never changed
    if not ours and any(t.is_inference() for t in tensors):
        return made(given, documents, query, columns, kind)  # changes of these are not counted
    states = [0 if t is given and ours else state_of(t) for t in tensors]
    others = [None if t is tensors[0] else t for t in tensors]  # an entry that held its key would stay for ever
    of = others, states, query.shape[0], query.shape[2], columns, kind, query.device
    known = _made.get(tensors[0])
    if known is None or not same(known[0], of):
        with torch.inference_mode(False):  # a later backward pass may keep it
            known = _made[tensors[0]] = of, made(given, documents, query, columns, kind)
    return known[1]


def state_of(tensor: Tensor) -> int | bytes:
    """What tells a changed tensor from the same one before: its contents on the CPU, where NumPy may have written to it, and elsewhere
    how often torch has, which it does not count for inference tensors."""
    if tensor.device.type == "cpu":
        try:
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            return hashlib.blake2b(flat.numpy(), digest_size=16).digest()
        except (RuntimeError, TypeError):
            pass  # of torch.func's transforms, and of other classes: no memory to read
    return 0 if tensor.is_inference() else tensor._version


def same(one: tuple, other: tuple) -> bool:
    tensors, others = one[0], other[0]
    return len(tensors) == len(others) and all(a is b for a, b in zip(tensors, others)) and one[1:] == other[1:]


def made(given: Tensor | None, documents: Documents, query: Tensor, columns: int, kind: Kind) -> Mask | DeviceMask | None:
    batch, _, rows, _ = query.shape
    if len(documents) == 4:
        return of_batch(given, documents, rows, kind, query.device)
    position_ids, *cu_seqlens = documents
    packed = cu_seqlens[0] is not None or cu_seqlens[1] is not None
    if given is None:
        if not packed and not kind:
            return None
        told = {} if kind else {"mask_function": masking_utils.bidirectional_mask_function, "allow_is_bidirectional_skip": False}
        given = mask(1, rows, columns, device=query.device, **told)
    if given.dim() != 4:
        raise NotImplementedError(f"flashmask: attention_mask has shape {list(given.shape)}, needs 4 dimensions")
    given = given.to(query.device)
    if given.dtype == torch.bool or given.is_floating_point():
        if packed:
            raise NotImplementedError("flashmask: cu_seq_lens beside a dense attention_mask: put the documents into the mask")
        return dense_mask(given, rows, columns)
    spans = spans_of(given, position_ids, rows, columns)
    if packed:
        spans = common(spans, document_spans(cu_seqlens, batch, rows, columns, query.device))
    return device_mask(spans, rows)


def device_mask(spans: Tensor, rows: int) -> DeviceMask:
    spans = spans.to(torch.int32, copy=True)  # a view would keep what it was made of, see mask_of
    return DeviceMask.from_intervals(spans.unflatten(3, (-1, 2)).transpose(2, 3), rows)


def of_batch(given: Tensor | None, documents: Documents, rows: int, windows: Kind, device: torch.device) -> DeviceMask:
    position_ids, vectors, (own, left) = documents[0], documents[3].to(device), windows
    if given is not None:
        given = given.to(device)
        batches.check_layer(given, with_positions, position_ids, rows, own)
    return device_mask(batches.spans(vectors, given, position_ids, left), rows)


def spans_of(given: Tensor, position_ids: Tensor | None, rows: int, columns: int) -> Tensor:
    """int32 [B or 1, Hm, Sk, 2 M] of what mask() made or a user gave."""
    if given.dtype == torch.uint32 and given.shape[2] == columns:
        numbers = given.view(torch.int32)
        return numbers[..., :-1] if given.shape[3] % 2 else with_positions(numbers, position_ids, rows)
    right = given.dtype == torch.int32 and given.shape[2] == columns and given.shape[3] in (2, 4, 6, 8)
    if not right or given.shape[3] == columns:  # of so few columns vectors look like a dense mask of numbers
        raise NotImplementedError(
            f"flashmask: attention_mask is {given.dtype} {list(given.shape)}, needs bool or floating point [B, 1, {rows}, {columns}] or "
            f"the int32 vectors of a flashmask.Mask of {rows} x {columns}, with another number of them than of columns"
        )
    return given


def common(spans: Tensor, other: tuple[Tensor, Tensor]) -> Tensor:
    """Spans [Bm, Hm, Sk, 2 M] cut to (start, end) [B, Sk] of each key."""
    start, end = (t[:, None, :, None] for t in other)
    pairs = spans.unflatten(3, (-1, 2))
    start = torch.maximum(pairs[..., 0], start)
    return torch.stack((start, torch.maximum(start, torch.minimum(pairs[..., 1], end))), -1).flatten(3)


def with_positions(given: Tensor, position_ids: Tensor | None, rows: int) -> Tensor:
    """Spans of what mask() made, cut to documents: a token whose position is not the one before + 1 starts one. Padding between
    two tokens is passed over, whether it is counted in the positions or not. Keys that were there before the rows are of the first
    document. Position ids of other shapes than [B or 1, rows] (for several axes) say nothing of documents."""
    spans, row, real = given[..., :-2], given[:, 0, :, -2], given[:, 0, :, -1]
    if position_ids is None or position_ids.dim() != 2 or position_ids.shape[1] != rows or rows == 1:
        return spans
    place = torch.arange(rows, device=given.device)[None]
    batch = max(given.shape[0], position_ids.shape[0])
    ids = position_ids.to(given).expand(batch, -1)
    own_key = (place - row[:, :1]).clamp(0, row.shape[1] - 1)
    token = real.gather(1, own_key).bool().expand(batch, -1)
    last = torch.where(token, place, -1).cummax(1).values
    before = torch.cat((last.new_full((batch, 1), -1), last[:, :-1]), 1)  # the token before, -1: none
    step = ids - ids.gather(1, before.clamp(min=0))
    starts = token & (before >= 0) & (step != 1) & (step != place - before)
    first, end = functions.spans_of_starts(starts)
    own_row = row.clamp(0, rows - 1).expand(batch, -1)
    return common(spans, (first.gather(1, own_row), end.gather(1, own_row)))


def document_spans(
    cu_seqlens: list[Tensor | None], batch: int, rows: int, columns: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(start, end) [1, Sk] of each key's document; of a key behind the last document an empty span."""
    if cu_seqlens[0] is None or cu_seqlens[1] is None:
        raise ValueError("flashmask: cu_seq_lens_q and cu_seq_lens_k need each other")
    if any(t.numel() == 0 for t in cu_seqlens):
        raise ValueError("flashmask: cu_seq_lens are empty, need at least 0 and the end of a document")
    of_rows, of_keys = (t.to(device, torch.int64) for t in cu_seqlens)
    if batch != 1 or rows != columns:
        raise ValueError(
            f"flashmask: cu_seq_lens with {batch} x {rows} queries, {columns} keys; needs one flattened row without a cache"
        )
    if of_rows.dim() != 1 or of_rows.shape != of_keys.shape:
        raise NotImplementedError("flashmask: cu_seq_lens_q and cu_seq_lens_k differ")
    right = (of_rows == of_keys).all() & (of_rows[0] == 0) & (of_rows.diff() >= 0).all() & (of_rows[-1] <= rows)
    message = "flashmask: cu_seq_lens_q and cu_seq_lens_k must be equal, from 0, ascending, inside the row"
    if torch.compiler.is_compiling() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        torch._assert_async(right, message)
    elif not right:
        raise NotImplementedError(message)
    number = torch.searchsorted(of_rows[1:].contiguous(), torch.arange(columns, device=device), right=True)
    ends = torch.cat((of_rows, of_rows.new_zeros(1)))
    return ends[number][None], ends[number + 1][None]


def dense_mask(given: Tensor, rows: int, columns: int) -> Mask:
    """Of a bool mask (True: visible) or one that is added to scores: 0 is visible, the lowest number of a dtype or less is hidden."""
    visible = given
    if given.dtype != torch.bool:
        lowest = torch.finfo(torch.float16 if given.dtype == torch.float16 else torch.bfloat16).min
        visible = given == 0
        if not (visible | (given <= lowest)).all():
            raise NotImplementedError(
                "flashmask: attention_mask has numbers other than 0 and the lowest of its dtype: biases are not offered"
            )
    try:
        visible = visible.expand(-1, -1, rows, columns)
    except RuntimeError:
        raise ValueError(f"flashmask: attention_mask has shape {list(given.shape)}, needs [B, 1, {rows}, {columns}]") from None
    return Mask.from_dense(visible.cpu())
