"""Masks and plans of torch tensors, as handles of the library. No operators, no autograd.

A mask is None or a tensor, and `form` says what kind of tensor:
  vectors  int32 [Bm, Hm, Sk, C] on the CPU          form: rows, fm_vector_format, causal (of what STARTEND vectors mean)
  token    int64 [] on the CPU, which names a Mask   form: nothing
  plan     uint8 [bytes] on a GPU                    form: Bm, Hm, rows, columns, intervals, fallback blocks
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Sequence

import numpy as np
import torch

from . import _lib as lib
from ._tokens import mask_of
from .mask import Mask
from .plan import Plan

Flags = tuple[bool, int, int]  # causal, window left, window right (-1: unlimited): what a plan has inside

DTYPES = {torch.float32: lib.F32, torch.float16: lib.F16, torch.bfloat16: lib.BF16, torch.float64: lib.F64}


class DevicePlan(lib.Owner):
    _free = staticmethod(lib.dll.fm_plan_free)


# ---- structs ----


def device_of(tensor: torch.Tensor) -> lib.Device:
    return lib.Device(lib.CUDA, tensor.device.index) if tensor.is_cuda else lib.Device(lib.CPU, 0)


def address(name: str, tensor: torch.Tensor) -> int:
    """NULL would mean that it is left out, or be read as what it is not."""
    where = tensor.data_ptr()
    if not where and tensor.numel():
        raise ValueError(f"{name}: the memory was freed")
    return where


def struct_of(name: str, tensor: torch.Tensor, contiguous: bool = False) -> lib.Tensor:
    """An fm_tensor of the tensor, or of a contiguous one like it, without an address."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise TypeError(f"{name}: dtype is {tensor.dtype}, needs float32, float16, bfloat16 or, on the CPU, float64")
    if tensor.dim() != 4:
        raise ValueError(f"{name}: has {tensor.dim()} dimensions, needs 4: [batch, sequence, heads, head_dim]")
    _, n1, n2, n3 = shape = tensor.shape
    stride = (n1 * n2 * n3, n2 * n3, n3, 1) if contiguous else tensor.stride()
    return lib.Tensor(None, dtype, device_of(tensor), 4, (ctypes.c_int64 * 4)(*shape), (ctypes.c_int64 * 4)(*stride))


def describe(tensor: torch.Tensor) -> tuple:
    """All that struct_of looks at."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def plan_options(flags: Flags, blocks: int = 0) -> lib.PlanOptions:
    causal, left, right = flags
    return lib.PlanOptions(causal=causal, window_left=left, window_right=right, fallback_blocks=blocks)


def stream_of(device: torch.device) -> int:
    """torch's current stream of a GPU. torch.cuda.current_stream takes 2 us for the same."""
    return torch._C._cuda_getCurrentRawStream(device.index)


# ---- masks and plans on the host ----


def hold(mask: Mask) -> torch.Tensor:
    """A token whose memory keeps the mask alive, whoever keeps the tensor or a view of it."""
    number: Any = ctypes.c_int64(int(mask._token))
    number.mask = mask
    with torch._C._DisableFuncTorch():  # else of a transform of torch.func, and ended with it
        return torch.frombuffer(number, dtype=torch.int64).squeeze_()


def host_plan(mask: Mask, flags: Flags) -> Plan:
    """Built once for each mask and set of flags."""
    return mask._plans.get(flags) or mask.plan(causal=flags[0], window_size=flags[1:])


@functools.lru_cache(maxsize=8)
def _mask_of_bytes(data: bytes, shape: tuple[int, ...], rows: int, form: int, causal: bool) -> Mask:
    vectors = np.frombuffer(data, np.int32).reshape(shape)
    if form == lib.VECTORS_STARTEND:
        return Mask.from_startend_row_indices(vectors, causal=causal, rows=rows)
    if shape[3] % 2 or not 2 <= shape[3] <= 2 * lib.MAX_INTERVALS:
        raise ValueError(f"vectors: have shape {list(shape)}, need 2, 4, 6 or 8 numbers a key")
    pairs = vectors.reshape(*shape[:3], shape[3] // 2, 2).transpose(0, 1, 3, 2, 4)
    if form == lib.VECTORS_INTERVALS:
        return Mask.from_intervals(pairs, rows)
    return Mask.from_fms_fme(pairs[..., 0], pairs[..., 1], rows)


def host_mask(mask: torch.Tensor, form: Sequence[int]) -> Mask:
    """The Mask that a tensor on the CPU stands for. That of vectors is found by their contents, whatever memory they are in."""
    if mask.dtype == torch.int64 and mask.dim() == 0:
        return mask_of(int(mask))
    address("mask", mask)  # of none NumPy would make an array of its own
    if mask.dtype != torch.int32 or mask.dim() != 4 or len(form) != 3:
        raise ValueError(
            f"mask: is {mask.dtype} {list(mask.shape)} with form {list(form)}, needs vectors (int32 [Bm, Hm, Sk, C])"
        )
    return _mask_of_bytes(mask.numpy().tobytes(), tuple(mask.shape), form[0], form[1], bool(form[2]))


def batch_of(mask: torch.Tensor, form: Sequence[int]) -> int:
    """Batch items of the mask that a tensor stands for."""
    if mask.dim() == 0:
        return mask_of(int(mask))._form[0]
    return mask.shape[0] if mask.dim() == 4 else form[0]


# ---- plans on a GPU ----


def plan_bytes(batch: int, heads: int, rows: int, columns: int, intervals: int, blocks: int) -> int:
    """Bytes of a plan's buffer, up to a few KiB above fm_plan_device_bytes, by arithmetic alone: sizes may be symbolic."""

    def lines(n: int, tiles: int) -> int:  # per line a word of 64 bits for 32 tiles, per two lines 16 bytes
        return n * ((tiles + 31) // 32) * 8 + (n + 1) // 2 * 16

    r, c, stripes = (rows + 63) // 64, (columns + 63) // 64, (columns + 127) // 128
    plane = stripes * 128 * 8 * intervals + lines(r, c) + lines(c, r)
    if blocks > 0:
        plane += stripes * 4 * (1 + (rows + 127) // 128)
    return batch * heads * plane + blocks * 2048 + 12 * 256


def plan_from_mask(mask: Mask, device: torch.device, flags: Flags) -> torch.Tensor:
    """A plan's buffer on device, whose contents are uploaded on its current stream. Refused while that is being captured."""
    form = mask._form
    buffer = torch.empty(plan_bytes(*form), dtype=torch.uint8, device=device)
    arguments = plan_options(flags, form[5]), device_of(buffer), buffer.data_ptr(), buffer.numel(), stream_of(buffer.device)
    DevicePlan(lib.create("fm_plan_create_device", mask.handle, *arguments))
    return buffer


def vectors_struct(vectors: torch.Tensor, rows: int, form: int, causal: bool) -> lib.MaskVectors:
    if vectors.dtype != torch.int32 or vectors.dim() != 4:
        raise TypeError(f"vectors: are {vectors.dtype} with {vectors.dim()} dimensions, need int32 [Bm, Hm, Sk, C]")
    batch, heads, columns, count = vectors.shape
    return lib.MaskVectors(
        format=form,
        shape=lib.MaskShape(batch, heads, rows, columns),
        vectors=count,
        causal=causal,
        data=address("mask", vectors),
        stride=(ctypes.c_int64 * 4)(*vectors.stride()),
        device=device_of(vectors),
    )


def vectors_form(vectors: torch.Tensor, rows: int, form: int, causal: bool) -> list[int]:
    """The form of the plan of vectors. Masking n intervals leaves n + 1, of which causal or an outer interval takes one."""
    batch, heads, columns, count = vectors.shape
    if form != lib.VECTORS_STARTEND:
        intervals = count // 2
    else:
        intervals = count if causal else count // 2 + (count == 4)
    return [batch, heads, rows, columns, intervals, 0]


def plan_from_vectors(vectors: torch.Tensor, rows: int, form: int, causal: bool, flags: Flags) -> torch.Tensor:
    """A plan's buffer on the device of vectors, filled in the order of its current stream. Never waits."""
    struct = vectors_struct(vectors, rows, form, causal)
    buffer = vectors.new_empty(plan_bytes(*vectors_form(vectors, rows, form, causal)), dtype=torch.uint8)
    memory = buffer.data_ptr(), buffer.numel(), stream_of(buffer.device)
    DevicePlan(lib.create("fm_plan_create_from_vectors", struct, plan_options(flags), *memory))
    return buffer


@functools.lru_cache(maxsize=256)
def _attached(address: int, size: int, index: int, form: tuple[int, ...], flags: Flags) -> DevicePlan:
    """A handle says where a plan's arrays are and nothing of their contents: one serves every buffer at that address."""
    *shape, intervals, blocks = form
    place = plan_options(flags, blocks), lib.Device(lib.CUDA, index), address, size
    return DevicePlan(lib.create("fm_plan_attach_device", lib.MaskShape(*shape), intervals, *place))


def device_plan(mask: torch.Tensor, form: Sequence[int], flags: Flags) -> DevicePlan:
    if mask.dtype != torch.uint8 or mask.dim() != 1 or len(form) != 6 or not mask.is_cuda:
        raise ValueError(f"mask: is {mask.dtype} on {mask.device} with form {list(form)}, tensors on a GPU need a plan (uint8)")
    return _attached(mask.data_ptr(), mask.numel(), mask.device.index, tuple(form), flags)
