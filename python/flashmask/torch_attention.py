"""flashmask.attention on torch tensors: arguments, layouts, and plans that layers share."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.utils.weak import WeakTensorKeyDictionary

from . import torch_masks as masks
from . import torch_frames, torch_ops, torch_vmap
from ._arrays import real
from .device_mask import DeviceMask
from .mask import Mask

MODES = torch._C._TorchDispatchModeKey
GRAPH_IN_TRANSFORM = (
    "flashmask: a Mask in a transform of torch.func that torch.compile sees is not implemented: pass mask.to(device), a DeviceMask"
)
GRAPH_OF_TRACE = "flashmask: a Mask in a trace with fake tensors is not implemented: pass mask.to(device), a DeviceMask"
LAYOUTS = "[batch, sequence, heads, head_dim]", "[batch, heads, sequence, head_dim]"  # of heads_first


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | DeviceMask | None, flags: masks.Flags, scale: float | None,
    softcap: float, sinks: Tensor | None, deterministic: bool, return_lse: bool, heads_first: bool,
) -> Any:  # fmt: skip
    """See flashmask.attention. flags: causal, window left, window right."""
    for tensor in (query, key, value):
        if not isinstance(tensor, Tensor) or tensor.dim() != 4:
            refuse(query, key, value, LAYOUTS[heads_first])
    if not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0:
        check_fakes(query=query, key=key, value=value, sinks=sinks, mask=mask.vectors if isinstance(mask, DeviceMask) else None)
    device = "cuda" if query.is_cuda else "cpu" if query.is_cpu else None  # others, as meta, may have no autocast
    if device is not None and torch.is_autocast_enabled(device):
        query, key, value = cast(query, key, value)
    if scale is not None:
        scale = number(scale, "softmax_scale")
    if type(softcap) is not float:
        softcap = number(softcap, "softcap")
    if heads_first:
        torch_ops.check_dense(query=query, key=key, value=value)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if sinks is not None:
        sinks = logits(sinks)
    vectors, form = mask_tensor(mask, query, flags)
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    inputs = query, key, value, sinks, vectors
    output, lse = torch_ops.apply(inputs, (form, *flags, scale, softcap, deterministic, False))
    if heads_first:
        output = output.transpose(1, 2)
    return (output, lse) if return_lse else output


def refuse(query: Any, key: Any, value: Any, layout: str) -> None:
    """Says which is no tensor of 4 dimensions."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, needs a torch tensor as the others, or all NumPy arrays")
        if tensor.dim() != 4:
            raise ValueError(f"{name}: has {tensor.dim()} dimensions, needs 4: {layout}")


def number(value: Any, name: str) -> Any:
    """As the operators take it, which check its range. Graphs take what torch.compile knows of it."""
    if torch.compiler.is_compiling() and not isinstance(value, Tensor):
        return value
    return real(value, name)


def cast(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """The rule of autocast: all inputs have its dtype, but float64 stays."""
    dtype = torch.get_autocast_dtype(query.device.type)
    return [t if t.dtype == torch.float64 or not t.is_floating_point() else t.to(dtype) for t in (query, key, value)]


def logits(sinks: Any) -> Tensor:
    if not isinstance(sinks, Tensor):
        raise TypeError(f"sinks are a {type(sinks).__name__}, need a torch tensor")
    if not sinks.is_floating_point():
        raise TypeError(f"sinks have dtype {sinks.dtype}, need floats")
    torch_ops.check_dense(sinks=sinks)
    return sinks.float().contiguous()


def check_rows(rows: int, query: Tensor) -> None:
    """query [B, Sq, Hq, D]. The first mistake of those who come from torch's own attention; others are found by the library."""
    if query.is_nested:  # has no shape
        torch_ops.check_dense(query=query)
    if rows != query.shape[1] and rows == query.shape[2]:
        raise ValueError(
            f"mask has {rows} rows, query has {query.shape[1]} rows of {query.shape[2]} heads: is it in layout='bhsd'?"
        )


def in_transform() -> bool:
    """Of torch.func, also where torch.compile traces one."""
    return torch._C._are_functorch_transforms_active()


# As torch.compiler.assume_constant_result says it, which would import all of dynamo.
in_transform._dynamo_marked_constant = True  # type: ignore[attr-defined]


def token_of(mask: Mask, query: Tensor) -> Tensor:
    """What names a mask in compiled code, on the CPU whatever torch's default device is; for a fake query any fake tensor."""
    if not torch.compiler.is_compiling():
        has_mode = torch._C._len_torch_dispatch_stack() > 0
        if has_mode and torch._C._get_dispatch_mode(MODES.PROXY) is not None:  # it would record whatever the fake token is
            raise NotImplementedError(GRAPH_OF_TRACE)
        with torch._C._DisableFuncTorch():
            empty = torch.empty if has_mode else query.new_empty
            return empty((), dtype=torch.int64, device="cpu")
    if in_transform():  # torch.compile stumbles over arrays in there
        raise NotImplementedError(GRAPH_IN_TRANSFORM)
    return torch.as_tensor(mask._token, device="cpu")


def mask_tensor(mask: Any, query: Tensor, flags: masks.Flags) -> tuple[Tensor | None, Sequence[int]]:
    """What the operators take of a mask: a tensor and its form. See torch_masks."""
    if mask is None:
        return None, []
    shapes_alone = has_shapes_alone(query)
    if isinstance(mask, Mask):
        if shapes_alone:
            if query.is_cuda:
                return plan_in_graph(mask, query, query.device, flags), list(mask._form)
            return torch_ops.ops.hold(token_of(mask, query)), []
        check_rows((mask.__dict__.get("_form") or mask.shape)[2], query)  # the shape says where it was never built
        return (plan_of_mask(mask, query.device, flags), mask._form) if query.is_cuda else (masks.hold(mask), [])
    if not isinstance(mask, DeviceMask):
        hint = "; see Mask.from_dense and DeviceMask.from_startend_row_indices" if isinstance(mask, Tensor) else ""
        raise TypeError(f"mask is a {type(mask).__name__}, needs a flashmask.Mask or flashmask.DeviceMask{hint}")
    v = mask.vectors
    if not shapes_alone:
        check_rows(mask.rows, query)
        v = torch_vmap.unwrapped(v)
    if v.device != query.device:
        raise RuntimeError(f"mask is on {v.device}, query is on {query.device}: pass mask.to(query.device)")
    if not query.is_cuda:
        return v, [mask.rows, mask.format, int(mask.causal)]
    if shapes_alone:
        return plan_in_graph(mask, query, v.device, flags), masks.vectors_form(v, mask.rows, mask.format, mask.causal)
    return plan_of_vectors(mask, v, flags)


def check_fakes(**tensors: Any) -> None:
    """Under a FakeTensorMode."""
    mode: Any = torch._C._get_dispatch_mode(MODES.FAKE)
    for name, tensor in tensors.items():
        if mode is not None and not mode.allow_non_fake_inputs and isinstance(tensor, Tensor) and not is_fake(tensor):
            raise TypeError(
                f"{name} is no fake tensor, and a FakeTensorMode is on: make it there or by the mode's from_tensor, or set its "
                "allow_non_fake_inputs"
            )


def has_shapes_alone(query: Tensor) -> bool:
    """Whether nothing is computed: a graph is compiled, or tensors are fake."""
    if torch.compiler.is_compiling() or (type(query) is not Tensor and is_fake(query)):
        return True
    return torch._C._len_torch_dispatch_stack() > 0 and torch._C._get_dispatch_mode(MODES.FAKE) is not None


# ---- plans on a GPU ----
# A plan is kept for each stream that used it: calls on a stream run after its own build, and its memory goes back to that
# stream. The backward pass keeps the plan that the forward pass took. Plans of vectors belong to the tensor that holds them, so
# that layers may wrap it in a DeviceMask each; those of a Mask to the Mask. What is kept is made outside inference mode, whose
# tensors a later backward pass cannot keep, and outside the transforms of torch.func, whose tensors have no memory and end with
# them.

# tensor -> {(stream, what the plan was made with): (version of the tensor, (plan, its form))}
_vector_plans = WeakTensorKeyDictionary()


def plan_in_graph(mask: Mask | DeviceMask, query: Tensor, device: torch.device, flags: masks.Flags) -> Tensor:
    """By its operator, for graphs and fake tensors: none of theirs is kept."""
    if isinstance(mask, Mask):
        return torch_ops.ops.plan_from_mask(token_of(mask, query), device, list(mask._form), *flags)
    return torch_ops.ops.plan_from_vectors(mask.vectors, mask.rows, mask.format, mask.causal, *flags)


def plan_of_mask(mask: Mask, device: torch.device, flags: masks.Flags) -> Tensor:
    plans = mask._device_plans
    place = device, masks.stream_of(device), flags
    plan = plans.get(place)
    if plan is None and torch.cuda.is_current_stream_capturing():
        # Whoever captures has waited for earlier work, and a host mask never changes: any stream's plan will do.
        plan = next((p for where, p in list(plans.items()) if where[0] == device and where[2] == flags), None)
    if plan is None:
        with torch.inference_mode(False), torch._C._DisableFuncTorch():
            plan = plans[place] = masks.plan_from_mask(mask, device, flags)
    return plan


def plans_of(mask: DeviceMask, v: Tensor) -> dict[tuple, tuple[int, tuple[Tensor, list[int]]]]:
    """Those of v, which the mask keeps at hand: to find them by the tensor takes longer than all else of a call's Python."""
    at_hand = mask._plans
    if at_hand is None or at_hand[0] is not v:
        at_hand = mask._plans = v, _vector_plans.setdefault(v, {})
    return at_hand[1]


def plan_of_vectors(mask: DeviceMask, v: Tensor, flags: masks.Flags) -> tuple[Tensor, list[int]]:
    """The plan and its form. v: of the mask's vectors what torch_vmap.unwrapped gives."""
    arguments = mask.rows, mask.format, mask.causal
    traced = torch._C._len_torch_dispatch_stack() > 0 and torch._C._get_dispatch_mode(MODES.PROXY) is not None
    if traced or torch.cuda.is_current_stream_capturing() or v.is_inference():
        # A replay and a traced graph must read the vectors again; changes of inference tensors are not counted.
        with torch._C._DisableFuncTorch():
            return torch_ops.ops.plan_from_vectors(v, *arguments, *flags), masks.vectors_form(v, *arguments)
    plans = plans_of(mask, v)
    place = masks.stream_of(v.device), arguments, flags
    known = plans.get(place)
    if known is None or known[0] != v._version:
        with torch.inference_mode(False), torch._C._DisableFuncTorch():
            plan = torch_ops.ops.plan_from_vectors(v, *arguments, *flags)
        known = plans[place] = v._version, (plan, masks.vectors_form(v, *arguments))
    return known[1]


torch_frames.skip()
