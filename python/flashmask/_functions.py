"""The functions of include/flashmask that the package calls: what each takes, in the order of the headers. Arrays are addresses (c_void_p)."""

from __future__ import annotations

from ctypes import POINTER, c_bool, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p

from . import _structs as c

OUT = POINTER(c_void_p)
OPTIONS = POINTER(c.MaskOptions)
SHAPE = c.MaskShape
BYTES = POINTER(c_size_t)

# Functions that return an fm_status.
CALLS = {
    "fm_mask_visible_pairs": [c_void_p, POINTER(c_int64)],
    "fm_mask_from_startend_row_indices": [SHAPE, c_int32, c_bool, c_void_p, OUT],
    "fm_mask_from_fms_fme": [SHAPE, c_int32, c_void_p, c_void_p, OUT],
    "fm_mask_from_intervals": [SHAPE, c_int32, c_void_p, OUT],
    "fm_mask_from_row_ranges": [SHAPE, c_int32, c_void_p, c_void_p, OPTIONS, OUT],
    "fm_mask_from_cu_seqlens": [c_void_p, c_void_p, c_int64, c_bool, c_int64, c_int64, OUT],
    "fm_mask_from_document_ids": [c_int64, c_int64, c_void_p, c_int32, c_bool, OPTIONS, OUT],
    "fm_mask_from_position_ids": [c_int64, c_int64, c_void_p, c_bool, c_bool, OUT],
    "fm_mask_from_dense": [SHAPE, c_void_p, OPTIONS, OUT],
    "fm_mask_to_startend_row_indices": [c_void_p, c_int32, c_bool, c_void_p, c_int64],
    "fm_mask_to_fms_fme": [c_void_p, c_int32, c_void_p, c_void_p, c_int64],
    "fm_mask_to_intervals": [c_void_p, c_int32, c_void_p, c_int64],
    "fm_mask_to_row_ranges": [c_void_p, c_int32, c_void_p, c_void_p, c_int64],
    "fm_mask_to_cu_seqlens": [c_void_p, c_bool, c_void_p, c_void_p, c_int64, POINTER(c_int64)],
    "fm_mask_to_dense": [c_void_p, c_void_p, c_int64],
    "fm_mask_and": [c_void_p, c_void_p, OPTIONS, OUT],
    "fm_mask_or": [c_void_p, c_void_p, OPTIONS, OUT],
    "fm_mask_shift": [c_void_p, c_int64, c_int64, OPTIONS, OUT],
    "fm_mask_slice": [c_void_p, c_int64, c_int64, c_int64, c_int64, OPTIONS, OUT],
    "fm_mask_slice_batch": [c_void_p, c_int64, c_int64, OUT],
    "fm_mask_repeat_heads": [c_void_p, c_int64, OUT],
    "fm_mask_stack_heads": [POINTER(c_void_p), c_int64, OUT],
    "fm_mask_stack_batch": [POINTER(c_void_p), c_int64, OUT],
    "fm_plan_create": [c_void_p, POINTER(c.PlanOptions), OUT],
    "fm_plan_get_stats": [c_void_p, POINTER(c.PlanStats)],
    "fm_plan_row_runs": [c_void_p, c_int64, c_int64, c_int64, POINTER(POINTER(c.TileRun)), POINTER(c_int64)],
    "fm_plan_column_runs": [c_void_p, c_int64, c_int64, c_int64, POINTER(POINTER(c.TileRun)), POINTER(c_int64)],
    "fm_plan_order": [c_void_p, POINTER(POINTER(c.Work)), POINTER(c_int64)],
    "fm_plan_device_bytes": [SHAPE, c_int32, POINTER(c.PlanOptions), BYTES],
    "fm_plan_create_device": [c_void_p, POINTER(c.PlanOptions), c.Device, c_void_p, c_size_t, c_void_p, OUT],
    "fm_plan_create_from_vectors": [POINTER(c.MaskVectors), POINTER(c.PlanOptions), c_void_p, c_size_t, c_void_p, OUT],
    "fm_plan_attach_device": [SHAPE, c_int32, POINTER(c.PlanOptions), c.Device, c_void_p, c_size_t, OUT],
    "fm_attention_forward_workspace": [POINTER(c.ForwardArgs), BYTES],
    "fm_attention_backward_workspace": [POINTER(c.BackwardArgs), BYTES],
    "fm_attention_forward": [POINTER(c.ForwardArgs)],
    "fm_attention_backward": [POINTER(c.BackwardArgs)],
    "fm_mask_full": [c_int64, c_int64, OUT],
    "fm_mask_causal": [c_int64, c_int64, OUT],
    "fm_mask_sliding_window": [c_int64, c_int64, c_int64, c_int64, OUT],
    "fm_mask_sink_window": [c_int64, c_int64, c_int64, c_int64, OUT],
    "fm_mask_documents_sink_window": [c_int64, c_void_p, c_int64, c_int64, c_int64, OUT],
    "fm_mask_global_window": [c_int64, c_int64, c_int64, c_int64, c_int64, OUT],
    "fm_mask_documents": [c_int64, c_void_p, c_bool, c_int64, OUT],
    "fm_mask_prefix_lm": [c_int64, c_int64, c_int64, OUT],
    "fm_mask_prefix_documents": [c_int64, c_void_p, c_void_p, c_int64, OUT],
    "fm_mask_share_question": [c_int64, POINTER(c.Question), c_bool, c_int64, OUT],
    "fm_mask_prefix_tree": [c_int64, c_void_p, c_void_p, c_void_p, OUT],
    "fm_mask_causal_blockwise": [c_int64, c_void_p, OUT],
    "fm_mask_qk_sparse": [c_int64, c_int64, c_int64, c_void_p, c_void_p, OUT],
    "fm_mask_hash_sparse": [c_int64, c_void_p, OPTIONS, OUT],
    "fm_mask_random_eviction": [c_int64, c_int64, c_int64, c_uint64, OUT],
    "fm_mask_head_windows": [c_int64, c_int64, c_int64, c_void_p, c_void_p, OUT],
    "fm_mask_padding": [c_int64, c_int64, c_int64, c_void_p, c_void_p, OUT],
    "fm_mask_blocks": [SHAPE, c_int64, c_void_p, OPTIONS, OUT],
    "fm_mask_bigbird": [c_int64, c_int64, c_int64, c_int64, c_int64, c_int64, c_uint64, OPTIONS, OUT],
    "fm_mask_image_spans": [c_int64, c_void_p, c_int64, c_void_p, c_void_p, OUT],
    "fm_mask_random_sparse": [c_int64, c_int64, c_double, c_uint64, OPTIONS, OUT],
    "fm_pack_lengths": [c_int64, c_void_p, c_int64, c_int, c_int, OUT],
    "fm_packing_sequence": [c_void_p, c_int64, POINTER(POINTER(c.Piece)), POINTER(c_int64)],
    "fm_pack_questions": [c_int64, POINTER(c.Question), c_int64, c_int, OUT],
    "fm_packing_arrays": [c_void_p, c_int64, POINTER(c.PackedArrays)],
    "fm_packing_mask": [c_void_p, c_int64, c_int64, c_bool, OUT],
}

# Those that return something else: result, arguments.
GETTERS = {
    "fm_version": (c_int, []),
    "fm_status_name": (c_char_p, [c_int]),
    "fm_error_message": (c_char_p, []),
    "fm_mask_free": (None, [c_void_p]),
    "fm_mask_get_shape": (SHAPE, [c_void_p]),
    "fm_mask_interval_count": (c_int32, [c_void_p]),
    "fm_mask_has_fallback": (c_bool, [c_void_p]),
    "fm_mask_bytes": (c_int64, [c_void_p]),
    "fm_mask_fallback_bytes": (c_int64, [c_void_p]),
    "fm_mask_hash": (c_uint64, [c_void_p]),
    "fm_mask_equal": (c_bool, [c_void_p, c_void_p]),
    "fm_plan_free": (None, [c_void_p]),
    "fm_packing_free": (None, [c_void_p]),
    "fm_packing_sequence_count": (c_int64, [c_void_p]),
    "fm_packing_capacity": (c_int64, [c_void_p]),
}
