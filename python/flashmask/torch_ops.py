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

import functools
import operator
from typing import Sequence

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from . import torch_calls as calls
from . import torch_masks as masks
from . import torch_vmap as vmap
from ._tokens import mask_of
from .torch_frames import untraced

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
    if not query.dim() == key.dim() == value.dim() == 4:
        name, tensor = next(x for x in (("query", query), ("key", key), ("value", value)) if x[1].dim() != 4)
        raise ValueError(f"{name}: has {tensor.dim()} dimensions, needs 4: [batch, sequence, heads, head_dim]")
    batch, rows, heads, _ = query.shape
    output = query.new_empty(batch, rows, heads, value.shape[3], dtype=torch.float32 if f32 else None)
    return output, query.new_empty(batch, heads, rows, dtype=torch.float32)


def forward(query, key, value, sinks, mask, *rest):
    # Inductor has graphs allocate from a pool of its own, and refuses what stays there.
    return run(query, key, value, sinks, mask, rest, keeps=False)


def run(query, key, value, sinks, mask, rest, keeps=True):
    """rest: form, causal, window_left, window_right, scale, softcap, deterministic, f32. keeps: of torch_calls.forward."""
    output, lse = results(query, key, value, rest[7])
    calls.forward((query, key, value, sinks, mask, rest[0], rest[1:6]), output, lse, keeps)
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


def some_gradients(
    grad_output, grad_lse, output, lse, query, key, value, sinks, mask, form,
    causal, window_left, window_right, scale, softcap, deterministic, wanted,
):  # fmt: skip
    """Those that are wanted; others are None."""
    grads = gradients((query, key, value, sinks), wanted)
    settings = causal, window_left, window_right, scale, softcap
    inputs = query, key, value, sinks, mask, form, settings
    if grad_lse is not None:
        grad_lse = grad_lse.contiguous()
    calls.backward(inputs, output, lse, grad_output, grad_lse, grads, deterministic)
    return grads


def backward(grad_output, grad_lse, output, lse, query, *rest):
    return with_empty(some_gradients(grad_output, grad_lse, output, lse, query, *rest), query)


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

REFUSAL = "flashmask: the gradient of a gradient is not implemented"
FORWARD = (
    "flashmask: derivatives forward in time (jvp, jacfwd, forward_ad) are not implemented; "
    "use those backward: torch.autograd, torch.func.grad, vjp or jacrev"
)


def needs_grad(tensors: Sequence[Tensor | None]) -> bool:
    """Whether autograd must know of the call. Derivatives forward in time are its to refuse."""
    if forward_ad._current_level >= 0:
        return True
    if torch.is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                return True
    return False


# Whether the engine keeps what was saved, of which torch before 2.5 says nothing.
keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


def keep(ctx, mask: Tensor | None, rest: Sequence) -> None:
    """What backward needs beside the tensors that are saved. rest: form .. f32."""
    ctx.rest = rest
    if mask is not None and mask.dim() == 0:
        ctx.token = mask  # hooks may save a copy, which keeps no Mask alive
    ctx.set_materialize_grads(False)


def differentiate(ctx, grad_output: Tensor | None, grad_lse: Tensor | None, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value and sinks."""
    output, lse, *inputs = ctx.saved_tensors
    if grad_output is None:
        if grad_lse is None:
            return (None,) * 4
        grad_output = output.new_zeros(()).expand(output.shape)
    grads = apply_backward(grad_output, grad_lse, output, lse, *inputs, *ctx.rest[:7], wanted)
    if not keeps_graph():
        ctx.token = None
    return tuple(grad if w else None for grad, w in zip(grads, wanted))


def apply_backward(*args) -> Sequence[Tensor | None]:
    if torch._C._are_functorch_transforms_active():
        return Second.apply(*args)
    if needs_grad(args[:9]):  # by the dispatcher, which unwraps what is_grads_batched has wrapped before autograd sees it
        return ops.backward.default(*args)
    if not torch.compiler.is_compiling() and nothing_between(args[:9]):  # what dynamo traces sees modes that come later
        return some_gradients(*args)
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
        return vmap.unfold(with_empty(grads, inputs[0]), info.batch_size, vmap.items(args[4], in_dims[4]))


class Attention(torch.autograd.Function):
    """The forward operator under torch.func, whose transforms need setup_context."""

    @staticmethod
    def forward(*args):
        return ops.forward.default(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output, *inputs[:5])
        keep(ctx, inputs[4], inputs[5:])

    @staticmethod
    @untraced
    def backward(ctx, grad_output, grad_lse):
        return *differentiate(ctx, grad_output, grad_lse, list(ctx.needs_input_grad[:4])), *(None,) * 9

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(FORWARD)

    @staticmethod
    def vmap(info, in_dims, *args):
        vmap.check(args[4], args[5], in_dims[3:5])
        inputs = *vmap.fold(args[:3], in_dims, info.batch_size), *args[3:5]
        return vmap.unfold(apply(inputs, args[5:]), info.batch_size, vmap.items(args[0], in_dims[0]))


class Differentiable(torch.autograd.Function):
    """The forward operator elsewhere. keys: those of the dispatcher if it called, DIRECT or None. rest: form .. f32."""

    @staticmethod
    def forward(ctx, keys, query, key, value, sinks, mask, rest):
        if keys is DIRECT:
            both = run(query, key, value, sinks, mask, rest)
        else:
            both = below_autograd(ops.forward.default, keys, (query, key, value, sinks, mask, *rest))
        ctx.save_for_backward(*both, query, key, value, sinks, mask)
        keep(ctx, mask, rest)
        return both

    @staticmethod
    @untraced
    def backward(ctx, grad_output, grad_lse):
        return None, *differentiate(ctx, grad_output, grad_lse, list(ctx.needs_input_grad[1:5])), None, None

    jvp = Attention.jvp


def below_autograd(op, keys, args):
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args) if keys is None else op.redispatch(keys & torch._C._after_autograd_keyset, *args)


def forward_autograd(keys, *args):
    if needs_grad(args[:4]):
        if keys is not None and torch._C._are_functorch_transforms_active():  # in graphs, and where the operator is called by name
            with enable_single_level_autograd_function():  # one level's own autograd calls, and the next one below it
                return differentiable(keys, *args[:5], args[5:])
        return Differentiable.apply(keys, *args[:5], args[5:])
    return below_autograd(ops.forward.default, keys, args)


def backward_autograd(keys, *args):
    if needs_grad(args[:9]):
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


# ---- the short way ----
# Python's way through the dispatcher into an operator written in Python takes longer than the operator. Calls of plain tensors do
# without where nothing stands on the way: no mode, transform, hook of torch functions or profiler, which see the operator then.

DIRECT = object()
Tensors = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]  # query, key, value, sinks, mask

KEYS, KEY = torch._C.DispatchKeySet, torch._C.DispatchKey
HAS_SHORT_WAY = hasattr(KEYS, "raw_repr")  # torch 2.4 does not say keys as a number


def key_set(*names: str) -> int:
    """As a number."""
    return functools.reduce(operator.or_, (KEYS(getattr(KEY, name)) for name in names)).raw_repr() if HAS_SHORT_WAY else -1


# What the dispatcher looks at: the keys of tensors, which for subclasses, wrappers, views that negate and other layouts are more,
# and those of the thread, to which modes and transforms add theirs. Each also as it is in inference mode.
PLAIN = {key_set(d, f"Autocast{d}", *more) for d in ("CPU", "CUDA") for more in ((), (f"Autograd{d}", "ADInplaceOrView"))}
NO_MODE = {key_set("BackendSelect"), key_set("BackendSelect", "ADInplaceOrView")}
keys_of_thread, keys_of_tensor = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_keys
profiles, sees_functions = torch._C._autograd._profiler_enabled, torch._C._has_torch_function


def nothing_between(tensors: Sequence[Tensor | None]) -> bool:
    """Whether the operator of these tensors comes to its kernel whole, and nobody looks on."""
    if not HAS_SHORT_WAY or keys_of_thread().raw_repr() not in NO_MODE or profiles() or sees_functions(tensors):
        return False
    for t in tensors:
        if t is not None and keys_of_tensor(t).raw_repr() not in PLAIN:
            return False
    return True


# torch.autograd.Function.apply looks for wrappers of transforms first, of which the short way has none.
differentiable = super(torch.autograd.Function, Differentiable).apply


def apply(inputs: Tensors, rest: tuple) -> tuple[Tensor, Tensor]:
    """flashmask::forward, sooner than by the dispatcher's way through autograd, and under the transforms of torch.func. inputs:
    query .. mask, rest: form .. f32."""
    if torch.compiler.is_compiling():
        return ops.forward.default(*inputs, *rest)
    mask = inputs[4]  # but for vectors it was made here, and is plain
    if nothing_between(inputs[:4] if mask is None or mask.dim() < 4 else inputs):
        return differentiable(DIRECT, *inputs, rest) if needs_grad(inputs[:4]) else run(*inputs, rest)
    check_dense(query=inputs[0], key=inputs[1], value=inputs[2])
    if torch._C._are_functorch_transforms_active():
        return Attention.apply(*inputs, *rest)
    return forward_autograd(None, *inputs, *rest)


def check_dense(**tensors: Tensor) -> None:
    """For what has no kernels, which torch says at length."""
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else f"of layout {tensor.layout}"
            raise TypeError(f"{name} is {kind}, needs a dense tensor (layout torch.strided)")
