#!/usr/bin/env python3
"""Window and sink on packed source files: a token sees the first few of its file and a window before itself."""

from __future__ import annotations

import sys

import numpy as np
from sft import SFT
from shared import contenders, data
from shared.race import at_least, parser, race

from flashmask import Mask
from flashmask.collate import Batch


class WindowSink(SFT):
    alone = staticmethod(contenders.dense)

    def __init__(self, *arguments, window: int, sink: int) -> None:
        super().__init__(*arguments)
        self.window, self.sink = window, sink

    def packed(self, groups: list[list[data.Record]], capacity: int) -> Batch:
        batch = super().packed(groups, capacity)
        masks = []
        for ids in batch["document_ids"].numpy():
            lengths = np.bincount(ids[ids >= 0])
            padding = capacity - lengths.sum()
            masks.append(Mask.documents_sink_window(lengths, sink=self.sink, window=self.window, padding=padding))
        batch["mask_vectors"] = Mask.stack_batch(masks).vectors()
        return batch


def main(arguments: list[str] | None = None) -> int:
    p = parser(__doc__)
    p.add_argument("--window", type=at_least(1), default=256, help="tokens, the own one included")
    p.add_argument("--sink", type=at_least(0), default=4, help="first tokens of a file, which all its tokens see")
    options = p.parse_args(arguments)
    title = f"Window of {options.window}, sink of {options.sink}"
    task = WindowSink(title, data.sequences(data.files, options, "best_fit"), window=options.window, sink=options.sink)
    return 0 if race(task, options) else 1


if __name__ == "__main__":
    sys.exit(main())
