"""Masks: builders against their pictures, algebra, stats, plans, pictures, copies."""

import copy
import pickle
import threading
import time

import numpy as np
import pytest

from flashmask import Mask


def drawn(picture):
    """A bool matrix of a picture: rows apart by ' / '."""
    return np.array([[character == "x" for character in row] for row in picture.split(" / ")])


def causal(rows, columns):
    return np.arange(columns) <= np.arange(rows)[:, None] + columns - rows


PICTURES = {
    "full": (lambda: Mask.full(3), "xxx / xxx / xxx"),
    "full wide": (lambda: Mask.full(1, 3), "xxx"),
    "causal": (lambda: Mask.causal(6), "x..... / xx.... / xxx... / xxxx.. / xxxxx. / xxxxxx"),
    "causal wide": (lambda: Mask.causal(2, 4), "xxx. / xxxx"),
    "causal tall": (lambda: Mask.causal(4, 2), ".. / .. / x. / xx"),
    "sliding_window": (
        lambda: Mask.sliding_window(6, left=2, right=0),
        "x..... / xx.... / xxx... / .xxx.. / ..xxx. / ...xxx",
    ),
    "sink_window": (lambda: Mask.sink_window(6, sink=1, window=2), "x..... / xx.... / xxx... / x.xx.. / x..xx. / x...xx"),
    "documents_sink_window": (
        lambda: Mask.documents_sink_window([2, 4], sink=1, window=2),
        "x..... / xx.... / ..x... / ..xx.. / ..xxx. / ..x.xx",
    ),
    "global_window": (
        lambda: Mask.global_window(6, global_tokens=1, left=1, right=1),
        "xxxxxx / xxx... / xxxx.. / x.xxx. / x..xxx / x...xx",
    ),
    "documents": (lambda: Mask.documents([2, 4], causal=True), "x..... / xx.... / ..x... / ..xx.. / ..xxx. / ..xxxx"),
    "documents both ways": (lambda: Mask.documents([2, 1], causal=False, padding=1), "xx.. / xx.. / ..x. / ...."),
    "prefix_lm": (lambda: Mask.prefix_lm(6, prefix=3), "xxx... / xxx... / xxx... / xxxx.. / xxxxx. / xxxxxx"),
    "prefix_documents": (
        lambda: Mask.prefix_documents([2, 2], [2, 4]),
        "xx.... / xx.... / ..xx.. / ..xx.. / ..xxx. / ..xxxx",
    ),
    "share_question": (lambda: Mask.share_question([(2, 2, 2)]), "x..... / xx.... / xxx... / xxxx.. / xx..x. / xx..xx"),
    "share_question both ways": (
        lambda: Mask.share_question([(2, 1), (1,)], bidirectional_question=True, padding=1),
        "xx... / xx... / xxx.. / ...x. / .....",
    ),
    "prefix_tree": (
        lambda: Mask.prefix_tree([-1, 0, 0], [2, 2, 2])[0],
        "x..... / xx.... / xxx... / xxxx.. / xx..x. / xx..xx",
    ),
    "causal_blockwise": (lambda: Mask.causal_blockwise([2, 2, 2]), "x..... / xx.... / ..x... / ..xx.. / xxxxx. / xxxxxx"),
    "qk_sparse": (lambda: Mask.qk_sparse(6, offset=[1], length=[3]), "x..... / x..... / x..... / x..... / xxxxx. / xxxxxx"),
    "hash_sparse": (lambda: Mask.hash_sparse([0, 1, 0, 1, 0, 1]), "x..... / .x.... / x.x... / .x.x.. / x.x.x. / .x.x.x"),
    "random_eviction": (
        lambda: Mask.random_eviction(6, start=3, seed=1),
        "x..... / xx.... / xxx... / x.xx.. / x.x.x. / x.x..x",
    ),
    "head_windows": (
        lambda: Mask.head_windows(6, left=[2], right=[0]),
        "x..... / xx.... / xxx... / .xxx.. / ..xxx. / ...xxx",
    ),
    "padding": (lambda: Mask.padding(6, left=[1], right=[1]), "...... / .xxxx. / .xxxx. / .xxxx. / .xxxx. / ......"),
    "image_spans": (
        lambda: Mask.image_spans([6], offset=[1], length=[3]),
        "x..... / xxxx.. / xxxx.. / xxxx.. / xxxxx. / xxxxxx",
    ),
    "random_sparse": (
        lambda: Mask.random_sparse(6, density=0.5, seed=1),
        "...xx. / ..x.x. / x.xx.. / ..xxxx / xx..x. / ..xxx.",
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_builders_make_their_pictures(name):
    build, picture = PICTURES[name]
    mask = build()
    assert mask.shape[:2] == (1, 1)
    assert np.array_equal(mask.dense()[0, 0], drawn(picture))
    assert mask.visible_pairs == picture.count("x")
    assert mask.picture() == picture.replace(" / ", "\n")


def test_blocks():
    keep = np.array([[1, 0], [0, 1]])
    mask = Mask.blocks(keep[None, None], 32, block=16)
    assert np.array_equal(mask.dense()[0, 0], np.kron(keep, np.ones((16, 16))) != 0)
    with pytest.raises(ValueError, match=r"keep has \[2, 2\] blocks, needs \[3, 2\]"):
        Mask.blocks(keep[None, None], 33, 32, block=16)
    with pytest.raises(ValueError, match="block"):
        Mask.blocks(keep[None, None], 32, block=0)


def test_bigbird_has_its_window_and_global_blocks():
    mask = Mask.bigbird(6 * 16, block=16, global_blocks=1, window=1, random=1, seed=1)
    picture = "xxxxxx / xxx.x. / xxxx.x / x.xxxx / xx.xxx / x.x.xx"
    assert np.array_equal(mask.dense()[0, 0], np.kron(drawn(picture), np.ones((16, 16))) != 0)


def test_heads_of_their_own():
    windows = Mask.head_windows(9, left=[0, 3], right=[0, -1])
    assert windows.shape == (1, 2, 9, 9)
    assert windows.dense()[0, 0].sum() == 9
    assert Mask.random_eviction(8, heads=3, start=2).shape == (1, 3, 8, 8)


def test_prefix_tree_says_where_nodes_lie():
    mask, offset = Mask.prefix_tree([2, -1, 1, 1], [1, 2, 3, 4])  # 1 <- (2 <- 0, 3)
    assert offset.tolist() == [5, 0, 2, 6]
    assert mask.shape == (1, 1, 10, 10)
    assert not mask.dense()[0, 0, 6:, 2:6].any()


def test_wrong_arguments_of_builders():
    for wrong in (
        lambda: Mask.documents([2, -1], causal=True),
        lambda: Mask.documents([[2]], causal=True),
        lambda: Mask.prefix_documents([1], [2, 3]),
        lambda: Mask.prefix_tree([1, 0], [1, 1]),
        lambda: Mask.share_question([()]),
        lambda: Mask.sliding_window(4, left=-2, right=0),
        lambda: Mask.random_sparse(4, density=2.0),
        lambda: Mask.causal(2**40),
        lambda: Mask.causal(2**70),
    ):
        with pytest.raises(ValueError):
            wrong()
    for wrong in (
        lambda: Mask.documents([2.0], causal=True),
        lambda: Mask.documents([2], causal=1),
        lambda: Mask.documents("12", causal=True),
        lambda: Mask.causal(2.0),
        lambda: Mask.causal(True),
        lambda: Mask.causal(None),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_documents_of_nothing():
    assert Mask.documents([], causal=True).shape == (1, 1, 0, 0)
    assert Mask.documents([0, 3, 0], causal=True) == Mask.causal(3)


# ---- algebra ----


def random_masks():
    """Sparse, half and dense, in several shapes."""
    draw = np.random.default_rng(3)
    for batch, heads, rows, columns in ((1, 1, 5, 7), (2, 3, 40, 33), (1, 2, 150, 140)):
        for density in (0.02, 0.5, 0.97):
            yield draw.random((batch, heads, rows, columns)) < density


@pytest.mark.parametrize("dense", list(random_masks()), ids=lambda d: f"{d.shape}-{d.mean():.2f}")
def test_algebra_is_that_of_matrices(dense):
    mask = Mask.from_dense(dense)
    rows, columns = dense.shape[2:]
    other = causal(rows, columns)
    lower = Mask.from_dense(other)
    assert np.array_equal((mask & lower).dense(), dense & other)
    assert np.array_equal((mask | lower).dense(), dense | other)
    assert np.array_equal(mask.slice((1, 4), (2, 5)).dense(), dense[:, :, 1:4, 2:5])
    assert np.array_equal(mask.slice(columns=(0, 3)).dense(), dense[..., :3])
    moved = np.zeros_like(dense)
    moved[:, :, 2:, :-3] = dense[:, :, :-2, 3:]
    assert np.array_equal(mask.shift(2, -3).dense(), moved)
    assert np.array_equal(mask.repeat_heads(6).dense(), dense.repeat(6 // dense.shape[1], axis=1))
    assert np.array_equal(Mask.stack_batch([mask, mask]).dense(), np.concatenate([dense, dense]))
    assert np.array_equal(Mask.stack_heads([mask, mask]).dense(), np.concatenate([dense, dense], axis=1))


def test_batch_items():
    """https://github.com/pytorch/pytorch/issues/152297: a last batch that is smaller."""
    items = [Mask.documents([k, 8 - k], causal=True) for k in range(1, 5)]
    batch = Mask.stack_batch(items)
    assert batch.shape == (4, 1, 8, 8)
    assert batch.slice_batch(0, 3) == Mask.stack_batch(items[:3])
    with pytest.raises(ValueError):
        batch.slice_batch(2, 5)


def test_equal_masks_hash_alike():
    one, other = Mask.documents([3, 5], causal=True), Mask.from_cu_seqlens([0, 3, 8], causal=True)
    assert one == other and one.equal(other) and hash(one) == hash(other) and len({one, other}) == 1
    assert one != Mask.causal(8) and one != "a mask"
    assert Mask.full(4) & Mask.causal(4) == Mask.causal(4)


def test_algebra_of_what_does_not_fit():
    with pytest.raises(ValueError, match="fm_mask_and"):
        Mask.causal(4) & Mask.causal(5)
    with pytest.raises(ValueError):
        Mask.causal(4).slice((2, 9))
    for rows in ((), (0,), 3):
        with pytest.raises(ValueError, match="rows is"):
            Mask.causal(4).slice(rows, (1, 0, 2))
    with pytest.raises(ValueError):
        Mask.full(4).repeat_heads(0)
    with pytest.raises(ValueError):
        Mask.stack_heads([])
    with pytest.raises(TypeError):
        Mask.causal(4) & np.ones((4, 4), bool)
    with pytest.raises(TypeError, match=r"masks\[1\] is a int"):
        Mask.stack_batch([Mask.causal(4), 3])
    with pytest.raises(TypeError):
        Mask.causal(4).equal(None)


def test_limit_of_the_fallback():
    dense = np.random.default_rng(0).random((2048, 2048)) < 0.5
    with pytest.raises(MemoryError, match="fallback"):
        Mask.from_dense(dense, fallback_limit=1000)
    mask = Mask.from_dense(dense)
    assert mask.has_fallback and mask.nbytes >= mask.fallback_bytes > 1000


# ---- stats, plans, pictures ----


def test_stats():
    stats = Mask.documents([1024, 512, 1536, 1024], causal=True).stats(64)
    assert (stats.tiles, stats.skipped, stats.full, stats.partial) == (4096, 3488, 544, 64)
    assert stats.mask_bytes == 4096 * 8 and stats.dense_bytes == 4096 * 4096
    wide = Mask.causal(256).stats((64, 128), causal=True, window_size=(10, 0))
    assert (wide.block_m, wide.block_n, wide.tiles) == (64, 128, 8)
    assert wide.visible_pairs == Mask.sliding_window(256, left=10, right=0).visible_pairs
    for tile, error in ((2**21, ValueError), ((1, 2, 3), ValueError), (-1, ValueError), ("2", TypeError), (True, TypeError)):
        with pytest.raises(error, match="tile is"):
            Mask.causal(4).stats(tile)


def test_plans_classify_exactly():
    dense = np.random.default_rng(1).random((2, 2, 200, 300)) < 0.2
    dense[0, 1, 30:90] = True
    mask = Mask.from_dense(dense)
    plan = mask.plan()
    stats = plan.stats
    m, n = stats.block_m, stats.block_n
    for batch in range(2):
        for head in range(2):
            classes = plan.classes(batch, head)
            for i in range(classes.shape[0]):
                for j in range(classes.shape[1]):
                    tile = dense[batch, head, i * m : i * m + m, j * n : j * n + n]
                    full = tile.all() and (j + 1) * n <= 300
                    assert classes[i, j] == (2 if full else 1 if tile.any() else 0)
    assert plan.order().shape == (2 * 2 * -(-200 // m), 3)
    assert {tuple(run[:2]) for run in plan.column_runs(0).tolist()} <= {(0, 1), (0, 2), (0, 3), (0, 4), (1, 1)}
    with pytest.raises(ValueError):
        plan.row_runs(99)


def test_plans_are_kept_with_their_mask():
    mask = Mask.full(64)
    assert mask.plan() is mask.plan() and mask.plan(causal=True) is not mask.plan()
    assert mask.plan(causal=True).stats.visible_pairs == 64 * 65 // 2
    with pytest.raises(TypeError):
        mask.plan(window_size=3)
    plan = mask.plan()
    del mask
    assert plan.stats.visible_pairs == 64 * 64  # outlives its mask


def test_repr():
    text = repr(Mask.documents([3, 9], causal=True))
    assert text.splitlines()[0] == "Mask 1 x 1 x 12 x 12: 51 pairs visible (35.4%), 1 interval a key, 96 bytes"
    assert text.splitlines()[2:5] == ["x...........", "xx..........", "xxx........."]
    large = repr(Mask.documents([300, 900], causal=True)).splitlines()
    assert large[1].startswith("a character is 128 x 128 pairs") and large[2:5] == ["+.........", "x+........", "+++......."]
    assert "bitmaps" in repr(Mask.random_sparse(200, density=0.5))
    assert repr(Mask.full(0)).startswith("Mask 1 x 1 x 0 x 0: 0 pairs")


def test_repr_of_a_long_mask_is_quick():
    mask = Mask.documents([256] * 4096, causal=True)
    start = time.perf_counter()
    repr(mask)
    assert time.perf_counter() - start < 5


def test_pictures_in_notebooks():
    html = Mask.documents([100, 200], causal=True)._repr_html_()
    assert html.count("<svg") == html.count("</svg>") == 1 and "300 x 300" in html
    import xml.etree.ElementTree as tree

    small = tree.fromstring(Mask.documents([1, 2], causal=False).svg())
    cells = [{key: int(part.get(key, 0)) for key in ("x", "y", "width", "height")} for part in list(small)[1:]]
    assert cells == [
        {"x": 0, "y": 0, "width": 1, "height": 1},
        {"x": 1, "y": 1, "width": 2, "height": 1},
        {"x": 1, "y": 2, "width": 2, "height": 1},
    ]
    assert len(Mask.causal(100_000).svg()) < 100_000
    tree.fromstring(Mask.full(0).svg())


def test_plot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = Mask.causal(100).plot()
    assert axes.get_xlabel() == "key" and axes.get_ylim() == (100, 0)
    assert Mask.causal(100).plot(axes) is axes


# ---- copies, threads, size ----


@pytest.mark.parametrize(
    "mask",
    [Mask.share_question([(5, 3, 4)] * 3, padding=2), Mask.random_sparse(150, 200, density=0.5), Mask.full(0, 3)],
    ids=["intervals", "bitmaps", "empty"],
)
def test_pickle(mask):
    back = pickle.loads(pickle.dumps(mask))
    assert back == mask and back.shape == mask.shape and back.nbytes == mask.nbytes
    assert copy.copy(mask) is mask and copy.deepcopy([mask])[0] is mask


def test_pickle_of_a_large_mask_with_bitmaps_is_refused():
    pattern = Mask.blocks(np.indices((1, 1, 300, 300)).sum(axis=0) % 2, 300 * 128)
    assert pattern.has_fallback
    with pytest.raises(pickle.PicklingError, match="bits"):
        pickle.dumps(pattern)


def test_threads_share_masks():
    mask, seen = Mask.sink_window(4096, sink=4, window=64), []
    threads = [threading.Thread(target=lambda: seen.append((mask.plan(), mask.visible_pairs, hash(mask)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1 and len(seen) == 8


def test_a_million_tokens():
    """https://github.com/pytorch/pytorch/issues/134756, https://github.com/meta-pytorch/attention-gym/issues/187: building a mask must
    not build rows x columns of anything."""
    start = time.perf_counter()
    mask = Mask.documents([256] * 4096, causal=True)
    assert time.perf_counter() - start < 1
    assert mask.shape == (1, 1, 2**20, 2**20) and mask.nbytes <= 32e6
    with pytest.raises(MemoryError, match="dense"):
        mask.dense()


def test_masks_and_plans_of_new_documents_each_step():
    """https://github.com/meta-pytorch/attention-gym/issues/149: making the masks of such steps took ten times what attention did."""
    draw = np.random.default_rng(0)
    for _ in range(4):
        lengths = draw.integers(16384, 32768, 32)
        start = time.perf_counter()
        mask = Mask.documents(lengths, causal=True)
        plan = mask.plan()
        assert time.perf_counter() - start < 0.5  # measured: 0.01; attention of one head, 128 numbers long, is 5 TFLOP
        assert mask.nbytes == 8 * lengths.sum() and plan.stats.skipped > 0.9 * plan.stats.tiles


def test_a_builder_that_lacks_an_argument_is_called_by_its_class():
    with pytest.raises(TypeError, match=r"Mask\.documents\(\) missing"):
        Mask.documents([3, 5])


@pytest.mark.parametrize("density", ["0.5", True, None])
def test_densities_are_numbers(density):
    with pytest.raises(TypeError, match="density is"):
        Mask.random_sparse(5, density=density)


def test_documents_of_no_tokens():
    assert Mask.from_document_ids(np.zeros((2, 0), np.int32), causal=True).shape[0] == 2
