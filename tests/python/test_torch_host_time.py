"""bench/host_time.py: which calls it takes to be too slow, and that it runs."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import host_time  # noqa: E402

ROWS = [
    ("ctypes alone", None, 15.0, None),
    ("attention", None, 60.0, "FlexAttention"),
    ("attention, forward and backward", None, None, None),
    ("FlexAttention", None, None, None),
]
GOOD = {"ctypes alone": 14.9, "attention": 50.0, "attention, forward and backward": 200.0, "FlexAttention": 51.0}


@pytest.mark.parametrize(("changed", "device", "wrong"), [
    ({}, "cuda", []),
    ({"ctypes alone": 15.0}, "cuda", ["ctypes alone takes 15.0 us, needs less than 15.0 us"]),
    ({"attention": 61.0, "FlexAttention": 90.0}, "cpu", ["attention takes 61.0 us, needs less than 60.0 us"]),
    ({"FlexAttention": 49.0}, "cuda", ["attention takes 50.0 us, needs less than 49.0 us, the time of FlexAttention"]),
    ({"FlexAttention": 49.0}, "cpu", []),
    ({"ctypes alone": 20.0, "attention": 99.0}, "cuda", ["ctypes alone", "attention"]),
])  # fmt: skip
def test_limits(changed, device, wrong):
    found = host_time.report(ROWS, {**GOOD, **changed}, device)
    assert len(found) == len(wrong) and all(line.startswith(start) for line, start in zip(found, wrong))


def test_without_flexattention_the_other_limits_stay(capsys):
    times = {name: time for name, time in GOOD.items() if name != "FlexAttention"}
    assert host_time.report(ROWS, times, "cuda") == []
    assert host_time.report(ROWS, {**times, "attention": 61.0}, "cuda")
    assert "FlexAttention" not in capsys.readouterr().out


def test_every_call_is_timed(monkeypatch, capsys):
    """Times are those of a busy machine: that they are within limits is not asked here."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(host_time, "flex", lambda *_: None)
    called = []
    monkeypatch.setattr(host_time, "least", lambda run, device: called.append(run()) or 1.0)
    assert host_time.main(["--device", "cpu"]) == 0
    torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert len(called) == 6 and len(lines) == 7 and lines[0].split() == ["call", "us", "limit"] and "DeviceMask" in lines[4]
    monkeypatch.setattr(host_time, "least", lambda run, device: 70.0)
    assert host_time.main(["--device", "cpu"]) == 1
    torch.set_num_threads(threads)
    assert "ctypes alone takes 70.0 us, needs less than 15.0 us" in capsys.readouterr().err
