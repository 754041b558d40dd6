"""Which plans of a GPU are kept, and how long. The GPU is played: streams are numbers and plans empty tensors."""

import gc
import types
import weakref

import pytest
import torch
from torch_cases import document_ends, startend

from flashmask import DeviceMask, Mask, torch_attention

FLAGS = (False, -1, -1)
DEVICE = torch.device("cuda", 0)


class Gpu:
    def __init__(self):
        self.stream, self.capturing, self.built = 1, False, 0

    def build(self, *_):
        self.built += 1
        return torch.empty(1)

    def upload(self, *_):
        if self.capturing:
            raise RuntimeError("captured")
        return self.build()


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.capturing)
    monkeypatch.setattr(torch_attention.masks, "stream_of", lambda device: gpu.stream)
    monkeypatch.setattr(torch_attention.masks, "plan_from_mask", gpu.upload)
    monkeypatch.setattr(torch_attention.torch_ops, "ops", types.SimpleNamespace(plan_from_vectors=gpu.build))
    return gpu


def of_vectors(mask, flags=FLAGS):
    return torch_attention.plan_of_vectors(mask, flags)


def of_mask(mask, flags=FLAGS, device=DEVICE):
    return torch_attention.plan_of_mask(mask, device, flags)


def test_layers_share(gpu):
    vectors, mask = startend(document_ends([3, 4])), Mask.documents([3, 4], causal=True)
    for get, owner in ((of_vectors, vectors), (of_mask, mask)):
        plan = get(owner)
        assert get(owner) is plan
        window = get(owner, (True, 5, -1))
        assert window is not plan and get(owner, (True, 5, -1)) is window and get(owner) is plan
        gpu.stream = 2
        other = get(owner)
        assert other is not plan and get(owner) is other
        gpu.stream = 1
        assert get(owner) is plan
    assert of_mask(mask, device=torch.device("cuda", 1)) is not of_mask(mask)


def test_layers_with_windows_of_their_own(gpu):
    """One plan for each mask and window, however many layers and steps take them in turn."""
    windows = [(False, -1, -1), (True, 5, -1), (False, -1, -1), (True, 2, 0)] * 8
    for get, make in (
        (of_vectors, lambda: startend(document_ends([3, 4]))),
        (of_mask, lambda: Mask.documents([3, 4], causal=True)),
    ):
        gpu.built = 0
        masks = make(), make()
        for _ in range(3):
            plans = {(n, window): get(mask, window) for window in windows for n, mask in enumerate(masks)}
        assert gpu.built == len({id(plan) for plan in plans.values()}) == 6


def test_wrappers_share(gpu):
    ends = startend(document_ends([3, 4])).vectors
    first = of_vectors(DeviceMask.from_startend_row_indices(ends, causal=True))
    assert of_vectors(DeviceMask.from_startend_row_indices(ends, causal=True)) is first
    assert of_vectors(DeviceMask.from_startend_row_indices(ends, causal=True, rows=6)) is not first
    assert of_vectors(DeviceMask.from_startend_row_indices(ends.clone(), causal=True)) is not first
    assert of_vectors(DeviceMask.from_startend_row_indices(ends[:], causal=True)) is not first


def test_changes_are_seen(gpu):
    mask = startend(document_ends([3, 4]))
    first = of_vectors(mask)
    mask.vectors[0, 0, 0, 0] = 1
    second = of_vectors(mask)
    assert second is not first and of_vectors(mask) is second
    mask.vectors = mask.vectors.clone()
    assert of_vectors(mask) is not second
    mask.vectors[:, :, 2:].zero_()  # through a view
    assert gpu.built == 3 and of_vectors(mask) is of_vectors(mask) and gpu.built == 4


def test_inference_tensors_are_read_each_time(gpu):
    with torch.inference_mode():
        mask = startend(document_ends([3, 4]))
        assert of_vectors(mask) is not of_vectors(mask)


def test_plans_of_an_evaluation_serve_training(gpu):
    """torch saves no tensor for backward that was made in inference mode."""
    with torch.inference_mode():
        vectors, mask = startend(document_ends([3, 4])), Mask.documents([3, 4], causal=True)
        in_evaluation = of_mask(mask)
    assert of_mask(mask) is in_evaluation and not in_evaluation.is_inference()
    assert not of_vectors(vectors).is_inference()
    vectors = startend(document_ends([3, 4]))
    with torch.inference_mode():
        in_evaluation = of_vectors(vectors)
    assert of_vectors(vectors) is in_evaluation and not in_evaluation.is_inference()


def test_captures(gpu):
    vectors, mask, new = startend(document_ends([3, 4])), Mask.causal(7), Mask.causal(7)
    before, uploaded = of_vectors(vectors), of_mask(mask)
    gpu.capturing, gpu.stream = True, 3
    inside = of_vectors(vectors)
    assert inside is not before and of_vectors(vectors) is not inside  # each replay reads the vectors
    assert of_mask(mask) is uploaded  # of another stream, which has been waited for
    for refused in (
        lambda: of_mask(new),
        lambda: of_mask(mask, (True, -1, -1)),
        lambda: of_mask(mask, device=torch.device("cuda", 1)),
    ):
        with pytest.raises(RuntimeError, match="captured"):
            refused()
    gpu.capturing, gpu.stream = False, 1
    assert of_vectors(vectors) is before


def test_plans_die_with_their_masks(gpu):
    vectors, mask = startend(document_ends([3, 4])), Mask.documents([3, 4], causal=True)
    plans = [weakref.ref(of_vectors(vectors)), weakref.ref(of_mask(mask))]
    assert all(plan() is not None for plan in plans)
    del vectors, mask
    gc.collect()
    assert all(plan() is None for plan in plans)
