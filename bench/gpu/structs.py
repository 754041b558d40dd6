"""The structs and constants of include/flashmask and bench/benchmark_masks.h that the bench passes, field by field. The library
refuses a struct of the wrong size."""

import ctypes
from ctypes import POINTER, c_bool, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p

F32, F16, BF16, F64 = range(4)
CPU, CUDA = range(2)
TILE_COMMON = 128
VECTORS_INTERVALS = 2
PACK_ARRIVAL = 1
PACK_SPLIT = 1
BENCHMARK_MASKS = 12


class Device(ctypes.Structure):
    _fields_ = [("kind", c_int), ("index", c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("device", Device), ("rank", c_int32), ("shape", c_int64 * 4),
                ("stride", c_int64 * 4)]


class MaskShape(ctypes.Structure):
    _fields_ = [("batch", c_int64), ("heads", c_int64), ("rows", c_int64), ("columns", c_int64)]


class Sized(ctypes.Structure):
    """A struct whose first field is its size."""

    defaults = {}

    def __init__(self, **values):
        super().__init__(**{"size": ctypes.sizeof(type(self)), **self.defaults, **values})


class PlanOptions(Sized):
    defaults = {"window_left": -1, "window_right": -1}
    _fields_ = [("size", c_size_t), ("backend", c_int), ("causal", c_bool), ("window_left", c_int64), ("window_right", c_int64),
                ("block_m", c_int32), ("block_n", c_int32), ("fallback_blocks", c_int64)]


class PlanStats(Sized):
    _fields_ = [("size", c_size_t), ("tiles", c_int64), ("full", c_int64), ("partial", c_int64), ("skipped", c_int64),
                ("visible_pairs", c_int64), ("mask_bytes", c_int64), ("plan_bytes", c_int64), ("dense_bytes", c_int64),
                ("block_m", c_int32), ("block_n", c_int32), ("density", c_double), ("tile_efficiency", c_double),
                ("build_seconds", c_double)]


class MaskVectors(Sized):
    _fields_ = [("size", c_size_t), ("format", c_int), ("shape", MaskShape), ("vectors", c_int32), ("causal", c_bool),
                ("data", c_void_p), ("stride", c_int64 * 4), ("device", Device)]


class ForwardArgs(Sized):
    defaults = {"window_left": -1, "window_right": -1, "softmax_scale": float("nan")}
    _fields_ = [("size", c_size_t), ("query", Tensor), ("key", Tensor), ("value", Tensor), ("mask", c_void_p), ("plan", c_void_p),
                ("causal", c_bool), ("window_left", c_int64), ("window_right", c_int64), ("softmax_scale", c_float),
                ("softcap", c_float), ("sinks", c_void_p), ("output", Tensor), ("lse", c_void_p), ("no_skip", c_bool),
                ("backend", c_int), ("num_threads", c_int32), ("workspace", c_void_p), ("workspace_bytes", c_size_t),
                ("stream", c_void_p)]


class BackwardArgs(Sized):
    _fields_ = [("size", c_size_t), ("forward", POINTER(ForwardArgs)), ("grad_output", Tensor), ("grad_lse", c_void_p),
                ("grad_query", Tensor), ("grad_key", Tensor), ("grad_value", Tensor), ("grad_sinks", c_void_p),
                ("deterministic", c_bool), ("workspace", c_void_p), ("workspace_bytes", c_size_t), ("stream", c_void_p)]


class Question(ctypes.Structure):
    _fields_ = [("length", c_int64), ("answers", c_int64), ("answer_lengths", POINTER(c_int64))]


class Piece(ctypes.Structure):
    _fields_ = [("document", c_int64), ("start", c_int64), ("length", c_int64)]


MASK_OUT = POINTER(c_void_p)

# Functions that return an fm_status, with what they take.
CALLS = {
    "fm_mask_to_intervals": [c_void_p, c_int32, c_void_p, c_int64],
    "fm_mask_to_cu_seqlens": [c_void_p, c_bool, c_void_p, c_void_p, c_int64, POINTER(c_int64)],
    "fm_mask_slice_batch": [c_void_p, c_int64, c_int64, MASK_OUT],
    "fm_mask_stack_batch": [POINTER(c_void_p), c_int64, MASK_OUT],
    "fm_mask_from_dense": [MaskShape, c_void_p, c_void_p, MASK_OUT],
    "fm_mask_documents": [c_int64, POINTER(c_int64), c_bool, c_int64, MASK_OUT],
    "fm_plan_create": [c_void_p, POINTER(PlanOptions), MASK_OUT],
    "fm_plan_get_stats": [c_void_p, POINTER(PlanStats)],
    "fm_plan_device_bytes": [MaskShape, c_int32, POINTER(PlanOptions), POINTER(c_size_t)],
    "fm_plan_create_device": [c_void_p, POINTER(PlanOptions), Device, c_void_p, c_size_t, c_void_p, MASK_OUT],
    "fm_plan_create_from_vectors": [POINTER(MaskVectors), POINTER(PlanOptions), c_void_p, c_size_t, c_void_p, MASK_OUT],
    "fm_plan_update_from_vectors": [c_void_p, POINTER(MaskVectors), c_void_p],
    "fm_attention_forward": [POINTER(ForwardArgs)],
    "fm_attention_backward": [POINTER(BackwardArgs)],
    "fm_attention_forward_workspace": [POINTER(ForwardArgs), POINTER(c_size_t)],
    "fm_attention_backward_workspace": [POINTER(BackwardArgs), POINTER(c_size_t)],
    "fm_pack_lengths": [c_int64, POINTER(c_int64), c_int64, c_int, c_int, MASK_OUT],
    "fm_pack_questions": [c_int64, POINTER(Question), c_int64, c_int, MASK_OUT],
    "fm_packing_mask": [c_void_p, c_int64, c_int64, c_bool, MASK_OUT],
    "fm_packing_sequence": [c_void_p, c_int64, POINTER(POINTER(Piece)), POINTER(c_int64)],
}

# Those that return something else: result, arguments.
GETTERS = {
    "fm_error_message": (ctypes.c_char_p, []),
    "fm_status_name": (ctypes.c_char_p, [c_int]),
    "fm_version": (c_int, []),
    "fm_mask_free": (None, [c_void_p]),
    "fm_plan_free": (None, [c_void_p]),
    "fm_packing_free": (None, [c_void_p]),
    "fm_mask_get_shape": (MaskShape, [c_void_p]),
    "fm_mask_interval_count": (c_int32, [c_void_p]),
    "fm_mask_fallback_bytes": (ctypes.c_int64, [c_void_p]),
    "fm_packing_sequence_count": (c_int64, [c_void_p]),
}
