"""Forward and backward on torch tensors through ctypes. No operators, no autograd.

Structs of a call are made once for each thread and layout of its tensors; later calls with that layout only write addresses.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple, Sequence, TypeVar

import torch

from . import _lib as lib
from .numpy_attention import scale_of, softcap_of
from .torch_masks import describe, device_plan, host_mask, host_plan, stream_of, struct_of


class Settings(NamedTuple):
    """What of a call is not a tensor."""

    causal: bool
    window_left: int  # -1: unlimited
    window_right: int
    scale: float | None  # None: 1 / sqrt(D)
    softcap: float  # 0: off


class Inputs(NamedTuple):
    query: torch.Tensor  # [B, Sq, Hq, D], any strides, as the next two
    key: torch.Tensor  # [B, Sk, Hkv, D]
    value: torch.Tensor  # [B, Sk, Hkv, Dv]
    sinks: torch.Tensor | None  # float32 [Hq]
    mask: torch.Tensor | None  # see torch_masks
    form: Sequence[int]
    settings: Settings


class Forward:
    """A fm_attention_forward_args for tensors of one layout, and its parts by name."""

    def __init__(self, x: Inputs, output: torch.Tensor) -> None:
        self.args = a = lib.ForwardArgs(
            query=struct_of("query", x.query),
            key=struct_of("key", x.key),
            value=struct_of("value", x.value),
            output=struct_of("output", output),
            causal=x.settings.causal,
            window_left=x.settings.window_left,
            window_right=x.settings.window_right,
            softmax_scale=scale_of(x.settings.scale),
            softcap=softcap_of(x.settings.softcap),
            backend=lib.BACKEND_REFERENCE if x.query.dtype == torch.float64 and x.query.is_cpu else lib.BACKEND_AUTO,
        )
        if x.sinks is not None:
            check_vector("sinks", x.sinks, x.query, (x.query.shape[2],))
        self.query, self.key, self.value, self.output = a.query, a.key, a.value, a.output
        self.pointer = ctypes.pointer(a)
        self.on_gpu = x.query.is_cuda
        self.workspace_bytes: int | None = None

    def fill(self, x: Inputs, output: torch.Tensor, lse: torch.Tensor | None) -> object:
        """Writes the addresses. What it returns must live as long as the call."""
        a = self.args
        self.query.data, self.key.data, self.value.data = x.query.data_ptr(), x.key.data_ptr(), x.value.data_ptr()
        self.output.data = output.data_ptr()
        a.lse = None if lse is None else lse.data_ptr()
        a.sinks = None if x.sinks is None else x.sinks.data_ptr()
        if x.sinks is not None and not a.sinks and x.sinks.numel():  # NULL would mean that there are none
            raise ValueError("sinks: their memory was freed")
        a.mask = a.plan = None
        if self.on_gpu:
            a.stream = stream_of(x.query.device)
        else:
            a.num_threads = lib.num_threads() or torch.get_num_threads()
        if x.mask is None:
            return None
        flags = x.settings[:3]
        if self.on_gpu:
            on_gpu = device_plan(x.mask, x.form, flags)
            a.plan = on_gpu.handle
            return on_gpu
        plan = host_plan(host_mask(x.mask, x.form), flags)
        a.plan = plan.handle  # it keeps the mask alive
        return plan


class Backward:
    """A fm_attention_backward_args likewise."""

    def __init__(self, x: Inputs, output: torch.Tensor, grad_output: torch.Tensor, deterministic: bool) -> None:
        self.forward = Forward(x, output)
        self.args = a = lib.BackwardArgs(
            forward=self.forward.pointer,
            grad_output=struct_of("grad_output", grad_output),
            grad_query=struct_of("grad_query", x.query, contiguous=True),
            grad_key=struct_of("grad_key", x.key, contiguous=True),
            grad_value=struct_of("grad_value", x.value, contiguous=True),
            deterministic=deterministic,
        )
        self.grad_output = a.grad_output
        self.grads = a.grad_query, a.grad_key, a.grad_value
        self.pointer = ctypes.pointer(a)
        self.workspace_bytes: int | None = None


def check_vector(name: str, tensor: torch.Tensor, query: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Of tensors of which the library gets the address alone."""
    if tensor.dtype != torch.float32:
        raise TypeError(f"{name}: dtype is {tensor.dtype}, needs float32")
    if tensor.shape != shape or not tensor.is_contiguous():
        strides = "" if tensor.is_contiguous() else f" and strides {list(tensor.stride())}"
        raise ValueError(f"{name}: shape is {list(tensor.shape)}{strides}, needs {list(shape)}, contiguous")
    if tensor.device != query.device:
        raise RuntimeError(f"{name}: is on {tensor.device}, query is on {query.device}")


Call = TypeVar("Call", Forward, Backward)


class Calls(threading.local):
    """The structs of a thread, by layout. A call writes addresses into its own: threads do not share them, and while a call has
    them a second one in its thread, of a signal's handler or a finalizer, makes others."""

    MOST = 512

    def __init__(self) -> None:
        self.known: dict[tuple, Any] = {}

    def take(self, key: tuple, kind: type[Call], *arguments: Any) -> Call:
        """The kind(*arguments) that was given back with the key; without one, one is made."""
        call = self.known.pop(key, None)
        return kind(*arguments) if call is None else call

    def give(self, key: tuple, call: Any) -> None:
        if len(self.known) >= self.MOST:
            self.known.clear()
        self.known[key] = call


_calls = Calls()


def layout(x: Inputs) -> tuple:
    sinks = None if x.sinks is None else describe(x.sinks)
    return describe(x.query), describe(x.key), describe(x.value), sinks, x.mask is None, x.settings


def give_workspace(call: Forward | Backward, name: str, device: torch.device) -> torch.Tensor | None:
    """From torch's allocator, on the current stream of device. On the CPU none is needed."""
    if call.workspace_bytes is None:
        size = ctypes.c_size_t()
        lib.call(name, call.pointer, size)
        call.workspace_bytes = size.value
    if not call.workspace_bytes:
        return None
    workspace = torch.empty(call.workspace_bytes, dtype=torch.uint8, device=device)
    call.args.workspace, call.args.workspace_bytes = workspace.data_ptr(), call.workspace_bytes
    return workspace


def forward(x: Inputs, output: torch.Tensor, lse: torch.Tensor) -> None:
    """Writes output [B, Sq, Hq, Dv] (dtype of query, or float32) and lse, contiguous float32 [B, Hq, Sq]."""
    key = layout(x), output.dtype
    call = _calls.take(key, Forward, x, output)
    alive = call.fill(x, output, lse)
    workspace = give_workspace(call, "fm_attention_forward_workspace", x.query.device) if call.on_gpu else None
    status = lib.dll.fm_attention_forward(call.pointer)
    if status:
        raise lib.error("attention", status)
    _calls.give(key, call)
    del alive, workspace


def backward(
    x: Inputs,
    output: torch.Tensor,
    lse: torch.Tensor,
    grad_output: torch.Tensor,
    grad_lse: torch.Tensor | None,
    grads: Sequence[torch.Tensor | None],
    deterministic: bool,
) -> None:
    """Writes those of grads (of query, key, value, sinks; contiguous) that are not None."""
    batch, rows, heads, _ = x.query.shape
    check_vector("lse", lse, x.query, (batch, heads, rows))
    if grad_lse is not None:
        check_vector("grad_lse", grad_lse, x.query, (batch, heads, rows))
    if lse.numel() == 0:  # no row gives a gradient, and torch's empty tensors have no address
        for grad in grads:
            if grad is not None:
                grad.zero_()
        return
    wanted = tuple(grad is not None for grad in grads)
    key = layout(x), describe(output), describe(grad_output), deterministic, wanted
    call = _calls.take(key, Backward, x, output, grad_output, deterministic)
    args, f64 = call.args, x.query.dtype == torch.float64
    alive = call.forward.fill(x, output, None if f64 else lse)  # with f64 tensors lse is computed again, in f64
    call.grad_output.data = grad_output.data_ptr()
    args.grad_lse = None if grad_lse is None else grad_lse.data_ptr()
    for struct, grad in zip(call.grads, grads):
        struct.data = None if grad is None else grad.data_ptr()
    args.grad_sinks = None if grads[3] is None else grads[3].data_ptr()
    args.stream = call.forward.args.stream
    workspace = give_workspace(call, "fm_attention_backward_workspace", x.query.device) if call.forward.on_gpu else None
    status = lib.dll.fm_attention_backward(call.pointer)
    if status:
        raise lib.error("attention backward", status)
    _calls.give(key, call)
    del alive, workspace
