#!/usr/bin/env python3
"""A prefix language model on packed chats: the prompt of each conversation is seen both ways, its completion causally."""

from __future__ import annotations

import sys

import numpy as np
from sft import SFT
from shared import contenders, data
from shared.race import parser, race

from flashmask import Mask
from flashmask.collate import Batch


class PrefixLM(SFT):
    alone = staticmethod(contenders.dense)

    def packed(self, groups: list[list[data.Record]], capacity: int) -> Batch:
        batch = super().packed(groups, capacity)
        masks = []
        for ids, counts in zip(batch["document_ids"].numpy(), batch["labels"].numpy() >= 0, strict=True):
            lengths = np.bincount(ids[ids >= 0])
            prompts = np.bincount(ids[(ids >= 0) & ~counts], minlength=len(lengths))  # the loss leaves prompts out
            masks.append(Mask.prefix_documents(prompts, lengths, padding=capacity - lengths.sum()))
        batch["mask_vectors"] = Mask.stack_batch(masks).vectors()
        return batch


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__).parse_args(arguments)
    return 0 if race(PrefixLM("Prefix LM", data.sequences(data.chats, options)), options) else 1


if __name__ == "__main__":
    sys.exit(main())
