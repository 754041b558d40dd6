"""bench/train_bench.py on the CPU with tiny sizes: what it records, its search, its verdict, its time limit."""

import json
import sys

import pytest
from examples_path import FOLDER, one_thread  # noqa: F401

sys.path.insert(0, str(FOLDER.parents[1] / "bench"))

import numpy as np  # noqa: E402
import train_bench  # noqa: E402

SIZE = "--device cpu --dtype float32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --rank 2".split()
SIZE += "--contenders flashmask,dense --steps 4 --lengths 256 512 --memory-lengths 256".split()
SIZE += "--longest-from 1024 --longest-most 2048 --curve-steps 4 --curve-length 256".split()


def run(folder, *arguments):
    """Exit status and records."""
    status = train_bench.main([*SIZE, *arguments, "--out", str(folder / "train.jsonl")])
    return status, [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def test_every_part_records_what_it_measured(tmp_path):
    status, records = run(tmp_path, "steps", "memory", "longest", "curves")
    assert status == 0 and records[0]["record"] == "about" and not [r for r in records if "failure" in r]
    kinds = {kind: [r for r in records if r["record"] == kind] for kind in ("steps", "memory", "longest", "curves")}
    wanted = {(task, length, name) for task in ("sft", "dpo", "rm") for length in (256, 512) for name in ("flashmask", "dense")}
    assert {(r["task"], r["length"], r["contender"]) for r in kinds["steps"]} == wanted
    assert all(r["seconds"]["runs"] == 2 and r["tokens_per_second"] > 0 and r["pairs"] > 0 for r in kinds["steps"])
    assert {r["contender"]: r["mask_bytes"] for r in kinds["memory"]} == {"flashmask": 256 * 8, "dense": 256 * 256 * 4}
    assert [(r["contender"], r["trains"], r["fails"]) for r in kinds["longest"]] == [
        ("flashmask", 2048, None), ("dense", 2048, None)
    ]  # fmt: skip
    assert [r["task"] for r in kinds["curves"]] == ["sft", "dpo", "rm"]
    assert all(r["agree"] and r["deterministic_repeats_bit_equal"] for r in kinds["curves"])


def test_a_wrong_mask_fails_the_curves(tmp_path, monkeypatch):
    monkeypatch.setattr(train_bench.contenders, "flashmask", train_bench.contenders.causal)
    status, records = run(tmp_path, "curves", "--tasks", "sft")
    assert status == 1 and records[-1]["record"] == "curves" and not records[-1]["agree"]


def test_nothing_is_started_after_the_time_limit(tmp_path):
    status, records = run(tmp_path, "steps", "memory", "longest", "curves", "--time-limit", "0")
    assert status == 0 and len(records) > 10
    assert all("not started" in record["failure"] for record in records[1:])


def failing(message):
    def contender(batch, dtype):
        raise RuntimeError(message)

    return lambda dynamic: contender


def test_what_does_not_train_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setitem(train_bench.MAKE, "dense", failing("CUDA out of memory\nand more"))
    status, records = run(tmp_path, "memory", "longest")
    assert status == 0
    assert [r["failure"] for r in records if r.get("contender") == "dense" and "failure" in r] == [
        "RuntimeError: CUDA out of memory"
    ] * 2
    assert records[-1]["trains"] == 0 and records[-1]["fails"] == 1024 and "memory" in records[-1]["why"]


def test_only_memory_may_stop_flashmask(tmp_path, monkeypatch):
    for message, status in (("CUDA out of memory", 0), ("an illegal memory access", 1)):
        monkeypatch.setitem(train_bench.MAKE, "flashmask", failing(message))
        assert run(tmp_path, "longest")[0] == status


@pytest.mark.parametrize("limit", [1024, 5000, 40000, 65536, 100_000, 262_144])
def test_search_finds_the_longest_length(limit):
    tried = []

    def trains(length):
        tried.append(length)
        return length <= limit

    good, bad = train_bench.search(trains, 1024, 262_144, 0.06, lambda: False)
    assert good <= limit and good % 1024 == 0 and len(set(tried)) == len(tried) < 16
    if limit == 262_144:
        assert good == limit and bad is None
    else:
        assert bad > limit and bad - good <= max(1024, 0.12 * good)


def test_search_stops_when_it_is_late():
    lengths = iter([False, False, True])
    assert train_bench.search(lambda length: True, 1024, 2**30, 0.06, lambda: next(lengths)) == (2048, None)


def test_verdict_is_twice_the_error_of_the_dense_mask():
    class Kept:
        good = True

        def write(self, record):
            self.last = record

    exact = np.full(4, 2.0)
    for error, agrees in ((0.019, True), (0.021, False)):
        ours, bench = exact + error, Kept()
        found = {"exact": exact, "dense": exact - 0.01, "flashmask": ours, "deterministic": ours, "again": ours}
        train_bench.judge(bench, {}, found)
        assert bench.last["agree"] == bench.good == agrees


@pytest.mark.parametrize("option", ["lengths", "steps", "memory-lengths", "curve-steps", "longest-from", "heads", "vocabulary"])
def test_options_out_of_range(option, capsys):
    with pytest.raises(SystemExit):
        train_bench.parse_arguments(["steps", f"--{option}", "0"])
    assert f"--{option}: is 0, needs" in capsys.readouterr().err


@pytest.mark.skipif(train_bench.torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_cpu_must_be_asked_for(capsys):
    with pytest.raises(SystemExit):
        train_bench.main(["steps"])
    assert "no CUDA device; --device cpu" in capsys.readouterr().err


def test_the_plot_has_a_line_for_each_contender_and_task(tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    import train_plot

    run(tmp_path, "steps", "memory")
    (tmp_path / "train.jsonl").write_text((tmp_path / "train.jsonl").read_text().replace('"peak_bytes": 0', '"peak_bytes": 7'))
    train_plot.main([str(tmp_path / "train.jsonl"), "--out", str(tmp_path / "train.svg")])
    steps, memory = train_plot.read([tmp_path / "train.jsonl"])
    figure = train_plot.draw(steps, memory)
    assert [len(axes.lines) for axes in train_plot.draw(steps, {}).axes] == [2 * 3]
    assert [len(axes.lines) for axes in figure.axes] == [2 * 3, 2] and (tmp_path / "train.svg").stat().st_size > 1000
    with pytest.raises(SystemExit):
        (tmp_path / "none.jsonl").write_text('{"record": "about"}\n')
        train_plot.main([str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "none.svg")])
