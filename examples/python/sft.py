#!/usr/bin/env python3
"""Fine-tuning on packed chats: all weights, then LoRA. Many conversations share a sequence and do not see each other."""

from __future__ import annotations

import sys

from shared import data
from shared.race import Task, at_least, parser, race
from torch import Tensor

from flashmask import SFTCollator, stack_rows
from flashmask.collate import Batch, token_log_probs


class SFT(Task):
    def packed(self, groups: list[list[data.Record]], capacity: int) -> Batch:
        collator = SFTCollator(capacity)
        return stack_rows([row for group in groups for row in collator.rows(group)])

    def loss(self, model, batch: Batch, attend) -> Tensor:
        return -token_log_probs(model(batch["input_ids"], batch["position_ids"], attend), batch).mean()


def main(arguments: list[str] | None = None) -> int:
    p = parser(__doc__)
    p.add_argument("--rank", type=at_least(0), default=8, help="of LoRA; 0 leaves it out")
    options = p.parse_args(arguments)
    good = race(SFT("SFT, all weights", data.sequences(data.chats, options)), options)
    if options.rank:
        options.learning_rate *= 4
        lora = SFT(f"SFT, LoRA of rank {options.rank}", data.sequences(data.chats, options))
        good = race(lora, options, options.rank) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
