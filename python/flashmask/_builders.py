"""Masks that people train with, as class methods of Mask. Pictures: 6 rows (queries) by 6 columns (keys), x = visible."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np

from . import _lib as lib
from ._arrays import Integers, address, booleans, flag, int64s, integers, listed, pair, real, whole
from ._properties import Properties


def options(fallback_limit: int | None) -> lib.MaskOptions:
    """fallback_limit: most bytes that the bitmap fallback may take; None: 1 GiB."""
    return lib.MaskOptions(fallback_limit=-1 if fallback_limit is None else whole(fallback_limit, "fallback_limit"))


def extents(rows: int, columns: int | None) -> tuple[int, int]:
    """Rows (queries) and columns (keys); as many keys as queries where columns is None."""
    rows = whole(rows, "rows")
    return rows, rows if columns is None else whole(columns, "columns")


def question_lengths(record: Any, name: str) -> np.ndarray:
    """int64 (question length, answer length, ..)."""
    if isinstance(record, (tuple, list)) and any(isinstance(n, (tuple, list)) or getattr(n, "ndim", 0) for n in record):
        raise TypeError(f"{name} holds sequences, needs lengths alone: (question, answer, answer, ..)")
    return int64s(record, name)


def question_structs(questions: Sequence[Integers]) -> ctypes.Array[lib.Question]:
    """An array of fm_question from sequences (question length, answer length, ..). It keeps the answers' lengths alive."""
    records = [question_lengths(record, f"questions[{k}]") for k, record in enumerate(questions)]
    structs = (lib.Question * max(1, len(records)))()
    for k, record in enumerate(records):
        if not len(record):
            raise ValueError(f"questions[{k}] is empty, needs the question's length and those of its answers")
        answers = (lib.c_int64 * (len(record) - 1))(*record[1:].tolist())
        structs[k] = lib.Question(int(record[0]), len(record) - 1, answers)
    return structs


class Builders(Properties):
    """Class methods that build a Mask. Each takes O(N) time and yields batch 1 and heads 1 unless it says otherwise. Causal and
    windows are aligned bottom-right where rows and columns differ. ValueError names an argument that is out of range."""

    @classmethod
    def full(cls, rows: int, columns: int | None = None) -> Self:
        """Every key for every row.
        xxxxxx / xxxxxx / xxxxxx / xxxxxx / xxxxxx / xxxxxx"""
        return cls._make("fm_mask_full", *extents(rows, columns))

    @classmethod
    def causal(cls, rows: int, columns: int | None = None) -> Self:
        """Row i sees keys 0 .. i + columns - rows.
        x..... / xx.... / xxx... / xxxx.. / xxxxx. / xxxxxx"""
        return cls._make("fm_mask_causal", *extents(rows, columns))

    @classmethod
    def sliding_window(cls, rows: int, columns: int | None = None, *, left: int, right: int) -> Self:
        """Row i sees keys i' - left .. i' + right, i' = i + columns - rows; -1: unlimited. A causal window of w keys, the row's
        own included, is left = w - 1, right = 0.
        left 2, right 0: x..... / xx.... / xxx... / .xxx.. / ..xxx. / ...xxx"""
        return cls._make("fm_mask_sliding_window", *extents(rows, columns), whole(left, "left"), whole(right, "right"))

    @classmethod
    def sink_window(cls, rows: int, columns: int | None = None, *, sink: int, window: int) -> Self:
        """Causal; a row sees the first `sink` keys and the last `window` keys, its own included.
        sink 1, window 2: x..... / xx.... / xxx... / x.xx.. / x..xx. / x...xx"""
        return cls._make("fm_mask_sink_window", *extents(rows, columns), whole(sink, "sink"), whole(window, "window"))

    @classmethod
    def documents_sink_window(cls, lengths: Integers, *, sink: int, window: int, padding: int = 0) -> Self:
        """As sink_window inside each document; `padding` more tokens at the end see nothing and are seen by nobody.
        lengths 2 + 4, sink 1, window 2: x..... / xx.... / ..x... / ..xx.. / ..xxx. / ..x.xx"""
        n = int64s(lengths, "lengths")
        reach = whole(sink, "sink"), whole(window, "window"), whole(padding, "padding")
        return cls._make("fm_mask_documents_sink_window", len(n), address(n), *reach)

    @classmethod
    def global_window(cls, rows: int, columns: int | None = None, *, global_tokens: int, left: int, right: int) -> Self:
        """The first global_tokens rows see everything, the first global_tokens keys are seen by all, others see a window.
        1 global token, left 1, right 1: xxxxxx / xxx... / xxxx.. / x.xxx. / x..xxx / x...xx"""
        reach = whole(global_tokens, "global_tokens"), whole(left, "left"), whole(right, "right")
        return cls._make("fm_mask_global_window", *extents(rows, columns), *reach)

    @classmethod
    def documents(cls, lengths: Integers, *, causal: bool, padding: int = 0) -> Self:
        """Packed documents; a token sees its own document, causally or both ways. `padding` more tokens at the end see nothing
        and are seen by nobody.
        lengths 2 + 4, causal: x..... / xx.... / ..x... / ..xx.. / ..xxx. / ..xxxx"""
        n = int64s(lengths, "lengths")
        return cls._make("fm_mask_documents", len(n), address(n), flag(causal, "causal"), whole(padding, "padding"))

    @classmethod
    def prefix_lm(cls, rows: int, columns: int | None = None, *, prefix: int) -> Self:
        """Causal, and every row sees the first `prefix` keys.
        prefix 3: xxx... / xxx... / xxx... / xxxx.. / xxxxx. / xxxxxx"""
        return cls._make("fm_mask_prefix_lm", *extents(rows, columns), whole(prefix, "prefix"))

    @classmethod
    def prefix_documents(cls, prefix: Integers, lengths: Integers, *, padding: int = 0) -> Self:
        """Packed documents of which the first prefix[k] tokens are seen by the whole document, the rest causally.
        lengths 2 + 4, prefix 2 + 2: xx.... / xx.... / ..xx.. / ..xx.. / ..xxx. / ..xxxx"""
        first, n = int64s(prefix, "prefix"), int64s(lengths, "lengths")
        pair(first, n, "prefix and lengths")
        return cls._make("fm_mask_prefix_documents", len(n), address(first), address(n), whole(padding, "padding"))

    @classmethod
    def share_question(cls, questions: Iterable[Integers], *, bidirectional_question: bool = False, padding: int = 0) -> Self:
        """Answers see their question and themselves causally, never another answer (DPO, reward models, best of n). questions:
        for each the lengths (question, answer, answer, ..).
        (2, 2, 2): x..... / xx.... / xxx... / xxxx.. / xx..x. / xx..xx"""
        questions = listed(questions, "questions")
        structs = question_structs(questions)
        flags = flag(bidirectional_question, "bidirectional_question"), whole(padding, "padding")
        return cls._make("fm_mask_share_question", len(questions), structs, *flags)

    @classmethod
    def prefix_tree(cls, parent: Integers, length: Integers) -> tuple[Self, np.ndarray]:
        """A tree of segments (shared prefixes): a node sees itself causally and all its ancestors. parent[k] is a node or -1 for
        a root. Tokens lie depth first, children in the order given. Returns the mask and the first token of each node,
        int64.
        parents -1, 0, 0, 2 tokens each: x..... / xx.... / xxx... / xxxx.. / xx..x. / xx..xx"""
        up, n = int64s(parent, "parent"), int64s(length, "length")
        pair(up, n, "parent and length")
        offset = np.zeros(len(n), np.int64)
        return cls._make("fm_mask_prefix_tree", len(n), address(up), address(n), address(offset)), offset

    @classmethod
    def causal_blockwise(cls, lengths: Integers) -> Self:
        """Causal documents, of which the last also sees all earlier ones.
        lengths 2 + 2 + 2: x..... / xx.... / ..x... / ..xx.. / xxxxx. / xxxxxx"""
        n = int64s(lengths, "lengths")
        return cls._make("fm_mask_causal_blockwise", len(n), address(n))

    @classmethod
    def qk_sparse(cls, rows: int, columns: int | None = None, *, offset: Integers, length: Integers) -> Self:
        """Causal; the keys of a span [offset, offset + length) are hidden from all rows before the row of the span's end. Spans
        ascend and do not overlap.
        span 1 + 3: x..... / x..... / x..... / x..... / xxxxx. / xxxxxx"""
        first, n = int64s(offset, "offset"), int64s(length, "length")
        pair(first, n, "offset and length")
        return cls._make("fm_mask_qk_sparse", *extents(rows, columns), len(n), address(first), address(n))

    @classmethod
    def hash_sparse(cls, bucket: Integers, *, fallback_limit: int | None = None) -> Self:
        """Causal, and only where bucket[i] == bucket[j]. Keys whose bucket comes in more than 4 runs of tokens need the fallback.
        buckets 0 1 0 1 0 1: x..... / .x.... / x.x... / .x.x.. / x.x.x. / .x.x.x"""
        buckets = integers(bucket, "bucket", 1)
        return cls._make("fm_mask_hash_sparse", len(buckets), address(buckets), options(fallback_limit))

    @classmethod
    def random_eviction(cls, length: int, heads: int = 1, *, start: int, seed: int = 0) -> Self:
        """Causal; from row `start` on, each row evicts for good one key before its own, drawn from `seed`, anew for
        each head.
        start 3, seed 1: x..... / xx.... / xxx... / x.xx.. / x.x.x. / x.x..x"""
        draw = whole(start, "start"), whole(seed, "seed")
        return cls._make("fm_mask_random_eviction", whole(length, "length"), whole(heads, "heads"), *draw)

    @classmethod
    def head_windows(cls, rows: int, columns: int | None = None, *, left: Integers, right: Integers) -> Self:
        """A sliding window of its own for each head: left and right have one entry a head.
        left 2, right 0 in head 0: x..... / xx.... / xxx... / .xxx.. / ..xxx. / ...xxx"""
        before, after = int64s(left, "left"), int64s(right, "right")
        pair(before, after, "left and right")
        return cls._make("fm_mask_head_windows", *extents(rows, columns), len(before), address(before), address(after))

    @classmethod
    def padding(cls, rows: int, columns: int | None = None, *, left: Integers, right: Integers) -> Self:
        """Padding on either side of each batch item: its first left[b] and last right[b] tokens see nothing and are seen by
        nobody. There are max(rows, columns) tokens; rows and keys are the last ones. Combine by & with a causal or other mask.
        left 1, right 1: ...... / .xxxx. / .xxxx. / .xxxx. / .xxxx. / ......"""
        before, after = int64s(left, "left"), int64s(right, "right")
        pair(before, after, "left and right")
        return cls._make("fm_mask_padding", len(before), *extents(rows, columns), address(before), address(after))

    @classmethod
    def blocks(
        cls, keep: Any, rows: int, columns: int | None = None, *, block: int = 128, fallback_limit: int | None = None
    ) -> Self:
        """A block mask, keep: [Bm, Hm, ceil(rows / block), ceil(columns / block)], nonzero = visible; block a multiple of 16.
        in blocks, checkerboard: x.x.x. / .x.x.x / x.x.x. / .x.x.x / x.x.x. / .x.x.x"""
        bits, (rows, columns), block = booleans(keep, "keep", 4), extents(rows, columns), whole(block, "block")
        grid = [-(-rows // block), -(-columns // block)] if block > 0 else None  # the library names a wrong block
        if grid and list(bits.shape[2:]) != grid:
            raise ValueError(f"keep has {list(bits.shape[2:])} blocks, needs {grid} for {rows} x {columns} in blocks of {block}")
        shape = lib.MaskShape(bits.shape[0], bits.shape[1], rows, columns)
        return cls._make("fm_mask_blocks", shape, block, address(bits), options(fallback_limit))

    @classmethod
    def bigbird(
        cls,
        rows: int,
        columns: int | None = None,
        *,
        block: int = 64,
        global_blocks: int,
        window: int,
        random: int,
        seed: int = 0,
        fallback_limit: int | None = None,
    ) -> Self:
        """BigBird-like, in blocks: the first global_blocks rows and columns of blocks, `window` blocks either side of the
        diagonal, and `random` more per other row of blocks, drawn from `seed`. Not causal.
        in blocks, global 1, window 1, random 1, seed 1: xxxxxx / xxx.x. / xxxx.x / x.xxxx / xx.xxx / x.x.xx"""
        sizes = [whole(value, name) for value, name in ((block, "block"), (global_blocks, "global_blocks"))]
        sizes += [whole(value, name) for value, name in ((window, "window"), (random, "random"), (seed, "seed"))]
        return cls._make("fm_mask_bigbird", *extents(rows, columns), *sizes, options(fallback_limit))

    @classmethod
    def image_spans(cls, lengths: Integers, *, offset: Integers, length: Integers) -> Self:
        """Packed causal documents in which the tokens of one image span [offset, offset + length) see each other both ways.
        one document, span 1 + 3: x..... / xxxx.. / xxxx.. / xxxx.. / xxxxx. / xxxxxx"""
        n, first, count = int64s(lengths, "lengths"), int64s(offset, "offset"), int64s(length, "length")
        pair(first, count, "offset and length")
        return cls._make("fm_mask_image_spans", len(n), address(n), len(first), address(first), address(count))

    @classmethod
    def random_sparse(
        cls, rows: int, columns: int | None = None, *, density: float, seed: int = 0, fallback_limit: int | None = None
    ) -> Self:
        """Each pair visible with probability `density`, drawn from `seed`. O(rows * columns): exercises the fallback.
        density 0.5, seed 1: ...xx. / ..x.x. / x.xx.. / ..xxxx / xx..x. / ..xxx."""
        draw = real(density, "density"), whole(seed, "seed")
        return cls._make("fm_mask_random_sparse", *extents(rows, columns), *draw, options(fallback_limit))
