#!/usr/bin/env python3
"""The CUDA backend against what torch offers, on one GPU, mask by mask in the same run. Needs torch and NumPy.

    python3 bench/gpu_bench.py --library build/libflashmask.so --out bench.jsonl

docs/gpu.md says what the columns mean.
"""

import argparse
import os
import sys
import time
from types import SimpleNamespace

import torch

from gpu import check, masks, modes, rivals, timing
from gpu.library import Library
from gpu.ours import Ours
from gpu.report import Report, about, print_tables, rates
from gpu.summary import print_summary, summarise

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
BACKEND_SM80 = 3  # FM_BACKEND_CUDA_SM80
QUICK_MASKS = ("causal", "causal_document", "random_eviction", "chat_pack")


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--library", required=True, help="libflashmask.so")
    p.add_argument("--masks-library", help="libflashmask_benchmark_masks.so; beside the library if not given")
    p.add_argument("--lengths", type=int, nargs="+", default=[8192, 32768], help="4096, 8192, 32768, 131072 or 1048576")
    p.add_argument("--tokens", type=int, default=131072, help="batch times length")
    p.add_argument("--heads", type=int, default=32)
    p.add_argument("--kv-heads", type=int, help="as heads if not given")
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--dtype", choices=DTYPES, default="bf16")
    p.add_argument("--masks", help="names apart by commas; all if not given")
    p.add_argument("--rivals", default=",".join(rivals.NAMES), help="of flex, flash, cudnn, varlen, dense; '' for none")
    p.add_argument("--flex-autotune", action="store_true", help="let torch.compile try FlexAttention's tile sizes (slow)")
    p.add_argument("--direction", choices=("forward", "backward", "both"), default="both")
    p.add_argument("--backend", type=int, default=0, help="fm_backend_id; 0 lets the library choose")
    p.add_argument("--sm80", action="store_true", help="also our kernels for every GPU, where the library would choose others")
    p.add_argument("--deterministic", action="store_true", help="our backward in its deterministic form")
    p.add_argument("--without-ours", action="store_true", help="the rivals alone")
    p.add_argument("--quick", action="store_true", help="four masks, few runs")
    p.add_argument("--time-limit", type=float, help="seconds after which no further mask is started")
    p.add_argument("--linear", action="store_true", help="time against visible tiles, over random documents")
    p.add_argument("--intervals", action="store_true", help="one mask stored as 1 to 4 intervals a key and with bitmaps")
    p.add_argument("--build", action="store_true", help="time to build a device plan")
    p.add_argument("--profile", action="store_true", help="kernels that one call launches")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--commit", help="what the report says, where git cannot tell")
    p.add_argument("--out", help="file of JSON lines")
    a = p.parse_args()
    a.kv_heads = a.kv_heads or a.heads
    a.heat_seconds = 0.3 if a.quick else 1.0
    a.warm_seconds, a.runs, a.most_runs, a.run_seconds = (0.15, 3, 9, 0.05) if a.quick else (0.35, 5, 25, 0.2)
    if any(a.tokens % length for length in a.lengths) or a.heads % a.kv_heads:
        p.error("--tokens is not a multiple of a length, or --heads of --kv-heads")
    if not os.path.isfile(a.library):
        p.error(f"--library: {a.library} is not a file; build/release/libflashmask.so after ./dev build")
    return a


def chosen(library, arguments):
    known = masks.names(library)
    wanted = arguments.masks.split(",") if arguments.masks else QUICK_MASKS if arguments.quick else known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(f"--masks: no {', '.join(unknown)}; there are {', '.join(known)}")
    return wanted


def make_inputs(arguments, length):
    """Query, key, value and the output's gradient, [B, S, H, D]."""
    generator = torch.Generator(device="cuda").manual_seed(arguments.seed)
    heads = (arguments.heads, arguments.kv_heads, arguments.kv_heads, arguments.heads)
    return [torch.randn(arguments.tokens // length, length, h, arguments.head_dim, generator=generator, device="cuda",
                        dtype=DTYPES[arguments.dtype]) for h in heads]


class Bench:
    """One length: its tensors, and the rivals' compiled calls."""

    def __init__(self, library, arguments, length, product):
        self.library, self.arguments, self.length, self.product = library, arguments, length, product
        self.inputs = make_inputs(arguments, length)
        names = [name for name in arguments.rivals.split(",") if name]
        self.rivals = rivals.Rivals(self.inputs, names, arguments.flex_autotune)
        self.wants = {d: arguments.direction in (d, "both") for d in ("forward", "backward")}

    def prepare(self, case, vectors):
        """Contenders that work, their errors against the f32 reference, and why the others do not."""
        contenders, checks, failures = {}, {}, {}
        ours = [] if self.arguments.without_ours else ["ours"] + ["sm80"] * self.arguments.sm80
        for name in ours + self.rivals.names:
            try:
                contender, results = self.contender(name, case, vectors)
                if contender is not None:
                    checks[name] = check.check(self.inputs, vectors, *results)
                    contenders[name] = contender
            except (RuntimeError, AssertionError) as error:
                failures[name] = str(error).strip().split("\n")[0]
                say(f"  {name}: {failures[name]}")
        return contenders, checks, failures

    def contender(self, name, case, vectors):
        """It and its output, lse (or None) and gradients (or None); None for what has no call for this mask."""
        gradients = self.wants["backward"]
        if name not in ("ours", "sm80"):
            rival = self.rivals.make(name, case, vectors, gradients)
            output, grads = rival.results(gradients) if rival is not None else (None, None)
            return rival, (output, None, grads)
        backend = BACKEND_SM80 if name == "sm80" else self.arguments.backend
        ours = Ours(self.library, self.inputs, case, SimpleNamespace(backend=backend, deterministic=self.arguments.deterministic))
        ours.poison()
        ours.forward()
        output = ours.output.clone()
        ours.built_forward()
        if not torch.equal(output, ours.output):
            raise RuntimeError("two forward calls differ, the second with its plan built anew")
        if gradients:
            ours.backward()
        return ours, (ours.output, ours.lse, ours.grads if gradients else None)

    def calls(self, contenders):
        """(direction, contender) -> call; ours once more with the plan built inside."""
        calls = {}
        for direction in (d for d, wanted in self.wants.items() if wanted):
            for name, contender in contenders.items():
                calls[direction, name] = getattr(contender, direction)
                if name == "ours":
                    calls[direction, "ours+plan"] = getattr(contender, f"built_{direction}")
        return calls

    def run(self, name, report):
        start = time.perf_counter()
        a, batch = self.arguments, self.arguments.tokens // self.length
        case = masks.build(self.library, name, self.length, batch, a.kv_heads)
        vectors = torch.from_numpy(case.vectors).cuda()
        contenders, checks, failures = self.prepare(case, vectors)
        ready = time.perf_counter()
        if not contenders:
            return False
        measured = timing.measure(self.product, self.calls(contenders), a)
        good = not failures.keys() & {"ours", "sm80"} and all(agrees for _, agrees in checks.values())
        common = {
            "record": "case", "mask": name, "length": self.length, "batch": batch, "heads": a.heads, "heads_kv": a.kv_heads,
            "head_dim": a.head_dim, "dtype": a.dtype, "density": case.density, "tile_efficiency": case.tile_efficiency,
            "tiles_per_row": case.tiles_per_row, "own_tiles": case.own_tiles, "product_tflops": measured.product_rate,
            "sm_clock_mhz": measured.clock, "about": {who: c.about for who, c in contenders.items()},
            "failures": failures, "errors": {who: errors for who, (errors, _) in checks.items()}, "agrees": good,
        }
        flops = 4.0 * a.head_dim * case.pairs_of(batch, a.heads)
        for direction in (d for d, wanted in self.wants.items() if wanted):
            scaled = flops * (2.5 if direction == "backward" else 1.0)
            report.add({**common, "direction": direction, "contenders": {
                who: rates(times, scaled, measured.product_rates[d, who], case.tile_efficiency)
                for (d, who), times in measured.times.items() if d == direction}})
        say(f"{self.length:>7} {name:<22} ready {ready - start:5.1f} s, measured {time.perf_counter() - ready:5.1f} s, "
            f"{'agrees' if good else f'DIFFERS {checks}'}")
        return good


def bench(library, arguments, report):
    start, good = time.perf_counter(), True
    product = timing.Product("cuda")
    for length in arguments.lengths:
        one = Bench(library, arguments, length, product)
        for name in chosen(library, arguments):
            if arguments.time_limit and time.perf_counter() - start > arguments.time_limit:
                say(f"{length:>7} {name}: not started, the time limit is over")
                continue
            good = one.run(name, report) and good
        del one
        torch.cuda.empty_cache()
    return good


def main():
    arguments = parse_arguments()
    if not torch.cuda.is_available():
        say("skipped: no CUDA device")
        return 77
    library = Library(arguments.library, arguments.masks_library)
    report = Report(arguments.out, about(arguments, library.dll.fm_version()))
    asked = [mode for mode in ("linear", "intervals", "build", "profile") if getattr(arguments, mode)]
    for mode in asked:
        getattr(modes, mode)(library, arguments, make_inputs, report)
    good = bool(asked) or bench(library, arguments, report)
    print_tables(report.rows)
    for summary in summarise(report.rows):
        report.write(summary)
        print_summary(summary)
    report.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
