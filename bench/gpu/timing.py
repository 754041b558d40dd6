"""Times of calls on a GPU, taken in turn.

A round runs every call once, each after a pair of timed cuBLAS products: so the card is equally warm for all, the queue never
runs dry while Python prepares the next call, and the product's rate is measured right next to each of them.
"""

import time

import numpy as np
import torch

PRODUCT = 8192  # rows, columns and depth of the product
PRODUCTS = 2  # in one timed sample
PRODUCT_FLOPS = 2.0 * PRODUCT**3


class Product:
    """bf16 matrix product, the card's practical ceiling."""

    def __init__(self, device):
        self.a, self.b = (torch.randn(PRODUCT, PRODUCT, device=device, dtype=torch.bfloat16) for _ in range(2))
        self.out = torch.empty_like(self.a)

    def __call__(self):
        for _ in range(PRODUCTS):
            torch.mm(self.a, self.b, out=self.out)


def timed(call):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    return start, end


def sm_clock():
    """MHz while the queue still runs; None where NVML is not to be had."""
    try:
        return torch.cuda.clock_rate()
    except Exception:
        return None


def run_round(product, calls):
    """Milliseconds of each call, of the products, and the clock."""
    product()
    events, products = {}, []
    for name, call in calls.items():
        products.append(timed(product))
        events[name] = timed(call)
    clock = sm_clock()
    torch.cuda.synchronize()
    return ({name: start.elapsed_time(end) for name, (start, end) in events.items()},
            [start.elapsed_time(end) / PRODUCTS for start, end in products], clock)


class Times:
    """Milliseconds of one call over the rounds."""

    def __init__(self, values):
        self.runs = len(values)
        self.p10, self.median, self.p90 = (float(p) for p in np.percentile(values, [10, 50, 90]))


class Measured:
    """What a set of rounds gave: times by name, the product's rate in TFLOP/s, the clock in MHz."""

    def __init__(self, rounds):
        self.times = {name: Times([r[0][name] for r in rounds]) for name in rounds[0][0]}
        self.product_rate = PRODUCT_FLOPS / np.median([ms for r in rounds for ms in r[1]]) * 1e-9
        clocks = [r[2] for r in rounds if r[2] is not None]
        self.clock = float(np.median(clocks)) if clocks else None


def measure(product, calls, settings):
    """Warm-up by time, then at least settings.runs rounds, more where they are short."""
    start, rounds, seconds = time.perf_counter(), 0, 0.0
    while rounds < 2 or time.perf_counter() - start < settings.warm_seconds:
        before = time.perf_counter()
        run_round(product, calls)
        seconds, rounds = time.perf_counter() - before, rounds + 1
    runs = int(min(max(settings.round_seconds / seconds, settings.runs), settings.most_runs))
    return Measured([run_round(product, calls) for _ in range(runs)])
