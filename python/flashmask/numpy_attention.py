"""Attention on NumPy arrays, forward and backward, on the CPU."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from . import _lib as lib
from ._arrays import address, flag, heads_first, on_host, real
from .mask import Mask, checked
from .plan import window

DTYPES = {"float32": lib.F32, "float16": lib.F16, "bfloat16": lib.BF16, "float64": lib.F64}
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class Gradients(NamedTuple):
    """Of a loss by query, key and value, in their shapes, dtype and layout, and by sinks, f32 [Hq] (None without sinks)."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    sinks: np.ndarray | None


def as_bshd(array: np.ndarray, layout: str) -> np.ndarray:
    """A view [batch, sequence, heads, head_dim]; the same call turns it back."""
    return array.swapaxes(1, 2) if layout == "bhsd" else array


def readable(array: Any, name: str, layout: str) -> np.ndarray:
    """[B, S, H, D] view of an input; a copy where a stride is negative, or an address or stride is no multiple of an element."""
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a {type(array).__name__}, needs a NumPy array")
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        accepted = "float32, float16, ml_dtypes.bfloat16 or float64 (slow, by the reference backend)"
        raise TypeError(f"{name} has dtype {array.dtype}, needs {accepted}")
    if array.ndim != 4:
        raise ValueError(f"{name} has shape {list(array.shape)}, needs 4 dimensions in layout {layout}")
    size = array.dtype.itemsize
    if any(stride < 0 or stride % size for stride in array.strides) or array.ctypes.data % size:
        array = array.copy()
    return as_bshd(array, layout)


def tensor(array: np.ndarray) -> lib.Tensor:
    """An fm_tensor over a [B, S, H, D] array, which the caller keeps alive."""
    shape = (ctypes.c_int64 * 4)(*array.shape)
    strides = (ctypes.c_int64 * 4)(*(stride // array.itemsize for stride in array.strides))
    return lib.Tensor(array.ctypes.data, DTYPES[array.dtype.name], lib.Device(lib.CPU, 0), 4, shape, strides)


def vector(values: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Contiguous f32 of one shape, from an array of floats."""
    array = on_host(values, name)
    if array.dtype.kind != "f":
        raise TypeError(f"{name} has dtype {array.dtype}, needs floats")
    if array.shape != shape:
        raise ValueError(f"{name} has shape {list(array.shape)}, needs {list(shape)}")
    return np.ascontiguousarray(array, np.float32)


def scale_of(softmax_scale: float | None) -> float:
    """NaN stands for the default; a NaN of the caller's is an error, like any other that is not finite."""
    if softmax_scale is None:
        return math.nan
    scale = real(softmax_scale, "softmax_scale")
    if not math.isfinite(scale):
        raise ValueError(f"softmax_scale is {scale}, needs a finite number or None for 1 / sqrt(head_dim)")
    return scale


def softcap_of(softcap: float) -> float:
    """ValueError also for what the library's float32 would make infinite, or 0, which turns it off."""
    cap = real(softcap, "softcap")
    if cap != 0 and not SMALLEST <= cap <= LARGEST:
        raise ValueError(f"softcap is {cap}, needs 0 (off) or a number from {SMALLEST:.2g} to {LARGEST:.2g}")
    return cap


class NumpyAttention:
    """Attention of NumPy arrays, computed when it is made; keeps its inputs (not copies) for backward.

    query [B, Sq, Hq, D], key [B, Sk, Hkv, D], value [B, Sk, Hkv, Dv] for layout "bshd"; sequence and heads swapped for "bhsd".
    Any strides; Hq is a multiple of Hkv. One dtype of float32, float16, ml_dtypes' bfloat16 and float64 (slow: the reference
    backend). mask: a Mask [1 or B; 1, Hkv or Hq; Sq; Sk], None: all visible. causal and window_size (left, right; -1: unlimited):
    intersected with it, aligned bottom-right. softmax_scale None: 1 / sqrt(D). softcap > 0: scores become softcap * tanh(score /
    softcap). sinks f32 [Hq]: one more logit a head in the denominator, or None.

    output: like query with head_dim Dv. lse: f32 [B, Hq, Sq], natural logarithm of the sum of exp(score), without the sink. A row
    that sees no key has output 0 and lse -inf. ValueError, TypeError, NotImplementedError say what does not fit.
    """

    def __init__(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        mask: Mask | None = None,
        *,
        causal: bool = False,
        softmax_scale: float | None = None,
        softcap: float = 0.0,
        sinks: Any = None,
        window_size: tuple[int, int] = (-1, -1),
        layout: str = "bshd",
    ) -> None:
        heads_first(layout)  # or an error
        self.layout = layout
        q, k, v = (readable(array, name, layout) for array, name in ((query, "query"), (key, "key"), (value, "value")))
        self._inputs = q, k, v
        self._plan = None if mask is None else checked(mask, "mask").plan(causal=causal, window_size=window_size)
        self._sinks = None if sinks is None else vector(sinks, "sinks", (q.shape[2],))
        output = empty_like(query, (*q.shape[:3], v.shape[3]), layout)
        self._lse = np.empty((q.shape[0], q.shape[2], q.shape[1]), np.float32)
        args = self._args = lib.ForwardArgs(query=tensor(q), key=tensor(k), value=tensor(v), output=tensor(output))
        args.plan = self._plan and self._plan.handle
        args.causal = flag(causal, "causal")
        args.window_left, args.window_right = window(window_size)
        args.softmax_scale, args.softcap = scale_of(softmax_scale), softcap_of(softcap)
        args.sinks, args.lse = address(self._sinks), address(self._lse)
        args.backend = lib.BACKEND_REFERENCE if q.dtype == np.float64 else lib.BACKEND_AUTO
        args.num_threads = lib.num_threads()
        lib.call("fm_attention_forward", self._args)
        if q.dtype == np.float64:
            self._args.lse = None  # f32 is too coarse for backward, which computes its own
        self._output = as_bshd(output, layout)

    @property
    def output(self) -> np.ndarray:
        """Like query with head_dim Dv."""
        return self._output

    @property
    def lse(self) -> np.ndarray:
        """f32 [B, Hq, Sq]."""
        return self._lse

    def backward(self, grad_output: np.ndarray, grad_lse: Any = None) -> Gradients:
        """Gradients of a loss whose gradient by output is grad_output (shape and dtype of output) and by lse grad_lse (f32
        [B, Hq, Sq]; None: 0). The inputs must hold what they held in forward."""
        given = readable(grad_output, "grad_output", self.layout)
        lse = None if grad_lse is None else vector(grad_lse, "grad_lse", self.lse.shape)
        grads = [empty_like(array, array.shape, "bshd") for array in self._inputs]
        sinks = None if self._sinks is None else np.empty_like(self._sinks)
        self._args.num_threads = lib.num_threads()
        args = lib.BackwardArgs(
            forward=ctypes.pointer(self._args),
            grad_output=tensor(given),
            grad_lse=address(lse),
            grad_query=tensor(grads[0]),
            grad_key=tensor(grads[1]),
            grad_value=tensor(grads[2]),
            grad_sinks=address(sinks),
        )
        lib.call("fm_attention_backward", args)
        query, key, value = (as_bshd(grad, self.layout) for grad in grads)
        return Gradients(query, key, value, sinks)


def empty_like(array: np.ndarray, shape: tuple[int, ...], layout: str) -> np.ndarray:
    """A new [B, S, H, D] array of `shape` that lies in memory as `layout` says."""
    if layout == "bshd":
        return np.empty(shape, array.dtype)
    batch, rows, heads, dim = shape
    return np.empty((batch, heads, rows, dim), array.dtype).swapaxes(1, 2)


@overload
def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: Mask | None = None, *, return_lse: Literal[False] = False,
    **options: Any,
) -> np.ndarray: ...  # fmt: skip
@overload
def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: Mask | None = None, *, return_lse: Literal[True], **options: Any
) -> tuple[np.ndarray, np.ndarray]: ...  # fmt: skip
@overload
def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: Mask | None = None, *, return_lse: bool, **options: Any
) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...  # fmt: skip
def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: Mask | None = None, *, return_lse: bool = False, **options: Any
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """The output of NumpyAttention, or (output, lse) with return_lse; arguments are described there."""
    wants_lse = flag(return_lse, "return_lse")
    result = NumpyAttention(query, key, value, mask, **options)
    return (result.output, result.lse) if wants_lse else result.output
