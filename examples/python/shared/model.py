"""A Llama-shaped model made from scratch: RMSNorm, rotary positions, grouped heads, SwiGLU; and LoRA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q [B, S, Hq, D], k and v [B, S, Hkv, D] -> [B, S, Hq, D]


@dataclass(frozen=True)
class Shape:
    """The width is heads * head_dim. outputs: numbers that the head gives for a token; 1 for a reward model."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    outputs: int

    def __post_init__(self) -> None:
        if self.head_dim % 2 or self.heads % self.kv_heads:
            raise ValueError(
                f"head_dim is {self.head_dim}, needs an even number for rotary positions; heads are {self.heads}, need a multiple "
                f"of the {self.kv_heads} kv_heads"
            )


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.shape = shape.heads * shape.head_dim, shape
        self.before_attention, self.before_mlp = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        hidden = 7 * width // 2  # as Llama 3 has it
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        s = self.shape
        heads = self.qkv(self.before_attention(x)).unflatten(-1, (-1, s.head_dim))
        q, k, v = heads.split([s.heads, s.kv_heads, s.kv_heads], 2)
        x = x + self.out(attend(rotate(q, cos, sin), rotate(k, cos, sin), v).flatten(2))
        y = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions; cos and sin: [B, S, 1, D / 2]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Llama(nn.Module):
    """model(input_ids, position_ids, attend) -> [B, S, outputs]. checkpointing: layers are computed again in backward."""

    def __init__(self, shape: Shape, checkpointing: bool = False) -> None:
        super().__init__()
        width = shape.heads * shape.head_dim
        self.shape, self.checkpointing = shape, checkpointing
        self.embedding = nn.Embedding(shape.vocabulary, width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, shape.outputs, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        if shape.outputs == shape.vocabulary:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor, position_ids: Tensor, attend: Attend) -> Tensor:
        x = self.embedding(input_ids)
        half = self.shape.head_dim // 2
        frequencies = 5e5 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        angles = position_ids[..., None, None] * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            if self.checkpointing:
                x = checkpoint(layer, x, cos, sin, attend, use_reentrant=False)
            else:
                x = layer(x, cos, sin, attend)
        return self.head(self.norm(x))


class LoRA(nn.Module):
    """A linear layer whose weight stays as it is, plus a trained one of low rank, which starts as 0."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn_like(base.weight[:rank]) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros_like(base.weight[:, :rank]))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


def add_lora(model: Llama, rank: int) -> None:
    """Only what LoRA adds to the linear layers is trained from now on."""
    model.requires_grad_(False)
    for layer in model.layers:
        for name, child in list(layer.named_children()):
            if isinstance(child, nn.Linear):
                setattr(layer, name, LoRA(child, rank))
