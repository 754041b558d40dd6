"""Host plans: which tiles of the score matrix are skipped, full or partial, exactly."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _lib as lib
from ._arrays import flag, whole

if TYPE_CHECKING:
    from .mask import Mask


@dataclass(frozen=True)
class Stats:
    """What a plan holds. Pairs are (row, key) over all batch items and heads of the mask; sizes are bytes."""

    tiles: int
    full: int
    partial: int
    skipped: int
    visible_pairs: int
    mask_bytes: int
    plan_bytes: int
    dense_bytes: int  # of a one-byte dense mask of the same shape
    block_m: int
    block_n: int
    density: float  # visible pairs / all pairs
    tile_efficiency: float  # visible pairs / pairs of the tiles that are not skipped
    build_seconds: float


def window(size: Any) -> tuple[int, int]:
    """(left, right), both inclusive; -1: unlimited. TypeError for what is no pair of integers, ValueError for more or fewer of them and
    below -1."""
    if not isinstance(size, (tuple, list)):
        raise TypeError(f"window_size is {size!r}, needs (left, right)")
    if len(size) != 2:
        raise ValueError(f"window_size is {size!r}, needs two integers (left, right)")
    left, right = whole(size[0], "window_size[0]"), whole(size[1], "window_size[1]")
    if left < -1 or right < -1:
        raise ValueError(f"window_size is {size!r}, needs 0 or more, or -1 for no limit")
    return left, right


def blocks(tile: Any) -> tuple[int, int]:
    """Rows and keys of a tile, from one number or two; 0: the backend's own."""
    both = tuple(tile) if isinstance(tile, (tuple, list)) else (tile, tile)
    if len(both) != 2:
        raise ValueError(f"tile is {tile!r}, needs a number or (rows, keys)")
    sizes = whole(both[0], "tile"), whole(both[1], "tile")
    if not all(0 <= size <= 2**20 for size in sizes):
        raise ValueError(f"tile is {tile!r}, needs 1 .. 2^20, or 0 for the backend's own")
    return sizes


class Plan(lib.Owner):
    """A mask with its tiles classified once, for every layer, forward and backward. Immutable; keeps the mask's memory alive."""

    _free = staticmethod(lib.dll.fm_plan_free)

    def __init__(self, mask: Mask, *, causal: bool = False, window_size: Any = (-1, -1), tile: Any = 0) -> None:
        """causal and window_size intersect with the mask, bottom-right. Attention takes only the backend's own tiles (0)."""
        (left, right), (block_m, block_n) = window(window_size), blocks(tile)
        options = lib.PlanOptions(
            causal=flag(causal, "causal"), window_left=left, window_right=right, block_m=block_m, block_n=block_n
        )
        super().__init__(lib.create("fm_plan_create", mask.handle, options))

    @property
    def stats(self) -> Stats:
        raw = lib.PlanStats()
        lib.call("fm_plan_get_stats", self.handle, raw)
        return Stats(**{name: getattr(raw, name) for name in Stats.__dataclass_fields__})

    def row_runs(self, tile_row: int, batch: int = 0, head: int = 0) -> np.ndarray:
        """int32 [runs, 3]: (first tile, tiles, class) along one row of tiles; class 1 partial, 2 full; others are skipped."""
        return self._runs("fm_plan_row_runs", batch, head, tile_row)

    def column_runs(self, tile_column: int, batch: int = 0, head: int = 0) -> np.ndarray:
        """The same along one column of tiles."""
        return self._runs("fm_plan_column_runs", batch, head, tile_column)

    def _runs(self, name: str, *where: int) -> np.ndarray:
        runs, count = ctypes.POINTER(lib.TileRun)(), ctypes.c_int64()
        lib.call(name, self.handle, *(whole(value, "tile, batch or head") for value in where), runs, count)
        return copied(runs, count.value, 3)

    def order(self) -> np.ndarray:
        """int32 [rows of tiles, 3]: (batch, head, tile row), those with most visible tiles first."""
        work, count = ctypes.POINTER(lib.Work)(), ctypes.c_int64()
        lib.call("fm_plan_order", self.handle, work, count)
        return copied(work, count.value, 3)

    def classes(self, batch: int = 0, head: int = 0) -> np.ndarray:
        """uint8 [rows of tiles, columns of tiles]: 0 skipped, 1 partial, 2 full."""
        order = self.order()
        tile_rows = int(order[:, 2].max(initial=-1)) + 1
        stats = self.stats
        grid = np.zeros((tile_rows, stats.tiles // max(1, len(order))), np.uint8)
        for i in range(tile_rows):
            for first, count, kind in self.row_runs(i, batch, head):
                grid[i, first : first + count] = kind
        return grid


def copied(pointer: Any, count: int, width: int) -> np.ndarray:
    """int32 [count, width] from an array of structs that belongs to the library."""
    if count == 0:
        return np.empty((0, width), np.int32)
    numbers = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int32))
    return np.ctypeslib.as_array(numbers, (count, width)).copy()
