"""Every Python block of the pages runs, and prints what the text block behind it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path.stem for path in DOCS.glob("python_*.md"))


def small_model(folder):
    """The name of a model of Hugging Face transformers on the disk."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("page", PAGES)
def test_page(page, tmp_path):
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.S)
    assert len(blocks) == text.count("```python\n") > 2
    names = {"name": small_model(tmp_path)} if page == "python_transformers" else {}
    for code, printed in blocks:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, f"{page}.md", "exec"), names)
        assert output.getvalue() == printed
    if page == "python_transformers":
        assert names["loss"].isfinite() and names["logits"].shape == (1, 9, 61)
