"""The race: one task trained anew by each contender on the same data, tokens/s of each, and whether the loss curves agree."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask.collate import Batch, to_device

from . import contenders, data
from .contenders import Contender
from .data import Record
from .model import Attend, Llama, Shape, add_lora

# How far losses may be apart, relative to the loss. In a dozen steps rounding alone was seen to make 2e-6 of it in float32 and
# 7e-3 in bfloat16, a mask that lets documents see each other 5e-2 and more.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


class Task:
    """What an example trains. `sequences` yields the records that fill one packed sequence together."""

    outputs: int | None = None  # of the model's head; None: the vocabulary
    alone: Contender = staticmethod(contenders.causal)  # attention over padded rows of one document each

    def __init__(self, title: str, sequences: Iterator[list[Record]]) -> None:
        self.title, self.sequences = title, sequences

    def packed(self, groups: list[list[Record]], capacity: int) -> Batch:
        """A batch of one sequence for each group of records."""
        raise NotImplementedError

    def padded(self, records: list[Record]) -> Batch:
        """A batch of one document a row, all as long as the longest."""
        return self.packed([[record] for record in records], rounded(max(map(data.tokens, records))))

    def begin(self, model: Llama) -> None:
        """Called with the model before the first step."""

    def loss(self, model: Llama, batch: Batch, attend: Attend) -> Tensor:
        raise NotImplementedError


def rounded(length: int) -> int:
    """To what torch's kernels take without a copy."""
    return -(-length // 8) * 8


class Curve(NamedTuple):
    """What training by one contender gave: of each step the loss and the seconds, and the bytes of the last mask."""

    losses: list[float]
    seconds: list[float]
    mask_bytes: int
    peak_bytes: int  # of the GPU's memory; 0 on a CPU


def at_least(smallest: int) -> Callable[[str], int]:
    """The type of an option: an integer from there on."""

    def number(text: str) -> int:
        value = int(text)
        if value < smallest:
            raise argparse.ArgumentTypeError(f"is {value}, needs {smallest} or more")
        return value

    number.__name__ = "integer"  # what argparse calls it
    return number


# The smallest values that mean something: a head_dim of 2 turns, a topic has its tokens beside padding.
SMALLEST = {"head_dim": 2, "vocabulary": data.TOPIC + 1, "seed": 0}


def parser(description: str, checkpointing: bool = False, **defaults: Any) -> argparse.ArgumentParser:
    """The options of every example; defaults make a run of a minute or two on two cores of a CPU."""
    values: dict[str, Any] = {"steps": 8, "sequences": 1, "capacity": 4096, "layers": 2, "heads": 4, "kv_heads": 2}
    values |= {"head_dim": 32, "vocabulary": 128, "seed": 0, "learning_rate": 3e-3} | defaults
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, value in values.items():
        kind = at_least(SMALLEST.get(name, 1)) if isinstance(value, int) else float
        p.add_argument("--" + name.replace("_", "-"), type=kind, default=value, help=" ")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help=" ")
    p.add_argument("--dtype", choices=["float32", "bfloat16"], help="float32 on a CPU, else bfloat16")
    action = argparse.BooleanOptionalAction
    p.add_argument("--checkpointing", action=action, default=checkpointing, help="compute layers again in backward")
    return p


def dtype_of(options: argparse.Namespace) -> torch.dtype:
    return getattr(torch, options.dtype or ("float32" if options.device == "cpu" else "bfloat16"))


def make_model(task: Task, options: argparse.Namespace, rank: int) -> Llama:
    torch.manual_seed(options.seed)
    size = options.layers, options.heads, options.kv_heads, options.head_dim, options.vocabulary
    with torch.device(options.device):  # where random numbers are quick
        model = Llama(Shape(*size, task.outputs or options.vocabulary), options.checkpointing)
        if rank:
            add_lora(model, rank)
    return model.to(dtype_of(options))


def train(task: Task, contender: Contender, batches: Iterable[Batch], options: argparse.Namespace, rank: int = 0) -> Curve:
    """A step has the making of the mask, forward, backward and the optimiser; batches are collated before."""
    model = make_model(task, options, rank)
    task.begin(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], options.learning_rate, eps=1e-6)
    cuda = options.device != "cpu"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    losses, seconds, mask_bytes = [], [], 0
    for batch in batches:
        batch = to_device(batch, options.device)
        start = time.perf_counter()
        attend, mask_bytes = contender(batch, dtype_of(options))
        loss = task.loss(model, batch, attend)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # waits for the GPU
        seconds.append(time.perf_counter() - start)
    return Curve(losses, seconds, mask_bytes, torch.cuda.max_memory_allocated() if cuda else 0)


def failure(error: Exception) -> str:
    """Its kind and the first line that says something."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {textwrap.shorten(lines[0], 160)}"


def race(task: Task, options: argparse.Namespace, rank: int = 0) -> bool:
    """Prints a table: tokens of the records a second; "computed", a step's tokens with padding and repeated prompts. True if
    something ran to compare with and all curves agree."""
    steps = [list(islice(task.sequences, options.sequences)) for _ in range(options.steps)]
    records = [[record for group in groups for record in group] for groups in steps]
    tokens = [sum(map(data.tokens, each)) for each in records]
    packed = [task.packed(groups, options.capacity) for groups in steps]
    padded = [task.padded(each) for each in records]
    used = sum(tokens) / (options.steps * options.sequences * options.capacity)
    print(f"{task.title}: {options.steps} steps of {options.sequences} x {options.capacity} tokens, {used:.1%} used; "
          f"{dtype_of(options)}, {options.device}")
    entries = [("flashmask", lambda: contenders.flashmask, packed), ("SDPA, dense mask", lambda: contenders.dense, packed),
               ("FlexAttention", lambda: contenders.Flex(), packed), ("padding, SDPA", lambda: task.alone, padded)]
    curves: dict[str, Curve] = {}
    print(f"  {'':18}{'tokens/s':>10}{'s/step':>9}{'mask MiB':>10}{'peak MiB':>10}{'computed':>10}   loss")
    for name, make, batches in entries:
        try:
            curve = curves[name] = train(task, make(), batches, options, rank)
        except Exception as error:  # rivals say no in many ways
            if name == "flashmask":
                raise
            print(f"  {name:18}skipped: {failure(error)}")
            continue
        timed = len(curve.seconds[1:]) or 1  # the first step compiles and warms up
        seconds = sum(curve.seconds[-timed:])
        peak = f"{curve.peak_bytes / 2**20:.0f}" if curve.peak_bytes else "-"
        computed = sum(batch["input_ids"].numel() for batch in batches) // len(batches)
        print(f"  {name:18}{sum(tokens[-timed:]) / seconds:10.0f}{seconds / timed:9.2f}{curve.mask_bytes / 2**20:10.2f}"
              f"{peak:>10}{computed:10}   {curve.losses[0]:.4f} .. {curve.losses[-1]:.4f}")
    return agree(curves, TOLERANCE[dtype_of(options)])


def agree(curves: dict[str, Curve], tolerance: float) -> bool:
    """Whether every curve is flashmask's, relative to the loss."""
    ours, *others = curves.values()
    gaps = [abs(a - b) / max(1.0, abs(a)) for other in others for a, b in zip(ours.losses, other.losses, strict=True)]
    good = bool(gaps) and all(gap <= tolerance for gap in gaps)  # NaN is not
    verdict = "agree" if good else "DIFFER" if gaps else "have nothing to compare with"
    print(f"  loss curves {verdict}: {max(gaps, default=0):.1e} apart at most, {tolerance:.0e} allowed\n")
    return good
