"""JSON lines and the table."""

import json
import os
import platform
import subprocess

import torch

OTHERS = ("sm80", "flash", "cudnn", "varlen", "dense")
FIXED_RATE = 795.0  # TFLOP/s of the 8192^3 product on a cool H200, by which other kernels' figures were made


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
