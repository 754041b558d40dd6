"""What bench/gpu_bench.py rests on, without a GPU: its mirror of the structs, its masks, layouts, checks and fits.

usage: test_gpu_bench.py LIBRARY
"""

import os
import sys
import unittest
from types import SimpleNamespace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
try:
    import numpy as np
    import torch

    from gpu import check, masks, modes, report
    from gpu.library import FlashmaskError, Library
    from gpu.ours import Ours
except ImportError as missing:
    print(missing)
    sys.exit(77)

LENGTH, BATCH, HEADS, HEADS_KV, HEAD_DIM = 4096, 2, 4, 2, 32


def inputs():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, LENGTH, h, HEAD_DIM, generator=generator).bfloat16() for h in (HEADS, HEADS_KV, HEADS_KV, HEADS)]


def dense(case, batch):
    rows = np.arange(case.length)[:, None]
    vectors = case.vectors[batch % case.vectors.shape[0], 0]
    return np.logical_or.reduce([(rows >= vectors[:, m]) & (rows < vectors[:, m + 1]) for m in range(0, vectors.shape[1], 2)])


class GpuBench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = Library(sys.argv[1])

    def case(self, name):
        return masks.build(self.library, name, LENGTH, BATCH, HEADS_KV)

    def results(self, case):
        ours = Ours(self.library, inputs(), case, SimpleNamespace(backend=0, deterministic=False))
        ours.poison()
        ours.forward()
        ours.backward()
        return ours

    def test_vectors_hold_the_pairs_that_the_plan_counts(self):
        for name in masks.names(self.library):
            case = self.case(name)
            lengths = case.vectors[..., 1::2].astype(np.int64) - case.vectors[..., 0::2]
            self.assertEqual(lengths.sum(), case.pairs, name)

    def test_calls_agree_with_the_f32_computation(self):
        for name in ("causal_blockwise", "random_eviction", "pairs_pack"):
            case = self.case(name)
            ours = self.results(case)
            errors, good = check.check(inputs(), torch.from_numpy(case.vectors), ours.output, ours.lse, ours.grads)
            self.assertTrue(good, (name, errors))
            self.assertTrue(check.check(inputs(), torch.from_numpy(case.vectors), ours.output, None, ours.grads)[1], name)

    def test_check_finds_a_wrong_mask_and_an_unwritten_element(self):
        case, vectors = self.case("causal_document"), torch.from_numpy(self.case("document").vectors)
        ours = self.results(case)
        self.assertFalse(check.check(inputs(), vectors, ours.output, ours.lse, ours.grads)[1])
        ours.grads[1][1, 17, 0, 3] = float("nan")
        self.assertFalse(check.check(inputs(), torch.from_numpy(case.vectors), ours.output, ours.lse, ours.grads)[1])

    def test_layouts_show_what_the_mask_shows(self):
        for name in ("document", "causal_document", "chat_pack", "pairs_pack", "code_pack"):
            case = self.case(name)
            seen = np.zeros((BATCH * LENGTH, LENGTH), bool)
            ends = case.layout.ends()
            for start, end in zip(ends[:-1], ends[1:]):
                tokens = case.layout.index[start:end]
                shown = np.ones((len(tokens), len(tokens)), bool)
                seen[np.ix_(tokens, tokens % LENGTH)] |= np.tril(shown) if case.layout.causal else shown
            for b in range(BATCH):
                np.testing.assert_array_equal(seen[b * LENGTH : (b + 1) * LENGTH], dense(case, b), name)

    def test_refusals_carry_the_message_of_the_library(self):
        with self.assertRaisesRegex(FlashmaskError, "FM_ERROR_ARGUMENT: .*capacity"):
            self.library.pack_documents([1], 0)

    def test_fit_of_a_line_is_exact(self):
        found = modes.fit([1, 2, 5, 9], [3.5, 4.0, 5.5, 7.5])
        self.assertAlmostEqual(found["r2"], 1)
        self.assertAlmostEqual(found["constant_ms"], 3)
        self.assertLess(found["worst"], 1e-9)

    def test_means_compare_masks_that_both_ran(self):
        def row(mask, direction, **ms):
            return {"length": 1, "mask": mask, "direction": direction, "contenders": {k: {"median_ms": v} for k, v in ms.items()}}

        rows = [row("a", "forward", ours=1, flex=3), row("a", "backward", ours=1, flex=5), row("b", "forward", ours=2)]
        self.assertEqual(report.compare(rows, "flex"), [4])

    def test_shares_of_full_go_by_the_length_of_rows(self):
        rows = [{"length": length, "mask": mask, "tiles_per_row": tiles, "direction": "forward", "contenders": {"ours": {"eta": eta}}}
                for length, mask, tiles, eta in ((1, "full", 64, 0.5), (1, "a", 16, 0.4), (1, "b", 15, 0.3), (2, "b", 99, 0.1))]
        many, few = report.shares_of_full(rows, "forward")
        self.assertAlmostEqual(many, 0.8)
        self.assertAlmostEqual(few, 0.6)
        self.assertEqual(report.shares_of_full(rows, "backward"), [None, None])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
