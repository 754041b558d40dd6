"""Times of calls on a GPU, each in its own steady state.

A GPU at its power limit is slower after a hungry kernel than after a modest one, so calls that take turns disturb each other, and
faster after a rest, for about a second. Here cuBLAS's product heats the card first. Then each call runs alone for a while, the
product is timed in the state that it left (and fills the queue while Python prepares what follows), and the call is timed a number
of times.
"""

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
        self()  # the first call loads cuBLAS: its time is none of the product's
        torch.cuda.synchronize()

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


class Times:
    """Milliseconds of one call over its runs."""

    def __init__(self, values):
        self.runs = len(values)
        self.p10, self.median, self.p90 = (float(p) for p in np.percentile(values, [10, 50, 90]))


class Measured:
    """Times by name, the product's rate in TFLOP/s beside each, the clock in MHz: medians over all calls."""

    def __init__(self):
        self.times, self.product_rates, self.clocks = {}, {}, []

    @property
    def product_rate(self):
        return float(np.median(list(self.product_rates.values())))

    @property
    def clock(self):
        return float(np.median(self.clocks)) if self.clocks else None

    def add(self, name, runs, product, clock):
        self.times[name] = Times([start.elapsed_time(end) for start, end in runs])
        self.product_rates[name] = PRODUCTS * PRODUCT_FLOPS / product[0].elapsed_time(product[1]) * 1e-9
        if clock is not None:
            self.clocks.append(clock)


def duration(call):
    """Seconds of one call, about."""
    call()
    start, end = timed(call)
    torch.cuda.synchronize()
    return max(start.elapsed_time(end) * 1e-3, 1e-5)


def heat(product, seconds):
    """Ends a rest: without it the first call would be timed too fast, and the next one, while the card makes up for it, too slow."""
    for _ in range(int(seconds / duration(product))):
        product()


def measure(product, calls, settings, heats=True):
    """Each call: warm-up by time, the product, then settings.runs runs, more where they are short."""
    measured = Measured()
    if heats:
        heat(product, settings.heat_seconds)
    for name, call in calls.items():
        seconds = duration(call)
        for _ in range(int(settings.warm_seconds / seconds)):
            call()
        beside = timed(product)
        runs = [timed(call) for _ in range(int(min(max(settings.run_seconds / seconds, settings.runs), settings.most_runs)))]
        clock = sm_clock()
        torch.cuda.synchronize()
        measured.add(name, runs, beside, clock)
    return measured
