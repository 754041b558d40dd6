"""Every Python block of the pages runs, and prints what the text block behind it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["python_documents", "python_mask_mod", "python_packing", "python_paddle", "python_preferences", "python_varlen"]


@pytest.mark.parametrize("page", PAGES)
def test_page(page):
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.S)
    assert len(blocks) == text.count("```python\n") > 2
    names = {}
    for code, printed in blocks:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, f"{page}.md", "exec"), names)
        assert output.getvalue() == printed
