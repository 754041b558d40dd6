"""DeviceMask: interval vectors in a tensor, on any device, for masks that are made where they are used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _lib as lib
from ._arrays import flag, torch_device, whole


class DeviceMask:
    """A mask as an int32 tensor of vectors [Bm, Hm, Sk, C], which stays where it is: nothing waits for a GPU.

    Make one by from_startend_row_indices, from_fms_fme or from_intervals. rows: query rows, None: as many as keys. Values are
    read when attention runs; those of a GPU cannot be checked then: bounds outside the rows are clamped, start >= end is empty.
    vectors may be changed in place between steps by torch's own operations, and replays of a CUDA graph read them again. A change
    that torch does not count (through .data or NumPy, by torch.distributed's broadcast, all_reduce, scatter or recv, by a kernel of
    one's own or one that a graph replays) may be missed by later calls: torch.autograd.graph.increment_version(vectors) tells it.
    """

    _plans: tuple[Tensor, dict[tuple, Any]] | None = None  # torch_attention.plans_of

    def __init__(self, vectors: Tensor, rows: int | None, format: int, causal: bool) -> None:
        self.vectors, self.rows = checked(vectors, "vectors", 4), rows_of(vectors, rows)
        if isinstance(format, bool) or format not in (lib.VECTORS_STARTEND, lib.VECTORS_FMS_FME, lib.VECTORS_INTERVALS):
            raise ValueError(f"format is {format!r}; see the class methods, which know it")
        self.format, self.causal = format, flag(causal, "causal")

    def __getstate__(self) -> Any:
        """Without plans: copies have vectors of their own. A pair where a subclass has slots."""
        state: Any = super().__getstate__()
        members, *slots = state if isinstance(state, tuple) else (state,)
        members = {name: value for name, value in members.items() if name != "_plans"}
        return (members, *slots) if slots else members

    @classmethod
    def from_startend_row_indices(cls, startend_row_indices: Tensor, *, causal: bool, rows: int | None = None) -> DeviceMask:
        """Paddle's vectors of MASKED rows, int32 [Bm, Hm, Sk, C]: with causal C = 1 or 2, else C = 2 or 4. Not copied."""
        v = checked(startend_row_indices, "startend_row_indices", 4)
        causal = flag(causal, "causal")
        if v.shape[3] not in ((1, 2) if causal else (2, 4)):
            needed = "1 or 2 with causal" if causal else "2 or 4 without causal"
            raise ValueError(f"startend_row_indices have shape {list(v.shape)}, need a last dimension of {needed}")
        return cls(v, rows, lib.VECTORS_STARTEND, causal)

    @classmethod
    def from_fms_fme(cls, fms: Tensor, fme: Tensor, rows: int | None = None) -> DeviceMask:
        """First and last VISIBLE row of each key, both inclusive: int32 [Sk], [Bm, Hm, Sk] or [Bm, Hm, intervals, Sk]. Copied."""
        first, last = checked(fms, "fms"), checked(fme, "fme")
        if first.shape != last.shape or first.dim() not in (1, 3, 4):
            shapes = f"{list(first.shape)} and {list(last.shape)}"
            raise ValueError(f"fms and fme have shapes {shapes}, need one of [Sk], [Bm, Hm, Sk], [Bm, Hm, intervals, Sk]")
        v = torch.stack((first, last), dim=-1)
        if v.dim() < 5:
            v = v[None, None, None] if v.dim() == 2 else v[:, :, None]
        v = in_pairs(v)
        return cls(v, rows, lib.VECTORS_FMS_FME, False)

    @classmethod
    def from_intervals(cls, intervals: Tensor, rows: int | None = None) -> DeviceMask:
        """VISIBLE half-open row intervals (start, end): int32 [Bm, Hm, M, Sk, 2], M 1 .. 4 in any order. Copied where M > 1."""
        v = checked(intervals, "intervals", 5)
        if v.shape[4] != 2:
            raise ValueError(f"intervals have shape {list(v.shape)}, need 2 numbers (start, end) in the last dimension")
        v = in_pairs(v)
        return cls(v, rows, lib.VECTORS_INTERVALS, False)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, rows, columns) of the mask itself: batch and heads are 1 where all share it."""
        batch, heads, columns, _ = self.vectors.shape
        return batch, heads, self.rows, columns

    @property
    def device(self) -> torch.device:
        return self.vectors.device

    def to(self, device: Any, non_blocking: bool = False) -> DeviceMask:
        """The mask on another device; itself if it is there. non_blocking: as of torch, so to the CPU the caller synchronises."""
        moved = self.vectors.to(device=torch_device(device), non_blocking=non_blocking)
        return self if moved is self.vectors else DeviceMask(moved, self.rows, self.format, self.causal)

    def pin_memory(self) -> DeviceMask:
        """In pinned memory, from which copies to a GPU need not wait: what DataLoader(pin_memory=True) calls."""
        return DeviceMask(self.vectors.pin_memory(), self.rows, self.format, self.causal)

    def __repr__(self) -> str:
        form = ("startend_row_indices", "fms, fme", "intervals")[self.format]
        causal = ", causal" if self.causal else ""
        return f"DeviceMask({form}{causal}, shape {list(self.shape)}, {self.vectors.shape[3]} numbers a key, on {self.device})"


def checked(vectors: Tensor, name: str, rank: int | None = None) -> Tensor:
    if not isinstance(vectors, Tensor):
        raise TypeError(f"{name} is a {type(vectors).__name__}, needs a torch tensor (flashmask.Mask takes arrays)")
    if vectors.dtype != torch.int32:
        raise TypeError(f"{name} has dtype {vectors.dtype}, needs torch.int32")
    if vectors.layout is not torch.strided or vectors.is_nested:
        raise TypeError(f"{name} is of layout {vectors.layout}, needs a dense tensor (layout torch.strided)")
    if rank is not None and vectors.dim() != rank:
        raise ValueError(f"{name} has shape {list(vectors.shape)}, needs {rank} dimensions")
    return vectors


def rows_of(vectors: Tensor, rows: Any) -> Any:
    """Query rows, as many as keys where None. Symbolic numbers pass, and plain ones without a call that torch.compile cannot
    trace."""
    if rows is None:
        return vectors.shape[2]
    if not isinstance(rows, (int, torch.SymInt)) or isinstance(rows, bool):
        rows = whole(rows, "rows")
    if not 0 <= rows < 2**31:
        raise ValueError(f"rows is {rows}, needs 0 .. 2^31 - 1")
    return rows


def in_pairs(intervals: Tensor) -> Tensor:
    """[Bm, Hm, Sk, 2 M] of [Bm, Hm, M, Sk, 2]; a view where M is 1."""
    batch, heads, count, columns, _ = intervals.shape
    if not 1 <= count <= lib.MAX_INTERVALS:
        raise ValueError(f"intervals: {count} a key, needs 1 .. {lib.MAX_INTERVALS}")
    return intervals.permute(0, 1, 3, 2, 4).reshape(batch, heads, columns, 2 * count)
