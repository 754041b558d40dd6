"""Packing: documents, or questions with their answers, laid out in sequences of one length.

    packing = flashmask.pack([700, 300, 500, 90], capacity=1024)
    packing.utilisation            # 0.776: 1590 of 2048 tokens are real
    packing.mask()                 # Mask [2, 1, 1024, 1024]: each document sees itself causally
    packing.position_ids           # int32 [2, 1024], from 0 in each document

Everything here is NumPy; `flashmask.collate` makes torch batches of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _lib
from ._arrays import Integers, address, fitting, flag, int64s, listed, whole
from ._builders import question_lengths, question_structs
from ._conversions import vectors_of
from .mask import Mask

POLICIES = {"best_fit": _lib.PACK_BEST_FIT, "arrival": _lib.PACK_ARRIVAL}
OVERLONG = {"refuse": _lib.PACK_REFUSE, "split": _lib.PACK_SPLIT}
_ARRAYS = {name: ctypes.c_int32 for name in ("document_ids", "position_ids", "predicted_by")} | {"labels": ctypes.c_uint8}


class Piece(NamedTuple):
    """Tokens [start, start + length) of document `document` of the input, at token `offset` of their sequence."""

    document: int
    start: int
    length: int
    offset: int


def choose(name: str, value: str, choices: dict[str, int]) -> int:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}")
    return choices[value]


def pack(lengths: Integers, capacity: int, policy: str = "best_fit", overlong: str = "refuse") -> Packing:
    """Packs documents into sequences of `capacity` tokens.

    lengths: tokens of each document, [n] integers >= 0; a document without tokens gets no piece.
    policy: "best_fit" (longest first, into the fullest sequence that has room) or "arrival" (in the order given; a document that
    does not fit starts the next sequence).
    overlong: "refuse" (ValueError for a document longer than capacity) or "split" (pieces of capacity tokens and a rest, each a
    document of its own).

    O(n log n). ValueError for a negative length, a capacity outside 1 .. 2^31 - 1 and other values of policy and overlong.
    """
    n, room = int64s(lengths, "lengths"), whole(capacity, "capacity")
    rules = choose("policy", policy, POLICIES), choose("overlong", overlong, OVERLONG)
    made = _lib.create("fm_pack_lengths", len(n), address(n), room, *rules)
    return Packing(made, n.tolist(), recipe=(pack, (n.tolist(), room, policy, overlong)))


def pack_questions(questions: Iterable[Integers], capacity: int, policy: str = "best_fit") -> Packing:
    """Packs questions, each with its answers behind it, into sequences of `capacity` tokens.

    questions: (tokens of the question, tokens of its first answer, of its second, ..); a preference pair is (prompt, chosen,
    rejected). Any length may be 0. policy: as for `pack`. ValueError for a question that passes the capacity with its answers,
    for they are not parted.
    """
    parts = [question_lengths(record, f"questions[{k}]").tolist() for k, record in enumerate(listed(questions, "questions"))]
    room, rule = whole(capacity, "capacity"), choose("policy", policy, POLICIES)
    made = _lib.create("fm_pack_questions", len(parts), question_structs(parts), room, rule)
    return Packing(made, [sum(record) for record in parts], parts, recipe=(pack_questions, (parts, room, policy)))


class Packing(_lib.Owner):
    """Documents or questions laid out in sequences. Immutable; made by `pack` and `pack_questions`. Iterating gives the pieces of
    each sequence. Arrays of [sequences, capacity] stand beside the tokens; they are read-only."""

    _free = staticmethod(_lib.dll.fm_packing_free)

    def __init__(self, handle: int, lengths: list[int], questions: list[list[int]] | None = None, *, recipe: tuple) -> None:
        super().__init__(handle)
        self._recipe = recipe  # the function that made it and its arguments: what is pickled
        self.lengths = lengths  # tokens of each document, or of each question and its answers together
        self.questions = questions  # (question, answers ..) in tokens; None: documents
        self.capacity: int = _lib.dll.fm_packing_capacity(handle)
        self._count: int = _lib.dll.fm_packing_sequence_count(handle)
        self._arrays: dict[str, np.ndarray] = {}

    def __reduce__(self) -> tuple:
        return self._recipe

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, sequence: int) -> list[Piece]:
        """The pieces of one sequence in the order in which they lie there, from token 0 on."""
        sequence = whole(sequence, "sequence")
        if not -len(self) <= sequence < len(self):
            raise IndexError(f"sequence {sequence} of {len(self)}")
        first, count = ctypes.POINTER(_lib.Piece)(), ctypes.c_int64()
        _lib.call("fm_packing_sequence", self.handle, sequence % len(self), ctypes.byref(first), ctypes.byref(count))
        pieces, offset = [], 0
        for p in first[: count.value]:
            pieces.append(Piece(p.document, p.start, p.length, offset))
            offset += p.length
        return pieces

    def __iter__(self) -> Iterator[list[Piece]]:
        return (self[k] for k in range(len(self)))

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return sum(self.lengths)

    @property
    def utilisation(self) -> float:
        """Part of the tokens that is not padding, 0 .. 1; 1 without sequences."""
        return self.tokens / (len(self) * self.capacity) if len(self) else 1.0

    def __repr__(self) -> str:
        kind = "documents" if self.questions is None else "questions"
        return (
            f"Packing({len(self.lengths)} {kind} in {len(self)} sequences of {self.capacity} tokens, {self.utilisation:.2%} used)"
        )

    def _array(self, name: str) -> np.ndarray:
        if not self._arrays:
            arrays = {key: np.empty((len(self), self.capacity), kind) for key, kind in _ARRAYS.items()}
            for k in range(len(self)):
                rows = {key: array[k].ctypes.data_as(ctypes.POINTER(_ARRAYS[key])) for key, array in arrays.items()}
                _lib.call("fm_packing_arrays", self.handle, k, _lib.PackedArrays(**rows))
            for array in arrays.values():
                array.flags.writeable = False
            self._arrays = arrays
        return self._arrays[name]

    @property
    def document_ids(self) -> np.ndarray:
        """int32: 0, 1, .. for the pieces of a sequence; -1 in padding."""
        return self._array("document_ids")

    @property
    def position_ids(self) -> np.ndarray:
        """int32: from 0 in each piece; every answer goes on after its question; 0 in padding."""
        return self._array("position_ids")

    @property
    def predicted_by(self) -> np.ndarray:
        """int32: the token of the sequence whose output predicts this one; -1: none, in padding and where a piece starts. It is
        the token before, but for the first token of an answer: there it is the last of the question."""
        return self._array("predicted_by")

    @property
    def labels(self) -> np.ndarray:
        """uint8: 1 where a token counts in the loss: it is predicted, and of questions only answers count."""
        return self._array("labels")

    def lay_out(self, records: Sequence[Any], fill: Any = 0, dtype: Any = np.int64) -> np.ndarray:
        """The records' values in the layout: [sequences, capacity], `fill` in padding. records[d]: the values of document d, one
        a token, or of question d and its answers one after the other. ValueError for a record of another length, and for values that
        dtype cannot hold."""
        records = listed(records, "records")
        if len(records) != len(self.lengths):
            raise ValueError(f"records has {len(records)} entries; the packing was made of {len(self.lengths)}")
        records = [fitting(record, f"records[{k}]", 1, dtype) for k, record in enumerate(records)]
        for k, (record, length) in enumerate(zip(records, self.lengths, strict=True)):
            if len(record) != length:
                raise ValueError(f"records[{k}] has {len(record)} values; the packing was made of {length} tokens there")
        out = np.full((len(self), self.capacity), fitting(fill, "fill", 0, dtype), dtype)
        for row, pieces in zip(out, self, strict=True):
            for p in pieces:
                row[p.offset : p.offset + p.length] = records[p.document][p.start : p.start + p.length]
        return out

    def mask(self, first: int = 0, count: int | None = None, *, causal: bool = True, window: int | None = None) -> Mask:
        """The mask of sequences [first, first + count), all that follow by default: Mask [count, 1, capacity, capacity].

        A document sees itself, causally or both ways. Answers see their question and themselves causally; the question sees
        itself causally, or both ways if not `causal`. Padding sees nothing.

        window: a token sees itself and the `window` tokens before its own *by position*, so that an answer has the same window as
        if it stood directly behind its question. A question of more than four answers may need the bitmap fallback then.
        ValueError for a window below 0, for one that is not causal, and for sequences that are not there.
        """
        first = whole(first, "first")
        count = len(self) - first if count is None else whole(count, "count")
        if window is None:
            return Mask._own(_lib.create("fm_packing_mask", self.handle, first, count, flag(causal, "causal")))
        window = whole(window, "window")
        if not flag(causal, "causal") or window < 0:
            raise ValueError(f"a window of a packing is causal and 0 or more, not {window} with causal={causal}")
        window = min(window, self.capacity)
        if first < 0 or count < 1 or first + count > len(self):
            raise ValueError(f"sequences [{first}, {first + count}) of {len(self)}")
        start, end = self._row_ranges(first, count, window)
        return Mask.from_row_ranges(start, end, columns=self.capacity)

    def _row_ranges(self, first: int, count: int, window: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys that each row sees under a window, [count, 1, 2, capacity]: those of its question and those of its own answer. Of
        a question's rows, and of documents, only the first range is used."""
        start = np.zeros((count, 1, 2, self.capacity), np.int32)
        end = np.zeros_like(start)
        for k in range(count):
            for piece in self[first + k]:
                question, *answers = [piece.length] if self.questions is None else self.questions[piece.document]
                rows = np.arange(piece.offset, piece.offset + question)
                start[k, 0, 0, rows], end[k, 0, 0, rows] = np.maximum(rows - window, piece.offset), rows + 1
                own = piece.offset + question
                for length in answers:
                    rows = np.arange(own, own + length)
                    reach = rows - own - window  # where the window starts, from the answer's first token on
                    start[k, 0, 0, rows] = np.clip(piece.offset + question + reach, piece.offset, piece.offset + question)
                    end[k, 0, 0, rows] = piece.offset + question
                    start[k, 0, 1, rows], end[k, 0, 1, rows] = own + np.maximum(reach, 0), rows + 1
                    own += length
        return start, end

    def vectors(
        self,
        first: int = 0,
        count: int | None = None,
        *,
        causal: bool = True,
        window: int | None = None,
        intervals: int | None = None,
    ) -> np.ndarray:
        """The same mask as visible row intervals: int32 [count, 1, capacity, 2 M], pairs (start, end) for each key, half-open.
        M is intervals, 1 .. 4, or what the key needs that needs most. NotImplementedError where the mask needs more, or the bitmap
        fallback."""
        mask = self.mask(first, count, causal=causal, window=window)
        if mask.has_fallback:
            raise NotImplementedError(
                f"with a window of {window} a question of more than {_lib.MAX_INTERVALS} answers needs bitmaps, "
                "which vectors cannot hold; mask() has them"
            )
        return vectors_of(mask, intervals)
