"""The last lines of the bench, a length at a time: how often ours the others' times are, and how well our tiles are done."""

import math

from .masks import PACKS

OWN = ("ours", "sm80")
DENSE = ("full", "causal")
DIRECTIONS = ("forward", "backward", "together")
MASKS = {"masks": lambda mask: mask not in PACKS, "packs": lambda mask: mask in PACKS, "full, causal": lambda mask: mask in DENSE,
         **{pack: pack.__eq__ for pack in PACKS}}
COMPARED = (("flex", "masks"), *(("flex", pack) for pack in PACKS), ("varlen", "masks"), *(("varlen", pack) for pack in PACKS),
            ("flash", "full, causal"), ("cudnn", "full, causal"), ("sm80", "masks"), ("sm80", "packs"), ("ours+plan", "masks"),
            ("ours+plan", "packs"))
CLASSES = ("full", "16 tiles a row or more", "8 to 16", "fewer than 8", "packs")  # tiles of 128 x 128 that hold a visible pair


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def times(rows, name, direction):
    """mask -> milliseconds; together: of the masks of which both directions were measured."""
    found = {}
    for r in rows:
        if name in r["contenders"] and direction in (r["direction"], "together"):
            found.setdefault(r["mask"], []).append(r["contenders"][name]["median_ms"])
    return {mask: sum(ms) for mask, ms in found.items() if direction != "together" or len(ms) == 2}


def compare(rows, other, own, direction, chosen=lambda mask: True):
    """mask -> how often our time the other's is."""
    theirs, ours = times(rows, other, direction), times(rows, own, direction)
    return {mask: theirs[mask] / ours[mask] for mask in ours if mask in theirs and chosen(mask)}


def compare_all(rows, own):
    """(other, masks) -> direction -> geometric mean, least, most, number of masks."""
    found = {}
    for other, which in COMPARED:
        if other == own or (other == "ours+plan" and own != "ours"):
            continue
        for direction in DIRECTIONS:
            ratios = compare(rows, other, own, direction, MASKS[which]).values()
            if ratios:
                found.setdefault(f"{other}, {which}", {})[direction] = {
                    "geometric_mean": geometric_mean(ratios), "least": min(ratios), "most": max(ratios), "masks": len(ratios)}
    return found


def class_of(row):
    if row["mask"] == "full" or row["mask"] in PACKS:
        return "full" if row["mask"] == "full" else "packs"
    return CLASSES[1] if row["tiles_per_row"] >= 16 else CLASSES[2] if row["tiles_per_row"] >= 8 else CLASSES[3]


def least(values):
    """The least of mask -> value, and where it is; None of nothing."""
    mask = min(values, key=values.get, default=None)
    return None if mask is None else {"value": values[mask], "mask": mask}


def etas(rows, own, direction):
    """class -> number of masks and the least eta: in the state of the card, of the fixed rate, and as a share of full's in that
    state."""
    measured = [r for r in rows if own in r["contenders"] and r["direction"] == direction]
    full = next((r["contenders"][own]["eta"] for r in measured if r["mask"] == "full"), None)
    found = {}
    for name in CLASSES:
        of_class = {r["mask"]: r["contenders"][own] for r in measured if class_of(r) == name}
        if of_class:
            found[name] = {"masks": len(of_class), "eta": least({mask: c["eta"] for mask, c in of_class.items()}),
                           "eta_fixed": least({mask: c["eta_fixed"] for mask, c in of_class.items()}),
                           "of_full": least({mask: c["eta"] / full for mask, c in of_class.items()} if full else {})}
    return found


def mean_etas(rows, own, direction):
    """Geometric means over the masks that are no packs: in the state of the card, of the fixed rate."""
    found = [r["contenders"][own] for r in rows
             if own in r["contenders"] and r["direction"] == direction and MASKS["masks"](r["mask"])]
    return {"masks": len(found), **{key: geometric_mean([c[key] for c in found]) for key in ("eta", "eta_fixed") if found}}


def cell(ratio):
    text = f"{ratio['geometric_mean']:.3f}" if ratio else "-"
    if ratio and ratio["masks"] > 1:
        text += f" ({ratio['least']:.2f} .. {ratio['most']:.2f}, {ratio['masks']})"
    return text.ljust(26)


def place(found):
    return (f"{found['value']:.3f} {found['mask']}" if found else "-").ljust(29)


def print_summary(record):
    own, length = record["own"], record["length"]
    if record["ratios"]:
        print(f"\n{length} tokens, times of others / {own}: geometric mean (least .. most, masks)\n"
              + " ".join(["".ljust(24)] + [direction.ljust(26) for direction in DIRECTIONS]).rstrip())
    for name, of_direction in record["ratios"].items():
        print(" ".join([name.ljust(24)] + [cell(of_direction.get(direction)) for direction in DIRECTIONS]).rstrip())
    print(f"\n{length} tokens, eta of {own}, least of a class\n"
          f"{'':<33} masks {'in this state':<29} {'of 795 TFLOP/s':<29} of full's")
    for direction, classes in record["eta"].items():
        for name, found in classes.items():
            print(f"{direction:<9} {name:<23} {found['masks']:<5} "
                  + " ".join(place(found[key]) for key in ("eta", "eta_fixed", "of_full")).rstrip())
        mean = record["mean_eta"][direction]
        if mean["masks"]:
            print(f"{direction:<9} {'geometric mean, masks':<23} {mean['masks']:<5} {mean['eta']:<29.3f} {mean['eta_fixed']:.3f}")


def summarise(rows):
    """A record for each length and own contender."""
    records = []
    for length in dict.fromkeys(r["length"] for r in rows):
        of_length = [r for r in rows if r["length"] == length]
        for own in OWN:
            directions = [d for d in DIRECTIONS[:2] if etas(of_length, own, d)]
            if directions:
                records.append({"record": "summary", "length": length, "own": own, "ratios": compare_all(of_length, own),
                                "eta": {d: etas(of_length, own, d) for d in directions},
                                "mean_eta": {d: mean_etas(of_length, own, d) for d in directions}})
    return records
