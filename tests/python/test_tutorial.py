"""Code written for the published FlashMask tutorial, with only the import changed, runs as it stands in tutorial_usage.py."""

import runpy
from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402


def dense_attention():
    """torch 2.4's kernel for CPUs gives NaN to rows whose first several hundred keys are hidden; its plain formula does not."""
    return sdpa_kernel(SDPBackend.MATH) if torch.__version__.startswith("2.4.") else nullcontext()


def test_tutorial(capsys):
    """The file checks shapes, counts of tiles and outputs itself; its last line says that it came to the end."""
    torch.manual_seed(0)
    with dense_attention():
        runpy.run_path(str(Path(__file__).with_name("tutorial_usage.py")), run_name="__main__")
    assert capsys.readouterr().out == "tutorial usage: ok\n"
