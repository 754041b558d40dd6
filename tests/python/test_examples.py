"""The Python examples run, print what they promise, and find a wrong mask."""

import importlib
import re

import pytest

import examples_path
from examples_path import one_thread, torch  # noqa: F401

NAMES = sorted(file.stem for file in examples_path.FOLDER.glob("*.py"))
TINY = "--steps 3 --sequences 2 --capacity 320 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --device cpu".split()
ROWS = r"flashmask +\d+ .*\n +SDPA, dense mask +\d+ .*\n +FlexAttention +(?:\d+|skipped: \w+: ).*\n +padding, SDPA +\d+ .*\n"


def run(name, *more):
    return importlib.import_module(name).main([*TINY, *more])


@pytest.mark.parametrize("name, dtype", [(name, "float32") for name in NAMES] + [("sft", "bfloat16"), ("dpo", "bfloat16")])
def test_losses_agree_in_all_contenders(name, dtype, capsys):
    assert run(name, "--dtype", dtype) == 0
    printed = capsys.readouterr().out
    tables = 2 if name == "sft" else 1
    assert len(re.findall(ROWS + " +loss curves agree: ", printed)) == tables, printed


def hide_nothing(batch, dtype):
    """Attention that is causal over the whole sequence: documents see those before them."""
    from shared import contenders

    vectors = batch["mask_vectors"].clone()
    vectors[..., 1] = vectors.shape[2]
    return contenders.causal({**batch, "mask_vectors": vectors}, dtype)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_mask_is_found(name, capsys, monkeypatch):
    from shared import contenders

    monkeypatch.setattr(contenders, "flashmask", hide_nothing)
    assert run(name, "--capacity", "2048") == 1
    assert "loss curves DIFFER" in capsys.readouterr().out


def test_nan_and_nothing_to_compare_with_are_no_agreement(capsys):
    from shared.race import Curve, agree

    def curves(*losses):
        return {str(k): Curve(each, [1.0] * len(each), 0, 0) for k, each in enumerate(losses)}

    nan = float("nan")
    assert agree(curves([1.0, 2.0], [1.0, 2.0]), 1e-5)
    assert not agree(curves([1.0, 2.0], [1.0, nan]), 1e-5) and not agree(curves([1.0, nan], [1.0, nan]), 1e-5)
    assert not agree(curves([1.0, 2.0]), 1.0)
    assert "nothing to compare with" in capsys.readouterr().out


def test_flex_reads_the_same_mask():
    """mask_mod of the FlexAttention contender, pair by pair."""
    from dpo import DPO
    from shared import contenders, data
    from shared.race import parser

    options = parser("", capacity=512).parse_args([])
    task, flex = DPO("", data.sequences(data.pairs, options)), contenders.Flex()
    index = torch.arange(2)[:, None, None], None, torch.arange(512)[:, None], torch.arange(512)
    for _ in range(2):  # the second reuses the first one's tensors
        vectors = task.packed([next(task.sequences) for _ in range(2)], 512)["mask_vectors"]
        visible = contenders.dense_bias(vectors, torch.float32)[:, 0] == 0
        assert torch.equal(flex.mask_mod(vectors)(*index) | torch.eye(512, dtype=torch.bool), visible)


@pytest.mark.parametrize("name, option, value", [
    *[("sft", option, "0") for option in ("steps", "sequences", "capacity", "layers", "heads", "kv-heads")],
    ("sft", "vocabulary", "8"), ("sft", "head-dim", "1"), ("sft", "seed", "-1"), ("sft", "rank", "-1"),
    ("window_sink", "window", "0"), ("window_sink", "sink", "-1"),
])  # fmt: skip
def test_options_out_of_range(name, option, value, capsys):
    with pytest.raises(SystemExit):
        run(name, f"--{option}={value}")
    assert f"argument --{option}: is {value}, needs" in capsys.readouterr().err


def test_sizes_that_do_not_fit():
    for wrong, message in ((["--capacity", "2"], "no record fits"), (["--head-dim", "7"], "head_dim is 7"),
                           (["--heads", "3", "--kv-heads", "2"], "heads are 3")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            run("sft", *wrong)
