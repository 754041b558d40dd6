"""What a mask is: the handle it owns, its shape and sizes."""

from __future__ import annotations

import ctypes
from typing import Any, Self

import numpy as np

from . import _lib as lib
from ._tokens import token_of


class Properties(lib.Owner):
    """Owns an fm_mask."""

    _free = staticmethod(lib.dll.fm_mask_free)
    _plans: dict  # host plans of causal and window flags
    _device_plans: dict  # torch tensors on GPUs, of device, stream and flags
    _token: np.ndarray  # see _tokens
    _form: tuple[int, ...]  # see torch_masks

    @classmethod
    def _own(cls, handle: int) -> Self:
        mask = cls.__new__(cls)
        mask._handle, mask._plans = handle, {}
        mask._token, mask._device_plans = token_of(mask), {}
        blocks = -(-mask.fallback_bytes // 2048)  # room for the bitmaps in a plan on a GPU
        mask._form = *mask.shape, max(1, mask.interval_count), blocks  # plain numbers, which torch.compile can read
        return mask

    @classmethod
    def _make(cls, name: str, *arguments: Any) -> Self:
        """What a constructor of the library writes through its last argument."""
        return cls._own(lib.create(name, *arguments))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, rows, columns) of the mask itself: batch and heads are 1 where all share it."""
        s = lib.dll.fm_mask_get_shape(self.handle)
        return s.batch, s.heads, s.rows, s.columns

    @property
    def has_fallback(self) -> bool:
        """True if some keys are stored as bitmaps: such a mask has no interval vectors."""
        return lib.dll.fm_mask_has_fallback(self.handle)

    @property
    def interval_count(self) -> int:
        """Intervals of the widest key that is not stored as a bitmap, 0 .. 4."""
        return lib.dll.fm_mask_interval_count(self.handle)

    @property
    def nbytes(self) -> int:
        """Bytes of the intervals and of the bitmaps."""
        return lib.dll.fm_mask_bytes(self.handle)

    @property
    def fallback_bytes(self) -> int:
        """Bytes of the bitmaps alone; 0 without a fallback."""
        return lib.dll.fm_mask_fallback_bytes(self.handle)

    @property
    def visible_pairs(self) -> int:
        """Visible (row, key) pairs over the mask's batch items and heads."""
        pairs = ctypes.c_int64()
        lib.call("fm_mask_visible_pairs", self.handle, pairs)
        return pairs.value
