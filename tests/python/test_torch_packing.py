"""Packed sequences equal their parts, on real lengths: output and gradients of each document, pair and answer group."""

import json
from pathlib import Path

import pytest
import torch
from torch_cases import DEVICES, assert_close

from flashmask import Mask, attention

DATA = Path(__file__).parents[2] / "examples" / "data"
HEADS, HEADS_KV, DIM = 4, 2, 32


def chats(count):
    lines = (DATA / "chat_turn_lengths.jsonl").read_text().splitlines()[:count]
    return [sum(json.loads(line)) for line in lines]


def pairs(count):
    lines = [line for line in (DATA / "preference_lengths.tsv").read_text().splitlines() if not line.startswith("#")]
    return [[int(n) for n in line.split("\t")] for line in lines[1 : count + 1]]


def draw(tokens, device, dtype):
    generator = torch.Generator().manual_seed(tokens)
    sizes = (1, tokens, HEADS, DIM), (1, tokens, HEADS_KV, DIM), (1, tokens, HEADS_KV, DIM), (1, tokens, HEADS, DIM)
    return [torch.randn(size, generator=generator).to(device, dtype) for size in sizes]


def run(q, k, v, grad, mask=None, **options):
    """(output, gradients) for a gradient of the output."""
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    output = attention(*leaves, mask, deterministic=True, **options)
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def same(packed, alone, name):
    """Both are rounded once from sums of the same terms in another order."""
    for part, (a, b) in zip(("output", "grad_query", "grad_key", "grad_value"), zip(packed, alone)):
        assert_close(a, b, b, a.dtype, 4 * a.shape[1], f"{name}: {part}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_documents(dtype, device):
    """https://github.com/MeetKai/functionary/issues/265 https://github.com/huggingface/nanoVLM/pull/204
    On the CPU: https://github.com/modelscope/ms-swift/issues/5690"""
    lengths = chats(6)
    tensors = draw(sum(lengths), device, dtype)
    packed = run(*tensors, Mask.documents(lengths, causal=True))
    start = 0
    for n, length in enumerate(lengths):
        rows = slice(start, start + length)
        same([t[:, rows] for t in packed], run(*(t[:, rows] for t in tensors), causal=True), f"document {n}")
        start += length


@pytest.mark.parametrize("device", DEVICES)
def test_other_documents_do_not_matter(device):
    """Equal bits, not only close."""
    tensors = draw(8, device, torch.float32)
    mask = Mask.documents([3, 5], causal=True)
    first = run(*tensors, mask)
    for t in tensors:
        t[:, :3] = 7.0
    again = run(*tensors, mask)
    assert all(torch.equal(a[:, 3:], b[:, 3:]) for a, b in zip(first, again))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("records", [pairs(4), [[3, 2, 4]], [[3, 0, 4], [0, 2, 2], [2, 1, 2, 3]]], ids=["real", "small", "edges"])
def test_shared_prompts(records, device):
    """Logits of the shared run equal those of separate runs, the prompt's gradients are the sums of theirs:
    https://github.com/huggingface/trl/issues/3549 https://github.com/frankxwang/dpo-prefix-sharing/issues/2"""
    tensors = draw(sum(map(sum, records)), device, torch.float32)
    packed = run(*tensors, Mask.share_question(records))
    start = 0
    for n, (prompt, *answers) in enumerate(records):
        sums = [torch.zeros_like(t[:, start : start + prompt]) for t in packed]
        first = start + prompt
        for m, answer in enumerate(answers):
            at = torch.cat((torch.arange(start, start + prompt), torch.arange(first, first + answer))).to(device)
            q, k, v, grad = (t[:, at] for t in tensors)
            if m > 0:  # the prompt's own loss counts once
                grad = torch.cat((torch.zeros_like(grad[:, :prompt]), grad[:, prompt:]), 1)
            alone = run(q, k, v, grad, causal=True)
            same([t[:, first : first + answer] for t in packed], [t[:, prompt:] for t in alone], f"record {n}, answer {m}")
            sums = [total + part[:, :prompt] for total, part in zip(sums, alone)]
            sums[0] = alone[0][:, :prompt]
            first += answer
        same([t[:, start : start + prompt] for t in packed], sums, f"record {n}, prompt")
        start = first


@pytest.mark.parametrize("device", DEVICES)
def test_loss_of_packed_chats(device):
    """One loss over a padded batch and over its packed sequence: equal, with gradients of the same weights."""
    lengths = chats(4)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(DIM, (HEADS + 2 * HEADS_KV) * DIM, generator=generator).mul(DIM**-0.5).to(device).requires_grad_()
    tokens = [torch.randn(1, length, DIM, generator=generator).to(device) for length in lengths]

    def loss(x, mask):
        q, k, v = (x @ weight).unflatten(2, (-1, DIM)).split((HEADS, HEADS_KV, HEADS_KV), 2)
        return attention(q, k, v, mask, deterministic=True)

    packed = loss(torch.cat(tokens, 1), Mask.documents(lengths, causal=True)).square().sum()
    padded = torch.cat([torch.nn.functional.pad(t, (0, 0, 0, max(lengths) - t.shape[1])) for t in tokens])
    masks = [Mask.documents([length], causal=True, padding=max(lengths) - length) for length in lengths]
    batch = loss(padded, Mask.stack_batch(masks)).square().sum()
    torch.testing.assert_close(packed, batch)
    (a,), (b,) = torch.autograd.grad(packed, weight), torch.autograd.grad(batch, weight)
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3 * b.abs().max().item())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize(
    "mask",
    [Mask.documents([5, 3, 8, 1, 2, 30, 14], causal=True), Mask.share_question([[9, 4, 6], [3, 11, 2, 7], [20, 1]])],
    ids=["documents", "pairs"],
)
def test_sequences_in_parts(mask, parts, device):
    """Each part of the queries meets each part of the keys, cut anywhere: what sequence and ring parallelism need.
    https://github.com/frankxwang/dpo-prefix-sharing/issues/3 https://github.com/axolotl-ai-cloud/axolotl/issues/3608
    https://github.com/NVIDIA/TransformerEngine/issues/1930 https://github.com/zhuzilin/ring-flash-attention/issues/51"""
    tensors = draw(63, device, torch.float32)
    ends = [63 * n // parts for n in range(parts + 1)]
    spans = list(zip(ends, ends[1:]))
    q, k, v = leaves = [t.requires_grad_() for t in tensors[:3]]
    rows_of_all = []
    for rows in spans:
        states = [
            attention(
                q[:, slice(*rows)], k[:, slice(*keys)], v[:, slice(*keys)], mask.slice(rows, keys), return_lse=True, deterministic=True
            )
            for keys in spans
        ]
        total = torch.stack([lse for _, lse in states]).logsumexp(0)
        weights = [torch.exp(lse - total).transpose(1, 2)[..., None] for _, lse in states]
        rows_of_all.append(sum(weight * output for weight, (output, _) in zip(weights, states)))
    output = torch.cat(rows_of_all, 1)
    whole = run(*tensors, mask)
    same([output, *torch.autograd.grad(output, leaves, tensors[3])], whole, f"{parts} parts")


@pytest.mark.parametrize("device", DEVICES)
def test_short_neighbours_change_no_bit_of_a_long_sequence(device):
    """https://github.com/flashinfer-ai/flashinfer/issues/2424: tiles there went by the lengths of the whole batch."""
    packs = [[700], *([1 + n] * (700 // (1 + n)) for n in range(4))]
    masks = [Mask.documents(lengths, causal=True, padding=700 - sum(lengths)) for lengths in packs]
    tensors = [torch.cat([t.roll(n, 1) for n in range(len(packs))]) for t in draw(700, device, torch.float32)]
    together = run(*tensors, Mask.stack_batch(masks))
    alone = run(*(t[:1] for t in tensors), masks[0])
    assert all(torch.equal(a[:1], b) for a, b in zip(together, alone))


@pytest.mark.parametrize("device", DEVICES)
def test_packed_from_a_tile_on_equals_alone_to_the_bit(device):
    """https://github.com/axolotl-ai-cloud/axolotl/pull/3796 asks for equal bits of packed and separate runs. A document that starts
    at a multiple of the tiles meets its keys in the same steps."""
    tile = 64 if device == "cpu" else 128
    lengths = [3 * tile, tile, 77]
    tensors = draw(sum(lengths), device, torch.float32)
    packed = run(*tensors, Mask.documents(lengths, causal=True))
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        alone = run(*(t[:, rows] for t in tensors), Mask.documents([length], causal=True))
        assert all(torch.equal(a[:, rows], b) for a, b in zip(packed, alone))
        start += length


@pytest.mark.parametrize("device", DEVICES)
def test_batch_items_with_masks_of_their_own(device):
    """Bit for bit as alone: https://github.com/pytorch/pytorch/issues/157675; and a last batch that is smaller:
    https://github.com/pytorch/pytorch/issues/152297"""
    packs = [[32], [16, 16], [1, 31], [8] * 4]
    masks = [Mask.documents(lengths, causal=True) for lengths in packs]
    together = Mask.stack_batch(masks)
    tensors = [torch.cat(parts) for parts in zip(*(draw(32, device, torch.float32) for _ in packs))]
    tensors = [t + torch.arange(4, device=device).reshape(4, 1, 1, 1) * 0.1 for t in tensors]
    results = run(*tensors, together)
    for b in range(4):
        alone = run(*(t[b : b + 1] for t in tensors), masks[b])
        assert all(torch.equal(a[b : b + 1], c) for a, c in zip(results, alone))
    smaller = run(*(t[:3] for t in tensors), together.slice_batch(0, 3))
    assert all(torch.equal(a[:3], b) for a, b in zip(results, smaller))
