"""docs/masks.md shows every builder of Mask, and its lines of Python make the masks of its pictures."""

import re
from pathlib import Path

import numpy as np
import pytest

from flashmask import Mask
from flashmask._builders import Builders

PAGE = (Path(__file__).parents[2] / "docs" / "masks.md").read_text()
SECTIONS = {title: text for title, text in re.findall(r"^##+ (.*?)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S) if "```python" in text}
UNDRAWN = {"Blocks", "Algebra"}  # what other lines of the page draw, or none


def made(section):
    """The mask that a section's Python makes, bool [rows, columns] of head 0."""
    (code,) = re.findall(r"```python\n(.*?)```", SECTIONS[section], re.S)
    names = {"Mask": Mask, "np": np}
    exec(compile(code, "masks.md", "exec"), names)
    return names["mask"].dense()[0, 0]


def test_every_builder_is_shown():
    builders = [name for name, value in vars(Builders).items() if isinstance(value, classmethod)]
    shown = "".join(SECTIONS.values())
    assert len(builders) > 20 and [name for name in builders if f"= Mask.{name}(" not in shown] == []


@pytest.mark.parametrize("section", sorted(SECTIONS.keys() - UNDRAWN))
def test_python_makes_the_mask_of_the_picture(section):
    first_picture = re.search(r"(^    \|.*\|\n)+", SECTIONS[section], re.M)[0]
    picture = np.array([[character == "x" for character in line.strip(" |")] for line in first_picture.splitlines()])
    mask = made(section)
    rows, columns = (have // drawn for have, drawn in zip(mask.shape, picture.shape, strict=True))
    assert np.array_equal(picture.repeat(rows, 0).repeat(columns, 1), mask)


def test_python_makes_the_masks_that_are_not_drawn():
    rows = re.search(r"/\* ([x./ ]+) \*/", SECTIONS["Algebra"])[1].split(" / ")
    assert np.array_equal(made("Algebra"), [[character == "x" for character in row] for row in rows])
    keep = np.zeros((6, 6), bool)
    keep[0, ::2] = keep[1, 1] = True
    assert np.array_equal(made("Blocks"), keep.repeat(16, 0).repeat(16, 1))
