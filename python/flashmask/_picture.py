"""Pictures of masks: characters, SVG for notebooks, matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .plan import Plan

if TYPE_CHECKING:
    from .mask import Mask

CHARACTERS = {0: ".", 1: "+", 2: "x"}
COLOURS = {1: "#9ecae1", 2: "#2171b5"}  # partial, full
NAMES = {0: "skipped", 1: "partial", 2: "full"}
SVG_PIXELS = 256


def tile_of(mask: Mask, most: int) -> int:
    """The smallest power of two that cuts the mask into at most `most` x `most` tiles."""
    longest, tile = max(mask.shape[2:]), 1
    while longest > tile * most and tile < 2**20:
        tile *= 2
    return tile


def grid(mask: Mask, batch: int, head: int, most: int) -> tuple[np.ndarray, int]:
    """Classes of tiles, exact, and the side of a tile."""
    tile = tile_of(mask, most)
    return Plan(mask, tile=tile).classes(batch, head), tile


def text(mask: Mask, batch: int = 0, head: int = 0, most: int = 16) -> str:
    """One line a row of tiles: x all visible, + some, . none."""
    classes, _ = grid(mask, batch, head, most)
    return "\n".join("".join(CHARACTERS[kind] for kind in row) for row in classes.tolist())


def svg(mask: Mask, batch: int = 0, head: int = 0, most: int = 128) -> str:
    """A square at most, rows downwards. Dark: all pairs of a tile are visible, light: some."""
    tile = tile_of(mask, most)
    plan, (rows, columns) = Plan(mask, tile=tile), mask.shape[2:]
    scale = SVG_PIXELS / max(rows, columns, 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{columns * scale:.4g}" height="{rows * scale:.4g}" '
        f'viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" role="img">',
        f'<rect width="{columns}" height="{rows}" fill="#f7f7f7"/>',
    ]
    for i in range(-(-rows // tile) if columns else 0):
        height = min(tile, rows - i * tile)
        for first, count, kind in plan.row_runs(i, batch, head).tolist():
            width = min(count * tile, columns - first * tile)
            parts.append(f'<rect x="{first * tile}" y="{i * tile}" width="{width}" height="{height}" fill="{COLOURS[kind]}"/>')
    return "".join([*parts, "</svg>"])


def plot(mask: Mask, axes: Any, batch: int, head: int, most: int = 256) -> Any:
    try:
        from matplotlib import pyplot
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError("Mask.plot needs matplotlib: pip install matplotlib") from error
    if axes is None:
        axes = pyplot.subplots()[1]
    classes, tile = grid(mask, batch, head, most)
    rows, columns = mask.shape[2:]
    colours = ["#f7f7f7", COLOURS[1], COLOURS[2]]
    extent = (0, classes.shape[1] * tile, classes.shape[0] * tile, 0)
    axes.imshow(classes, cmap=ListedColormap(colours), vmin=0, vmax=2, interpolation="nearest", extent=extent)
    axes.set(xlim=(0, columns), ylim=(rows, 0), xlabel="key", ylabel="query row")
    axes.legend(handles=[Patch(color=colours[k], label=NAMES[k]) for k in (2, 1, 0)], loc="upper right")
    return axes
