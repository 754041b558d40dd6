#!/usr/bin/env python3
"""DPO with shared prompts: a pair is one question with two answers, and one pass gives the log probabilities of both."""

from __future__ import annotations

import copy
import sys

import torch
from shared import data
from shared.race import Task, parser, race, rounded
from torch import Tensor
from torch.nn.functional import logsigmoid

from flashmask import KTOCollator, PreferenceCollator, stack_rows
from flashmask.collate import Batch, answer_log_probs

BETA = 0.1


class Pairs(Task):
    """Preference pairs, packed or, for comparison, each answer in a row of its own behind a copy of its prompt."""

    def packed(self, groups: list[list[data.Record]], capacity: int) -> Batch:
        collator = PreferenceCollator(capacity)
        return stack_rows([row for group in groups for row in collator.rows(group)])

    def padded(self, records: list[data.Record]) -> Batch:
        alone = [{"prompt": r["prompt"], "completion": r[name], "label": name == "chosen"}
                 for r in records for name in ("chosen", "rejected")]
        collator = KTOCollator(rounded(max(len(r["prompt"]) + len(r["completion"]) for r in alone)))
        batch = stack_rows([row for record in alone for row in collator.rows([record])])
        batch["chosen"], batch["rejected"] = (torch.nonzero(batch["answer_label"] == label)[:, 0] for label in (True, False))
        return batch


class DPO(Pairs):
    def begin(self, model) -> None:
        self.reference = copy.deepcopy(model).requires_grad_(False)

    def loss(self, model, batch: Batch, attend) -> Tensor:
        inputs = batch["input_ids"], batch["position_ids"], attend
        ratio = answer_log_probs(model(*inputs), batch) - answer_log_probs(self.reference(*inputs), batch)
        return -logsigmoid(BETA * (ratio[batch["chosen"]] - ratio[batch["rejected"]])).mean()


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__, learning_rate=1e-3).parse_args(arguments)
    return 0 if race(DPO("DPO, shared prompts", data.sequences(data.pairs, options)), options) else 1


if __name__ == "__main__":
    sys.exit(main())
