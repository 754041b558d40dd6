"""JSON lines, the table and the geometric means."""

import json
import math
import os
import platform
import subprocess

import torch

OTHERS = ("sm80", "flash", "cudnn", "varlen", "dense")
FIXED_RATE = 795.0  # TFLOP/s of the 8192^3 product on a cool H200, by which other kernels' figures were made
MANY_TILES = 16  # visible tiles of 128 x 128 of a row of tiles, on average


def output_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip().split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return None


def about(arguments, version):
    here = os.path.dirname(os.path.abspath(__file__))
    gpu = torch.cuda.get_device_properties(0)
    return {
        "record": "about", "gpu": gpu.name, "multiprocessors": gpu.multi_processor_count, "machine": platform.machine(),
        "driver": output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]), "torch": torch.__version__,
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "version": version,
        "commit": arguments.commit or output_of(["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12"]),
        "arguments": {name: value for name, value in vars(arguments).items() if name != "commit"},
    }


def rates(times, flops, product_rate, tile_efficiency):
    tflops = flops / times.median * 1e-9
    return {"median_ms": times.median, "p10_ms": times.p10, "p90_ms": times.p90, "runs": times.runs, "tflops": tflops,
            "of_product": tflops / product_rate, "eta": tflops / (product_rate * tile_efficiency),
            "eta_fixed": tflops / (FIXED_RATE * tile_efficiency)}


class Report:
    def __init__(self, path, first):
        self.file = open(path, "w", encoding="utf-8") if path else None
        self.rows = []
        self.write(first)

    def write(self, record):
        if self.file:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()

    def add(self, record):
        self.rows.append(record)
        self.write(record)

    def close(self):
        if self.file:
            self.file.close()


# Heading, width and digits of the numbers of a line.
COLUMNS = (("tile eff.", 9, 3), ("tiles/row", 9, 1), ("ours ms", 9, 3), ("with plan", 9, 3), ("TFLOP/s", 7, 1), ("% of mm", 7, 1),
           ("eta", 5, 3), ("of 795", 6, 3), ("flex ms", 9, 3), ("flex/ours", 9, 2), ("mm TFLOP/s", 10, 1), ("SM MHz", 6, 0))
HEADING = f"{'mask':<21}     " + " ".join(name.rjust(width) for name, width, _ in COLUMNS) + "  check  others, ms"


def table_line(r):
    who = r["contenders"]
    ours, plan, flex = who.get("ours", {}), who.get("ours+plan", {}), who.get("flex", {})
    share = 100 * ours["of_product"] if ours else None
    faster = flex["median_ms"] / ours["median_ms"] if ours and flex else None
    values = (r["tile_efficiency"], r["tiles_per_row"], ours.get("median_ms"), plan.get("median_ms"), ours.get("tflops"), share,
              ours.get("eta"), ours.get("eta_fixed"), flex.get("median_ms"), faster, r["product_tflops"], r["sm_clock_mhz"])
    cells = ["-".rjust(width) if value is None else f"{value:{width}.{digits}f}"
             for value, (_, width, digits) in zip(values, COLUMNS)]
    others = "  ".join(f"{name} {who[name]['median_ms']:.3f}" for name in OTHERS if name in who)
    direction = "fwd" if r["direction"] == "forward" else "bwd"
    return f"{r['mask']:<21} {direction} {' '.join(cells)}  {'ok' if r['agrees'] else 'WRONG':<5}  {others}".rstrip()


def print_tables(rows):
    for length in dict.fromkeys(r["length"] for r in rows):
        of_length = [r for r in rows if r["length"] == length]
        r = of_length[0]
        print(f"\n{length} tokens, batch {r['batch']}, heads {r['heads']} / {r['heads_kv']}, head dim {r['head_dim']}\n{HEADING}")
        for r in of_length:
            print(table_line(r))


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def totals(rows, name, masks=None):
    """(length, mask) -> milliseconds of all directions measured."""
    found = {}
    for r in rows:
        if name in r["contenders"] and (masks is None or r["mask"] in masks):
            found.setdefault((r["length"], r["mask"]), {})[r["direction"]] = r["contenders"][name]["median_ms"]
    return found


def compare(rows, rival, masks=None, own="ours"):
    """How often the rival's time ours is, per mask of which both were measured in the same directions."""
    ours, theirs = totals(rows, own, masks), totals(rows, rival, masks)
    both = [key for key in ours if key in theirs and theirs[key].keys() == ours[key].keys()]
    return [sum(theirs[key].values()) / sum(ours[key].values()) for key in both]


def shares_of_full(rows, direction, own="ours"):
    """(many, few): least eta of our masks as a share of that of the full mask of the same length, where a row of tiles has at
    least MANY_TILES visible ones, and where fewer; None without such masks."""
    etas = {(r["length"], r["mask"]): (r["tiles_per_row"], r["contenders"][own]["eta"])
            for r in rows if own in r["contenders"] and r["direction"] == direction}
    shares = [(tiles, eta / etas[length, "full"][1]) for (length, mask), (tiles, eta) in etas.items()
              if mask != "full" and (length, "full") in etas]
    return [min((share for tiles, share in shares if (tiles >= MANY_TILES) == many), default=None) for many in (True, False)]


def compare_with_rivals(rows, own, means):
    dense = ("full", "causal")
    for rival, masks in (("flex", None), ("varlen", None), ("flash", dense), ("cudnn", dense), ("ours+plan", None)):
        ratios = compare(rows, rival, masks, own)
        if ratios:
            mean = geometric_mean(ratios)
            means[f"{rival}/{own}"] = {"geometric_mean": mean, "least": min(ratios), "most": max(ratios), "masks": len(ratios)}
            print(f"{rival} / {own}, directions together: geometric mean {mean:.3f} over "
                  f"{len(ratios)} masks ({min(ratios):.3f} .. {max(ratios):.3f})")


def summarise_etas(rows, own, means):
    for direction in ("forward", "backward"):
        etas = [r["contenders"][own]["eta"] for r in rows if own in r["contenders"] and r["direction"] == direction]
        if etas:
            mean = means[f"eta_{direction}_{own}"] = geometric_mean(etas)
            many, few = means[f"share_of_full_{direction}_{own}"] = shares_of_full(rows, direction, own)
            print(f"eta {direction}, {own}: geometric mean {mean:.3f}, least {min(etas):.3f}"
                  + (f"; of full's, least where {MANY_TILES} tiles or more a row {many:.3f}" if many is not None else "")
                  + (f"; where fewer {few:.3f}" if few is not None else ""))


def print_means(rows):
    """The last lines; returned for the JSON file too."""
    means = {"record": "means"}
    for own in ("ours", "sm80"):
        compare_with_rivals(rows, own, means)
        summarise_etas(rows, own, means)
    return means
