"""Drop-ins: PaddlePaddle's flashmask_attention for torch tensors, and the classes of the published FlashMask tutorial.

`flashmask_attention` has the names, order and meaning of paddle.nn.functional.flashmask_attention
(https://www.paddlepaddle.org.cn/documentation/docs/en/develop/api/paddle/nn/functional/flashmask_attention_en.html).
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from ._arrays import flag, heads_first, int64s, real, whole
from .attention import attention
from .device_mask import DeviceMask, checked
from .mask import Mask
from .plan import window

_BLOCK = 128  # rows and keys of one entry of block_mask


def _of_vectors(v: Tensor, causal: bool, rows: int, sizes: tuple[int, int, int, int]) -> DeviceMask:
    batch, heads, heads_kv, columns = sizes
    v = checked(v, "startend_row_indices", 4)
    if v.shape[0] not in (1, batch) or v.shape[1] not in (1, heads_kv, heads) or v.shape[2] != columns:
        raise ValueError(
            f"startend_row_indices have shape {list(v.shape)}, need [1 or {batch}, 1, {heads_kv} or {heads}, {columns}, vectors]"
        )
    return DeviceMask.from_startend_row_indices(v, causal=causal, rows=rows)


def _with_blocks(v: Tensor, causal: bool, rows: int, block_mask: Any) -> Mask:
    """The mask of both, on the host: blocks may need the bitmap fallback."""
    blocks = checked(block_mask, "block_mask", 4)
    shape = [*v.shape[:2], -(-rows // _BLOCK), -(-v.shape[2] // _BLOCK)]
    if list(blocks.shape) != shape:
        raise ValueError(f"block_mask has shape {list(blocks.shape)}, needs {shape}: blocks of {_BLOCK} rows and keys")
    mask = Mask.from_startend_row_indices(v.cpu(), causal=causal, rows=rows)
    return mask & Mask.blocks(blocks.cpu(), rows, v.shape[2], block=_BLOCK)


def _of_rows(fms: Any, fme: Any, rows: int, columns: int) -> DeviceMask:
    """The mask of first and last visible rows."""
    first, last = checked(fms, "fms"), checked(fme, "fme")
    if first.dim() == last.dim() == 2:  # [M, Sk]
        first, last = first[None, None], last[None, None]
    mask = DeviceMask.from_fms_fme(first, last, rows)
    if mask.shape[3] != columns:
        raise ValueError(f"fms has shape {list(fms.shape)}, needs {columns} keys")
    return mask


def _window(window_size: Any, rows: int, columns: int) -> tuple[int, int]:
    one = not isinstance(window_size, (tuple, list))
    left, right = (whole(window_size, "window_size"),) * 2 if one else window(window_size)
    if left < 0 or right < 0:
        raise ValueError(f"window_size is {window_size!r}, needs 0 or more; leave it out for no window")
    if rows != columns:
        raise ValueError(f"window_size with {rows} queries and {columns} keys: they must be as many; see flashmask.attention")
    return left, right


def _refuse_randomness(dropout: float, return_seed_offset: bool, fixed_seed_offset: Any, rng_name: str) -> None:
    if real(dropout, "dropout") != 0:
        raise NotImplementedError(f"dropout is {dropout}; attention here has no dropout, pass 0")
    if (
        flag(return_seed_offset, "return_seed_offset")
        or fixed_seed_offset is not None
        or not (isinstance(rng_name, str) and rng_name == "")
    ):
        raise NotImplementedError(
            "return_seed_offset, fixed_seed_offset and rng_name belong to dropout, which attention here has not"
        )


class Options(TypedDict, total=False):
    """Of flashmask_attention, but return_softmax_lse, which changes what it returns."""

    dropout: float
    causal: bool
    window_size: int | tuple[int, int] | None
    return_seed_offset: bool
    fixed_seed_offset: Tensor | None
    rng_name: str
    training: bool
    name: str | None
    softmax_scale: float | None
    block_mask: Tensor | None
    fms: Tensor | None
    fme: Tensor | None
    layout: str


@overload
def flashmask_attention(
    query: Tensor, key: Tensor, value: Tensor, startend_row_indices: Tensor | None = None, *,
    return_softmax_lse: Literal[False] = False, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def flashmask_attention(
    query: Tensor, key: Tensor, value: Tensor, startend_row_indices: Tensor | None = None, *,
    return_softmax_lse: Literal[True], **options: Unpack[Options],
) -> list[Tensor]: ...  # fmt: skip
@overload
def flashmask_attention(
    query: Tensor, key: Tensor, value: Tensor, startend_row_indices: Tensor | None = None, *,
    return_softmax_lse: bool, **options: Unpack[Options],
) -> Tensor | list[Tensor]: ...  # fmt: skip
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    window_size: int | tuple[int, int] | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    fixed_seed_offset: Tensor | None = None,
    rng_name: str = "",
    training: bool = True,
    name: str | None = None,
    softmax_scale: float | None = None,
    block_mask: Tensor | None = None,
    fms: Tensor | None = None,
    fme: Tensor | None = None,
    layout: str = "bshd",
) -> Tensor | list[Tensor]:
    """Attention as paddle.nn.functional.flashmask_attention, for torch tensors of f16, bf16 or f32 on a CPU or a GPU.

    query [B, Sq, Hq, D], key [B, Sk, Hkv, D], value [B, Sk, Hkv, Dv]; with layout="bhsd" heads stand before the sequence.
    startend_row_indices: int32 [B or 1; 1, Hkv or Hq; Sk; C], the MASKED rows of each key, half-open. With causal C = 1 (start)
        or 2 (start, end), and what lies above the bottom-right diagonal is masked too; else C = 2 (lower start, upper end) or 4
        (two intervals). Values are clamped to [0, Sq]; start >= end masks nothing.
    window_size: w or (left, right), without vectors and with Sq = Sk: row i sees keys i - left .. i + right, or .. i with causal:
        a window of w keeps w + 1 keys.
    block_mask: int32 [Bm, Hm, ceil(Sq / 128), ceil(Sk / 128)] beside startend_row_indices of the same Bm and Hm, 0 masks a block
        of 128 x 128. It is read on the host, in every call.
    fms, fme: first and last VISIBLE row of each key, both inclusive, instead of startend_row_indices: int32 [Sk], or [M, Sk],
        [Bm, Hm, Sk] or [Bm, Hm, M, Sk] with M = 1 .. 4. causal then intersects.
    softmax_scale: default 1 / sqrt(D). training and name change nothing.

    Vectors stay where they are and are read in every call; layers that use one flashmask.DeviceMask with flashmask.attention
    share what is prepared of it.

    Returns out (like query, with Dv), or the list [out, lse] with return_softmax_lse: lse f32 [B, Hq, Sq], natural log. A row
    that sees no key has output 0 and lse -inf. Both have gradients.

    NotImplementedError for dropout other than 0 and what belongs to it. ValueError for shapes that do not fit, and for vectors
    with window_size or fms; TypeError for vectors other than int32.
    """
    _refuse_randomness(dropout, return_seed_offset, fixed_seed_offset, rng_name)
    wants_lse = flag(return_softmax_lse, "return_softmax_lse")
    sizes = _sizes(query, key, layout)
    mask, flags = _mask_of((startend_row_indices, window_size, block_mask, fms, fme), flag(causal, "causal"), *sizes)
    result = attention(query, key, value, mask, softmax_scale=softmax_scale, return_lse=wants_lse, layout=layout, **flags)
    return list(result) if isinstance(result, tuple) else result


def _sizes(query: Any, key: Any, layout: str) -> tuple[int, tuple[int, int, int, int]]:
    """Sq, and (B, Hq, Hkv, Sk)."""
    s, h = (2, 1) if heads_first(layout) else (1, 2)
    for name, tensor in (("query", query), ("key", key)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, needs a torch tensor")
        if tensor.dim() != 4:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, needs 4 dimensions")
    return query.shape[s], (query.shape[0], query.shape[h], key.shape[h], key.shape[s])


def _mask_of(given: tuple, causal: bool, rows: int, sizes: tuple[int, int, int, int]) -> tuple[Any, dict[str, Any]]:
    """The mask and what else attention takes."""
    vectors, window_size, block_mask, fms, fme = given
    if (fms is None) != (fme is None):
        raise ValueError("fms and fme come together")
    if sum(x is not None for x in (vectors, window_size, fms)) > 1:
        raise ValueError("startend_row_indices, window_size, and fms with fme exclude each other")
    if block_mask is not None and vectors is None:
        raise ValueError("block_mask needs startend_row_indices")
    if vectors is not None:  # causal is part of what they mean
        mask = _of_vectors(vectors, causal, rows, sizes)
        return mask if block_mask is None else _with_blocks(vectors, causal, rows, block_mask), {}
    if window_size is not None:
        left, right = _window(window_size, rows, sizes[3])
        return None, {"causal": causal, "window_size": (left, 0 if causal else right)}
    return None if fms is None else _of_rows(fms, fme, rows, sizes[3]), {"causal": causal}


class FlashMaskRepresentation:
    """A mask of one sequence as the tutorial has it: fms and fme, the first and last VISIBLE row of each key, both inclusive.

    seq_len: rows and keys. fms, fme: integers [seq_len], or [M, seq_len] for M = 1 .. 4 intervals a key; fms > fme is empty. They
    are int32 tensors on `device` (default: where they are, else the CPU), not to be changed. ValueError where shapes do not fit.
    """

    def __init__(self, seq_len: int, fms: Any, fme: Any, device: Any = None) -> None:
        self.seq_len = whole(seq_len, "seq_len")
        self.fms, self.fme = (self._vector(name, v, device) for name, v in (("fms", fms), ("fme", fme)))
        if self.fms.dim() not in (1, 2):
            raise ValueError(f"fms has shape {list(self.fms.shape)}, needs [{self.seq_len}] or [M, {self.seq_len}]")
        self._device_mask = _of_rows(self.fms, self.fme, self.seq_len, self.seq_len)
        self._stats: dict[tuple[int, int], dict[str, float]] = {}

    @staticmethod
    def _vector(name: str, values: Any, device: Any) -> Tensor:
        try:
            tensor = torch.as_tensor(values)
        except (RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{name} is a {type(values).__name__} that torch cannot read: {error}") from None
        if tensor.numel() == 0 and not hasattr(values, "dtype"):
            tensor = tensor.to(torch.int32)  # torch takes an empty list for floats
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise TypeError(f"{name} is {tensor.dtype}, needs integers")
        if tensor.dtype == torch.uint64:
            tensor = tensor.view(torch.int64)
            tensor = torch.where(tensor < 0, 2**31 - 1, tensor)
        if tensor.dtype != torch.int32:  # a number that stands for infinity may wrap
            tensor = tensor.to(torch.int64).clamp(-1, 2**31 - 1)
        return tensor.to(device=device, dtype=torch.int32)

    @classmethod
    def from_packed_samples(cls, sample_lengths: Any, causal: bool = True, device: Any = None) -> FlashMaskRepresentation:
        """Samples one after another, each seeing itself alone, causally or both ways. sample_lengths: tokens of each, >= 0."""
        return cls._of(Mask.documents(int64s(sample_lengths, "sample_lengths"), causal=causal), device)

    @classmethod
    def from_dpo_pair(cls, prompt_len: int, chosen_len: int, rejected_len: int, device: Any = None) -> FlashMaskRepresentation:
        """[prompt | chosen | rejected]: both answers see the prompt and themselves causally, never each other."""
        given = {"prompt_len": prompt_len, "chosen_len": chosen_len, "rejected_len": rejected_len}
        return cls._of(Mask.share_question([[whole(length, name) for name, length in given.items()]]), device)

    @classmethod
    def _of(cls, mask: Mask, device: Any) -> FlashMaskRepresentation:
        fms, fme = mask.to_fms_fme()
        return cls(mask.shape[3], fms[0, 0, 0], fme[0, 0, 0], device)

    def mask(self) -> Mask:
        """The same as a flashmask.Mask, on the host."""
        shape = (1, 1, *self.fms.shape) if self.fms.dim() == 2 else (1, 1, 1, self.seq_len)
        return Mask.from_fms_fme(self.fms.cpu().reshape(shape), self.fme.cpu().reshape(shape))

    def to_dense_mask(self) -> Tensor:
        """bool [seq_len, seq_len] on the mask's device, True = visible: seq_len^2 bytes."""
        return torch.as_tensor(self.mask().dense()[0, 0], device=self.fms.device)

    def stats(self, block_r: int, block_c: int) -> dict[str, float]:
        """Tiles of block_r rows x block_c keys: total_tiles, skipped_tiles (nothing is visible), computed_tiles, skip_ratio.
        Counted on the host once for each tile shape. ValueError for extents below 1."""
        block_r, block_c = whole(block_r, "block_r"), whole(block_c, "block_c")
        if block_r < 1 or block_c < 1:
            raise ValueError(f"tiles of {block_r} x {block_c}: need extents of at least 1")
        if (block_r, block_c) not in self._stats:
            found = self.mask().stats(tile=(block_r, block_c))
            total, skipped = found.tiles, found.skipped
            self._stats[block_r, block_c] = {
                "total_tiles": total,
                "skipped_tiles": skipped,
                "computed_tiles": total - skipped,
                "skip_ratio": skipped / total if total else 0.0,
            }
        return dict(self._stats[block_r, block_c])


class FlashMaskAttention(torch.nn.Module):
    """Attention of the tutorial: module(q, k, v, mask) -> (out, stats). It has no parameters.

    dim: width of all heads together, a multiple of num_heads. block_r, block_c: rows and keys of the tiles that `stats` counts;
    the kernels choose their own, and results do not depend on these.
    """

    def __init__(self, dim: int, num_heads: int, block_r: int = 64, block_c: int = 64) -> None:
        super().__init__()
        self.dim, self.num_heads = whole(dim, "dim"), whole(num_heads, "num_heads")
        self.block_r, self.block_c = whole(block_r, "block_r"), whole(block_c, "block_c")
        if self.num_heads < 1 or self.dim < 1 or self.dim % self.num_heads:
            raise ValueError(f"dim is {dim}, needs a multiple of num_heads, {num_heads}")
        if self.block_r < 1 or self.block_c < 1:
            raise ValueError(f"block_r and block_c are {block_r} and {block_c}, need 1 or more")

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: FlashMaskRepresentation) -> tuple[Tensor, dict[str, float]]:
        """q, k, v: [batch, num_heads, seq_len, dim / num_heads]. out: like q. stats: FlashMaskRepresentation.stats of one
        head."""
        if not isinstance(mask, FlashMaskRepresentation):
            raise TypeError(f"mask is a {type(mask).__name__}, needs a FlashMaskRepresentation")
        head_dim = self.dim // self.num_heads
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name} is a {type(tensor).__name__}, needs a torch tensor")
            if tuple(tensor.shape[1:]) != (self.num_heads, mask.seq_len, head_dim) or tensor.dim() != 4:
                raise ValueError(
                    f"{name} has shape {list(tensor.shape)}, needs [batch, {self.num_heads}, {mask.seq_len}, {head_dim}]"
                )
        out = attention(q, k, v, mask._device_mask, layout="bhsd")
        return out, mask.stats(self.block_r, self.block_c)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}, block_r={self.block_r}, block_c={self.block_c}"
