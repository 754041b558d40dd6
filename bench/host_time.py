#!/usr/bin/env python3
"""Host time of one attention call whose mask is known already, beside SDPA and FlexAttention in the same run.

    FLASHMASK_LIBRARY=build/libflashmask.so PYTHONPATH=python python bench/host_time.py [--device cuda] [--dtype bfloat16]

On a GPU the time to enqueue: the GPU is waited for between rounds only. On the CPU the shape is so small that arithmetic hardly
counts. The least of several rounds, in microseconds.

Exit status 1 when a call takes longer than its limit: 15 us through ctypes alone, 60 us with all of torch, and on a GPU what
FlexAttention takes for the same in this run, where it runs. On the CPU it is no limit: calls there are arithmetic too."""

import argparse
import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

from flashmask import Mask, attention, torch_attention, torch_calls, torch_ops

FLAGS = False, -1, -1
CTYPES, CALL = 15.0, 60.0  # microseconds


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
    inputs = *(t.detach() for t in (q, k, v)), None, vectors, form, (*FLAGS, None, 0.0)
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


def cases(device, dtype):
    """(name, call or None where it cannot run, most microseconds, the name of a call that must not be faster) each."""
    length = 128 if device == "cuda" else 8
    q, k, v = (torch.randn(1, length, 1, 64, device=device, dtype=dtype) for _ in range(3))
    leaves, grad = [t.clone().requires_grad_() for t in (q, k, v)], torch.ones_like(q)
    mask = Mask.causal(length)
    there = mask.to(device)
    dense = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]
    quick, full = flex(q, k, v, length), flex(*leaves, length)

    def both():
        return torch.autograd.grad(attention(*leaves, mask), leaves, grad)

    def both_of_flex():
        return torch.autograd.grad(full(), leaves, grad.transpose(1, 2))

    return [
        ("ctypes alone", by_ctypes(q, k, v, mask), CTYPES, None),
        ("attention, no gradient", lambda: attention(q, k, v, mask), CALL, "FlexAttention, no gradient"),
        ("attention", lambda: attention(*leaves, mask), CALL, "FlexAttention"),
        ("attention, DeviceMask", lambda: attention(*leaves, there), CALL, "FlexAttention"),
        ("attention, forward and backward", both, None, None),
        ("SDPA with a dense mask", lambda: scaled_dot_product_attention(*heads_first, attn_mask=dense), None, None),
        ("FlexAttention, no gradient", quick, None, None),
        ("FlexAttention", full, None, None),
        ("FlexAttention, forward and backward", full and both_of_flex, None, None),
    ]


def limit_of(most, other, times, device):
    """The microseconds that a call may take, None: any. other: the name of the call that must not be faster, on a GPU."""
    beside = times.get(other) if device == "cuda" else None
    return min((limit for limit in (most, beside) if limit is not None), default=None)


def report(rows, times, device):
    """Prints a line a call, and returns what is wrong. rows: as of cases; times: microseconds by name, of those that ran."""
    print(f"{'call':36}{'us':>8}{'limit':>8}")
    wrong = []
    for name, _, most, other in rows:
        if name not in times:
            continue
        limit = limit_of(most, other, times, device)
        print(f"{name:36}{times[name]:8.1f}" + ("" if limit is None else f"{limit:8.1f}"))
        if limit is not None and times[name] >= limit:
            reason = "" if limit == most else f", the time of {other}"
            wrong.append(f"{name} takes {times[name]:.1f} us, needs less than {limit:.1f} us{reason}")
    return wrong


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="on a GPU bfloat16 if not given, else float32")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no CUDA device")
    if options.device == "cpu":
        torch.set_num_threads(1)
    rows = cases(options.device, getattr(torch, options.dtype or ("bfloat16" if options.device == "cuda" else "float32")))
    times = {name: least(run, options.device) for name, run, *_ in rows if run is not None}
    wrong = report(rows, times, options.device)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
