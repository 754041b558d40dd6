"""Makes the modules of examples/python importable. They need torch 2.5: SDPA of 2.4 gives NaN on CPUs where it should not."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", "2.5")
FOLDER = Path(__file__).parents[2] / "examples" / "python"
sys.path.insert(0, str(FOLDER))


@pytest.fixture(autouse=True)
def one_thread():
    """Models this small gain nothing from more, and wait for them where the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
