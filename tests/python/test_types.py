"""What type checkers are told is what the functions take."""

import ast
import inspect
import typing
from pathlib import Path

import pytest

import flashmask
from flashmask import attention, numpy_attention

CONSUMER = """
from typing import assert_type

import numpy as np
from torch import Tensor

import flashmask
from flashmask import DeviceMask, Mask, Packing, SFTCollator, attention, batch_mask, flashmask_attention, numpy_attention
from flashmask import pack, to_device

def use(q: Tensor, a: np.ndarray, mask: Mask, either: bool) -> None:
    assert_type(attention(q, q, q, mask, causal=True, window_size=(3, 0)), Tensor)
    assert_type(attention(q, q, q, mask.to("cpu"), return_lse=True, layout="bhsd"), tuple[Tensor, Tensor])
    assert_type(attention(q, q, q, return_lse=either), Tensor | tuple[Tensor, Tensor])
    assert_type(attention(a, a, a, mask, return_lse=True), tuple[np.ndarray, np.ndarray])
    assert_type(numpy_attention.attention(a, a, a, mask), np.ndarray)
    assert_type(flashmask_attention(q, q, q, causal=True), Tensor)
    assert_type(flashmask_attention(q, q, q, return_softmax_lse=True), list[Tensor])
    assert_type(Mask.documents(np.array([1, 2]), causal=True) & Mask.share_question([[1, 2]]), Mask)
    assert_type(pack(q.int(), 8), Packing)
    batch = to_device(SFTCollator(16)([{"input_ids": [1, 2]}]), "cpu")
    assert_type(batch_mask(batch), DeviceMask)
    attention(q, q, q, "mask")  # wrong
    attention(q, q, q, windows=(3, 0))  # wrong
    flashmask.atention  # wrong
"""


def options_of(function):
    """Keyword parameters of each overload: all are in a TypedDict, but those that choose it."""
    for overload in typing.get_overloads(function):
        yield {name for name, p in inspect.signature(overload).parameters.items() if p.kind is p.KEYWORD_ONLY}


def check(function, options, chooses):
    taken = {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
    found = list(options_of(function))
    assert len(found) == 3 and all(names == {chooses} for names in found)
    assert set(options.__annotations__) | {chooses} == taken


def test_overloads_have_the_options_of_their_functions():
    check(attention, inspect.getmodule(attention).Options, "return_lse")
    assert len(list(options_of(numpy_attention.attention))) == 3
    pytest.importorskip("torch")
    from flashmask import paddle

    check(paddle.flashmask_attention, paddle.Options, "return_softmax_lse")


def test_type_checkers_see_every_lazy_name():
    tree = ast.parse(Path(flashmask.__file__).read_text())
    seen = {
        alias.asname: node.module
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == flashmask._LAZY


def test_mypy(tmp_path):
    """A program that uses the package, strictly checked."""
    api = pytest.importorskip("mypy.api")
    pytest.importorskip("torch")
    source = tmp_path / "consumer.py"
    source.write_text(CONSUMER)
    package = str(Path(flashmask.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPYPATH", package)
        output, _, _ = api.run(["--strict", "--follow-imports=silent", f"--cache-dir={tmp_path}", str(source)])
    wrong = [n for n, line in enumerate(CONSUMER.splitlines(), 1) if line.endswith("# wrong")]
    assert sorted({int(line.split(":")[1]) for line in output.splitlines() if ": error: " in line}) == wrong, output
