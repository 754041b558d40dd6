"""Mask: which query rows may see which keys, stored as a few row intervals per key."""

from __future__ import annotations

import ctypes
import math
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _lib as lib
from . import _picture
from ._arrays import flag, listed, torch_device, whole
from ._builders import Builders, extents, options
from ._conversions import Conversions, vectors_of
from ._mask_mod import Indices, from_mask_mod
from .plan import Plan, Stats, window

if TYPE_CHECKING:
    import torch

    from .device_mask import DeviceMask

PICKLE_LIMIT = 2**30  # pairs of a mask with bitmaps


class Mask(Builders, Conversions):
    """An immutable attention mask of shape [batch or 1, heads or 1, rows, columns]: rows are queries, columns are keys.

    Stored: for each key up to 4 half-open intervals of visible rows, 8 bytes each. Where a key needs more, the 128 keys around it
    are stored as bitmaps (has_fallback). Nothing is approximated. Masks may be shared by threads and forked processes.
    Build one by a class method: named masks (Mask.causal, Mask.documents, ..), a conversion (Mask.from_cu_seqlens, ..) or a
    predicate (Mask.from_mask_mod). fallback_limit, where a method has it: the most bytes that the bitmaps may take (None: 1 GiB);
    MemoryError beyond.
    """

    def __init__(self) -> None:
        raise TypeError("Mask has no constructor; use a class method such as Mask.causal or Mask.from_dense")

    # ---- comparison ----

    def equal(self, other: Mask) -> bool:
        """True if both have the same shape and the same visible pairs."""
        return lib.dll.fm_mask_equal(self.handle, checked(other, "other").handle)

    def __eq__(self, other: object) -> bool:
        return self.equal(other) if isinstance(other, Mask) else NotImplemented

    def __hash__(self) -> int:
        """Equal for equal masks, in every process and on every machine."""
        return hash(lib.dll.fm_mask_hash(self.handle))

    def vectors(self, device: Any = None, *, intervals: int | None = None) -> torch.Tensor:
        """A torch tensor int32 [Bm, Hm, Sk, 2 M] of visible intervals (start, end) of rows, on `device`. Needs torch. M: intervals,
        1 .. 4, None: as many as the mask needs. NotImplementedError where it needs more, or with a fallback."""
        import torch

        return torch.from_numpy(vectors_of(self, intervals)).to(device="cpu" if device is None else torch_device(device))

    def to(self, device: Any, non_blocking: bool = False, *, intervals: int | None = None) -> DeviceMask:
        """Its vectors on a torch device, as a DeviceMask: what many calls there, or a CUDA graph, should take. intervals: of each
        key, so that masks have one shape; see vectors. NotImplementedError with a fallback."""
        from .device_mask import DeviceMask

        torch_device(device)
        vectors = self.vectors(intervals=intervals)
        return DeviceMask(vectors, self.shape[2], lib.VECTORS_INTERVALS, False).to(device, non_blocking)

    # ---- predicates ----

    @classmethod
    def from_mask_mod(
        cls,
        fn: Callable[[Any, Any, Any, Any], Any],
        rows: int,
        columns: int | None = None,
        *,
        batch: int = 1,
        heads: int = 1,
        verify_limit: int = 32768,
        indices: str | None = None,
        device: Any = None,
        fallback_limit: int | None = None,
    ) -> Mask:
        """From a FlexAttention mask_mod fn(b, h, q_idx, kv_idx) -> bool, True = visible, evaluated on every pair: never a guess.

        fn gets index arrays, b and h without dimensions, q_idx [n, 1], kv_idx [1, m], and returns bool that broadcasts to [n, m].
        indices: "torch" (the default where torch is imported; on `device`) or "numpy". Memory: some arrays of 16384 x 128
        numbers. ValueError above verify_limit x verify_limit pairs; TypeError if fn does not return bool.
        """
        shape = (whole(batch, "batch"), whole(heads, "heads"), *extents(rows, columns))
        return from_mask_mod(cls, fn, shape, verify_limit, Indices(indices, device), fallback_limit)

    # ---- algebra: new masks ----

    def intersection(self, other: Mask, *, fallback_limit: int | None = None) -> Mask:
        """Pairs visible in both. Extents must agree, but batch and heads of 1 broadcast."""
        return self._make("fm_mask_and", self.handle, checked(other, "other").handle, options(fallback_limit))

    def union(self, other: Mask, *, fallback_limit: int | None = None) -> Mask:
        """Pairs visible in either."""
        return self._make("fm_mask_or", self.handle, checked(other, "other").handle, options(fallback_limit))

    def __and__(self, other: Mask) -> Mask:
        return self.intersection(other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return self.union(other) if isinstance(other, Mask) else NotImplemented

    def shift(self, rows: int = 0, columns: int = 0, *, fallback_limit: int | None = None) -> Mask:
        """Same shape, moved down by rows and right by columns; what nothing moved into sees nothing."""
        by = whole(rows, "rows"), whole(columns, "columns")
        return self._make("fm_mask_shift", self.handle, *by, options(fallback_limit))

    def slice(
        self, rows: tuple[int, int] | None = None, columns: tuple[int, int] | None = None, *, fallback_limit: int | None = None
    ) -> Mask:
        """Rows [rows[0], rows[1]) and columns [columns[0], columns[1]); None: all of them."""
        _, _, all_rows, all_columns = self.shape
        ends = *_bounds(rows, all_rows, "rows"), *_bounds(columns, all_columns, "columns")
        return self._make("fm_mask_slice", self.handle, *ends, options(fallback_limit))

    def slice_batch(self, first: int, end: int) -> Mask:
        """Batch items [first, end), at least one."""
        return self._make("fm_mask_slice_batch", self.handle, whole(first, "first"), whole(end, "end"))

    def repeat_heads(self, heads: int) -> Mask:
        """Head h of the result is head h / (heads / Hm) of this one; heads is a multiple of Hm."""
        return self._make("fm_mask_repeat_heads", self.handle, whole(heads, "heads"))

    @classmethod
    def stack_heads(cls, masks: Sequence[Mask]) -> Mask:
        """Heads side by side: a mask for each head."""
        return cls._stack("fm_mask_stack_heads", masks)

    @classmethod
    def stack_batch(cls, masks: Sequence[Mask]) -> Mask:
        """Batch items one after another."""
        return cls._stack("fm_mask_stack_batch", masks)

    @classmethod
    def _stack(cls, name: str, masks: Sequence[Mask]) -> Mask:
        items = [checked(mask, f"masks[{k}]") for k, mask in enumerate(listed(masks, "masks"))]
        handles = (ctypes.c_void_p * max(1, len(items)))(*(mask.handle for mask in items))
        return cls._make(name, handles, len(items))

    # ---- plans ----

    def plan(self, *, causal: bool = False, window_size: tuple[int, int] = (-1, -1)) -> Plan:
        """The host plan that attention on the CPU takes, with causal and window (left, right) intersected. Kept with the mask:
        the same arguments give the same plan."""
        key = flag(causal, "causal"), *window(window_size)
        plans = self.__dict__.setdefault("_plans", {})
        plan = plans.get(key)
        if plan is None:
            plan = plans.setdefault(key, Plan(self, causal=causal, window_size=window_size))
        return plan

    def stats(self, tile: int | tuple[int, int] = 128, *, causal: bool = False, window_size: tuple[int, int] = (-1, -1)) -> Stats:
        """Counts of full, partial and skipped tiles of `tile` x `tile`, or (rows, keys), and sizes in bytes."""
        return Plan(self, causal=causal, window_size=window_size, tile=tile).stats

    # ---- pictures ----

    def picture(self, batch: int = 0, head: int = 0, size: int = 64) -> str:
        """At most size x size characters, each a tile: x all pairs visible, + some, . none."""
        most = whole(size, "size")
        if most < 1:
            raise ValueError(f"size is {most}, needs 1 or more")
        return _picture.text(self, batch, head, most)

    def svg(self, batch: int = 0, head: int = 0) -> str:
        """The same as an SVG image: dark where all pairs of a tile are visible, light where some are."""
        return _picture.svg(self, batch, head)

    def plot(self, axes: Any = None, *, batch: int = 0, head: int = 0) -> Any:
        """Draws on matplotlib's axes (None: new ones) and returns them. ImportError without matplotlib."""
        return _picture.plot(self, axes, batch, head)

    def _summary(self) -> str:
        batch, heads, rows, columns = self.shape
        pairs, total = self.visible_pairs, batch * heads * rows * columns
        share = f" ({100 * pairs / total:.3g}%)" if total else ""
        count = self.interval_count
        intervals = f"{count} interval{'' if count == 1 else 's'} a key"
        kind = f"bitmaps of {self.fallback_bytes} bytes" if self.has_fallback else intervals
        return f"Mask {batch} x {heads} x {rows} x {columns}: {pairs} pairs visible{share}, {kind}, {self.nbytes} bytes"

    def __repr__(self) -> str:
        if "_handle" not in self.__dict__:
            return "Mask that was never built"
        batch, heads, rows, columns = self.shape
        if not rows or not columns:
            return self._summary()
        tile = _picture.tile_of(self, 16)
        of = " of batch item 0, head 0" if batch * heads > 1 else ""
        legend = f"a character is {tile} x {tile} pairs{of}: x visible{', + partly' if tile > 1 else ''}, . hidden"
        return f"{self._summary()}\n{legend}\n{self.picture(size=16)}"

    def _repr_html_(self) -> str:
        return f"<div>{self._summary()}<br>{self.svg()}</div>"

    # ---- copies ----

    def __reduce__(self) -> tuple:
        """By intervals; with a fallback by bits, PicklingError above 2^30 pairs."""
        rows = self.shape[2]
        if not self.has_fallback:
            return Mask.from_intervals, (self.intervals(), rows)
        pairs = math.prod(self.shape)
        if pairs > PICKLE_LIMIT:
            raise pickle.PicklingError(
                f"a mask with bitmaps and {pairs} pairs is pickled by bits, the limit is {PICKLE_LIMIT}; build it anew instead"
            )
        return unpacked, (np.packbits(self.dense()), self.shape, self.fallback_bytes)


for _base in (Builders, Conversions):  # a call that lacks an argument is told as one of Mask
    for _name, _method in vars(_base).items():
        if isinstance(_method, classmethod):
            _method.__func__.__qualname__ = f"Mask.{_name}"


def unpacked(bits: np.ndarray, shape: tuple[int, ...], fallback_bytes: int) -> Mask:
    """A mask from what __reduce__ gives for one with a fallback."""
    dense = np.unpackbits(bits, count=math.prod(shape)).reshape(shape)
    return Mask.from_dense(dense, fallback_limit=max(2**30, 2 * fallback_bytes))


def _bounds(given: Any, count: int, name: str) -> tuple[int, int]:
    """(first, end); None: all `count`."""
    if given is None:
        return 0, count
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ValueError(f"{name} is {given!r}, needs (first, end)")
    return whole(given[0], f"{name}[0]"), whole(given[1], f"{name}[1]")


def checked(mask: Any, name: str) -> Mask:
    if not isinstance(mask, Mask):
        hint = "; see Mask.from_dense" if hasattr(mask, "ndim") else ""
        raise TypeError(f"{name} is a {type(mask).__name__}, needs a flashmask.Mask{hint}")
    return mask
