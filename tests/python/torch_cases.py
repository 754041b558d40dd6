"""What the torch tests share: devices, inputs, dense attention in plain torch, and the tolerance of docs/numerics.md."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from flashmask import DeviceMask, Mask

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float64: 2.0**-53}


@dataclass
class Shape:
    batch: int = 2
    rows: int = 65
    columns: int = 65
    heads: int = 4
    heads_kv: int = 2
    dim: int = 16
    dim_v: int = 24


@dataclass
class Options:
    """Keyword arguments of flashmask.attention."""

    causal: bool = False
    window_size: tuple = (-1, -1)
    softmax_scale: float | None = None
    softcap: float = 0.0

    def keywords(self) -> dict:
        return dict(self.__dict__)


@dataclass
class Case:
    shape: Shape = field(default_factory=Shape)
    options: Options = field(default_factory=Options)
    sinks: bool = False


def inputs(shape: Shape, dtype=torch.float32, device="cpu", seed=0, requires_grad=True) -> list[torch.Tensor]:
    """query, key, value in layout bshd."""
    s, generator = shape, torch.Generator().manual_seed(seed)
    sizes = (s.batch, s.rows, s.heads, s.dim), (s.batch, s.columns, s.heads_kv, s.dim), (s.batch, s.columns, s.heads_kv, s.dim_v)
    drawn = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    return [t.to(device, dtype).requires_grad_(requires_grad) for t in drawn]


def like(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device, tensor.dtype)


def visible(mask: Mask | None, shape: Shape, options: Options, device="cpu") -> torch.Tensor:
    """bool [Bm, Hq, Sq, Sk] of the mask, causal and window together."""
    dense = torch.ones(1, 1, shape.rows, shape.columns, dtype=torch.bool)
    if mask is not None:
        dense = torch.from_numpy(np.ascontiguousarray(mask.dense())).to(torch.bool)
    dense = dense.repeat_interleave(shape.heads // dense.shape[1], dim=1)
    place = torch.arange(shape.columns)[None] - torch.arange(shape.rows)[:, None] - (shape.columns - shape.rows)
    left, right = options.window_size
    dense = dense & ((place <= 0) if options.causal else True)
    dense = dense & ((place >= -left) if left >= 0 else True) & ((place <= right) if right >= 0 else True)
    return dense.to(device)


def dense_attention(query, key, value, seen, options: Options, sinks=None):
    """(output, lse) in the dtype of the inputs, by softmax over the whole matrix; differentiable."""
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = 1 / math.sqrt(q.shape[3]) if options.softmax_scale is None else options.softmax_scale
    scores = (q @ k.transpose(2, 3)) * scale
    if options.softcap:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    some = seen.any(-1, keepdim=True)
    scores = scores.masked_fill(~(seen | ~some), -math.inf)  # rows that see nothing: anything finite, hidden below
    lse = torch.logsumexp(scores, -1, keepdim=True)
    total = lse if sinks is None else torch.logaddexp(lse, sinks.to(lse.dtype)[None, :, None, None])
    p = torch.where(some, torch.exp(scores - total), 0.0)
    lse = torch.where(some, lse, -math.inf).squeeze(-1)
    return (p @ v).transpose(1, 2), lse


def results(run, tensors, grad_output, grad_lse):
    """Everything that a case yields: output, lse, and gradients of tensors."""
    output, lse = run(*tensors)
    finite = torch.where(lse.isinf(), 0.0, lse)
    grads = torch.autograd.grad((output, finite), tensors, (grad_output.to(output.dtype), grad_lse.to(lse.dtype)))
    return [output.detach(), lse.detach(), *grads]


def assert_close(ours, plain, oracle, dtype, terms, name=""):
    """|ours - oracle| <= 2 |plain - oracle| + floor, by the largest elements; where one is -inf, all are."""
    ours, plain, oracle = (t.detach().double().cpu() for t in (ours, plain, oracle))
    empty = oracle.isinf()
    assert torch.equal(ours.isinf(), empty), f"{name}: other empty rows"
    ours, plain, oracle = (torch.where(empty, 0.0, t) for t in (ours, plain, oracle))
    if oracle.numel() == 0:
        return
    assert ours.isfinite().all(), f"{name}: not finite"
    largest = oracle.abs().max().item()
    floor = (8 * UNIT[dtype] + 2 * math.sqrt(terms) * 2.0**-24) * max(1.0, largest) + 1e-7
    error, allowed = (ours - oracle).abs().max().item(), 2 * (plain - oracle).abs().max().item() + floor
    assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


def check(run, tensors, seen, options, sinks=None):
    """run(query, key, value[, sinks]) -> (output, lse), values and gradients, against dense attention in f64."""
    dtype, device = tensors[0].dtype, tensors[0].device
    every = [*tensors, sinks] if sinks is not None else list(tensors)

    def dense(*args):
        return dense_attention(*args[:3], seen, options, *args[3:])

    with torch.no_grad():
        shape = dense(*every)
    grads = [like(t, seed) for seed, t in enumerate(shape)]
    wide = [t.detach().double().requires_grad_() for t in every]
    ours, plain = results(run, every, *grads), results(dense, every, *grads)
    oracle = results(dense, wide, *(g.double() for g in grads))
    terms = max(tensors[0].shape[1], tensors[1].shape[1]) * tensors[0].shape[2]
    for name, a, b, c in zip(("output", "lse", "grad_query", "grad_key", "grad_value", "grad_sinks"), ours, plain, oracle):
        assert a.device == device
        assert_close(a, b, c, dtype, terms, name)


def startend(mask_ends, device="cpu"):
    """DeviceMask of causal documents from the end of each key's document."""
    ends = torch.as_tensor(mask_ends, dtype=torch.int32, device=device)
    return DeviceMask.from_startend_row_indices(ends.reshape(1, 1, -1, 1), causal=True)


def document_ends(lengths):
    ends = np.cumsum(lengths)
    return np.repeat(ends, lengths).astype(np.int32)
