"""Wrong values for each argument of every public call that needs torch."""

import numpy as np
import pytest
import torch
from bad_arguments import check

from flashmask import (
    DeviceMask,
    FlashMaskAttention,
    FlashMaskRepresentation,
    KTOCollator,
    Mask,
    PreferenceCollator,
    SFTCollator,
    answer_log_probs,
    answer_rewards,
    attention,
    batch_mask,
    flashmask_attention,
    stack_rows,
    to_device,
    token_log_probs,
)

MASK = Mask.causal(4)
TENSOR = torch.ones(1, 4, 2, 8)
INPUTS = {"query": TENSOR, "key": TENSOR, "value": TENSOR}
HEADS_FIRST = TENSOR.transpose(1, 2)
REPRESENTATION = FlashMaskRepresentation(4, [0, 1, 2, 3], [3] * 4)
PAIR = {"prompt": [1, 2], "chosen": [3], "rejected": [4]}
COLLATOR = PreferenceCollator(8, windows={"near": 2})
BATCH, ROW = COLLATOR([PAIR]), COLLATOR.rows([PAIR])[0]
OPTIONS = {"capacity": 8, "pad_token_id": 0, "sequences": 1, "windows": {"near": 1}, "intervals": 1, "pin_memory": False}


def ends(*shape):
    return torch.full(shape, 4, dtype=torch.int32)


def of_record(make, **fixed):
    return lambda **record: make(8)([{**record, **fixed}])


CALLS = {
    "attention": (attention, {**INPUTS, "mask": MASK, "sinks": torch.zeros(2), "deterministic": False, "return_lse": True}),
    "attention's numbers": (
        attention,
        {**INPUTS, "causal": True, "softmax_scale": 0.5, "softcap": 1.0, "window_size": (1, 1), "layout": "bshd"},
    ),
    "flashmask_attention": (
        flashmask_attention,
        {**INPUTS, "startend_row_indices": ends(1, 1, 4, 1), "block_mask": ends(1, 1, 1, 1), "causal": True, "dropout": 0.0},
    ),
    "flashmask_attention's flags": (
        flashmask_attention,
        {**INPUTS, "return_softmax_lse": True, "return_seed_offset": False, "softmax_scale": 0.5, "layout": "bshd"},
    ),
    "flashmask_attention, fms": (flashmask_attention, {**INPUTS, "fms": ends(4), "fme": ends(4)}),
    "flashmask_attention, window": (lambda **x: flashmask_attention(**INPUTS, **x), {"window_size": (1, 1), "causal": True}),
    "representation": (FlashMaskRepresentation, {"seq_len": 4, "fms": [0] * 4, "fme": [3] * 4}),
    "from_packed_samples": (FlashMaskRepresentation.from_packed_samples, {"sample_lengths": [2, 2], "causal": True}),
    "from_dpo_pair": (FlashMaskRepresentation.from_dpo_pair, {"prompt_len": 2, "chosen_len": 1, "rejected_len": 1}),
    "stats": (REPRESENTATION.stats, {"block_r": 2, "block_c": 2}),
    "module": (FlashMaskAttention, {"dim": 16, "num_heads": 2, "block_r": 2, "block_c": 2}),
    "module's call": (FlashMaskAttention(16, 2), {"q": HEADS_FIRST, "k": HEADS_FIRST, "v": HEADS_FIRST, "mask": REPRESENTATION}),
    "DeviceMask": (lambda **x: DeviceMask(format=2, **x), {"vectors": MASK.vectors(), "rows": 4, "causal": False}),
    "from_startend": (
        DeviceMask.from_startend_row_indices,
        {"startend_row_indices": ends(1, 1, 4, 1), "causal": True, "rows": 4},
    ),
    "from_fms_fme": (DeviceMask.from_fms_fme, {"fms": ends(4), "fme": ends(4), "rows": 4}),
    "from_intervals": (DeviceMask.from_intervals, {"intervals": torch.from_numpy(MASK.intervals()), "rows": 4}),
    "vectors": (MASK.vectors, {"intervals": 1}),
    "to": (lambda intervals: MASK.to("cpu", intervals=intervals), {"intervals": 1}),
    "SFTCollator": (SFTCollator, {**OPTIONS, "train_on_prompt": False, "overlong": "refuse"}),
    "PreferenceCollator": (PreferenceCollator, OPTIONS),
    "KTOCollator": (KTOCollator, {**OPTIONS, "kl": False}),
    "records": (COLLATOR, {"records": [PAIR]}),
    "rows of records": (COLLATOR.rows, {"records": [PAIR]}),
    "map": (SFTCollator(8).map, {"columns": {"input_ids": [[1]]}, "indices": [0]}),
    "a document": (of_record(SFTCollator), {"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1, 1]}),
    "a chat": (of_record(SFTCollator), {"prompt": [1, 2], "completion": [1]}),
    "a pair": (of_record(PreferenceCollator), PAIR),
    "answers": (of_record(PreferenceCollator), {"prompt": [1], "answers": [[1], [2]]}),
    "a judged answer": (of_record(KTOCollator, label=True), {"prompt": [1], "completion": [1]}),
    "stack_rows": (stack_rows, {"rows": [ROW], "intervals": 2, "pin_memory": False}),
    "a stored row": (lambda **row: stack_rows([row]), ROW),
    "to_device": (lambda batch: to_device(batch, "cpu"), {"batch": BATCH}),
    "batch_mask": (batch_mask, {"batch": BATCH}),
    "token_log_probs": (token_log_probs, {"logits": torch.zeros(1, 8, 9), "batch": BATCH}),
    "answer_log_probs": (answer_log_probs, {"logits": torch.zeros(1, 8, 9), "batch": BATCH}),
    "answer_rewards": (answer_rewards, {"values": torch.zeros(1, 8), "batch": BATCH}),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_values(name):
    check(*CALLS[name])


@pytest.mark.parametrize("device", [torch.float32, torch.zeros(1), 1.5, True, None, "gpu"], ids=str)
def test_wrong_devices(device):
    """torch's own `to` takes dtypes and other tensors too, and would make other numbers of vectors."""
    kind, match = (RuntimeError, "device string") if isinstance(device, str) else (TypeError, "^device is .*, needs a")
    for to in (MASK.to, MASK.vectors, MASK.to("cpu").to, lambda device: to_device(BATCH, device)):
        if device is None and to == MASK.vectors:
            continue  # which is the CPU
        with pytest.raises(kind, match=match):
            to(device)


def test_formats_that_no_mask_has():
    for format in (-1, 3, True, "2", None):
        with pytest.raises(ValueError, match="format is .*; see the class methods"):
            DeviceMask(MASK.vectors(), 4, format, False)


def test_rows_that_no_mask_has():
    for rows in (-1, 2**31, 2**64 + 4):
        with pytest.raises(ValueError, match="rows is"):
            DeviceMask.from_startend_row_indices(ends(1, 1, 4, 1), causal=True, rows=rows)


def test_entries_that_are_missing():
    for use in (token_log_probs, answer_log_probs):
        with pytest.raises(ValueError, match="the batch has no 'target_rows'; it has 'input_ids'"):
            use(torch.zeros(1, 8, 9), {"input_ids": BATCH["input_ids"]})
    with pytest.raises(TypeError, match="input_ids of the batch is a list"):
        to_device({"input_ids": [1]}, "cpu")
    with pytest.raises(ValueError, match="but no labels, predicted_by"):
        stack_rows([{name: ROW[name] for name in ("input_ids", "position_ids", "document_ids")}])


def test_entries_of_other_kinds_and_shapes():
    with pytest.raises(TypeError, match="batch is a list"):
        batch_mask([1])
    with pytest.raises(TypeError, match="mask_vectors of the batch is a list, needs a torch tensor"):
        batch_mask({"mask_vectors": [[1, 2]]})
    for shape in ((2,), (1, 8, 2), (1, 1, 8, 3)):
        with pytest.raises(ValueError, match=r"mask_vectors of the batch has shape .*, needs \[B, 1, S, 2 M\]"):
            batch_mask({"mask_vectors": torch.zeros(shape, dtype=torch.int32)})
    for odd in ({3: [1]}, {**ROW, 3: [1]}):
        with pytest.raises(TypeError, match="row 1 has the name 3, needs strings"):
            stack_rows([ROW, odd])


def test_logits_of_another_vocabulary():
    """On a GPU it is an assertion of torch's kernel."""
    highest = int(BATCH["target_tokens"].max())
    assert token_log_probs(torch.zeros(1, 8, highest + 1), BATCH).shape == BATCH["target_tokens"].shape
    for use in (token_log_probs, answer_log_probs):
        with pytest.raises(ValueError, match=f".. {highest}, logits have a vocabulary of {highest}: tokens must be in"):
            use(torch.zeros(1, 8, highest), BATCH)
        with pytest.raises(ValueError, match=r"logits have shape \[1, 8, 4, 9\], need 3 dimensions"):
            use(torch.zeros(1, 8, 4, 9), BATCH)
    with pytest.raises(ValueError, match=r"values have shape \[1, 8, 1, 1\], need 2 or 3 dimensions"):
        answer_rewards(torch.zeros(1, 8, 1, 1), BATCH)


def judged_row(**changes):
    """Of KTO: two records, an answer of one token and one of two in 8 tokens, and the other's behind each."""
    records = [{"prompt": [1], "completion": [2], "label": True}, {"prompt": [3], "completion": [4, 5], "label": False}]
    row = KTOCollator(8, kl=True).rows(records)[0]
    return {**row, **{name: change(np.array(row[name])) for name, change in changes.items()}}


def pair_row(**changes):
    row = PreferenceCollator(8).rows([{"prompt": [1], "chosen": [2], "rejected": [3, 4]}])[0]
    return {**row, **{name: change(np.array(row[name])) for name, change in changes.items()}}


@pytest.mark.parametrize(("row", "match"), [
    (lambda: judged_row(answer_ends=lambda a: a + 6), r"answer_ends of row 1 has values \d+ .. \d+, needs 0 .. 7"),
    (lambda: judged_row(answer_ends=lambda a: a - 2), "answer_ends of row 1 has values -1 .. "),
    (lambda: judged_row(answer_label=lambda a: a * 2), "answer_label of row 1 has values 0 .. 2, needs 0 .. 1"),
    (lambda: judged_row(answer_label=lambda a: a.astype(int) - 1), "answer_label of row 1 has values -1 .. 0, needs 0 .. 1"),
    (lambda: judged_row(answer_kl=lambda a: a + 1), "answer_kl of row 1 has values 1 .. 2"),
    (lambda: judged_row(answer_kl=lambda a: a[:-1]), "answer_kl of row 1 are 3 numbers, its answer_ends 4"),
    (lambda: judged_row(answer_label=lambda a: a[:0]), "answer_label of row 1 are 0 numbers, its answer_ends 4"),
    (lambda: judged_row(answer_record=lambda a: a[1:]), "answer_record of row 1 are 3 numbers, its answer_ends 4"),
    (lambda: judged_row(answer_ids=lambda a: a + 1), "answer_ids of row 1 give token .*, to answer 4; the row has 4 answers"),
    (lambda: judged_row(answer_ids=lambda a: a * 0 - 1), "answer_ids of row 1 give token .*, to answer -1; the row has 4 answers"),
    (lambda: pair_row(chosen=lambda a: a + 2), "chosen of row 1 has values 2 .. 2, needs 0 .. 1"),
    (lambda: pair_row(rejected=lambda a: a - 2), "rejected of row 1 has values -1 .. -1, needs 0 .. 1"),
    (lambda: pair_row(rejected=lambda a: np.repeat(a, 2)), "rejected of row 1 are 2 numbers, its chosen 1"),
])  # fmt: skip
def test_answers_that_no_collator_made(row, match):
    """They would be taken from, or counted to, another row of the batch."""
    good = judged_row() if "answer_label" in row() else pair_row()
    assert stack_rows([good, good])["answer_ends"].shape == (2 * len(good["answer_ends"]),)
    with pytest.raises(ValueError, match=match):
        stack_rows([good, row()])


def test_rows_that_no_collator_made():
    tokens = len(ROW["input_ids"])
    for name, wrong in (
        ("mask_vectors", ROW["mask_vectors"][:-1]),
        ("mask_vectors_near", np.zeros(tokens, np.int32)),
        ("labels", np.full(tokens, 5)),  # the first token is predicted by none
        ("predicted_by", np.full(tokens, tokens)),
        ("input_ids", [0.5] * tokens),
    ):
        with pytest.raises((TypeError, ValueError), match=name.split("_vec")[0] if name != "predicted_by" else "labels"):
            stack_rows([{**ROW, name: wrong}])
