"""Masks from and to the forms that other code has, as methods of Mask. All are O(input), on the host, and checked."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Self

import numpy as np

from . import _lib as lib
from ._arrays import address, booleans, flag, integers, pair, whole
from ._builders import extents, options
from ._properties import Properties

DENSE_LIMIT = 2**32  # bytes


class Conversions(Properties):
    """What comes in may be a NumPy array, nested lists or a CPU tensor; what goes out is NumPy. NotImplementedError names the
    first key or row that a form cannot hold."""

    # ---- conversions into a mask ----

    @classmethod
    def from_intervals(cls, intervals: Any, rows: int | None = None) -> Self:
        """intervals: integers [Bm, Hm, M, Sk, 2], visible half-open row intervals (start, end), M 0 .. 4 in any order. rows None:
        as many as keys. ValueError where start > end or outside [0, rows]."""
        v = integers(intervals, "intervals", 5)
        if v.shape[4] != 2:
            raise ValueError(f"intervals have shape {list(v.shape)}, need 2 numbers (start, end) in the last dimension")
        columns = v.shape[3]
        shape = lib.MaskShape(v.shape[0], v.shape[1], *extents(columns if rows is None else rows, columns))
        return cls._make("fm_mask_from_intervals", shape, v.shape[2], address(v))

    @classmethod
    def from_startend_row_indices(cls, startend_row_indices: Any, *, causal: bool, rows: int | None = None) -> Self:
        """Paddle's vectors of MASKED rows, integers [Bm, Hm, Sk, C]: with causal C = 1 (start) or 2 (start, end), else C = 2
        (lower start, upper end) or 4 (two intervals). Values are clamped to [0, rows]; rows None: as many as keys."""
        v = integers(startend_row_indices, "startend_row_indices", 4)
        columns = v.shape[2]
        shape = lib.MaskShape(v.shape[0], v.shape[1], *extents(columns if rows is None else rows, columns))
        return cls._make("fm_mask_from_startend_row_indices", shape, v.shape[3], flag(causal, "causal"), address(v))

    @classmethod
    def from_fms_fme(cls, fms: Any, fme: Any, rows: int | None = None) -> Self:
        """First and last VISIBLE row of each key, both inclusive: integers [Sk], [Bm, Hm, Sk] or, with 1 .. 4 intervals a key,
        [Bm, Hm, intervals, Sk]. Values are intersected with [0, rows - 1]; fms > fme is empty."""
        first, last = integers(fms, "fms"), integers(fme, "fme")
        pair(first, last, "fms and fme")
        if first.ndim not in (1, 3, 4):
            raise ValueError(f"fms has shape {list(first.shape)}, needs [Sk], [Bm, Hm, Sk] or [Bm, Hm, intervals, Sk]")
        columns = first.shape[-1]
        batch, heads = first.shape[:2] if first.ndim > 1 else (1, 1)
        count = first.shape[2] if first.ndim == 4 else 1
        shape = lib.MaskShape(batch, heads, *extents(columns if rows is None else rows, columns))
        return cls._make("fm_mask_from_fms_fme", shape, count, address(first), address(last))

    @classmethod
    def from_row_ranges(cls, start: Any, end: Any, columns: int | None = None, *, fallback_limit: int | None = None) -> Self:
        """Visible half-open key ranges of each row: integers [Bm, Hm, ranges, Sq], in any order. columns None: as rows."""
        first, last = integers(start, "start", 4), integers(end, "end", 4)
        pair(first, last, "start and end")
        shape = lib.MaskShape(first.shape[0], first.shape[1], *extents(first.shape[3], columns))
        arrays = address(first), address(last)
        return cls._make("fm_mask_from_row_ranges", shape, first.shape[2], *arrays, options(fallback_limit))

    @classmethod
    def from_cu_seqlens(
        cls, cu_q: Any, cu_k: Any = None, *, causal: bool, rows: int | None = None, columns: int | None = None
    ) -> Self:
        """Packed documents by cumulative lengths [documents + 1], which start at 0; cu_k None: cu_q. causal is bottom-right
        inside each document. rows, columns: tokens with padding, which sees nothing; None: the last entries."""
        q = integers(cu_q, "cu_q", 1)
        k = q if cu_k is None else integers(cu_k, "cu_k", 1)
        pair(q, k, "cu_q and cu_k")
        if not len(q):
            raise ValueError("cu_q is empty, needs documents + 1 entries, the first of them 0")
        rows = int(q[-1]) if rows is None else whole(rows, "rows")
        columns = int(k[-1]) if columns is None else whole(columns, "columns")
        arrays = address(q), address(k)
        return cls._make("fm_mask_from_cu_seqlens", *arrays, len(q) - 1, flag(causal, "causal"), rows, columns)

    @classmethod
    def from_document_ids(cls, ids: Any, *, causal: bool, padding_id: int | None = -1, fallback_limit: int | None = None) -> Self:
        """Document of each token: integers [batch, length] or [length]. Equal ids are one document wherever they stand. Tokens
        with padding_id see nothing and are seen by nobody; None: there is no padding."""
        v, padding = tokens(ids, "ids"), -1
        if padding_id is not None:
            padding = whole(padding_id, "padding_id")
            if padding < 0:  # the library has no negative ones: take a document number that is free
                free = int(v.max(initial=-1)) + 1
                v, padding = integers(np.where(v == padding, free, v.astype(np.int64)), "ids"), free
        size = *v.shape, address(v)
        return cls._make("fm_mask_from_document_ids", *size, padding, flag(causal, "causal"), options(fallback_limit))

    @classmethod
    def from_position_ids(cls, ids: Any, *, causal: bool, padding: bool = False) -> Self:
        """Position of each token, integers [batch, length] or [length]: a value that is not its predecessor + 1 starts a
        document. With padding, two or more equal ids at either end are padding."""
        v = tokens(ids, "ids")
        size = *v.shape, address(v)
        return cls._make("fm_mask_from_position_ids", *size, flag(causal, "causal"), flag(padding, "padding"))

    @classmethod
    def from_dense(cls, visible: Any, *, fallback_limit: int | None = None) -> Self:
        """A matrix of bool or integers, [Sq, Sk] or [Bm, Hm, Sq, Sk]: nonzero = visible. TypeError for floats."""
        bits = booleans(visible, "visible")
        if bits.ndim not in (2, 4):
            raise ValueError(f"visible has shape {list(bits.shape)}, needs [rows, columns] or [batch, heads, rows, columns]")
        shape = lib.MaskShape(*((1,) * (4 - bits.ndim) + bits.shape))
        return cls._make("fm_mask_from_dense", shape, address(bits), options(fallback_limit))

    # ---- conversions out of a mask ----

    def intervals(self, count: int | None = None) -> np.ndarray:
        """int32 [Bm, Hm, M, Sk, 2]: visible half-open row intervals of each key, ascending; unused: (rows, rows). M is count, or
        as many as the mask needs, at least 1. NotImplementedError if a key needs more (see has_fallback)."""
        batch, heads, _, columns = self.shape
        count = max(1, self.interval_count) if count is None else whole(count, "count")
        if count < 0:
            raise ValueError(f"count is {count}, needs 0 or more")
        v = np.empty((batch, heads, count, columns, 2), np.int32)
        lib.call("fm_mask_to_intervals", self.handle, count, address(v), v.size // 2)
        return v

    def to_startend_row_indices(self, vectors: int, *, causal: bool) -> np.ndarray:
        """Paddle's vectors of masked rows, int32 [Bm, Hm, Sk, vectors]; see from_startend_row_indices."""
        batch, heads, _, columns = self.shape
        count = whole(vectors, "vectors")
        v = np.empty((batch, heads, columns, positive(count, "vectors")), np.int32)
        lib.call("fm_mask_to_startend_row_indices", self.handle, count, flag(causal, "causal"), address(v), v.size)
        return v

    def to_fms_fme(self, intervals: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """First and last visible row, inclusive: two int32 [Bm, Hm, intervals, Sk]; an unused interval is (rows, rows - 1)."""
        batch, heads, _, columns = self.shape
        count = whole(intervals, "intervals")
        first = np.empty((batch, heads, positive(count, "intervals"), columns), np.int32)
        last = np.empty_like(first)
        lib.call("fm_mask_to_fms_fme", self.handle, count, address(first), address(last), first.size)
        return first, last

    def to_row_ranges(self, ranges: int) -> tuple[np.ndarray, np.ndarray]:
        """Visible half-open key ranges of each row: two int32 [Bm, Hm, ranges, Sq]; an unused range is (columns, columns)."""
        batch, heads, rows, _ = self.shape
        count = whole(ranges, "ranges")
        start = np.empty((batch, heads, positive(count, "ranges"), rows), np.int32)
        end = np.empty_like(start)
        lib.call("fm_mask_to_row_ranges", self.handle, count, address(start), address(end), start.size)
        return start, end

    def to_cu_seqlens(self, *, causal: bool) -> tuple[np.ndarray, np.ndarray]:
        """Cumulative lengths of a mask of packed documents (batch 1, heads 1): cu_q and cu_k, int32 [documents + 1]."""
        capacity = max(self.shape[2:]) + 2
        cu_q, cu_k, documents = np.empty(capacity, np.int32), np.empty(capacity, np.int32), ctypes.c_int64()
        arrays = address(cu_q), address(cu_k)
        lib.call("fm_mask_to_cu_seqlens", self.handle, flag(causal, "causal"), *arrays, capacity, documents)
        return cu_q[: documents.value + 1].copy(), cu_k[: documents.value + 1].copy()

    def dense(self) -> np.ndarray:
        """bool [Bm, Hm, Sq, Sk], True = visible. MemoryError above 4 GiB."""
        needed = math.prod(self.shape)
        if needed > DENSE_LIMIT:
            raise MemoryError(f"a dense mask of shape {list(self.shape)} takes {needed} bytes, the limit is {DENSE_LIMIT}")
        visible = np.empty(self.shape, np.uint8)
        lib.call("fm_mask_to_dense", self.handle, address(visible), visible.size)
        return visible.view(np.bool_)


def fixed_count(intervals: Any) -> int:
    """Of intervals a key that attention takes."""
    count = whole(intervals, "intervals")
    if not 1 <= count <= lib.MAX_INTERVALS:
        raise ValueError(f"intervals is {count}, needs 1 .. {lib.MAX_INTERVALS}")
    return count


def vectors_of(mask: Conversions, intervals: int | None) -> np.ndarray:
    """int32 [Bm, Hm, Sk, 2 M]: visible half-open row intervals (start, end) of each key. M: intervals, None: what the mask needs."""
    pairs = mask.intervals(None if intervals is None else fixed_count(intervals))
    batch, heads, count, columns, _ = pairs.shape
    return np.ascontiguousarray(pairs.transpose(0, 1, 3, 2, 4)).reshape(batch, heads, columns, 2 * count)


def positive(count: int, name: str) -> int:
    """An extent for an array; the library names what else is wrong with it."""
    if not 0 <= count < 2**31:
        raise ValueError(f"{name} is {count}, needs 0 or more")
    return count


def tokens(ids: Any, name: str) -> np.ndarray:
    """int32 [batch, length] of [batch, length] or [length]."""
    v = integers(ids, name)
    if v.ndim not in (1, 2):
        raise ValueError(f"{name} has shape {list(v.shape)}, needs [batch, length] or [length]")
    return v if v.ndim == 2 else v[None]
