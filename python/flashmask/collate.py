"""Torch batches of packed records: SFT, preference pairs (DPO, reward models) and KTO, with shared prompts.

A collator is a DataLoader's collate_fn. It packs the records that it gets and returns a dict of tensors on the CPU, for B
sequences of S = capacity tokens:

    input_ids, position_ids   int64 [B, S]; position ids start from 0 in each record, an answer's go on after its prompt
    labels                    int64 [B, S], -100 = does not count, for losses that shift by one (see target_rows)
    document_ids              int32 [B, S], 0, 1, .. in each sequence, -1 in padding
    mask_vectors              int32 [B, 1, S, 2 M], visible row intervals (start, end) of each key: see batch_mask
    mask_vectors_NAME         the same with a sliding window, for each of `windows`: the masks of other layers
    target_rows               int64 [T], rows of logits.view(B * S, -1) that predict a token which counts
    target_tokens             int64 [T], those tokens

`target_rows` also has the first token of a second answer, which the end of the prompt predicts; a loss that shifts by one would
compare it with the end of the first answer, so `labels` leaves it out. The collators of answers add, for A answers:

    target_answer   int64 [T], the answer, 0 .. A - 1, of each of target_tokens
    answer_ends     int64 [A], its last token as an index into [B * S]; the prompt's last token if the answer is empty
    answer_record   int64 [A], the record that it came from

and what they say themselves. `batch_mask` gives the mask for flashmask.attention; `token_log_probs`, `answer_log_probs` and
`answer_rewards` read these. To pack once, when the data set is tokenised, use `collator.map` with datasets' map(batched=True),
then `stack_rows` as collate_fn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch

from ._arrays import Integers, flag, integers, listed, mapping, torch_device, whole
from ._conversions import fixed_count
from ._stacking import IGNORE, PER_ANSWER, VECTORS, Batch, Row, stack_rows
from .device_mask import DeviceMask
from .log_probs import answer_log_probs, answer_rewards, entry, token_log_probs
from .packing import OVERLONG, Packing, choose, pack, pack_questions

__all__ = [
    "Batch",
    "KTOCollator",
    "PreferenceCollator",
    "SFTCollator",
    "answer_log_probs",
    "answer_rewards",
    "batch_mask",
    "stack_rows",
    "to_device",
    "token_log_probs",
]

Record = Mapping[str, Any]


def _tokens(record: Record, index: int, name: str) -> np.ndarray:
    if name not in record:
        raise ValueError(f"record {index} has no {name!r}; it has {', '.join(map(repr, record))}")
    return integers(record[name], f"{name} of record {index}", 1)


def _from(least: int, value: Any, name: str) -> int:
    number = whole(value, name)
    if not least <= number < 2**31:
        raise ValueError(f"{name} is {number}, needs {least} .. 2^31 - 1")
    return number


def _checked(records: Any) -> list[Record]:
    return [mapping(record, f"record {k}") for k, record in enumerate(listed(records, "records"))]


class _Collator:
    """What all collators do with a packing of their records.

    capacity: tokens of a sequence, S. pad_token_id: input_ids in padding. sequences: B, always, with empty sequences at the end
    if need be (ValueError when records need more); None: as many as they need. windows: {name: tokens before its own that a token
    sees}, a further mask each. intervals: M of the masks of windows, 1 .. 4, always, so that shapes do not change (ValueError where
    a batch needs more, at most as many as a prompt has answers); None: as many as a batch needs. Other masks, and all of documents,
    need 1. pin_memory: page-locked tensors; leave it to the DataLoader's pin_memory where it has workers.
    """

    def __init__(
        self,
        capacity: int,
        *,
        pad_token_id: int = 0,
        sequences: int | None = None,
        windows: Mapping[str, int] | None = None,
        intervals: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        self.capacity = _from(1, capacity, "capacity")
        self.pad_token_id = int(integers([whole(pad_token_id, "pad_token_id")], "pad_token_id")[0])  # int32
        self.sequences = None if sequences is None else _from(1, sequences, "sequences")
        windows = mapping({} if windows is None else windows, "windows")
        self.windows = {name: _from(0, window, f"window {name!r}") for name, window in windows.items()}
        self.intervals = None if intervals is None else fixed_count(intervals)
        self.pin_memory = flag(pin_memory, "pin_memory")

    def __call__(self, records: Sequence[Record]) -> Batch:
        records = _checked(records)
        rows = self.rows(records)
        if self.sequences is not None:
            if len(rows) > self.sequences:
                raise ValueError(
                    f"{len(records)} records need {len(rows)} sequences of {self.capacity} tokens, more than the "
                    f"{self.sequences} of a batch"
                )
            rows += [self._empty_row(rows[0])] * (self.sequences - len(rows))
        return stack_rows(rows, intervals=self.intervals, pin_memory=self.pin_memory)

    def map(self, columns: Mapping[str, Sequence[Any]], indices: Integers | None = None) -> dict[str, list[np.ndarray]]:
        """For datasets' map(collator.map, batched=True, remove_columns=..): packs the records of one map batch; each row that
        comes back is a sequence with its mask vectors, which `stack_rows` reads. With with_indices=True answer_record counts the
        records of the whole data set."""
        columns = {name: listed(column, f"columns[{name!r}]") for name, column in mapping(columns, "columns").items()}
        names = list(columns)
        numbers = None if indices is None else integers(indices, "indices", 1)
        if numbers is not None and any(len(columns[name]) != len(numbers) for name in names):
            raise ValueError(f"indices has {len(numbers)} entries, another number than the records of columns")
        rows = self.rows(
            [dict(zip(names, values, strict=True)) for values in zip(*(columns[name] for name in names), strict=True)]
        )
        for row in rows:
            if numbers is not None and "answer_record" in row:
                row["answer_record"] = numbers[row["answer_record"]]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def rows(self, records: Sequence[Record]) -> list[Row]:
        """The packed sequences, one dict of arrays each."""
        raise NotImplementedError

    def _rows(self, packing: Packing, tokens: list[np.ndarray], labels: list[np.ndarray]) -> list[Row]:
        """tokens, labels: of each document, or of each question and its answers one after the other."""
        if not len(packing):
            raise ValueError("the records have no tokens at all")
        laid = {
            "input_ids": packing.lay_out(tokens, self.pad_token_id, np.int32),
            "labels": np.where(packing.labels == 1, packing.lay_out(labels, IGNORE, np.int32), IGNORE).astype(np.int32),
            "position_ids": packing.position_ids,
            "predicted_by": packing.predicted_by,
            "document_ids": packing.document_ids,
            VECTORS: packing.vectors().reshape(len(packing), -1),
        }
        for name, window in self.windows.items():
            laid[f"{VECTORS}_{name}"] = packing.vectors(window=window).reshape(len(packing), -1)
        return [{name: array[k] for name, array in laid.items()} for k in range(len(packing))]

    def _empty_row(self, like: Row) -> Row:
        fill = {"input_ids": self.pad_token_id, "labels": IGNORE, "position_ids": 0}
        row = {name: np.full_like(a, fill.get(name, -1)) for name, a in like.items() if len(a) == self.capacity}
        row.update((name, a[:0]) for name, a in like.items() if name in PER_ANSWER)
        row.update((name, np.full_like(a, self.capacity)) for name, a in like.items() if name.startswith(VECTORS))
        return row


class SFTCollator(_Collator):
    """Documents and chats. A record is {"input_ids"} with "labels" of the same length, if wanted (-100 = does not count), or
    {"prompt", "completion"}, of which the completion counts, or both with train_on_prompt. A record's first token never counts.

    overlong: "refuse" (ValueError for a record longer than capacity) or "split" (into records of capacity tokens and a rest).
    Other options are those of all collators.
    """

    def __init__(self, capacity: int, *, train_on_prompt: bool = False, overlong: str = "refuse", **options: Any) -> None:
        super().__init__(capacity, **options)
        self.train_on_prompt, self.overlong = flag(train_on_prompt, "train_on_prompt"), overlong
        choose("overlong", overlong, OVERLONG)

    def _parse(self, record: Record, index: int) -> tuple[np.ndarray, np.ndarray]:
        if "input_ids" in record:
            tokens = _tokens(record, index, "input_ids")
            if record.get("attention_mask") is not None and not np.array_equal(record["attention_mask"], np.ones(len(tokens))):
                raise ValueError(f"record {index} has padding in its attention_mask, or one of another length; pass none")
            labels = tokens if record.get("labels") is None else _tokens(record, index, "labels")
            if len(labels) != len(tokens):
                raise ValueError(f"record {index} has {len(tokens)} input_ids and {len(labels)} labels")
            return tokens, labels
        prompt, completion = _tokens(record, index, "prompt"), _tokens(record, index, "completion")
        counted = prompt if self.train_on_prompt else np.full_like(prompt, IGNORE)
        return np.concatenate([prompt, completion]), np.concatenate([counted, completion])

    def rows(self, records: Sequence[Record]) -> list[Row]:
        parsed = [self._parse(record, k) for k, record in enumerate(_checked(records))]
        tokens, labels = [t for t, _ in parsed], [own for _, own in parsed]
        return self._rows(pack([len(t) for t in tokens], self.capacity, overlong=self.overlong), tokens, labels)


class _AnswerCollator(_Collator):
    """Prompts with answers. Records with equal prompts share one, where they fit into a sequence together."""

    def _parse(self, records: Sequence[Record]) -> list[tuple[np.ndarray, list[np.ndarray]]]:
        raise NotImplementedError

    def _of_answers(self, records: Sequence[Record], answers: list[tuple[int, int]]) -> Row:
        """Further arrays for the answers (record, its how manyth) of one sequence."""
        raise NotImplementedError

    def _groups(self, parsed: list[tuple[np.ndarray, list[np.ndarray]]]) -> list[list[int]]:
        """Records of each group that shares a prompt, in order."""
        groups: list[list[int]] = []
        latest: dict[bytes, tuple[list[int], int]] = {}
        for k, (prompt, answers) in enumerate(parsed):
            size = sum(map(len, answers))
            group, used = latest.get(prompt.tobytes(), (None, 0))
            if group is None or used + size > self.capacity:
                group, used = [], len(prompt)
                groups.append(group)
            group.append(k)
            latest[prompt.tobytes()] = group, used + size
        return groups

    def rows(self, records: Sequence[Record]) -> list[Row]:
        records = _checked(records)
        parsed = self._parse(records)
        for k, (prompt, answers) in enumerate(parsed):
            if not len(prompt) and not all(map(len, answers)):
                raise ValueError(f"record {k} has neither a prompt nor tokens in one of its answers")
            if (size := len(prompt) + sum(map(len, answers))) > self.capacity:
                raise ValueError(f"record {k} has {size} tokens with its answers, more than the capacity of {self.capacity}")
        groups = self._groups(parsed)
        parts = [[parsed[group[0]][0]] + [a for k in group for a in parsed[k][1]] for group in groups]
        tokens = [np.concatenate(part) for part in parts]
        packing = pack_questions([[len(p) for p in part] for part in parts], self.capacity)
        rows = self._rows(packing, tokens, tokens)
        for row, pieces in zip(rows, packing, strict=True):
            row["answer_ids"] = np.full(self.capacity, -1, np.int32)
            ends: list[int] = []
            own: list[tuple[int, int]] = []
            for piece in pieces:
                group = groups[piece.document]
                own += [(k, nth) for k in group for nth in range(len(parsed[k][1]))]
                at = piece.offset + len(parts[piece.document][0])
                for answer in parts[piece.document][1:]:
                    row["answer_ids"][at : at + len(answer)] = len(ends)
                    ends.append(at + len(answer) - 1 if len(answer) else piece.offset + len(parts[piece.document][0]) - 1)
                    at += len(answer)
            row["answer_ends"] = np.array(ends, np.int32)
            row["answer_record"] = np.array([k for k, _ in own], np.int32)
            row.update(self._of_answers(records, own))
        return rows


class PreferenceCollator(_AnswerCollator):
    """Preference pairs, for DPO and reward models. A record is {"prompt", "chosen", "rejected"}, or {"chosen", "rejected"}, whose
    longest common beginning becomes the prompt, or {"prompt", "answers"}, a list of answers of which each is better than those
    behind it. Only answers count. The batch also has, for P pairs:

        chosen, rejected   int64 [P], answers: the better and the worse one
    """

    def _parse(self, records: Sequence[Record]) -> list[tuple[np.ndarray, list[np.ndarray]]]:
        return [self._parse_one(record, k) for k, record in enumerate(records)]

    @staticmethod
    def _parse_one(record: Record, index: int) -> tuple[np.ndarray, list[np.ndarray]]:
        if record.get("answers") is not None:
            answers = [
                integers(a, f"answers[{n}] of record {index}", 1) for n, a in enumerate(listed(record["answers"], "answers"))
            ]
            return _tokens(record, index, "prompt"), answers
        chosen, rejected = _tokens(record, index, "chosen"), _tokens(record, index, "rejected")
        if record.get("prompt") is not None:
            return _tokens(record, index, "prompt"), [chosen, rejected]
        shorter = min(len(chosen), len(rejected))
        differ = np.flatnonzero(chosen[:shorter] != rejected[:shorter])
        same = int(differ[0]) if len(differ) else shorter
        return chosen[:same], [chosen[same:], rejected[same:]]

    def _of_answers(self, records: Sequence[Record], answers: list[tuple[int, int]]) -> Row:
        of_record: dict[int, list[int]] = {}
        for number, (record, _) in enumerate(answers):
            of_record.setdefault(record, []).append(number)
        pairs = [pair for own in of_record.values() for pair in combinations(own, 2)]
        chosen, rejected = np.array(pairs, np.int32).reshape(-1, 2).T.copy()
        return {"chosen": chosen, "rejected": rejected}


class KTOCollator(_AnswerCollator):
    """Answers that are good or bad, for KTO. A record is {"prompt", "completion", "label"}, label True for a good answer. With kl
    each prompt also gets the completion of the next record (the first one's behind the last), for the KL term. Only answers
    count. The batch also has:

        answer_label   bool [A], the record's label
        answer_kl      bool [A], True for the answers that kl added
    """

    def __init__(self, capacity: int, *, kl: bool = False, **options: Any) -> None:
        super().__init__(capacity, **options)
        self.kl = flag(kl, "kl")

    def _parse(self, records: Sequence[Record]) -> list[tuple[np.ndarray, list[np.ndarray]]]:
        if self.kl and len(records) < 2:
            raise ValueError("kl needs at least two records: an answer to another prompt")
        completions = [_tokens(record, k, "completion") for k, record in enumerate(records)]
        others = completions[1:] + completions[:1]
        return [
            (_tokens(record, k, "prompt"), [completions[k], others[k]] if self.kl else [completions[k]])
            for k, record in enumerate(records)
        ]

    def _of_answers(self, records: Sequence[Record], answers: list[tuple[int, int]]) -> Row:
        labels = []
        for k, _ in answers:
            label = records[k].get("label")
            if not isinstance(label, (bool, np.bool_, int, np.integer)) or label not in (0, 1):  # -1 for bad would count as good
                raise ValueError(f"record {k} has label {label!r}, needs True or False")
            labels.append(bool(label))
        return {"answer_label": np.array(labels, np.uint8), "answer_kl": np.array([nth == 1 for _, nth in answers], np.uint8)}


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """The batch on another device. Copies from pinned memory to a GPU do not wait: they are ordered by the current stream."""
    for name, tensor in mapping(batch, "batch").items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} of the batch is a {type(tensor).__name__}, needs a torch tensor")
    to_gpu = torch.device(torch_device(device)).type != "cpu"  # the other way the host would read before a copy has ended
    return {name: tensor.to(device, non_blocking=to_gpu) for name, tensor in batch.items()}


def batch_mask(batch: Batch, window: str | None = None) -> DeviceMask:
    """The mask of a batch, where its tensors are; window: of layers with that one of the collator's windows. Make it once for a
    batch and give it to all layers, which then share what attention prepares of it."""
    name = VECTORS if window is None else f"{VECTORS}_{window}"
    vectors = entry(batch, name)
    if vectors.dim() != 4 or vectors.shape[3] % 2:
        raise ValueError(f"{name} of the batch has shape {list(vectors.shape)}, needs [B, 1, S, 2 M]")
    return DeviceMask.from_intervals(vectors.unflatten(-1, (vectors.shape[3] // 2, 2)).transpose(2, 3))
