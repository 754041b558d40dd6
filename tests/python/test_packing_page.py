"""docs/packing.md works from top to bottom: its Python on the arrays that its command writes."""

import re
from pathlib import Path

import numpy as np

from flashmask import pack_questions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "packing.md").read_text()
ARRAYS = ("document_ids", "position_ids", "predicted_by", "labels")


def write_arrays(lengths, capacity, prefix):
    """What `flashmask pack` writes of pairs, as the page's table says."""
    records = [tuple(map(int, line.split())) for line in (ROOT / lengths).read_text().splitlines() if line[0].isdigit()]
    packing = pack_questions(records, capacity)
    pieces = [(k, p.document, p.start, p.length) for k, sequence in enumerate(packing) for p in sequence]
    np.save(f"{prefix}_pieces.npy", np.array(pieces))
    for name in ARRAYS:
        np.save(f"{prefix}_{name}.npy", getattr(packing, name))


def test_page(tmp_path, monkeypatch, capsys):
    command = r"^flashmask pack (\S+) --kind pairs --capacity (\d+) --output (\w+)$"
    lengths, capacity, prefix = re.search(command, PAGE, re.M).groups()
    code = "".join(re.findall(r"```python\n(.*?)```", PAGE, re.S))
    monkeypatch.chdir(tmp_path)
    write_arrays(lengths, int(capacity), prefix)
    exec(compile(code, "packing.md", "exec"), names := {})
    assert f"{float(capsys.readouterr().out):.3f}" == re.search(r"the loss is log\(100\) = (\S+)", code)[1]
    sequence, record, _, length = names["pieces"][-1]  # the last of its sequence
    tokens = names["tokens_of"](sequence, int(capacity), names["records"], pad=-1)
    assert tokens[tokens >= 0][-length:].tolist() == names["records"][record].tolist() and tokens[-1] == -1
    names["records"][record][-1] = 99  # a token that only one row predicts well
    logits = np.zeros((int(capacity), 100))
    last = np.flatnonzero(tokens >= 0)[-1]
    logits[last - 1, 99] = 1000
    told = names["tokens_of"](sequence, int(capacity), names["records"])
    count = np.count_nonzero(names["labels"][sequence])
    assert np.isclose(names["loss"](logits, told, sequence), np.log(100) * (count - 1) / count)
