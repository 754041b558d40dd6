"""The README's section on Python does what it says."""

import contextlib
import io
import re
from pathlib import Path


def test_the_readmes_example_prints_what_it_claims():
    section = (Path(__file__).parents[2] / "README.md").read_text().split("\n## From Python\n")[1].split("\n## ")[0]
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", section, re.S)
    assert len(code.splitlines()) == 5
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "README.md", "exec"), {})
    assert output.getvalue() == printed
