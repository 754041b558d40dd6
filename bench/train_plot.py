#!/usr/bin/env python3
"""Draws what bench/train_bench.py recorded: seconds of a step and peak memory against the length. Needs matplotlib.

    python bench/train_plot.py steps.jsonl memory.jsonl --out training.svg
"""

import argparse
import json
from collections import defaultdict

NAMES = {"flashmask": "flashmask", "flex": "FlexAttention", "dense": "SDPA, dense mask"}
STYLES = {"sft": "-", "dpo": "--", "rm": ":"}
COLOURS = {"flashmask": "tab:blue", "flex": "tab:orange", "dense": "tab:gray"}


def read(paths):
    """Seconds of steps, and gigabytes of SFT's, which the records of `memory` say for more lengths; of two that measured the same
    the later one."""
    steps, memory = {}, {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for record in map(json.loads, file):
                if record["record"] == "steps" and "seconds" in record:
                    steps[record["contender"], record["task"], record["length"]] = record["seconds"]["median"]
                if record["record"] in ("steps", "memory") and record.get("peak_bytes") and record.get("task", "sft") == "sft":
                    memory[record["contender"], record["length"]] = record["peak_bytes"] / 1e9
    return steps, memory


def lines(points):
    """Points of equal keys but for the last, which is x, in its order."""
    found = defaultdict(list)
    for (*key, length), value in sorted(points.items()):
        found[tuple(key)].append((length, value))
    return found


def draw(steps, memory):
    """A panel for each that is not empty."""
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "flashmask"  # equal records, equal files
    figure, panels = pyplot.subplots(1, bool(steps) + bool(memory), figsize=(10, 4), layout="constrained", squeeze=False)
    left, right = panels[0][0], panels[0][-1]
    for (contender, task), points in lines(steps).items():
        left.plot(*zip(*points), STYLES[task], marker=".", color=COLOURS[contender], label=f"{NAMES[contender]}, {task.upper()}")
    for (contender,), points in lines(memory).items():
        right.plot(*zip(*points), marker=".", color=COLOURS[contender], label=NAMES[contender])
    for axes, label, shown in (left, "seconds of a training step", steps), (right, "peak memory of an SFT step, GB", memory):
        if not shown:
            continue
        axes.set(xscale="log", yscale="log", xlabel="tokens of a sequence", ylabel=label)
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure


def main(arguments=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("records", nargs="+", help="files that train_bench.py wrote")
    p.add_argument("--out", required=True, help="an SVG or PNG file")
    a = p.parse_args(arguments)
    try:
        steps, memory = read(a.records)
    except OSError as error:
        p.error(str(error))
    if not steps and not memory:
        p.error("no record has a step's seconds or peak memory")
    try:
        figure = draw(steps, memory)
    except ImportError:
        p.error("needs matplotlib: pip install matplotlib")
    figure.savefig(a.out, metadata={"Date": None} if a.out.endswith(".svg") else None)


if __name__ == "__main__":
    main()
