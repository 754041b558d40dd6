"""flashmask.collate: what batches hold, stored rows, data loaders and bad input."""

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from flashmask import Mask  # noqa: E402
from flashmask.collate import (  # noqa: E402
    KTOCollator,
    PreferenceCollator,
    SFTCollator,
    answer_log_probs,
    answer_rewards,
    batch_mask,
    stack_rows,
    to_device,
    token_log_probs,
)


def random_records(*names, count=8):
    """Each name has 5 to 150 tokens."""
    rng = np.random.default_rng(0)
    return [{name: rng.integers(1, 60, rng.integers(5, 150)) for name in names} for _ in range(count)]


def test_what_sft_counts():
    records = [{"input_ids": [5, 6, 7]}, {"prompt": [1, 2], "completion": [3, 4]}, {"input_ids": [8, 9], "labels": [-100, -100]}]
    batch = SFTCollator(10, pad_token_id=60)(records)
    assert sorted(batch["labels"].flatten().tolist()) == [-100] * 6 + [3, 4, 6, 7]
    assert batch["input_ids"].tolist() == [[5, 6, 7, 1, 2, 3, 4, 8, 9, 60]] and batch["document_ids"].tolist() == [
        [0, 0, 0, 1, 1, 1, 1, 2, 2, -1]
    ]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 1, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, -100, 3, 4, -100, -100, -100]]
    assert batch["target_rows"].tolist() == [0, 1, 4, 5] and batch["target_tokens"].tolist() == [6, 7, 3, 4]
    assert batch["mask_vectors"].dtype == torch.int32 and batch["mask_vectors"].shape == (1, 1, 10, 2)
    assert batch_mask(batch).shape == (1, 1, 10, 10)
    with pytest.raises(ValueError, match="no 'mask_vectors_near'; it has 'input_ids'"):
        batch_mask(batch, "near")
    whole = SFTCollator(10, train_on_prompt=True)(records)
    assert whole["target_tokens"].tolist() == [6, 7, 2, 3, 4]
    split = SFTCollator(3, overlong="split")([{"input_ids": [1, 2, 3, 4, 5]}])
    assert split["input_ids"].tolist() == [[1, 2, 3], [4, 5, 0]] and split["target_tokens"].tolist() == [2, 3, 5]


def test_a_batch_of_fixed_shape():
    batch = SFTCollator(6, sequences=3, windows={"near": 1}, pad_token_id=9)([{"input_ids": [1, 2, 3, 4]}])
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 9, 9], [9] * 6, [9] * 6]
    assert (batch["document_ids"][1:] == -1).all() and (batch["labels"][1:] == -100).all()
    assert (batch["mask_vectors"][1:] == 6).all() and batch["mask_vectors_near"].shape == (3, 1, 6, 2)
    pairs = PreferenceCollator(6, sequences=2)([{"prompt": [1], "chosen": [2], "rejected": [3]}])
    assert pairs["answer_ends"].tolist() == [1, 2] and pairs["input_ids"].shape == (2, 6)
    with pytest.raises(ValueError, match="need 2 sequences of 6 tokens, more than the 1"):
        SFTCollator(6, sequences=1)([{"input_ids": [1] * 4}] * 2)


TWO, ONE = {"prompt": [1, 2, 3], "chosen": [4, 5], "rejected": [6, 7]}, {"prompt": [1] * 5, "chosen": [2], "rejected": [3]}


def test_a_fixed_number_of_intervals():
    """A key of a prompt is seen by each answer's first tokens under a window: how many intervals that are depends on the records."""
    collator = PreferenceCollator(8, windows={"near": 2})
    assert [collator([record])["mask_vectors_near"].shape[3] for record in (TWO, ONE)] == [4, 2]
    for count in (2, 4):
        fixed = PreferenceCollator(8, windows={"near": 2}, intervals=count)
        for record in (TWO, ONE):
            free, batch = collator([record]), fixed([record])
            assert batch["mask_vectors_near"].shape == (1, 1, 8, 2 * count) and batch["mask_vectors"].shape == (1, 1, 8, 2)
            assert np.array_equal(dense(batch, "near"), dense(free, "near"))
    with pytest.raises(ValueError, match="row 0 has keys of more than 1 intervals in its mask_vectors_near; a batch has 1"):
        PreferenceCollator(8, windows={"near": 2}, intervals=1)([TWO])


def test_intervals_of_a_shared_prompt():
    """As docs/python_packing.md says: answers of one prompt add up over the records that share it."""
    pair = {"prompt": [1, 2, 3], "chosen": [4, 5], "rejected": [6, 7]}
    other = {**pair, "prompt": [3, 2, 1]}

    def needed(records, make=PreferenceCollator, **options):
        return make(32, windows={"near": 2}, **options)(records)["mask_vectors_near"].shape[3] // 2

    assert needed([pair]) == needed([pair, other]) == 2 and needed([pair, pair]) == 4
    judged = [{"prompt": [n, 2, 3], "completion": [4, 5], "label": True} for n in (0, 1)]
    assert needed(judged, KTOCollator) == 1 and needed(judged, KTOCollator, kl=True) == 2
    with pytest.raises(ValueError, match="row 0 has keys of more than 2 intervals in its mask_vectors_near"):
        needed([pair, pair], intervals=2)
    with pytest.raises(NotImplementedError, match="more than 4 answers"):
        needed([pair] * 3)


def test_stored_rows_of_more_intervals_than_they_need():
    """Rows are stored with as many as their map batch needs."""
    collator = PreferenceCollator(8, windows={"near": 2})
    rows = collator.rows([TWO, ONE])
    assert [row["mask_vectors_near"].size for row in rows] == [32, 32]
    one = next(row for row in rows if row["answer_record"][0] == 1)
    assert stack_rows([one], intervals=1)["mask_vectors_near"].shape == (1, 1, 8, 2)
    assert np.array_equal(dense(stack_rows([one], intervals=1), "near"), dense(collator([ONE]), "near"))
    assert stack_rows(rows, intervals=3)["mask_vectors_near"].shape == (2, 1, 8, 6)
    with pytest.raises(ValueError, match="more than 1 intervals"):
        stack_rows(rows, intervals=1)


def dense(batch, window=None):
    mask = batch_mask(batch, window)
    pairs = mask.vectors.unflatten(-1, (-1, 2)).transpose(2, 3)
    return Mask.from_intervals(pairs, mask.rows).dense()


def test_what_a_pair_is():
    batch = PreferenceCollator(12)(
        [{"prompt": [1, 2], "chosen": [3, 4], "rejected": [5, 6, 7]}, {"chosen": [8, 9, 10], "rejected": [8, 9]}]
    )
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 2, 3, 4, 0, 1, 2, 0, 0]]
    assert batch["target_tokens"].tolist() == [3, 4, 5, 6, 7, 10] and batch["target_rows"].tolist() == [1, 2, 1, 4, 5, 8]
    assert batch["target_answer"].tolist() == [0, 0, 1, 1, 1, 2]
    assert batch["answer_ends"].tolist() == [3, 6, 9, 8]  # the last answer is empty: the end of its prompt
    assert (
        batch["answer_record"].tolist() == [0, 0, 1, 1]
        and batch["chosen"].tolist() == [0, 2]
        and batch["rejected"].tolist() == [1, 3]
    )
    # A loss that shifts by one would predict 5 from 4: labels leave it out.
    assert batch["labels"].tolist() == [[-100, -100, 3, 4, -100, 6, 7, -100, -100, 10, -100, -100]]


def test_pairs_of_one_prompt_share_it():
    record = {"prompt": [1, 2, 3], "chosen": [4], "rejected": [5]}
    other = {"prompt": [1, 2, 3], "chosen": [6, 7], "rejected": [8]}
    batch = PreferenceCollator(16)([record, {**record, "prompt": [9]}, other])
    assert int((batch["document_ids"] >= 0).sum()) == 3 + 2 + 3 + 1 + 2
    assert batch["answer_record"].tolist() == [0, 0, 2, 2, 1, 1] and batch["chosen"].tolist() == [0, 2, 4]
    apart = PreferenceCollator(6)([record, other])  # they do not fit together
    assert apart["input_ids"].shape == (2, 6) and apart["chosen"].tolist() == [0, 2]


# ---- stored rows, loaders, devices ----


def equal_batches(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("make, records", [
    (SFTCollator, [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}, {"input_ids": [6] * 7}]),
    (PreferenceCollator, [{"prompt": [1, 2], "chosen": [3], "rejected": [4, 5]}, {"prompt": [6], "chosen": [7], "rejected": []}]),
    (KTOCollator, [{"prompt": [1, 2], "completion": [3], "label": True}, {"prompt": [4], "completion": [5, 6], "label": False}]),
])  # fmt: skip
def test_stored_rows_are_the_batch(make, records):
    collator = make(8, windows={"near": 2})
    columns = {name: [record[name] for record in records] for name in records[0]}
    stored = collator.map(columns, indices=list(range(len(records))))
    lists = [{name: np.asarray(stored[name][k]).tolist() for name in stored} for k in range(len(stored["input_ids"]))]
    equal_batches(stack_rows(lists), collator(records))
    with pytest.raises(ValueError, match="row 1 has 9 tokens"):
        stack_rows([lists[0], {**lists[0], "input_ids": [0] * 9}])


def test_datasets_map_stores_vectors():
    datasets = pytest.importorskip("datasets")
    records = random_records("prompt", "chosen", "rejected", count=30)
    data = datasets.Dataset.from_list([{name: ids.tolist() for name, ids in record.items()} for record in records])
    collator = PreferenceCollator(1024, windows={"local": 16})
    rows = data.map(collator.map, batched=True, batch_size=10, with_indices=True, remove_columns=data.column_names)
    assert all(len(row["mask_vectors"]) == 2048 for row in rows)
    seen = []
    for batch in DataLoader(rows, batch_size=3, collate_fn=stack_rows):
        assert batch["mask_vectors"].shape[1:] == (1, 1024, 2)
        seen += batch["answer_record"][batch["chosen"]].tolist()
        for end, answer, record in zip(batch["answer_ends"], range(1 << 30), batch["answer_record"].tolist(), strict=False):
            key = "chosen" if answer in batch["chosen"].tolist() else "rejected"
            length = len(records[record][key])
            assert batch["input_ids"].flatten()[end - length + 1 : end + 1].tolist() == records[record][key].tolist()
    assert sorted(seen) == list(range(30))


def test_workers_of_a_data_loader():
    """Collators run in forked processes."""
    records = random_records("prompt", "completion")
    loader = DataLoader(
        records, batch_size=4, num_workers=2, collate_fn=SFTCollator(1024, windows={"local": 32}), multiprocessing_context="fork"
    )
    for batch, start in zip(loader, (0, 4), strict=True):
        equal_batches(batch, SFTCollator(1024, windows={"local": 32})(records[start : start + 4]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_pinned_batches_reach_the_gpu():
    records = random_records("prompt", "completion")
    batch = SFTCollator(1024, pin_memory=True)(records)
    assert all(tensor.is_pinned() for tensor in batch.values())
    moved = to_device(batch, "cuda")
    torch.cuda.synchronize()
    equal_batches({name: tensor.cpu() for name, tensor in moved.items()}, SFTCollator(1024)(records))


def test_pinning_in_a_worker_is_refused():
    loader = DataLoader(
        random_records("prompt", "completion"),
        batch_size=4,
        num_workers=1,
        collate_fn=SFTCollator(1024, pin_memory=True),
        multiprocessing_context="fork",
    )
    with pytest.raises(RuntimeError, match="pass pin_memory=True to the DataLoader"):
        next(iter(loader))


def test_to_device_keeps_everything():
    batch = SFTCollator(1024)(random_records("prompt", "completion"))
    equal_batches(to_device(batch, "cpu"), batch)


def test_examples_of_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "python_packing.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    for example in examples:
        exec(example, names)
    assert len(examples) >= 5 and names["packing"].utilisation == 0.9
    logits = torch.randn(1, 8192, 8)
    assert names["dpo_loss"](logits, logits, names["batch"]).item() == pytest.approx(np.log(2))


ROW = SFTCollator(4).rows([{"input_ids": [1, 2, 3]}])[0]


def test_masks_of_ones_and_labels_of_numpy_are_taken():
    for ones in ([1, 1], [True, True], torch.ones(2)):
        assert SFTCollator(4)([{"input_ids": [1, 2], "attention_mask": ones}])["input_ids"].tolist() == [[1, 2, 0, 0]]
    batch = KTOCollator(8)([{"prompt": [k], "completion": [2], "label": np.int64(k)} for k in (0, 1)])
    assert sorted(batch["answer_label"].tolist()) == [False, True]


def test_outputs_that_are_shifted_are_refused():
    """The rows that predict are counted in the whole batch: without the last token of each sequence they are others."""
    batch = PreferenceCollator(8)([{"prompt": [1, 2, 3], "chosen": [4, 5], "rejected": [6, 7]}] * 2)
    logits, values = torch.randn(2, 8, 9), torch.randn(2, 8, 1)
    assert answer_log_probs(logits, batch).shape == answer_rewards(values, batch).shape == (4,)
    for use, outputs in ((token_log_probs, logits[:, :-1]), (answer_log_probs, logits[:1]), (token_log_probs, logits[..., 0])):
        with pytest.raises(ValueError, match="logits have shape"):
            use(outputs, batch)
    for wrong in (values[:, :-1], values[:1], values.expand(2, 8, 3), values.view(-1)):
        with pytest.raises(ValueError, match="values have shape"):
            answer_rewards(wrong, batch)


@pytest.mark.parametrize("make, error, message", [
    (lambda: SFTCollator(4)([{"input_ids": [1] * 5}]), ValueError, "5"),
    (lambda: SFTCollator(4)([{"text": "hello"}]), ValueError, "record 0 has no 'prompt'; it has 'text'"),
    (lambda: SFTCollator(4)([{"input_ids": "hello"}]), (TypeError, ValueError), "input_ids of record 0"),
    (lambda: SFTCollator(4)([{"input_ids": [1, 2], "labels": [1]}]), ValueError, "2 input_ids and 1 labels"),
    (lambda: SFTCollator(4)([{"input_ids": []}]), ValueError, "no tokens"),
    (lambda: SFTCollator(4)([]), ValueError, "no tokens"),
    (lambda: SFTCollator(4)([{"input_ids": [1, 0], "attention_mask": [1, 0]}]), ValueError, "record 0 has padding"),
    (lambda: SFTCollator(0)([{"input_ids": [1]}]), ValueError, "capacity"),
    (lambda: SFTCollator(4, windows={"near": -1})([{"input_ids": [1]}]), ValueError, "window"),
    (lambda: SFTCollator(4, windows={"near": 0.5}), TypeError, "near"),
    (lambda: PreferenceCollator(8)([{"prompt": [1], "chosen": [2]}]), ValueError, "'rejected'"),
    (lambda: PreferenceCollator(3)([{"prompt": [1], "chosen": [2], "rejected": [3, 4]}]), ValueError, "record 0 has 4"),
    (lambda: PreferenceCollator(8)([{"prompt": [], "chosen": [2], "rejected": []}]), ValueError, "neither"),
    (lambda: KTOCollator(8)([{"prompt": [1], "completion": [2]}]), ValueError, "label None"),
    (lambda: KTOCollator(8, kl=True)([{"prompt": [1], "completion": [2], "label": True}]), ValueError, "two records"),
    (lambda: PreferenceCollator(32, windows={"w": 1})([{"prompt": [1], "answers": [[2, 3]] * 5}]), NotImplementedError, "4 ans"),
    (lambda: stack_rows([]), ValueError, "no rows"),
    (lambda: stack_rows([{**ROW, "labels": ROW["labels"][:-1]}]), ValueError, "labels of a row are 3"),
    (lambda: SFTCollator(4)([{"input_ids": [1, 2], "attention_mask": [1]}]), ValueError, "attention_mask"),
    (lambda: SFTCollator(4, pad_token_id=2**31), ValueError, "pad_token_id"),
    (lambda: stack_rows([{**ROW, "document_ids": [2**32] * len(ROW["labels"])}]), ValueError, "document_ids of row 0"),
    (lambda: SFTCollator(4, windows={1: 1, "1": 5}), TypeError, "windows has the name 1, needs strings"),
    (lambda: SFTCollator(4, windows=[3]), TypeError, "windows is a list"),
    (lambda: SFTCollator(4, windows=[]), TypeError, "windows is a list"),
    (lambda: SFTCollator(4, train_on_prompt="no"), TypeError, "train_on_prompt is 'no'"),
    (lambda: KTOCollator(4, kl=1), TypeError, "kl is 1"),
    (lambda: SFTCollator(4).map({"input_ids": [[1], [2]]}, indices=[7]), ValueError, "indices has 1 entries"),
    (lambda: stack_rows([{"x": 1}]), ValueError, "no input_ids"),
    (lambda: stack_rows([ROW], intervals=0), ValueError, "intervals is 0, needs 1 .. 4"),
    (lambda: SFTCollator(4, intervals=5), ValueError, "intervals is 5, needs 1 .. 4"),
    (lambda: SFTCollator(4, intervals=True), TypeError, "intervals is True"),
    (lambda: KTOCollator(8)([{"prompt": [1], "completion": [2], "label": -1}]), ValueError, "label -1"),
])  # fmt: skip
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()
