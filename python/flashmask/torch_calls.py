"""Forward and backward on torch tensors through ctypes. No operators, no autograd.

Structs of a call are made once for each thread and layout of its tensors; later calls with that layout only write addresses.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Sequence, TypeVar

import torch

from . import _lib as lib
from .numpy_attention import scale_of, softcap_of
from .torch_masks import DevicePlan, Flags, address, describe, device_plan, host_mask, host_plan, stream_of, struct_of


# What of a call is not a tensor: causal, window left and right (-1: unlimited), scale (None: 1 / sqrt(D)), softcap (0: off).
Settings = tuple[bool, int, int, float | None, float]

# query [B, Sq, Hq, D], key [B, Sk, Hkv, D], value [B, Sk, Hkv, Dv], all of any strides, sinks float32 [Hq], mask and form: see
# torch_masks. Plain tuples, which are made sooner than those with names.
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, Sequence[int], Settings]


class Forward:
    """A fm_attention_forward_args for tensors of one layout, and its parts by name."""

    def __init__(self, x: Inputs, output: torch.Tensor) -> None:
        query, key, value, sinks, _, _, (causal, left, right, scale, softcap) = x
        self.args = a = lib.ForwardArgs(
            query=struct_of("query", query),
            key=struct_of("key", key),
            value=struct_of("value", value),
            output=struct_of("output", output),
            causal=causal,
            window_left=left,
            window_right=right,
            softmax_scale=scale_of(scale),
            softcap=softcap_of(softcap),
            backend=lib.BACKEND_REFERENCE if query.dtype == torch.float64 and query.is_cpu else lib.BACKEND_AUTO,
        )
        if sinks is not None:
            check_vector("sinks", sinks, query, (query.shape[2],))
        self.query, self.key, self.value, self.output = a.query, a.key, a.value, a.output
        self.pointer = ctypes.pointer(a)
        self.on_gpu = query.is_cuda
        self.workspace_bytes: int | None = None
        self.workspace: torch.Tensor | None = None  # whose address is in args, if it is one of Calls.workspaces
        self.given_back = False
        self.place: tuple | None = None

    def fill(self, x: Inputs, output: torch.Tensor, lse: torch.Tensor | None) -> object:
        """Writes the addresses. What it returns must live as long as the call."""
        a = self.args
        query, key, value, sinks, mask, form, settings = x
        self.query.data, self.key.data, self.value.data = query.data_ptr(), key.data_ptr(), value.data_ptr()
        self.output.data = output.data_ptr()
        a.lse = None if lse is None else lse.data_ptr()
        if sinks is not None:  # which the key of the layout says too, as of mask
            a.sinks = address("sinks", sinks)
        if self.on_gpu:
            a.stream = self.stream = stream_of(query.device)
        else:
            a.num_threads = lib.num_threads() or torch.get_num_threads()
        if mask is None:
            return None
        plan = self.plan_at(mask, form, settings[:3]) if self.on_gpu else host_plan(host_mask(mask, form), settings[:3])
        a.plan = plan.handle  # on the host it keeps the mask alive
        return plan

    def plan_at(self, mask: torch.Tensor, form: Sequence[int], flags: Flags) -> DevicePlan:
        """That of the call before while it is at the same place. flags: of the layout, always the same."""
        place = mask.data_ptr(), mask.numel(), mask.dtype, mask.device, tuple(form)
        if place != self.place:
            self.plan, self.place = device_plan(mask, form, flags), place
        return self.plan


class Backward:
    """A fm_attention_backward_args likewise."""

    def __init__(self, x: Inputs, output: torch.Tensor, grad_output: torch.Tensor, deterministic: bool) -> None:
        self.forward = Forward(x, output)
        self.args = a = lib.BackwardArgs(
            forward=self.forward.pointer,
            grad_output=struct_of("grad_output", grad_output),
            grad_query=struct_of("grad_query", x[0], contiguous=True),
            grad_key=struct_of("grad_key", x[1], contiguous=True),
            grad_value=struct_of("grad_value", x[2], contiguous=True),
            deterministic=deterministic,
        )
        self.grad_output = a.grad_output
        self.grads = a.grad_query, a.grad_key, a.grad_value
        self.pointer = ctypes.pointer(a)
        self.workspace_bytes: int | None = None
        self.given_back = False


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
    SMALL = 4096  # bytes of each of workspaces

    def __init__(self) -> None:
        self.known: dict[tuple, Any] = {}
        self.workspaces: dict[tuple[torch.device, int], torch.Tensor] = {}  # of forward calls, by stream

    def take(self, key: tuple, kind: type[Call], *arguments: Any) -> Call:
        """The kind(*arguments) of the key; one is made unless there is one that is given_back."""
        call = self.known.get(key)
        if call is None or not call.given_back:
            if len(self.known) >= self.MOST:
                self.known.clear()
            call = self.known[key] = kind(*arguments)
        call.given_back = False
        return call


_calls = Calls()


def layout(x: Inputs, output: torch.Tensor) -> tuple:
    """All that struct_of and check_vector look at, and what else is in Forward's struct for good. Strides of contiguous tensors
    are in their shapes, but those of single elements, which are never taken."""
    q, k, v, sinks, mask, _, settings = x
    return (
        q.shape, q.is_contiguous() or q.stride(), q.dtype, q.device, k.shape, k.is_contiguous() or k.stride(), k.dtype, k.device,
        v.shape, v.is_contiguous() or v.stride(), v.dtype, v.device, None if sinks is None else describe(sinks), mask is None,
        settings, output.dtype,
    )  # fmt: skip


def workspace_bytes(call: Forward | Backward, name: str) -> int:
    if call.workspace_bytes is None:
        size = ctypes.c_size_t()
        lib.call(name, call.pointer, size)
        call.workspace_bytes = size.value
    return call.workspace_bytes


def give_workspace(call: Forward | Backward, name: str, device: torch.device) -> torch.Tensor | None:
    """From torch's allocator, on the current stream of device. On the CPU none is needed."""
    size = workspace_bytes(call, name)
    if not size:
        return None
    workspace = torch.empty(size, dtype=torch.uint8, device=device)
    call.args.workspace, call.args.workspace_bytes = workspace.data_ptr(), size
    return workspace


def give_forward_workspace(call: Forward, device: torch.device, keeps: bool) -> torch.Tensor | None:
    """Likewise, but where keeps a small one is allocated once for each thread and stream, whose calls have it one after another: to
    allocate it takes as long as all else of a call's Python. What a graph captures runs at any time, and gets its own."""
    size = workspace_bytes(call, "fm_attention_forward_workspace")
    if not size:
        return None
    if not keeps or size > Calls.SMALL or torch.cuda.is_current_stream_capturing():
        call.workspace = None
        return give_workspace(call, "fm_attention_forward_workspace", device)
    place = device, call.stream
    workspace = _calls.workspaces.get(place)
    if workspace is None:
        workspace = _calls.workspaces[place] = torch.empty(Calls.SMALL, dtype=torch.uint8, device=device)
    if call.workspace is not workspace:
        call.workspace = workspace
        call.args.workspace, call.args.workspace_bytes = workspace.data_ptr(), size
    return workspace


def forward(x: Inputs, output: torch.Tensor, lse: torch.Tensor, keeps: bool = True) -> None:
    """Writes output [B, Sq, Hq, Dv] (dtype of query, or float32) and lse, contiguous float32 [B, Hq, Sq]. keeps: whether a
    workspace may outlive the call."""
    call = _calls.take(layout(x, output), Forward, x, output)
    alive = call.fill(x, output, lse)
    workspace = give_forward_workspace(call, output.device, keeps) if call.on_gpu else None
    status = lib.dll.fm_attention_forward(call.pointer)
    if status:
        raise lib.error("attention", status)
    call.given_back = True
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
    query = x[0]
    batch, rows, heads, _ = query.shape
    check_vector("lse", lse, query, (batch, heads, rows))
    if grad_lse is not None:
        check_vector("grad_lse", grad_lse, query, (batch, heads, rows))
    if lse.numel() == 0:  # no row gives a gradient, and torch's empty tensors have no address
        for grad in grads:
            if grad is not None:
                grad.zero_()
        return
    wanted = tuple(grad is not None for grad in grads)
    key = layout(x, output), describe(output), describe(grad_output), deterministic, wanted
    call = _calls.take(key, Backward, x, output, grad_output, deterministic)
    args, f64 = call.args, query.dtype == torch.float64
    alive = call.forward.fill(x, output, None if f64 else lse)  # with f64 tensors lse is computed again, in f64
    call.grad_output.data = grad_output.data_ptr()
    args.grad_lse = None if grad_lse is None else address("grad_lse", grad_lse)
    for struct, grad in zip(call.grads, grads):
        struct.data = None if grad is None else address("gradient", grad)
    args.grad_sinks = None if grads[3] is None else address("gradient of sinks", grads[3])
    args.stream = call.forward.args.stream
    workspace = give_workspace(call, "fm_attention_backward_workspace", query.device) if call.forward.on_gpu else None
    status = lib.dll.fm_attention_backward(call.pointer)
    if status:
        raise lib.error("attention backward", status)
    call.given_back = True
    del alive, workspace
