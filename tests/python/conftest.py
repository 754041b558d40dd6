"""Without torch the tests of it are left out, and the head of the report says so: the package works without."""

from importlib.util import find_spec

TORCH = find_spec("torch") is not None
collect_ignore_glob = [] if TORCH else ["test_torch_*.py", "test_transformers*.py"]


def pytest_report_header() -> str:
    return "torch: yes" if TORCH else "torch: no, its tests are left out"
