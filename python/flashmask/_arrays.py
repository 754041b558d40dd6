"""Arrays of numbers that callers pass: NumPy arrays, nested lists, CPU tensors of any framework that NumPy can read."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

Integers: TypeAlias = "Sequence[int] | np.ndarray | torch.Tensor"

LIMITS: dict[Any, tuple[int, int]] = {np.int32: (-(2**31), 2**31 - 1), np.int64: (-(2**63), 2**63 - 1)}


def on_host(values: Any, name: str) -> np.ndarray:
    """values as a NumPy array, without a copy where it can be."""
    device = getattr(values, "device", None)
    kind = getattr(device, "type", "cpu")
    if kind != "cpu":
        raise ValueError(f"{name} is on {device}; masks are built from host memory: pass {name}.cpu()")
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost; pass {name}.filled(..)")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} is a {type(values).__name__} that NumPy cannot read: {error}") from None
    return array


def integers(values: Any, name: str, rank: int | None = None, dtype: type = np.int32) -> np.ndarray:
    """values as a C-contiguous array of int32 or int64. TypeError unless they are integers, ValueError where one does not fit or
    the number of dimensions is another."""
    array = on_host(values, name)
    if array.size == 0 and array.dtype == np.float64 and not hasattr(values, "dtype"):
        array = array.astype(dtype)  # NumPy takes an empty list for floats
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}, needs integers")
    check_rank(array, name, rank)
    if array.dtype.itemsize > np.dtype(dtype).itemsize or array.dtype.kind == "u":
        low, high = LIMITS[dtype]
        if array.size and (int(array.min()) < low or int(array.max()) > high):
            raise ValueError(f"{name} has values {array.min()} .. {array.max()}, needs {low} .. {high}")
    return array.astype(dtype, order="C", copy=False)


def fitting(values: Any, name: str, rank: int, dtype: Any) -> np.ndarray:
    """values as an array of dtype. TypeError where that is another kind of number, ValueError where one does not fit."""
    array = on_host(values, name)
    check_rank(array, name, rank)
    both_integers = array.dtype.kind in "iub" and np.dtype(dtype).kind in "iu"
    if array.size and not both_integers and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(f"{name} has dtype {array.dtype}, needs what fits into {np.dtype(dtype)}")
    with np.errstate(over="ignore"):
        fitted = array.astype(dtype, copy=False)
    if fitted.dtype.kind in "iu" and (fitted != array).any():
        raise ValueError(f"{name} has values that do not fit into {fitted.dtype}")
    return fitted


def booleans(values: Any, name: str, rank: int | None = None) -> np.ndarray:
    """values as C-contiguous uint8, nonzero = True. TypeError for floats: an additive mask has 0 where a Boolean one has True."""
    array = on_host(values, name)
    if array.dtype.kind not in "biu":
        raise TypeError(f"{name} has dtype {array.dtype}, needs bool or integers (an additive mask: pass `additive == 0`)")
    check_rank(array, name, rank)
    one_byte = array if array.dtype.itemsize == 1 else array != 0
    return one_byte.astype(one_byte.dtype, order="C", copy=False).view(np.uint8)


def check_rank(array: np.ndarray, name: str, rank: int | None) -> None:
    if rank is not None and array.ndim != rank:
        raise ValueError(f"{name} has shape {list(array.shape)}, needs {rank} dimension{'s' if rank != 1 else ''}")


def int64s(values: Any, name: str) -> np.ndarray:
    """A list of lengths or offsets: int64, one dimension."""
    return integers(values, name, 1, np.int64)


def pair(first: np.ndarray, second: np.ndarray, names: str) -> None:
    if first.shape != second.shape:
        raise ValueError(f"{names} have shapes {list(first.shape)} and {list(second.shape)}, which must be equal")


def address(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data


def is_bool(value: Any) -> bool:
    """Of Python, NumPy or torch: Python takes them for 0 and 1."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")


def whole(value: Any, name: str) -> int:
    """One integer that the library can take: TypeError for anything else, bool included."""
    try:
        number = None if is_bool(value) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} is {value!r}, needs an integer")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} is {number}, needs -2^63 .. 2^63 - 1")
    return number


def real(value: Any, name: str) -> float:
    """One number: TypeError for anything else, bool included, and for a tensor whose gradient would be lost."""
    if getattr(value, "requires_grad", False):
        raise TypeError(f"{name} is a tensor that requires a gradient, and attention has none for it; pass a number")
    if is_bool(value) or isinstance(value, np.complexfloating) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is {value!r}, needs a number")
    try:
        return float(value)
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:  # of integers beyond float64, arrays of several numbers
        raise ValueError(f"{name} is no number of float64: {error}") from None


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a {type(value).__name__}, needs a mapping from names")
    if odd := [key for key in value if not isinstance(key, str)]:
        raise TypeError(f"{name} has the name {odd[0]!r}, needs strings")
    return value


def torch_device(device: Any, name: str = "device") -> Any:
    """What torch takes for one: a torch.device, its name, or the number of a GPU. TypeError for the rest."""
    import torch

    if isinstance(device, bool) or not isinstance(device, (torch.device, str, int)):
        raise TypeError(f"{name} is {device!r}, needs a torch.device, a name such as 'cpu' or 'cuda:0', or the number of a GPU")
    return device


def listed(values: Any, name: str) -> list[Any]:
    """values one by one: TypeError for what has none, text included."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes)) or getattr(values, "ndim", 1) == 0:
        raise TypeError(f"{name} is a {type(values).__name__}, needs a sequence")
    return list(values)


def heads_first(layout: Any) -> bool:
    """What a layout says: False for "bshd", True for "bhsd". ValueError for others."""
    if not isinstance(layout, str) or layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout is {layout!r}, needs 'bshd' (batch, sequence, heads, head_dim) or 'bhsd'")
    return layout == "bhsd"


def flag(value: Any, name: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}, needs True or False")
    return bool(value)
