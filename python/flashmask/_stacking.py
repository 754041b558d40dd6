"""Torch batches of stored rows, which collators make of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ._arrays import check_rank, fitting, flag, listed, mapping, on_host
from ._conversions import fixed_count

IGNORE = -100  # the label that torch's and transformers' losses leave out
VECTORS = "mask_vectors"

Row = dict[str, np.ndarray]  # one sequence: what `map` stores and `stack_rows` reads
Batch = dict[str, torch.Tensor]

PER_TOKEN = "input_ids", "position_ids", "labels", "predicted_by", "document_ids"

# Arrays with an entry for each answer or pair of a row, and what must be added to those of row b: answers before it, or tokens.
PER_ANSWER = {
    "answer_ends": "tokens",
    "answer_record": None,
    "answer_label": None,
    "answer_kl": None,
    "chosen": "answers",
    "rejected": "answers",
}


def _length(row: Mapping[str, Any], k: int) -> int:
    name = f"input_ids of row {k}"
    tokens = on_host(row.get("input_ids", ()), name)
    check_rank(tokens, name, 1)
    return len(tokens)


def _checked(rows: Any) -> tuple[list[Mapping[str, Any]], int]:
    """The rows, and how many tokens each of them has."""
    rows = [mapping(row, f"row {k}") for k, row in enumerate(listed(rows, "rows"))]
    if not rows:
        raise ValueError("there are no rows")
    if lacking := [name for name in PER_TOKEN if name not in rows[0]]:
        raise ValueError(f"row 0 has {', '.join(sorted(rows[0]))}, but no {', '.join(lacking)}: it is not of a collator")
    columns = _length(rows[0], 0)
    for k, row in enumerate(rows):
        if set(row) != set(rows[0]) or _length(row, k) != columns:
            raise ValueError(
                f"row {k} has {_length(row, k)} tokens and {', '.join(sorted(row))}; row 0 has {columns} and "
                f"{', '.join(sorted(rows[0]))}"
            )
    return rows, columns


def _stack(rows: Sequence[Mapping[str, Any]], name: str, columns: int) -> np.ndarray:
    """int64 [B, S], int32 of document_ids."""
    dtype = np.int32 if name == "document_ids" else np.int64
    arrays = [fitting(row[name], f"{name} of row {k}", 1, dtype) for k, row in enumerate(rows)]
    for array in arrays:
        if len(array) != columns:
            raise ValueError(f"the {name} of a row are {len(array)} numbers, its input_ids {columns}")
    return np.stack(arrays)


def _stack_vectors(rows: Sequence[Mapping[str, Any]], name: str, columns: int, intervals: int | None) -> np.ndarray:
    """[B, 1, S, 2 M]: M intervals, or with None those of the row that has most."""
    flat = [fitting(row[name], f"{name} of row {k}", 1, np.int32) for k, row in enumerate(rows)]
    for k, v in enumerate(flat):
        if len(v) == 0 or len(v) % (2 * columns):
            raise ValueError(f"{name} of row {k} has {len(v)} numbers, needs {2 * columns} for each interval a key")
    flat = [v.reshape(columns, -1) for v in flat]
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
    intervals, pin_memory = None if intervals is None else fixed_count(intervals), flag(pin_memory, "pin_memory")
    rows, columns = _checked(rows)
    ids, positions, labels, predicted_by, documents = (_stack(rows, name, columns) for name in PER_TOKEN)
    counted, token = np.nonzero(labels != IGNORE)
    predictor = predicted_by[counted, token]
    if ((predictor < 0) | (predictor >= columns)).any():
        raise ValueError("labels count a token that none before it predicts")
    shifted = labels.copy()
    shifted[counted, token] = np.where(predictor == token - 1, shifted[counted, token], IGNORE)
    batch = {
        "input_ids": ids,
        "position_ids": positions,
        "document_ids": documents,
        "labels": shifted,
        "target_rows": counted * columns + predictor,
        "target_tokens": labels[counted, token],
    }
    for name in [name for name in rows[0] if name.startswith(VECTORS)]:
        batch[name] = _stack_vectors(rows, name, columns, None if name == VECTORS else intervals)
    if "answer_ids" in rows[0]:
        batch.update(_stack_answers(rows, columns, counted, token))
    return {name: _tensor(array, pin_memory) for name, array in batch.items()}


def _check_answers(parts: Row, k: int, columns: int) -> None:
    """parts: the arrays of PER_ANSWER that row k has. What is out of range would be another row's in the batch."""
    answers, pairs = len(parts["answer_ends"]), len(parts.get("chosen", ()))
    ranges = {"answer_ends": columns, "answer_label": 2, "answer_kl": 2, "chosen": answers, "rejected": answers}
    for name, array in parts.items():
        is_pair = name in ("chosen", "rejected")
        if len(array) != (pairs if is_pair else answers):
            of = f"its chosen {pairs}" if is_pair else f"its answer_ends {answers}"
            raise ValueError(f"{name} of row {k} are {len(array)} numbers, {of}")
        end = ranges.get(name)
        if end is not None and len(array) and not 0 <= array.min() <= array.max() < end:
            raise ValueError(f"{name} of row {k} has values {array.min()} .. {array.max()}, needs 0 .. {end - 1}")


def _stack_answers(rows: Sequence[Mapping[str, Any]], columns: int, counted: np.ndarray, token: np.ndarray) -> Row:
    names = [name for name in PER_ANSWER if name in rows[0]]
    parts = {name: [fitting(row[name], f"{name} of row {k}", 1, np.int64) for k, row in enumerate(rows)] for name in names}
    if "answer_ends" not in parts:
        raise ValueError(f"row 0 has {', '.join(sorted(rows[0]))}, but no answer_ends: it is not of a collator")
    for k in range(len(rows)):
        _check_answers({name: arrays[k] for name, arrays in parts.items()}, k, columns)
    before = np.cumsum([0] + [len(ends) for ends in parts["answer_ends"]])[:-1]
    added = {"tokens": np.arange(len(rows)) * columns, "answers": before}
    own = _stack(rows, "answer_ids", columns)[counted, token]
    answers = np.array([len(ends) for ends in parts["answer_ends"]])[counted]
    if (wrong := (own < 0) | (own >= answers)).any():
        k, t, n = (int(a[wrong][0]) for a in (counted, token, own))
        count = len(parts["answer_ends"][k])
        raise ValueError(
            f"answer_ids of row {k} give token {t}, which its labels count, to answer {n}; the row has {count} answers"
        )
    out = {"target_answer": own + before[counted]}
    for name, arrays in parts.items():
        what = PER_ANSWER[name]
        out[name] = np.concatenate([array + (added[what][k] if what else 0) for k, array in enumerate(arrays)])
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
