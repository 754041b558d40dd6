"""Numbers that name masks where only tensors can go: through torch's operators and compiled graphs."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ._properties import Properties

_numbers = itertools.count(1)  # never reused: a number names one mask or none
_masks: weakref.WeakValueDictionary[int, Properties] = weakref.WeakValueDictionary()


def token_of(mask: Properties) -> np.ndarray:
    """A new number for mask, int64 [], which does not keep it alive."""
    number = next(_numbers)
    _masks[number] = mask
    return np.array(number)


def mask_of(number: int) -> Any:
    """The mask of a token; RuntimeError once it is freed, or in another process than its own and forks of that."""
    mask = _masks.get(number)
    if mask is None:
        raise RuntimeError(f"mask: token {number} names no mask; keep the Mask until its last use, the backward pass included")
    return mask
