"""What bench/gpu_bench.py rests on, without a GPU: its mirror of the structs, its masks, layouts, checks and fits.

usage: test_gpu_bench.py LIBRARY
"""

import contextlib
import io
import os
import sys
import unittest
from types import SimpleNamespace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
try:
    import numpy as np
    import torch

    from gpu import check, masks, modes, summary
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

    def test_cut_intervals_hold_the_same_pairs_and_meet_beside_the_edges_of_tiles(self):
        for name in modes.INTERVALS_MASKS:
            plane = self.library.benchmark_mask(name, LENGTH, 1, 1).vectors()[:1, :1]
            whole = dense(SimpleNamespace(vectors=plane, length=LENGTH), 0)
            for pieces in range(1, modes.MOST_INTERVALS + 1):
                vectors = modes.cut(plane, pieces)
                self.assertEqual(vectors.shape, (1, 1, LENGTH, 2 * pieces))
                self.assertTrue((dense(SimpleNamespace(vectors=vectors, length=LENGTH), 0) == whole).all())
                self.assertEqual(name == "full" and (vectors[0, 0, 0, 1:-1] % 64 == 0).any(), False)

    def test_a_pierced_mask_has_bitmaps_and_full_tiles_beside_them(self):
        plane = self.library.benchmark_mask("full", LENGTH, 1, 1).vectors()
        visible = modes.pierce(plane[0, 0])
        mask = self.library.dense(visible)
        stats = mask.plan().stats()
        self.assertGreater(mask.fallback_bytes, 0)
        self.assertEqual(stats.visible_pairs, visible.sum())
        self.assertEqual(visible.sum(), LENGTH * LENGTH - LENGTH // 16 * modes.HOLES)
        self.assertGreater(stats.full, 10 * stats.partial)

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

    def row(self, mask, direction, tiles=64, **times):
        contenders = {who.replace("_", "+"): {"median_ms": ms, "eta": 0.8 / ms, "eta_fixed": 0.4 / ms} for who, ms in times.items()}
        return {"length": 1, "mask": mask, "direction": direction, "tiles_per_row": tiles, "contenders": contenders}

    def test_summary_compares_masks_that_both_ran(self):
        rows = [self.row("causal", "forward", ours=1, sm80=2, flex=3, flash=2),
                self.row("causal", "backward", ours=1, sm80=2, flex=5),
                self.row("document", "forward", ours=2, sm80=8, flex=24), self.row("chat_pack", "forward", ours=1, flex=7)]
        ours, sm80 = summary.summarise(rows)
        self.assertEqual((ours["own"], sm80["own"]), ("ours", "sm80"))
        flex = ours["ratios"]["flex, masks"]
        self.assertAlmostEqual(flex["forward"]["geometric_mean"], 6)
        self.assertEqual((flex["forward"]["least"], flex["forward"]["most"], flex["forward"]["masks"]), (3, 12, 2))
        self.assertEqual((flex["together"]["least"], flex["together"]["masks"]), (4, 1))
        self.assertEqual(ours["ratios"]["flex, chat_pack"].keys(), {"forward"})
        self.assertEqual(ours["ratios"]["flash, full, causal"]["forward"]["least"], 2)
        self.assertEqual(sm80["ratios"]["flex, masks"]["forward"]["most"], 3)
        self.assertNotIn("flex, chat_pack", sm80["ratios"])

    def test_summary_finds_the_least_eta_of_each_class(self):
        rows = [self.row("full", "forward", ours=1), self.row("causal", "forward", 16, ours=2),
                self.row("document", "forward", 17, ours=4),
                self.row("share_question", "forward", 15.9, ours=5), self.row("sliding_window", "forward", 7, ours=8),
                self.row("code_pack", "forward", 50, ours=10)]
        (record,) = summary.summarise(rows)
        found = record["eta"]["forward"]
        self.assertEqual(list(found), list(summary.CLASSES))
        self.assertEqual([c["masks"] for c in found.values()], [1, 2, 1, 1, 1])
        self.assertEqual([c["eta"]["mask"] for c in found.values()],
                         ["full", "document", "share_question", "sliding_window", "code_pack"])
        self.assertAlmostEqual(found["16 tiles a row or more"]["of_full"]["value"], 1 / 4)
        self.assertAlmostEqual(found["packs"]["eta_fixed"]["value"], 0.04)
        self.assertEqual(record["mean_eta"]["forward"]["masks"], 5)
        self.assertNotIn("backward", record["eta"])

    def test_summary_prints_what_was_measured_alone(self):
        for rows in ([], [self.row("causal", "forward", flex=1)], [self.row("causal", "backward", ours=1)],
                     [self.row("chat_pack", "forward", ours=1, varlen=2)], [self.row("full", "forward", ours=1, ours_plan=2)]):
            text = io.StringIO()
            with contextlib.redirect_stdout(text):
                for record in summary.summarise(rows):
                    summary.print_summary(record)
            self.assertEqual(bool(text.getvalue()), any("ours" in r["contenders"] for r in rows))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
