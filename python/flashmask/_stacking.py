"""Torch batches of stored rows, which collators make of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ._conversions import fixed_count

IGNORE = -100  # the label that torch's and transformers' losses leave out
VECTORS = "mask_vectors"

Row = dict[str, np.ndarray]  # one sequence: what `map` stores and `stack_rows` reads
Batch = dict[str, torch.Tensor]

# Arrays with an entry for each answer or pair of a row, and what must be added to those of row b: answers before it, or tokens.
PER_ANSWER = {
    "answer_ends": "tokens",
    "answer_record": None,
    "answer_label": None,
    "answer_kl": None,
    "chosen": "answers",
    "rejected": "answers",
}


def _stack_vectors(rows: Sequence[Mapping[str, Any]], name: str, columns: int, intervals: int | None) -> np.ndarray:
    """[B, 1, S, 2 M]: M intervals, or with None those of the row that has most."""
    flat = [np.asarray(row[name], np.int32).reshape(columns, -1) for row in rows]
    width = max(v.shape[1] for v in flat) if intervals is None else 2 * intervals
    out = np.full((len(rows), 1, columns, width), columns, np.int32)
    for k, (own, v) in enumerate(zip(out, flat, strict=True)):
        if (v[:, width::2] < v[:, width + 1 :: 2]).any():
            raise ValueError(f"row {k} has keys of more than {intervals} intervals in its {name}; a batch has {intervals}")
        own[0, :, : v.shape[1]] = v[:, :width]
    return out


def stack_rows(rows: Sequence[Mapping[str, Any]], *, intervals: int | None = None, pin_memory: bool = False) -> Batch:
    """The batch of stored rows, as a collator makes it of records: the collate_fn for what `map` stored, with that collator's
    `intervals`. All rows must have the same capacity and come from one kind of collator; ValueError otherwise."""
    intervals = None if intervals is None else fixed_count(intervals)
    if not len(rows):
        raise ValueError("there are no rows")
    if "input_ids" not in rows[0]:
        raise ValueError(f"row 0 has {', '.join(sorted(rows[0]))}, but no input_ids: it is not of a collator")
    columns = len(rows[0]["input_ids"])
    for k, row in enumerate(rows):
        if set(row) != set(rows[0]) or len(row["input_ids"]) != columns:
            raise ValueError(
                f"row {k} has {len(row.get('input_ids', ()))} tokens and {', '.join(sorted(row))}; row 0 has {columns} and "
                f"{', '.join(sorted(rows[0]))}"
            )
    both = {
        name: np.stack([np.asarray(row[name]) for row in rows])
        for name in ("input_ids", "position_ids", "labels", "predicted_by", "document_ids")
    }
    for name, array in both.items():
        if array.shape[1:] != (columns,):
            raise ValueError(f"the {name} of a row are {', '.join(map(str, array.shape[1:]))} numbers, its input_ids {columns}")
    batch = {name: both[name].astype(np.int64) for name in ("input_ids", "position_ids")}
    batch["document_ids"] = both["document_ids"].astype(np.int32)
    counted, token = np.nonzero(both["labels"] != IGNORE)
    predictor = both["predicted_by"][counted, token]
    shifted = both["labels"].astype(np.int64)
    shifted[counted, token] = np.where(predictor == token - 1, shifted[counted, token], IGNORE)
    batch["labels"] = shifted
    batch["target_rows"] = counted * columns + predictor
    batch["target_tokens"] = both["labels"][counted, token].astype(np.int64)
    for name in [name for name in rows[0] if name.startswith(VECTORS)]:
        batch[name] = _stack_vectors(rows, name, columns, None if name == VECTORS else intervals)
    if "answer_ids" in rows[0]:
        batch.update(_stack_answers(rows, columns, counted, token))
    return {name: _tensor(array, pin_memory) for name, array in batch.items()}


def _stack_answers(rows: Sequence[Mapping[str, Any]], columns: int, counted: np.ndarray, token: np.ndarray) -> Row:
    before = np.cumsum([0] + [len(row["answer_ends"]) for row in rows])[:-1]
    added = {"tokens": np.arange(len(rows)) * columns, "answers": before}
    ids = np.stack([np.asarray(row["answer_ids"]) for row in rows]).astype(np.int64)
    out = {"target_answer": ids[counted, token] + before[counted]}
    for name, what in PER_ANSWER.items():
        if name in rows[0]:
            parts = [np.asarray(row[name], np.int64) + (added[what][k] if what else 0) for k, row in enumerate(rows)]
            out[name] = np.concatenate(parts)
    for name in ("answer_label", "answer_kl"):
        if name in out:
            out[name] = out[name].astype(bool)
    return out


def _tensor(array: np.ndarray, pin_memory: bool) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if not pin_memory:
        return tensor
    if get_worker_info() is not None:
        raise RuntimeError("pin_memory in a DataLoader's worker: pass pin_memory=True to the DataLoader instead")
    return tensor.pin_memory()
