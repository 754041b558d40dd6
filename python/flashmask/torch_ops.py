"""flashmask's operators for torch, with fakes and gradients, for CPUs and NVIDIA GPUs:

  flashmask::forward           attention and its log-sum-exp
  flashmask::backward          the gradients of both
  flashmask::hold              the token of a Mask, which keeps the Mask alive (CPU)
  flashmask::plan_from_mask    what attention on a GPU needs of a Mask
  flashmask::plan_from_vectors what attention on a GPU needs of vectors in its memory

Nothing about a mask but its shape is known when a graph is compiled: its contents are tensors, or behind a token.
torch_masks says what `mask` and `form` are. Gradients of gradients are refused.
"""

from __future__ import annotations

from typing import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import torch_calls as calls
from . import torch_masks as masks
from . import torch_vmap as vmap
from ._tokens import mask_of

library = torch.library.Library("flashmask", "DEF")

SETTINGS = "bool causal, SymInt window_left, SymInt window_right, float? scale, float softcap"
INPUTS = f"Tensor query, Tensor key, Tensor value, Tensor? sinks, Tensor? mask, SymInt[] form, {SETTINGS}"
FLAGS = "bool causal, SymInt window_left, SymInt window_right"

ANY_STRIDES = (torch.Tag.needs_fixed_stride_order,)
# Host masks are uploaded as the graph runs: a CUDA graph would keep the first.
UPLOADS = tuple(tag for tag in [getattr(torch.Tag, "cudagraph_unsafe", None)] if tag is not None)


def define(schema: str, tags: Sequence[torch.Tag] = ()) -> None:
    library.define(schema, tags=tags)


define(f"forward({INPUTS}, bool deterministic, bool f32) -> (Tensor output, Tensor lse)", ANY_STRIDES)
define(
    f"backward(Tensor grad_output, Tensor? grad_lse, Tensor output, Tensor lse, {INPUTS}, bool deterministic, bool[4] wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    ANY_STRIDES,
)
define("hold(Tensor token) -> Tensor")
define(f"plan_from_mask(Tensor token, Device device, SymInt[] form, {FLAGS}) -> Tensor", UPLOADS)
define(f"plan_from_vectors(Tensor vectors, SymInt rows, int format, bool vectors_causal, {FLAGS}) -> Tensor")

ops = torch.ops.flashmask

# ---- attention ----


def results(query: Tensor, key: Tensor, value: Tensor, f32: bool) -> tuple[Tensor, Tensor]:
    """Memory for output and lse."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(f"{name}: has {tensor.dim()} dimensions, needs 4: [batch, sequence, heads, head_dim]")
    batch, rows, heads, _ = query.shape
    output = query.new_empty((batch, rows, heads, value.shape[3]), dtype=torch.float32 if f32 else query.dtype)
    return output, query.new_empty((batch, heads, rows), dtype=torch.float32)


def forward(query, key, value, sinks, mask, form, causal, window_left, window_right, scale, softcap, deterministic, f32):
    output, lse = results(query, key, value, f32)
    settings = calls.Settings(causal, window_left, window_right, scale, softcap)
    calls.forward(calls.Inputs(query, key, value, sinks, mask, form, settings), output, lse)
    return output, lse


def check_devices(query: Tensor, mask: Tensor | None, **tensors: Tensor | None) -> None:
    """For the fake kernels, which a tensor on meta anywhere calls."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != query.device:
            raise RuntimeError(f"{name}: is on {tensor.device}, query is on {query.device}")
    if mask is not None and mask.is_meta and not query.is_meta:
        raise RuntimeError(f"mask: is on meta, query is on {query.device}")


def forward_fake(query, key, value, sinks, mask, form, causal, left, right, scale, softcap, deterministic, f32):
    check_devices(query, mask, key=key, value=value, sinks=sinks)
    return results(query, key, value, f32)


def gradients(inputs: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
    contiguous = torch.contiguous_format
    return [torch.empty_like(t, memory_format=contiguous) if w and t is not None else None for t, w in zip(inputs, wanted)]


def with_empty(grads: Sequence[Tensor | None], like: Tensor) -> tuple[Tensor, ...]:
    """An operator returns tensors: those that are not wanted have no elements."""
    return tuple(like.new_empty(0) if grad is None else grad for grad in grads)


def backward(
    grad_output, grad_lse, output, lse, query, key, value, sinks, mask, form,
    causal, window_left, window_right, scale, softcap, deterministic, wanted,
):  # fmt: skip
    grads = gradients((query, key, value, sinks), wanted)
    settings = calls.Settings(causal, window_left, window_right, scale, softcap)
    inputs = calls.Inputs(query, key, value, sinks, mask, form, settings)
    if grad_lse is not None:
        grad_lse = grad_lse.contiguous()
    calls.backward(inputs, output, lse, grad_output, grad_lse, grads, deterministic)
    return with_empty(grads, query)


def backward_fake(grad_output, grad_lse, output, lse, query, key, value, sinks, mask, *rest):
    same = {"grad_output": grad_output, "grad_lse": grad_lse, "output": output, "lse": lse}
    check_devices(query, mask, **same, key=key, value=value, sinks=sinks)
    return with_empty(gradients((query, key, value, sinks), rest[-1]), query)


# ---- masks ----


def hold(token: Tensor) -> Tensor:
    return masks.hold(mask_of(int(token)))


def hold_fake(token: Tensor) -> Tensor:
    return token.new_empty(())


def plan_from_mask(token, device, form, causal, window_left, window_right):
    mask = mask_of(int(token))
    if tuple(form) != mask._form:
        raise RuntimeError(f"mask: has form {mask._form}, the call was prepared for {tuple(form)}")
    return masks.plan_from_mask(mask, device, (causal, window_left, window_right))


def plan_from_mask_fake(token, device, form, causal, window_left, window_right):
    return torch.empty(masks.plan_bytes(*form), dtype=torch.uint8, device=device)


def plan_from_vectors(vectors, rows, format, vectors_causal, causal, window_left, window_right):
    return masks.plan_from_vectors(vectors, rows, format, vectors_causal, (causal, window_left, window_right))


def plan_from_vectors_fake(vectors, rows, format, vectors_causal, causal, window_left, window_right):
    return vectors.new_empty(masks.plan_bytes(*masks.vectors_form(vectors, rows, format, vectors_causal)), dtype=torch.uint8)


for name, kernel, fake, keys in (
    ("forward", forward, forward_fake, ("CPU", "CUDA")),
    ("backward", backward, backward_fake, ("CPU", "CUDA")),
    ("hold", hold, hold_fake, ("CPU",)),
    ("plan_from_mask", plan_from_mask, plan_from_mask_fake, ("CPU",)),  # where the token is
    ("plan_from_vectors", plan_from_vectors, plan_from_vectors_fake, ("CUDA",)),
):
    for dispatch_key in keys:
        library.impl(name, kernel, dispatch_key)
    torch.library.register_fake(f"flashmask::{name}", fake, lib=library)

# ---- gradients ----
# torch.library.register_autograd would do, for 30 us more a call and without torch.func.

INPUT_COUNT = 13  # of flashmask::forward
REFUSAL = "flashmask: the gradient of a gradient is not implemented"
FORWARD = (
    "flashmask: derivatives forward in time (jvp, jacfwd, forward_ad) are not implemented; "
    "use those backward: torch.autograd, torch.func.grad, vjp or jacrev"
)


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether autograd must know of the call. Derivatives forward in time are its to refuse."""
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def save(ctx, args, output: Tensor, lse: Tensor) -> None:
    ctx.save_for_backward(output, lse, *args[:5])
    ctx.rest = args[5:12]  # form .. deterministic
    mask = args[4]
    ctx.token = mask if mask is not None and mask.dim() == 0 else None  # hooks may save a copy, which keeps no Mask alive
    ctx.set_materialize_grads(False)


def differentiate(ctx, grad_output: Tensor | None, grad_lse: Tensor | None, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients of the operator's inputs."""
    output, lse, *inputs = ctx.saved_tensors
    if grad_output is None:
        if grad_lse is None:
            return (None,) * INPUT_COUNT
        grad_output = output.new_zeros(()).expand(output.shape)
    args = grad_output, grad_lse, output, lse, *inputs, *ctx.rest, wanted
    grads = apply_backward(*args)
    return *[grad if w else None for grad, w in zip(grads, wanted)], *(None,) * (INPUT_COUNT - 4)


def apply_backward(*args) -> tuple[Tensor, ...]:
    if torch._C._are_functorch_transforms_active():
        return Second.apply(*args)
    if needs_grad(*args[:9]):  # by the dispatcher, which unwraps what is_grads_batched has wrapped before autograd sees it
        return ops.backward.default(*args)
    return below_autograd(ops.backward.default, None, args)


class Second(torch.autograd.Function):
    """The backward operator where its result may be differentiated again, and under torch.func."""

    @staticmethod
    def forward(*args):
        return ops.backward.default(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(REFUSAL)

    jvp = backward

    @staticmethod
    def vmap(info, in_dims, *args):
        if args[-1][3]:
            raise NotImplementedError("flashmask: vmap over the gradient of sinks is not implemented: it is a sum over the batch")
        vmap.check(args[8], args[9], in_dims[7:9])
        grad_output, grad_lse, output, lse, *inputs = vmap.fold(args[:7], in_dims, info.batch_size)
        grads = apply_backward(grad_output, grad_lse, output.contiguous(), lse.contiguous(), *inputs, *args[7:])
        return vmap.unfold(grads, info.batch_size)


class Attention(torch.autograd.Function):
    """The forward operator under torch.func, whose transforms need setup_context."""

    @staticmethod
    def forward(*args):
        return ops.forward.default(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        save(ctx, inputs, *output)

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        return differentiate(ctx, grad_output, grad_lse, list(ctx.needs_input_grad[:4]))

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(FORWARD)

    @staticmethod
    def vmap(info, in_dims, *args):
        vmap.check(args[4], args[5], in_dims[3:5])
        return vmap.unfold(apply(*vmap.fold(args[:3], in_dims, info.batch_size), *args[3:]), info.batch_size)


class Differentiable(torch.autograd.Function):
    """The forward operator elsewhere. keys: those of the dispatcher if it called, else None."""

    @staticmethod
    def forward(ctx, keys, *args):
        output, lse = below_autograd(ops.forward.default, keys, args)
        save(ctx, args, output, lse)
        return output, lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        return None, *differentiate(ctx, grad_output, grad_lse, list(ctx.needs_input_grad[1:5]))

    jvp = Attention.jvp


def below_autograd(op, keys, args):
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args) if keys is None else op.redispatch(keys & torch._C._after_autograd_keyset, *args)


def forward_autograd(keys, *args):
    if needs_grad(*args[:4]):
        return Differentiable.apply(keys, *args)
    return below_autograd(ops.forward.default, keys, args)


def backward_autograd(keys, *args):
    if needs_grad(*args[:9]):
        return Refusing.apply(keys, *args)
    return below_autograd(ops.backward.default, keys, args)


class Refusing(torch.autograd.Function):
    """The backward operator's own."""

    @staticmethod
    def forward(ctx, keys, *args):
        return below_autograd(ops.backward.default, keys, args)

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(REFUSAL)


library.impl("forward", forward_autograd, "Autograd", with_keyset=True)
library.impl("backward", backward_autograd, "Autograd", with_keyset=True)


def apply(*args) -> tuple[Tensor, Tensor]:
    """flashmask::forward, sooner than by the dispatcher's way through autograd, and under the transforms of torch.func."""
    if torch.compiler.is_compiling():
        return ops.forward.default(*args)
    if torch._C._are_functorch_transforms_active():
        return Attention.apply(*args)
    return forward_autograd(None, *args)
