#!/usr/bin/env python3
"""Host time of one attention call whose mask is known already, beside SDPA and FlexAttention in the same run.

    FLASHMASK_LIBRARY=build/libflashmask.so PYTHONPATH=python python bench/host_time.py [--device cuda] [--dtype bfloat16]

On a GPU the time to enqueue: the GPU is waited for between rounds only. On the CPU the shape is so small that arithmetic hardly
counts. The least of several rounds, in microseconds."""

import argparse
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

from flashmask import Mask, attention, torch_attention, torch_calls, torch_ops

FLAGS = False, -1, -1


def least(run, device, rounds=9, calls=100):
    best = float("inf")
    for _ in range(rounds + 1):  # the first warms up
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, time.perf_counter() - start)
        if device == "cuda":
            torch.cuda.synchronize()
    return best / calls * 1e6


def by_ctypes(q, k, v, mask):
    """The call without torch's dispatcher and autograd, into given memory."""
    vectors, form = torch_attention.mask_tensor(mask, q, FLAGS)
    inputs = torch_calls.Inputs(*(t.detach() for t in (q, k, v)), None, vectors, form, torch_calls.Settings(*FLAGS, None, 0.0))
    output, lse = torch_ops.results(*inputs[:3], False)
    return lambda: torch_calls.forward(inputs, output, lse)


def flex(q, k, v, length):
    """torch's FlexAttention, compiled, causal; None where it cannot run (with gradients on the CPU)."""
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=q.device.type)
        run = torch.compile(flex_attention, fullgraph=True)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        run(q, k, v, block_mask=blocks)
        return lambda: run(q, k, v, block_mask=blocks)
    except Exception as error:  # it says no in many ways
        print(f"FlexAttention: {type(error).__name__}: {str(error).splitlines()[0]}")
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no CUDA device")
    if options.device == "cpu":
        torch.set_num_threads(1)
    length = 128 if options.device == "cuda" else 8
    q, k, v = (torch.randn(1, length, 1, 64, device=options.device, dtype=getattr(torch, options.dtype)) for _ in range(3))
    mask, grad = Mask.causal(length), torch.ones_like(q)
    dense = torch.ones(length, length, dtype=torch.bool, device=options.device).tril()
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]

    rows = [("ctypes alone", by_ctypes(q, k, v, mask)), ("attention, no gradient", lambda: attention(q, k, v, mask))]
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    rows.append(("attention", lambda: attention(*leaves, mask)))
    rows.append(("attention, forward and backward", lambda: torch.autograd.grad(attention(*leaves, mask), leaves, grad)))
    rows.append(("SDPA with a dense mask", lambda: scaled_dot_product_attention(*heads_first, attn_mask=dense)))
    rows.append(("FlexAttention, no gradient", flex(q, k, v, length)))
    flexible = flex(*leaves, length)
    if flexible is not None:
        rows.append(("FlexAttention", flexible))
        rows.append(("FlexAttention, forward and backward",
                     lambda: torch.autograd.grad(flexible(), leaves, grad.transpose(1, 2))))
    for name, run in rows:
        if run is not None:
            print(f"{name:36}{least(run, options.device):8.1f} us")


if __name__ == "__main__":
    main()
