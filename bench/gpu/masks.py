"""The masks of the bench: the twelve of the published benchmark and three packs of real lengths."""

import json
import os

import numpy as np

from . import structs as c
from .library import FlashmaskError

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "data")
PACKS = {"chat_pack": "chat_turn_lengths.jsonl", "pairs_pack": "preference_lengths.tsv", "code_pack": "code_document_lengths.tsv"}
CAUSAL_DOCUMENTS = ("causal_document", "chat_pack", "code_pack")


class Case:
    """One mask with what the bench needs of it; vectors: int32 [Bm, Hm, S, 2 M] of visible rows."""

    def __init__(self, name, mask, length, layout=None):
        self.name, self.mask, self.length = name, mask, length
        self.layout = layout if layout is not None else document_layout(name, mask)
        self.vectors = mask.vectors()
        common = mask.plan(c.TILE_COMMON).stats()
        self.tile_efficiency = common.tile_efficiency
        self.density = common.density
        self.visible_tiles = common.full + common.partial
        planes = mask.shape.batch * mask.shape.heads
        self.tiles_per_row = self.visible_tiles / (planes * -(-length // c.TILE_COMMON))
        own = mask.plan().stats()
        self.own_tiles = {"block": own.block_m, "full": own.full, "partial": own.partial, "efficiency": own.tile_efficiency}
        self.pairs = common.visible_pairs

    def pairs_of(self, batch, heads):
        """Visible pairs over all query heads and batch items."""
        return self.pairs * (batch // self.mask.shape.batch) * (heads // self.mask.shape.heads)


class Layout:
    """The tokens of a mask as documents for a kernel that takes cumulative lengths: documents, in pieces of [start, end) of the
    batch's tokens one after another. A piece may stand in several documents, as the prompt of a pair does."""

    def __init__(self, documents, causal):
        self.causal = causal
        self.lengths = [sum(end - start for start, end in pieces) for pieces in documents]
        self.index = np.concatenate([np.arange(start, end) for pieces in documents for start, end in pieces])

    def ends(self):
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)


def document_layout(name, mask):
    """None if the mask is not one of packed documents."""
    if name not in CAUSAL_DOCUMENTS and name != "document":
        return None
    documents, length = [], mask.shape.columns
    for b in range(mask.shape.batch):
        ends = mask.item(b).document_ends(name != "document")
        documents += [[(b * length + s, b * length + e)] for s, e in zip(ends[:-1], ends[1:]) if e > s]
    return Layout(documents, name != "document")


def read_lengths(name):
    """Records of integers: a line of JSON, or of a table after its comments and heading."""
    with open(os.path.join(DATA, PACKS[name]), encoding="utf-8") as file:
        if name == "chat_pack":
            return [json.loads(line) for line in file]
        rows = [line.split("\t") for line in file if not line.startswith("#")]
        return [[int(field) for field in row] for row in rows[1:]]


def pair_layout(packing, records, count, capacity):
    """Each answer with a copy of its prompt."""
    documents = []
    for b in range(count):
        at = b * capacity
        for r in packing.documents(b):
            prompt, first = (at, at + records[r][0]), at + records[r][0]
            for answer in records[r][1:]:
                documents.append([prompt, (first, first + answer)])
                first += answer
            at = first
    return Layout(documents, True)


def pack_case(library, name, length, batch):
    """The first sequences of the pack as batch items."""
    records = read_lengths(name)
    pairs = name == "pairs_pack"
    packing = library.pack_questions(records, length) if pairs else library.pack_documents([sum(r) for r in records], length)
    if packing.sequences() < batch:
        raise FlashmaskError(f"{name}: {packing.sequences()} sequences of {length} tokens, {batch} wanted")
    layout = pair_layout(packing, records, batch, length) if pairs else None
    return Case(name, packing.mask(batch), length, layout)


def names(library):
    return library.benchmark_names() + list(PACKS)


def build(library, name, length, batch, heads_kv):
    if name in PACKS:
        return pack_case(library, name, length, batch)
    return Case(name, library.benchmark_mask(name, length, batch, heads_kv), length)
