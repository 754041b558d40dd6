"""The structs and constants of include/flashmask that the package uses, field by field. The library refuses a struct of the wrong size."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_void_p
from typing import ClassVar

OK = 0
ERROR_ARGUMENT, ERROR_SHAPE, ERROR_DTYPE = 10, 11, 12
ERROR_UNSUPPORTED, ERROR_CANNOT_EXPRESS, ERROR_LIMIT, ERROR_OUT_OF_MEMORY = 20, 21, 22, 30

F32, F16, BF16, F64 = range(4)
CPU, CUDA = range(2)
BACKEND_AUTO, BACKEND_REFERENCE = range(2)
VECTORS_STARTEND, VECTORS_FMS_FME, VECTORS_INTERVALS = range(3)
PACK_BEST_FIT, PACK_ARRIVAL = range(2)
PACK_REFUSE, PACK_SPLIT = range(2)
MAX_INTERVALS = 4
STRIPE = 128


class Device(ctypes.Structure):
    _fields_ = [("kind", c_int), ("index", c_int32)]


class Tensor(ctypes.Structure):
    """A view of memory that the caller keeps alive. Strides count elements."""

    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int),
        ("device", Device),
        ("rank", c_int32),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]


class MaskShape(ctypes.Structure):
    _fields_ = [("batch", c_int64), ("heads", c_int64), ("rows", c_int64), ("columns", c_int64)]


class TileRun(ctypes.Structure):
    _fields_ = [("first", c_int32), ("count", c_int32), ("kind", c_int)]


class Work(ctypes.Structure):
    _fields_ = [("batch", c_int32), ("head", c_int32), ("tile_row", c_int32)]


class Question(ctypes.Structure):
    _fields_ = [("length", c_int64), ("answers", c_int64), ("answer_lengths", POINTER(c_int64))]


class Piece(ctypes.Structure):
    _fields_ = [("document", c_int64), ("start", c_int64), ("length", c_int64)]


class Sized(ctypes.Structure):
    """A struct whose first field is its size, which starts from the header's initialiser."""

    defaults: ClassVar[dict[str, float]] = {}

    def __init__(self, **values):
        super().__init__(**{"size": ctypes.sizeof(type(self)), **self.defaults, **values})


class MaskOptions(Sized):
    defaults: ClassVar = {"fallback_limit": -1}
    _fields_ = [("size", c_size_t), ("fallback_limit", c_int64)]


class PlanOptions(Sized):
    defaults: ClassVar = {"window_left": -1, "window_right": -1}
    _fields_ = [
        ("size", c_size_t),
        ("backend", c_int),
        ("causal", c_bool),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("block_m", c_int32),
        ("block_n", c_int32),
        ("fallback_blocks", c_int64),
    ]


class PlanStats(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("tiles", c_int64),
        ("full", c_int64),
        ("partial", c_int64),
        ("skipped", c_int64),
        ("visible_pairs", c_int64),
        ("mask_bytes", c_int64),
        ("plan_bytes", c_int64),
        ("dense_bytes", c_int64),
        ("block_m", c_int32),
        ("block_n", c_int32),
        ("density", c_double),
        ("tile_efficiency", c_double),
        ("build_seconds", c_double),
    ]


class MaskVectors(Sized):
    """Interval vectors in memory of a GPU."""

    _fields_ = [
        ("size", c_size_t),
        ("format", c_int),
        ("shape", MaskShape),
        ("vectors", c_int32),
        ("causal", c_bool),
        ("data", c_void_p),
        ("stride", c_int64 * 4),
        ("device", Device),
    ]


class ForwardArgs(Sized):
    defaults: ClassVar = {"window_left": -1, "window_right": -1, "softmax_scale": float("nan")}
    _fields_ = [
        ("size", c_size_t),
        ("query", Tensor),
        ("key", Tensor),
        ("value", Tensor),
        ("mask", c_void_p),
        ("plan", c_void_p),
        ("causal", c_bool),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("softmax_scale", c_float),
        ("softcap", c_float),
        ("sinks", c_void_p),
        ("output", Tensor),
        ("lse", c_void_p),
        ("no_skip", c_bool),
        ("backend", c_int),
        ("num_threads", c_int32),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("stream", c_void_p),
    ]


class BackwardArgs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("forward", POINTER(ForwardArgs)),
        ("grad_output", Tensor),
        ("grad_lse", c_void_p),
        ("grad_query", Tensor),
        ("grad_key", Tensor),
        ("grad_value", Tensor),
        ("grad_sinks", c_void_p),
        ("deterministic", c_bool),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("stream", c_void_p),
    ]


class PackedArrays(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("document_ids", POINTER(c_int32)),
        ("position_ids", POINTER(c_int32)),
        ("predicted_by", POINTER(c_int32)),
        ("labels", POINTER(c_uint8)),
    ]
