"""Questions beside the main table: is time linear in the visible tiles, what does a plan cost, what does a call launch."""

import random
import time
from types import SimpleNamespace

import numpy as np
import torch

from . import masks, timing
from .ours import DevicePlan, Ours, UploadedPlan

LINEAR_LENGTH = 32768
DRAWS = 20
MOST_DOCUMENTS = 20
BUILD_LENGTHS = (32768, 131072)
BUILD_MASKS = ("causal", "causal_document", "share_question", "global_sliding_window", "random_eviction")
BUILD_HEADS = 8  # of random eviction
UPLOADS = 5
BUILD_UPDATES = 20  # in one timed sample, so that launches queue up
INTERVALS_MASKS = ("full", "random_eviction")  # full tiles alone; three partial ones of four
MOST_INTERVALS = 4
STRIPE = 128  # keys that become bitmaps together
HOLES = 8  # of a key in such a stripe: more intervals than MOST_INTERVALS
NOT_ATTENTION = ("memcpy", "bounds_kernel", "classes_kernel", "counts_kernel", "order_kernel", "elementwise")


# ---- linear --------------------------------------------------------------------------------------------------------------


def draw_documents(generator, length):
    """2 .. 20 documents with ends anywhere."""
    count = generator.randint(2, MOST_DOCUMENTS)
    ends = [0] + sorted(generator.sample(range(1, length), count - 1)) + [length]
    return [b - a for a, b in zip(ends[:-1], ends[1:])]


def fit(tiles, ms):
    """ms = a + b * tiles: a, b, R^2 and the largest deviation as a share of the fitted time."""
    b, a = np.polyfit(tiles, ms, 1)
    fitted = a + b * np.asarray(tiles)
    residual = np.asarray(ms) - fitted
    r2 = 1 - (residual**2).sum() / ((ms - np.mean(ms)) ** 2).sum()
    return {"constant_ms": float(a), "ms_per_tile": float(b), "r2": float(r2), "worst": float(np.abs(residual / fitted).max())}


def linear(library, arguments, make_inputs, report):
    inputs, product = make_inputs(arguments, LINEAR_LENGTH), timing.Product("cuda")
    generator, draws = random.Random(arguments.seed), []
    for _ in range(DRAWS):
        lengths = draw_documents(generator, LINEAR_LENGTH)
        case = masks.Case("draw", library.documents(lengths, True), LINEAR_LENGTH)
        ours = Ours(library, inputs, case, arguments)
        times = timing.measure(product, {"forward": ours.forward, "backward": ours.backward}, arguments).times
        own = case.own_tiles["full"] + case.own_tiles["partial"]
        draws.append({"documents": len(lengths), "tiles_128": case.visible_tiles, "tiles_own": own,
                      **{f"{d}_ms": t.median for d, t in times.items()}})
        del ours
    fits = {f"{d}, {tiles}": fit([x[tiles] for x in draws], [x[f"{d}_ms"] for x in draws])
            for d in ("forward", "backward") for tiles in ("tiles_128", "tiles_own")}
    report.write({"record": "linear", "length": LINEAR_LENGTH, "draws": draws, "fits": fits})
    print(f"{DRAWS} causal document masks of {LINEAR_LENGTH} tokens, ms = a + b * visible tiles of a plane")
    for name, f in fits.items():
        print(f"  {name:<20} a {f['constant_ms']:8.4f} ms  b {1e3 * f['ms_per_tile']:8.4f} us  R^2 {f['r2']:.5f}  "
              f"worst deviation {100 * f['worst']:.2f} %")


# ---- build ---------------------------------------------------------------------------------------------------------------


def upload_seconds(library, mask, backend):
    """Wall time of fm_plan_create_device from a host mask, median; bytes of the plan."""
    plan, seconds = UploadedPlan(library, mask, backend), []
    for _ in range(UPLOADS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        plan.create()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)), plan.buffer.numel()


def compiled_block_mask(vectors):
    """Milliseconds of torch.compile(create_block_mask), compiled before; None where it fails."""
    from torch.nn.attention.flex_attention import create_block_mask

    from .rivals import BLOCK, FlexGroup

    batch, heads, length, count = vectors.shape
    group = FlexGroup(batch, heads, length, count // 2, vectors.device)
    group.load(vectors)
    build = torch.compile(create_block_mask, dynamic=False)
    try:
        times = []
        for _ in range(UPLOADS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            build(group.mask_mod, batch, heads, length, length, "cuda", BLOCK)
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        return float(np.median(times[1:]))
    except RuntimeError:
        return None


def build(library, arguments, make_inputs, report):
    product = timing.Product("cuda")
    print("plan from vectors on the GPU; from a host mask; FlexAttention's compiled create_block_mask (first mask alone)")
    for length in BUILD_LENGTHS:
        for name in BUILD_MASKS:
            mask = library.benchmark_mask(name, length, 1, BUILD_HEADS)
            vectors = torch.from_numpy(mask.vectors()).cuda()
            plan = DevicePlan(library, vectors, length, arguments.backend)

            def updates():
                for _ in range(BUILD_UPDATES):
                    plan.update()

            ms = timing.measure(product, {"updates": updates}, arguments, heats=False).times["updates"].median / BUILD_UPDATES
            seconds, size = upload_seconds(library, mask, arguments.backend)
            wants_flex = name == BUILD_MASKS[0] and "flex" in arguments.rivals.split(",")
            flex_ms = compiled_block_mask(vectors) if wants_flex else None
            report.write({"record": "build", "mask": name, "length": length, "planes": vectors.shape[0] * vectors.shape[1],
                          "update_ms": ms, "from_host_mask_ms": 1e3 * seconds, "plan_bytes": size, "flex_ms": flex_ms})
            print(f"  {length:>7} {name:<22} {vectors.shape[1]:>2} heads  {ms:8.4f} ms  {1e3 * seconds:8.3f} ms  {size:>9} bytes"
                  + (f"  flex {flex_ms:.3f} ms" if flex_ms is not None else ""))


# ---- intervals -----------------------------------------------------------------------------------------------------------


def cut(vectors, pieces):
    """The same pairs in `pieces` intervals a key, which meet beside the edges of tiles. vectors: [.., 2], one interval a key."""
    start, end = vectors[..., 0].astype(np.int64), vectors[..., 1].astype(np.int64)
    inner = [np.minimum(end, start + (end - start) * k // pieces + 37) for k in range(1, pieces)]
    edges = [start, *inner, end]
    return np.stack([edge for pair in zip(edges[:-1], edges[1:]) for edge in pair], -1).astype(np.int32)


def pierce(vectors):
    """The pairs of one plane, [rows, columns] bools, but for a few rows of each key of every sixteenth stripe."""
    length = vectors.shape[0]
    rows = np.arange(length)[:, None]
    visible = (rows >= vectors[:, 0]) & (rows < vectors[:, 1])
    for first in range(0, length, 16 * STRIPE):
        keys = np.arange(first, min(first + STRIPE, length))
        for hole in range(HOLES):
            visible[(hole * length // HOLES + 7 * keys) % length, keys] = False
    return visible


def intervals(library, arguments, make_inputs, report):
    length = arguments.lengths[0]
    inputs, product = make_inputs(arguments, length), timing.Product("cuda")
    planes = arguments.tokens // length * arguments.heads
    print("one mask stored in several ways: ms, and what a partial tile of 64 x 64 takes beyond one interval, us of the whole GPU")
    for name in INTERVALS_MASKS:
        plane = library.benchmark_mask(name, length, 1, 1).vectors()[:1, :1]
        whole = library.dense(pierce(plane[0, 0]))
        stored = {str(m): SimpleNamespace(mask=None, vectors=cut(plane, m)) for m in range(1, MOST_INTERVALS + 1)}
        stored["bitmaps"] = SimpleNamespace(mask=whole, vectors=None)
        stats = library.benchmark_mask(name, length, 1, 1).plan().stats()
        first = {}
        for how, case in stored.items():
            ours = Ours(library, inputs, case, arguments)
            times = timing.measure(product, {"forward": ours.forward, "backward": ours.backward}, arguments).times
            tiles = whole.plan().stats() if how == "bitmaps" else stats
            for direction, t in times.items():
                least = first.setdefault(direction, t.median)
                extra = 1e3 * (t.median - least) / (tiles.partial * planes) if tiles.partial else None
                report.write({"record": "intervals", "mask": name, "stored": how, "direction": direction, "ms": t.median,
                              "full": tiles.full, "partial": tiles.partial, "of_one": t.median / least, "extra_us": extra})
                print(f"  {name:<16} {how:<8} {direction:<9} {t.median:9.3f} ms  {t.median / least:6.3f}  {tiles.full:>6} full "
                      f"{tiles.partial:>6} partial" + (f"  {extra:8.5f} us" if extra is not None else ""))
            del ours


# ---- profile -------------------------------------------------------------------------------------------------------------


def launched(call):
    """(name, microseconds) of all that the GPU ran for one call."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [(e.name, e.device_time_total) for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]


def profile(library, arguments, make_inputs, report):
    length = arguments.lengths[0]
    inputs = make_inputs(arguments, length)
    case = masks.build(library, "causal_document", length, arguments.tokens // length, arguments.kv_heads)
    ours = Ours(library, inputs, case, arguments)
    for name in ("forward", "backward", "built_forward"):
        kernels = launched(getattr(ours, name))
        foreign = [k for k, _ in kernels if any(word in k.lower() for word in NOT_ATTENTION)]
        report.write({"record": "profile", "call": name, "kernels": [{"name": k, "us": us} for k, us in kernels]})
        verdict = "attention alone" if kernels and not foreign else f"not attention: {', '.join(foreign) or 'nothing'}"
        print(f"{name}: {len(kernels)} kernels; {verdict}")
        for kernel, us in kernels:
            print(f"  {us:10.1f} us  {kernel[:100]}")
