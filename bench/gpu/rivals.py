"""What torch offers for the same masks. Tensors of FlexAttention and SDPA are contiguous [B, H, S, D], those of variable-length
attention [tokens, H, D], as each likes them; making them is outside the timing."""

import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

NAMES = ("flex", "flash", "cudnn", "varlen", "dense")
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "dense": SDPBackend.EFFICIENT_ATTENTION}
BLOCK = 128          # of FlexAttention's block masks
BLOCK_PAIRS = 2**31  # pairs that one create_block_mask writes out
DENSE_LENGTH = 8192  # a mask in bytes, then as a bias in bf16, is 3 * B * S * S bytes


class Rival:
    """A differentiable call; forward keeps what backward needs, as in training."""

    def __init__(self, name, call, leaves, grad_output):
        self.name, self.call, self.leaves, self.grad_output = name, call, leaves, grad_output
        self.about = {}
        self.out = self.forward()

    def forward(self):
        return self.call(*self.leaves)

    def backward(self):
        return torch.autograd.grad(self.out, self.leaves, self.grad_output, retain_graph=True)

    def results(self, gradients):
        """Output and gradients as [B, S, H, D]; gradients None where not wanted."""
        grads = [g.transpose(1, 2) for g in self.backward()] if gradients else None
        return self.out.detach().transpose(1, 2), grads


class VariableLength(Rival):
    def __init__(self, inputs, layout):
        index = torch.from_numpy(layout.index).to(inputs[0].device)
        leaves = [t.flatten(0, 1)[index].requires_grad_() for t in inputs[:3]]
        ends, longest = torch.from_numpy(layout.ends()).to(index.device), max(layout.lengths)
        self.index, self.shape, self.repeats = index, inputs[0].shape, len(index) != len(set(layout.index.tolist()))

        def call(q, k, v):
            return torch.ops.aten._flash_attention_forward(q, k, v, ends, ends, longest, longest, 0.0, layout.causal, False)[0]

        super().__init__("varlen", call, leaves, inputs[3].flatten(0, 1)[index])
        self.about = {"documents": len(layout.lengths), "tokens": len(index)}

    def scatter(self, tokens, heads):
        whole = torch.zeros(self.shape[0] * self.shape[1], heads, self.shape[3], dtype=tokens.dtype, device=tokens.device)
        whole[self.index] = tokens
        return whole.unflatten(0, self.shape[:2])

    def results(self, gradients):
        """A repeated prompt gets the gradient of each copy's rows, which the shared layout has once: not comparable."""
        grads = [self.scatter(g, g.shape[1]) for g in self.backward()] if gradients and not self.repeats else None
        return self.scatter(self.out.detach(), self.shape[2]), grads


class FlexGroup:
    """Masks whose vectors have one shape share the tensors that mask_mod reads, so that they share the compiled kernels."""

    def __init__(self, batch, heads, length, intervals, device):
        shape = [n for n in (batch, heads) if n > 1] + [length]
        self.shape = (batch, heads, length)
        self.starts = starts = [torch.zeros(shape, dtype=torch.int32, device=device) for _ in range(intervals)]
        self.ends = ends = [torch.zeros_like(start) for start in starts]

        def mask_mod(b, h, q, kv):
            place = ((b,) if batch > 1 else ()) + ((h,) if heads > 1 else ()) + (kv,)
            seen = (q >= starts[0][place]) & (q < ends[0][place])
            for m in range(1, intervals):
                seen = seen | ((q >= starts[m][place]) & (q < ends[m][place]))
            return seen

        self.mask_mod = mask_mod

    def load(self, vectors):
        for m, (start, end) in enumerate(zip(self.starts, self.ends)):
            start.copy_(vectors[..., 2 * m].reshape(start.shape))
            end.copy_(vectors[..., 2 * m + 1].reshape(end.shape))

    def part(self, b0, h0):
        def mask_mod(b, h, q, kv):
            return self.mask_mod(b + b0, h + h0, q, kv)

        return mask_mod

    def block_mask(self):
        """In parts, because create_block_mask writes out every pair."""
        from torch.nn.attention.flex_attention import BlockMask, create_block_mask

        batch, heads, length = self.shape
        step = max(1, min(heads, BLOCK_PAIRS // length**2))
        device, parts = self.starts[0].device, []
        for b in range(batch):
            row = [create_block_mask(self.part(b, h), 1, min(step, heads - h), length, length, device, BLOCK)
                   for h in range(0, heads, step)]
            parts.append([torch.cat([getattr(p, name) for p in row], 1) for name in
                          ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")])
        joined = [torch.cat(tensors) for tensors in zip(*parts)]
        return BlockMask.from_kv_blocks(*joined, BLOCK_SIZE=BLOCK, mask_mod=self.mask_mod, seq_lengths=(length, length))


class Flex:
    """FlexAttention of one length."""

    def __init__(self, leaves, grad_output, autotune):
        from torch.nn.attention.flex_attention import flex_attention

        torch._dynamo.config.recompile_limit = 64
        torch._functorch.config.donated_buffer = False  # backward runs more than once
        self.leaves, self.grad_output, self.groups = leaves, grad_output, {}
        self.compiled = torch.compile(flex_attention, dynamic=False, mode="max-autotune-no-cudagraphs" if autotune else None)

    def group(self, vectors):
        """The group of vectors [Bm, Hm, S, 2 M], loaded with them."""
        batch, query_heads = self.leaves[0].shape[:2]
        if vectors.shape[1] == 1:  # one shape, so one compilation, for masks with and without batch items of their own
            vectors = vectors.expand(batch, -1, -1, -1)
        elif vectors.shape[1] < query_heads:
            vectors = vectors.repeat_interleave(query_heads // vectors.shape[1], 1)
        key = tuple(vectors.shape)
        if key not in self.groups:
            self.groups[key] = FlexGroup(*key[:3], key[3] // 2, vectors.device)
        self.groups[key].load(vectors)
        return self.groups[key]

    def rival(self, vectors, gradients):
        group = self.group(vectors)
        group.block_mask()
        torch.cuda.synchronize()
        start = time.perf_counter()
        mask = group.block_mask()
        torch.cuda.synchronize()
        built = time.perf_counter() - start
        gqa = self.leaves[0].shape[1] != self.leaves[1].shape[1]
        rival = Rival("flex", lambda q, k, v: self.compiled(q, k, v, block_mask=mask, enable_gqa=gqa), self.leaves,
                      self.grad_output)
        if gradients:
            rival.backward()
        torch.cuda.synchronize()
        rival.about = {"block_mask_ms": 1e3 * built, "first_call_seconds": time.perf_counter() - start - built}
        return rival


def sdpa(name, leaves, grad_output, causal, mask=None):
    gqa = leaves[0].shape[1] != leaves[1].shape[1]

    def call(q, k, v):
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=gqa)

    return Rival(name, call, leaves, grad_output)


def dense_mask(vectors):
    """bool [Bm, Hm, S, S] from vectors on the GPU."""
    batch, heads, length, count = vectors.shape
    rows = torch.arange(length, device=vectors.device, dtype=torch.int32)[:, None]
    mask = torch.zeros(batch, heads, length, length, dtype=torch.bool, device=vectors.device)
    for m in range(0, count, 2):
        mask |= (rows >= vectors[:, :, None, :, m]) & (rows < vectors[:, :, None, :, m + 1])
    return mask


class Rivals:
    """All rivals over the tensors of one length."""

    def __init__(self, inputs, names, autotune=False):
        self.inputs, self.names = inputs, names
        self.leaves = [t.transpose(1, 2).contiguous().requires_grad_() for t in inputs[:3]]
        self.grad_output = inputs[3].transpose(1, 2).contiguous()
        self.flex = Flex(self.leaves, self.grad_output, autotune) if "flex" in names else None

    def make(self, name, case, vectors, gradients):
        """None where this rival has no call for this mask."""
        if name == "flex":
            return self.flex.rival(vectors, gradients)
        if name == "varlen":
            return VariableLength(self.inputs, case.layout) if case.layout is not None else None
        if name == "dense":  # its time does not depend on the mask: one is enough
            fits = case.name == "causal_document" and case.length <= DENSE_LENGTH
            return sdpa(name, self.leaves, self.grad_output, False, dense_mask(vectors)) if fits else None
        if case.name not in ("full", "causal"):
            return None
        return sdpa(name, self.leaves, self.grad_output, case.name == "causal")
