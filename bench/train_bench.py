#!/usr/bin/env python3
"""Training steps of Llama-shaped layers on packs of real lengths, beside FlexAttention and SDPA with a dense mask, on one GPU.

    FLASHMASK_LIBRARY=build/libflashmask.so PYTHONPATH=python python bench/train_bench.py steps curves --out train.jsonl

docs/gpu.md says what the parts and columns mean.
"""

import argparse
import copy
import gc
import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples" / "python"))

from dpo import DPO  # noqa: E402
from gpu.report import Report, output_of  # noqa: E402
from reward_model import Reward  # noqa: E402
from sft import SFT  # noqa: E402
from shared import contenders, data  # noqa: E402
from shared.race import SMALLEST, at_least, dtype_of, failure, train  # noqa: E402

import flashmask  # noqa: E402

TASKS = {"sft": (SFT, data.chats), "dpo": (DPO, data.pairs), "rm": (Reward, data.pairs)}
MAKE = {"flashmask": lambda dynamic: contenders.flashmask, "flex": contenders.Flex, "dense": lambda dynamic: contenders.dense}
EXACT = {torch.bfloat16: "float32", torch.float32: "float64"}  # the dtype of the curve that others are held against
WARM_STEPS = 2


def parse_arguments(arguments):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("parts", nargs="+", choices=["steps", "memory", "longest", "curves"], metavar="PART",
                   help="of steps, memory, longest, curves")
    p.add_argument("--tasks", default="sft,dpo,rm", help="of steps and curves")
    p.add_argument("--contenders", default="flashmask,flex,dense", help=" ")
    p.add_argument("--lengths", type=at_least(1), nargs="+", default=[8192, 32768, 131072], help="of steps")
    p.add_argument("--steps", type=at_least(1), default=8, help=f"the first {WARM_STEPS} are not counted")
    p.add_argument("--step-seconds", type=float, default=30, help="no step is started later, but the first counted one")
    p.add_argument("--memory-lengths", type=at_least(1), nargs="+", default=[2**k for k in range(12, 19)], help="of memory")
    p.add_argument("--longest-from", type=at_least(1), default=32768, help=" ")
    p.add_argument("--longest-most", type=at_least(1), default=2**21, help=" ")
    p.add_argument("--longest-within", type=float, default=0.06, help="how near to each other the bounds come")
    p.add_argument("--curve-steps", type=at_least(1), default=200, help=" ")
    p.add_argument("--curve-length", type=at_least(1), default=8192, help=" ")
    for name, value in (("layers", 2), ("heads", 32), ("kv-heads", 8), ("head-dim", 128), ("vocabulary", 512), ("rank", 16)):
        smallest = SMALLEST.get(name.replace("-", "_"), 1)
        p.add_argument(f"--{name}", type=at_least(smallest), default=value, help="of LoRA" if name == "rank" else " ")
    p.add_argument("--learning-rate", type=float, default=1e-4, help=" ")
    p.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help=" ")
    p.add_argument("--device", default="cuda", help="cpu runs it there, which takes long unless all sizes are small")
    p.add_argument("--seed", type=at_least(0), default=0, help=" ")
    p.add_argument("--time-limit", type=float, default=float("inf"), help="seconds after which nothing more is started")
    p.add_argument("--commit", help="what the report says, where git cannot tell")
    p.add_argument("--out", help="file of JSON lines")
    a = p.parse_args(arguments)
    a.tasks, a.contenders = a.tasks.split(","), a.contenders.split(",")
    if set(a.tasks) - set(TASKS) or set(a.contenders) - set(MAKE):
        p.error(f"--tasks are of {', '.join(TASKS)}, --contenders of {', '.join(MAKE)}")
    if a.device != "cpu" and not torch.cuda.is_available():
        p.error("no CUDA device; --device cpu runs it there, which takes long unless all sizes are small")
    return a


def about(a):
    cuda = a.device != "cpu"
    return {
        "record": "about", "gpu": torch.cuda.get_device_name() if cuda else None, "torch": torch.__version__,
        "gpu_bytes": torch.cuda.get_device_properties(0).total_memory if cuda else None, "version": flashmask.__version__,
        "commit": a.commit or output_of(["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=12"]),
        "arguments": vars(a),
    }


# ---- one run ----


class Bench:
    def __init__(self, arguments, report):
        self.a, self.report, self.start, self.good = arguments, report, time.perf_counter(), True

    def seconds(self):
        return time.perf_counter() - self.start

    def late(self, **what):
        """Whether the time limit is over; says then what was not started."""
        over = self.seconds() > self.a.time_limit
        if over:
            self.write({**what, "failure": "not started: the time limit is over"})
        return over

    def write(self, record):
        self.report.write(record)
        print(json.dumps({name: value for name, value in record.items() if name != "losses"}), file=sys.stderr, flush=True)

    def batches(self, task, length, count):
        """`count` packed batches of one sequence, and their tokens."""
        make, records = TASKS[task]
        options = argparse.Namespace(capacity=length, vocabulary=self.a.vocabulary, seed=self.a.seed)
        trained = make(task, data.sequences(records, options))
        groups = [next(trained.sequences) for _ in range(count)]
        tokens = [sum(map(data.tokens, group)) for group in groups]
        return trained, [trained.packed([group], length) for group in groups], tokens

    def options(self, **changes):
        """What train() reads."""
        options = copy.copy(self.a)
        options.checkpointing = False
        vars(options).update(changes)
        return options

    def train(self, task, contender, batches, rank=0, **changes):
        """(curve, None), or (None, why not): too little memory, mostly."""
        try:
            return train(task, contender, batches, self.options(**changes), rank), None
        except Exception as error:  # rivals say no in many ways
            return None, failure(error)
        finally:
            gc.collect()
            if self.a.device != "cpu":
                torch.cuda.empty_cache()

    def contender(self, name, one_length=True):
        """one_length: compiled for each length by itself, else once more for all."""
        torch._dynamo.reset()  # of earlier lengths
        return MAKE[name](False if one_length else None)

    def excuse(self, name, why):
        """Nothing but want of memory may stop flashmask."""
        self.good &= name != "flashmask" or why is None or "out of memory" in why.lower() or "MemoryError" in why


def limited(batches, seconds):
    """The batches, until so many seconds have passed, but one to count in any case."""
    start = time.perf_counter()
    for k, batch in enumerate(batches):
        if k > WARM_STEPS and time.perf_counter() - start > seconds:
            return
        yield batch


def spread(values):
    p10, median, p90 = (float(v) for v in np.percentile(values, [10, 50, 90]))
    return {"median": median, "p10": p10, "p90": p90, "runs": len(values)}


def visible_pairs(batch):
    bounds = batch["mask_vectors"].long().unflatten(-1, (-1, 2))
    return int((bounds[..., 1] - bounds[..., 0]).sum())


def mask_seconds(contender, batch, a):
    """Of what is made once for a mask, a plan or a block mask: attention with a new one less attention with one known; median.
    The tensors lie as the model's do, so that nothing is compiled anew."""
    batch = flashmask.collate.to_device(batch, a.device)
    shape = 1, batch["input_ids"].shape[1], a.heads + 2 * a.kv_heads, a.head_dim
    heads = torch.randn(shape, dtype=dtype_of(a), device=a.device)
    q, k, v = heads.requires_grad_().split([a.heads, a.kv_heads, a.kv_heads], 2)
    q, k, found = q.contiguous(), k.contiguous(), []
    for _ in range(4):
        attend = None  # frees the last mask
        start = time.perf_counter()
        attend, _ = contender(batch, dtype_of(a))
        attend(q, k, v)
        wait(a)
        known = time.perf_counter()
        attend(q, k, v)
        wait(a)
        found.append(known - start - (time.perf_counter() - known))
    return float(np.median(found[1:]))


def wait(a):
    if a.device != "cpu":
        torch.cuda.synchronize()


# ---- parts ----


def steps(bench):
    a = bench.a
    for length in a.lengths:
        made = {name: bench.contender(name) for name in a.contenders}
        for task in a.tasks:
            trained, batches, tokens = bench.batches(task, length, a.steps)
            for name, contender in made.items():
                what = {"record": "steps", "task": task, "length": length, "contender": name}
                if bench.late(**what):
                    continue
                curve, why = bench.train(trained, contender, limited(batches, a.step_seconds))
                bench.excuse(name, why)
                found = {"failure": why}
                if curve:
                    found = {**measured(curve, tokens), "mask_seconds": mask_seconds(contender, batches[-1], a)}
                bench.write({**what, "pairs": visible_pairs(batches[-1]), **found})


def measured(curve, tokens):
    counted = curve.seconds[WARM_STEPS:] or curve.seconds
    rate = sum(tokens[: len(curve.seconds)][-len(counted) :]) / sum(counted)
    return {"seconds": spread(counted), "tokens_per_second": rate, "first_seconds": curve.seconds[0],
            "peak_bytes": curve.peak_bytes, "mask_bytes": curve.mask_bytes, "losses": curve.losses}


def memory(bench):
    """Peak memory of two SFT steps, all weights trained."""
    a = bench.a
    for name in a.contenders:
        contender = bench.contender(name, one_length=False)
        for length in a.memory_lengths:
            if bench.late(record="memory", contender=name, length=length):
                return
            trained, batches, _ = bench.batches("sft", length, 2)
            curve, why = bench.train(trained, contender, batches)
            bench.excuse(name, why)
            found = {"peak_bytes": curve.peak_bytes, "mask_bytes": curve.mask_bytes} if curve else {"failure": why}
            bench.write({"record": "memory", "contender": name, "length": length, **found})
            if curve is None:
                break


def search(trains, first, most, within, late):
    """The longest length that trains and the shortest that does not (None if none was found): doubled from `first` to `most`
    until one fails, then multiples of 1024 halfway between. Stops where the two are near to each other, or `late`."""
    good, bad, length = 0, None, first
    while not late():
        if trains(length):
            good = length
        else:
            bad = length
        if bad is None:
            if good >= most:
                break
            length = min(2 * good, most)
        else:
            length = (good + bad) // 2 // 1024 * 1024
            if length <= good or bad - good <= within * good:
                break
    return good, bad


def longest(bench):
    """LoRA on a pack of chats, layers computed again in backward."""
    a = bench.a
    for name in a.contenders:
        if bench.late(record="longest", contender=name):
            continue
        contender, failures = bench.contender(name, one_length=False), {}

        def trains(length):
            trained, batches, _ = bench.batches("sft", length, 1)
            start = time.perf_counter()
            curve, why = bench.train(trained, contender, batches, a.rank, checkpointing=True)
            bench.write({"record": "probe", "contender": name, "length": length, "seconds": time.perf_counter() - start,
                         **({"peak_bytes": curve.peak_bytes} if curve else {"failure": why})})
            failures[length] = why
            bench.excuse(name, why)
            return curve is not None

        good, bad = search(trains, a.longest_from, a.longest_most, a.longest_within, lambda: bench.seconds() > a.time_limit)
        bench.write({"record": "longest", "contender": name, "trains": good, "fails": bad, "why": failures.get(bad),
                     "finished": bench.seconds() <= a.time_limit})


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def curves(bench):
    """Every curve against that of a dense mask in twice as many bits; flashmask twice more, deterministic."""
    a = bench.a
    for task in a.tasks:
        what = {"record": "curve", "task": task, "length": a.curve_length, "steps": a.curve_steps}
        if bench.late(**what):
            continue
        trained, batches, _ = bench.batches(task, a.curve_length, a.curve_steps)
        size = {"capacity": a.curve_length}
        found = {"exact": bench.train(trained, contenders.dense, batches, **size, dtype=EXACT[dtype_of(a)])}
        for name in dict.fromkeys(["dense", *a.contenders]):
            found[name] = bench.train(trained, bench.contender(name), batches, **size)
        with deterministic():
            for name in ("deterministic", "again"):
                found[name] = bench.train(trained, contenders.flashmask, batches, **size)
        judge(bench, what, {name: why or np.array(curve.losses) for name, (curve, why) in found.items()})


def judge(bench, what, found):
    """Whether flashmask's error is at most twice that of the dense mask, but for the rounding of the loss, which is f32."""
    losses = {name: curve for name, curve in found.items() if not isinstance(curve, str)}
    for name, curve in found.items():
        bench.write({**what, "contender": name, **({"losses": curve.tolist()} if name in losses else {"failure": curve})})
    needed = {"exact", "dense", "flashmask", "deterministic", "again"} - set(losses)
    if needed:
        bench.good = False
        bench.write({**what, "record": "curves", "agree": False, "failure": f"no curve of {', '.join(sorted(needed))}"})
        return
    exact = losses["exact"]
    errors = {name: float(np.sqrt(np.mean((curve - exact) ** 2))) for name, curve in losses.items() if name != "exact"}
    limit = 2 * errors["dense"] + 2 * float(np.finfo(np.float32).eps * np.abs(exact).mean())
    agree = all(errors[name] <= limit for name in ("flashmask", "deterministic", "again"))
    bench.good &= agree
    bench.write({**what, "record": "curves", "errors": errors, "limit": limit, "agree": agree,
                 "from_dense": float(np.abs(losses["flashmask"] - losses["dense"]).max()),
                 "bit_equal_to_dense": bool((losses["flashmask"] == losses["dense"]).all()),
                 "deterministic_repeats_bit_equal": bool((losses["deterministic"] == losses["again"]).all())})


def main(arguments=None):
    a = parse_arguments(arguments)
    if "curves" in a.parts:  # before cuBLAS starts: what deterministic products need
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    report = Report(a.out, about(a))
    bench = Bench(a, report)
    for part in a.parts:
        {"steps": steps, "memory": memory, "longest": longest, "curves": curves}[part](bench)
    report.close()
    return 0 if bench.good else 1


if __name__ == "__main__":
    sys.exit(main())
