"""Records of the real lengths in examples/data. Tokens are drawn: each record has a topic, 8 tokens of the vocabulary, so that
attention to the record's own tokens, and to no others, predicts the next one well."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import flashmask

FOLDER = Path(__file__).parents[2] / "data"
TOPIC = 8

Record = dict[str, np.ndarray]


class Writer:
    """Draws tokens 1 .. vocabulary - 1; 0 is padding."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self.rng, self.vocabulary = np.random.default_rng(seed), vocabulary

    def topic(self) -> np.ndarray:
        return self.rng.choice(self.vocabulary - 1, TOPIC, replace=False) + 1

    def text(self, topic: np.ndarray, length: int) -> np.ndarray:
        return self.rng.choice(topic, length)


def rows(name: str) -> list[list[int]]:
    lines = [line.split() for line in (FOLDER / name).read_text().splitlines()]
    return [[int(word) for word in line] for line in lines if line and line[0].isdigit()]


def chats(write: Writer) -> list[Record]:
    """Conversations; the last turn is the completion."""
    lines = (FOLDER / "chat_turn_lengths.jsonl").read_text().splitlines()
    records = []
    for *turns, last in (json.loads(line) for line in lines):
        topic = write.topic()
        records.append({"prompt": write.text(topic, sum(turns)), "completion": write.text(topic, last)})
    return records


def pairs(write: Writer) -> list[Record]:
    """Prompts with a chosen answer, which keeps to the topic, and a rejected one, which has another."""
    records = []
    for prompt, chosen, rejected in rows("preference_lengths.tsv"):
        topic = write.topic()
        texts = write.text(topic, prompt), write.text(topic, chosen), write.text(write.topic(), rejected)
        records.append(dict(zip(("prompt", "chosen", "rejected"), texts, strict=True)))
    return records


def files(write: Writer) -> list[Record]:
    """Source files."""
    return [{"input_ids": write.text(write.topic(), n)} for (n,) in rows("code_document_lengths.tsv")]


def tokens(record: Record) -> int:
    return sum(map(len, record.values()))


def sequences(make: Callable[[Writer], list[Record]], options: Any, policy: str = "arrival") -> Iterator[list[Record]]:
    """Records that fill a sequence of options.capacity tokens together, without end. Left out are those that do not fit into
    one, and the emptiest sequence. "arrival" mixes lengths as a shuffled data set does, "best_fit" fills better where records
    are long."""
    write = Writer(options.vocabulary, options.seed)
    while True:
        records: list[Record] = []
        while sum(map(tokens, records)) < 4 * options.capacity:  # the set several times, where sequences are long
            fitting = [record for record in make(write) if tokens(record) <= options.capacity]
            if not fitting:
                raise ValueError(f"no record fits into a capacity of {options.capacity} tokens")
            records += fitting
        records = [records[k] for k in write.rng.permutation(len(records))]
        packing = flashmask.pack(list(map(tokens, records)), options.capacity, policy)
        filled = sorted(packing, key=lambda pieces: sum(piece.length for piece in pieces))[1:]
        for k in write.rng.permutation(len(filled)):
            yield [records[piece.document] for piece in filled[k]]
