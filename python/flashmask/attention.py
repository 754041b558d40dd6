"""flashmask.attention, for torch tensors and NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

import numpy as np

from ._arrays import flag, heads_first
from .plan import window

if TYPE_CHECKING:
    import torch

    from .device_mask import DeviceMask
    from .mask import Mask

UNLIMITED = -1, -1

Array = TypeVar("Array", np.ndarray, "torch.Tensor")


class Options(TypedDict, total=False):
    """Of attention, but return_lse, which changes what it returns."""

    causal: bool
    softmax_scale: float | None
    softcap: float
    sinks: Any
    window_size: tuple[int, int]
    deterministic: bool
    layout: str


@overload
def attention(
    query: Array, key: Array, value: Array, mask: Mask | DeviceMask | None = None, *, return_lse: Literal[False] = False,
    **options: Unpack[Options],
) -> Array: ...  # fmt: skip
@overload
def attention(
    query: Array, key: Array, value: Array, mask: Mask | DeviceMask | None = None, *, return_lse: Literal[True],
    **options: Unpack[Options],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def attention(
    query: Array, key: Array, value: Array, mask: Mask | DeviceMask | None = None, *, return_lse: bool,
    **options: Unpack[Options],
) -> Array | tuple[Array, Array]: ...  # fmt: skip
def attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sinks: Any = None,
    window_size: tuple[int, int] = UNLIMITED,
    deterministic: bool = False,
    return_lse: bool = False,
    layout: str = "bshd",
) -> Any:
    """softmax(softmax_scale * Q K^T, masked) V, exact, in memory linear in the length.

    query [B, Sq, Hq, D], key [B, Sk, Hkv, D], value [B, Sk, Hkv, Dv] with layout "bshd"; [B, Hq, Sq, D] and so on with "bhsd".
    Tensors [B, H, S, D] without layout="bhsd" and without a mask are attended over heads, silently: no shape tells them apart.
    Any strides, nothing is copied. Hq is a multiple of Hkv. D and Dv: 1 .. 256, on a GPU multiples of 8. dtype: float32, float16,
    bfloat16, on the CPU also float64 (slow, for checks). Under torch.autocast inputs that are not float64 get its dtype.

    mask: a Mask or DeviceMask of batch 1 or B, heads 1, Hkv or Hq, Sq rows and Sk columns; None: everything is visible.
    causal, window_size (left, right): intersected with the mask. With i' = i + Sk - Sq, row i sees keys up to i' with causal, and
      keys i' - left .. i' + right with a window; -1 is unlimited.
    softmax_scale: None is 1 / sqrt(D). softcap > 0: scores become softcap * tanh(score / softcap), before the mask. Both, and
      1 / sqrt(D), are rounded to float32, with float64 tensors too: by at most 6e-8 of themselves, scores s by 6e-8 |s| each time.
    sinks [Hq]: one more logit for each query head in the denominator of softmax. deterministic: the same bits of gradients on
      every run on a GPU, slower; always so on the CPU, and with torch.use_deterministic_algorithms.

    Returns output [B, Sq, Hq, Dv], "bhsd": [B, Hq, Sq, Dv]; with return_lse also lse, float32 [B, Hq, Sq]: the natural logarithm of
    the sum of exp(score) over visible keys, without the sink. Rows that see no key have output 0 and lse -inf. Gradients flow to
    query, key, value and sinks, also from lse; gradients of gradients and derivatives forward in time (jvp) are not implemented.
    torch.func.vmap maps over query, key and value, with a mask of batch 1.

    On a GPU the call runs on the current stream and waits for nothing, but when it first sees a Mask, which it uploads. Layers
    that share a mask object share what is prepared of it. Inside a CUDA graph use a DeviceMask, or a Mask that attention has seen
    before on that GPU with the same causal and window_size, and keep it as long as the graph.

    Errors: ValueError (shapes, sizes, values), TypeError (dtypes, kinds of argument), NotImplementedError (not in this build),
    MemoryError (limits), RuntimeError (devices, CUDA).
    """
    if deterministic is not False:
        deterministic = flag(deterministic, "deterministic")
    if return_lse is not False:
        return_lse = flag(return_lse, "return_lse")
    if isinstance(query, np.ndarray):
        from . import numpy_attention

        more = {"causal": causal, "softmax_scale": softmax_scale, "softcap": softcap, "sinks": sinks}
        more.update(window_size=window_size, return_lse=return_lse, layout=layout)
        return numpy_attention.attention(query, key, value, mask, **more)
    try:
        from . import torch_attention
    except ModuleNotFoundError:  # then there are no tensors either
        raise TypeError(
            f"query is a {type(query).__name__}, needs a NumPy array, or a tensor of torch, which is not here"
        ) from None
    flags = (causal, -1, -1) if window_size is UNLIMITED and type(causal) is bool else checked_flags(causal, window_size)
    transposed = heads_first(layout)
    return torch_attention.attention(
        query, key, value, mask, flags, softmax_scale, softcap, sinks, deterministic, return_lse, transposed
    )


def checked_flags(causal: Any, window_size: Any) -> tuple[bool, int, int]:
    """(causal, left, right). Plain values pass without the calls, which torch.compile of torch 2.4 cannot trace."""
    if isinstance(causal, bool) and isinstance(window_size, tuple) and len(window_size) == 2:
        left, right = window_size
        if plain(left) and plain(right):
            return causal, left, right
    return flag(causal, "causal"), *window(window_size)


def plain(side: Any) -> bool:
    """Whether it is an integer that the operators take as it is."""
    return isinstance(side, int) and not isinstance(side, bool) and -1 <= side < 2**63
