"""Masks from FlexAttention predicates, evaluated on every pair: exact, in memory that does not grow with rows x columns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _lib as lib
from ._arrays import on_host, whole

if TYPE_CHECKING:
    from .mask import Mask

BLOCK_ROWS = 16384  # x 128 keys: 2^21 pairs at a time


class Indices:
    """What the predicate gets: NumPy arrays or torch tensors of int64, b and h scalar, q_idx [n, 1], kv_idx [1, m]."""

    def __init__(self, kind: str | None, device: Any) -> None:
        if kind is None:
            kind = "torch" if "torch" in sys.modules or device is not None else "numpy"
        if not isinstance(kind, str) or kind not in ("numpy", "torch"):
            raise ValueError(f"indices is {kind!r}, needs 'numpy' or 'torch'")
        if kind == "numpy" and device is not None:
            raise ValueError(f"device is {device}, which only torch indices can be on")
        self.kind, self.device = kind, device

    def scalar(self, value: int) -> Any:
        return self.range(value, value + 1, ())

    def range(self, first: int, end: int, shape: tuple[int, ...]) -> Any:
        if self.kind == "numpy":
            return np.arange(first, end, dtype=np.int64).reshape(shape)[()]
        import torch

        return torch.arange(first, end, dtype=torch.int64, device=self.device).reshape(shape)


def verdict(result: Any, shape: tuple[int, int]) -> np.ndarray:
    """What the predicate said, bool of any shape that broadcasts to `shape`."""
    wanted = f"{list(shape)} or what broadcasts to it"
    if not isinstance(result, np.ndarray) and hasattr(result, "detach"):  # as arrays have it too that torch.compile sees
        result = result.detach().cpu()
    try:
        array = on_host(result, "what the predicate returned")
    except TypeError as error:
        raise TypeError(f"{error}; needs bool of shape {wanted}") from None
    if array.dtype != np.bool_:
        raise TypeError(f"the predicate returned {array.dtype}, needs bool of shape {wanted}")
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"the predicate returned shape {list(array.shape)}, needs {wanted}") from None


def stripe(fn: Callable, indices: Indices, b: int, h: int, rows: int, first: int, end: int) -> np.ndarray:
    """uint8 [rows, keys first .. end - 1]."""
    visible = np.empty((rows, end - first), np.uint8)
    for row in range(0, rows, BLOCK_ROWS):
        last = min(rows, row + BLOCK_ROWS)
        keys = indices.range(first, end, (1, -1))  # all anew, for the predicate may change them in place
        seen = fn(indices.scalar(b), indices.scalar(h), indices.range(row, last, (-1, 1)), keys)
        visible[row:last] = verdict(seen, (last - row, end - first))
    return visible


def runs_of_rows(visible: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Key ranges of each row, int32 [ranges, rows] each, of a stripe whose first key is `first`."""
    rows = visible.shape[0]
    edges = np.diff(visible.astype(np.int8), axis=1, prepend=0, append=0)
    ranges = int((edges == 1).sum(axis=1).max(initial=0))
    start = np.full((ranges, rows), first, np.int32)
    end = np.full((ranges, rows), first, np.int32)
    for target, sign in ((start, 1), (end, -1)):
        row, key = np.nonzero(edges == sign)
        number = np.arange(len(row)) - np.searchsorted(row, row)  # which range of its row
        target[number, row] = key + first
    return start, end


class Joined:
    """The union of masks as they come, each joined with one of about its own size: n masks of one stripe cost log n passes."""

    def __init__(self, fallback_limit: int | None) -> None:
        self.parts: list[tuple[int, Mask]] = []
        self.fallback_limit = fallback_limit

    def add(self, mask: Mask) -> None:
        size = 1
        while self.parts and self.parts[-1][0] <= size:
            count, other = self.parts.pop()
            size, mask = size + count, other.union(mask, fallback_limit=self.fallback_limit)
        self.parts.append((size, mask))

    def result(self) -> Mask:
        _, mask = self.parts.pop()
        while self.parts:
            mask = self.parts.pop()[1].union(mask, fallback_limit=self.fallback_limit)
        return mask


def one_head(
    make: type[Mask], fn: Callable, indices: Indices, b: int, h: int, shape: tuple[int, int], fallback_limit: int | None
) -> Mask:
    rows, columns = shape
    intervals = np.full((lib.MAX_INTERVALS, columns, 2), rows, np.int32)
    bitmaps = Joined(fallback_limit)
    for first in range(0, columns, lib.STRIPE):
        end = min(columns, first + lib.STRIPE)
        visible = stripe(fn, indices, b, h, rows, first, end)
        part = make.from_dense(visible, fallback_limit=fallback_limit)
        if not part.has_fallback:
            intervals[:, first:end] = part.intervals(lib.MAX_INTERVALS)[0, 0]
            continue
        start, stop = runs_of_rows(visible, first)
        bitmaps.add(make.from_row_ranges(start[None, None], stop[None, None], columns, fallback_limit=fallback_limit))
    whole_mask = make.from_intervals(intervals[None, None], rows)
    if bitmaps.parts:
        bitmaps.add(whole_mask)
        whole_mask = bitmaps.result()
    return whole_mask


def from_mask_mod(
    make: type[Mask],
    fn: Callable,
    shape: tuple[int, int, int, int],
    verify_limit: int,
    indices: Indices,
    fallback_limit: int | None,
) -> Mask:
    """See Mask.from_mask_mod. shape: batch, heads, rows, columns."""
    if not callable(fn):
        raise TypeError(f"fn is a {type(fn).__name__}, needs a function of (b, h, q_idx, kv_idx)")
    batch, heads, rows, columns = shape
    if batch < 1 or heads < 1 or min(rows, columns) < 0:
        raise ValueError(
            f"shape is {batch} x {heads} x {rows} x {columns}, needs batch and heads of 1 or more, no negative sizes"
        )
    if batch * heads >= 2**31:
        raise MemoryError(f"{batch} x {heads} masks are more than 2^31 - 1")
    if rows * columns > whole(verify_limit, "verify_limit") ** 2:
        raise ValueError(
            f"{rows} x {columns} pairs are more than {verify_limit} x {verify_limit}; every pair is evaluated: raise "
            "verify_limit for as long as that takes, or build the mask from documents, windows or intervals"
        )
    items = []
    for b in range(batch):
        parts = [one_head(make, fn, indices, b, h, (rows, columns), fallback_limit) for h in range(heads)]
        items.append(make.stack_heads(parts))
    return make.stack_batch(items)
