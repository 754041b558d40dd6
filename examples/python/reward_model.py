#!/usr/bin/env python3
"""A reward model on preference pairs: the value at the end of each answer, prompts shared by both."""

from __future__ import annotations

import sys

from dpo import Pairs
from shared import data
from shared.race import parser, race
from torch import Tensor
from torch.nn.functional import logsigmoid

from flashmask.collate import Batch, answer_rewards


class Reward(Pairs):
    outputs = 1

    def loss(self, model, batch: Batch, attend) -> Tensor:
        rewards = answer_rewards(model(batch["input_ids"], batch["position_ids"], attend).float(), batch)
        return -logsigmoid(rewards[batch["chosen"]] - rewards[batch["rejected"]]).mean()


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__, learning_rate=1e-3).parse_args(arguments)
    return 0 if race(Reward("Reward model, shared prompts", data.sequences(data.pairs, options)), options) else 1


if __name__ == "__main__":
    sys.exit(main())
