"""Which plans and workspaces of a GPU are kept, and how long. The GPU is played: streams are numbers and plans empty tensors."""

import copy
import gc
import pickle
import types
import weakref

import pytest
import torch
from torch.func import functionalize, grad, vmap
from torch_cases import document_ends, startend

from flashmask import DeviceMask, Mask, attention, torch_attention, torch_calls, torch_ops

FLAGS = (False, -1, -1)
DEVICE = torch.device("cuda", 0)


class Gpu:
    def __init__(self):
        self.stream, self.capturing, self.built = 1, False, 0

    def build(self, owner, *_):
        self.built += 1
        plan = torch.empty(1)
        assert plan.data_ptr() and (not isinstance(owner, torch.Tensor) or owner.data_ptr())  # as the library's are taken
        return plan

    def upload(self, mask, *_):
        if self.capturing:
            raise RuntimeError("captured")
        return self.build(mask)


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.capturing)
    monkeypatch.setattr(torch_attention.masks, "stream_of", lambda device: gpu.stream)
    monkeypatch.setattr(torch_attention.masks, "plan_from_mask", gpu.upload)
    monkeypatch.setattr(torch_attention.torch_ops, "ops", types.SimpleNamespace(plan_from_vectors=gpu.build))
    return gpu


def of_vectors(mask, flags=FLAGS):
    return torch_attention.plan_of_vectors(mask, torch_attention.torch_vmap.unwrapped(mask.vectors), flags)[0]


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


def test_changes_that_torch_does_not_count(gpu):
    """What torch.distributed receives into vectors is one, as what comes through NumPy."""
    mask = startend(document_ends([3, 4]))
    first = of_vectors(mask)
    mask.vectors.numpy()[0, 0, 0, 0] = 1
    assert of_vectors(mask) is first
    torch.autograd.graph.increment_version(mask.vectors)
    assert of_vectors(mask) is not first


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))])
def test_copies_of_a_mask_have_plans_of_their_vectors(gpu, copied):
    mask = startend(document_ends([3, 4]))
    first = of_vectors(mask)
    other = copied(mask)
    assert "_plans" not in vars(other) and torch.equal(other.vectors, mask.vectors)
    assert (of_vectors(other) is first) == (other.vectors is mask.vectors)
    other.rows = 6
    assert of_vectors(other) is not first and of_vectors(mask) is first


class Slots(DeviceMask):
    __slots__ = ("name",)


class Own(DeviceMask):
    def __init__(self, vectors):
        self.vectors, self.rows, self.format, self.causal = vectors, vectors.shape[2], 0, True


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))])
def test_subclasses(gpu, copied):
    ends = startend(document_ends([3, 4])).vectors
    named = Slots.from_startend_row_indices(ends, causal=True)
    named.name = "a"
    plan = of_vectors(named)
    other = copied(named)
    assert type(other) is Slots and other.name == "a" and torch.equal(other.vectors, ends)
    own = Own(ends)
    assert of_vectors(own) is plan and torch.equal(copied(own).vectors, ends)


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


def test_plans_of_transforms_outlive_them(gpu):
    """torch.func wraps what is made inside: no memory is found there, and the wrappers end with the transform."""
    wrapped, x = torch._C._functorch.is_functorch_wrapped_tensor, torch.ones(2, 3)
    for transform in (grad, lambda f: vmap(grad(f)), lambda f: grad(lambda x: vmap(f)(x).sum()), functionalize):
        plans = []

        def loss(x, plans=plans):
            inside = startend(document_ends([3, 4]))
            plans.extend(get(owner) for get, owner in owners for _ in range(2))
            plans.extend((of_vectors(inside), of_vectors(inside)))
            inside.vectors.add_(0)
            plans.append(of_vectors(inside))
            plans.append(torch_attention.masks.hold(mask))
            gpu.capturing = True
            plans.append(of_vectors(vectors))
            gpu.capturing = False
            return x.sum()

        vectors, mask = startend(document_ends([3, 4])), Mask.documents([3, 4], causal=True)
        owners = (of_vectors, vectors), (of_mask, mask)
        transform(loss)(x[0] if transform is grad else x)
        assert not any(map(wrapped, plans)) and all(plan.data_ptr() for plan in plans)
        assert plans[0] is plans[1] is of_vectors(vectors) and plans[2] is plans[3] is of_mask(mask)
        assert plans[4] is plans[5] is not plans[6]


@pytest.mark.parametrize("transform", [functionalize, lambda f: grad(lambda v, x: f(v, x), argnums=1)])
def test_changes_inside_transforms_are_seen(gpu, transform):
    seen = []

    def loss(v, x):
        mask = DeviceMask.from_startend_row_indices(v, causal=True)
        for _ in range(2):
            v[..., 2:, :].add_(1)  # through a view
            plan = of_vectors(mask)
            with torch._C._DisableFuncTorch():
                seen.append((plan, torch_attention.torch_vmap.unwrapped(v).tolist()))
        return x.sum()

    v = startend([3, 3, 7]).vectors
    transform(loss)(v, torch.ones(2))
    assert seen[0][0] is not seen[1][0] and [ends for _, ends in seen] == [[[[[3], [3], [8]]]], [[[[3], [3], [9]]]]]


@pytest.mark.parametrize("transform", [vmap, lambda f: vmap(grad(f)), lambda f: vmap(grad(lambda *x: grad(f)(*x).sum()))])
def test_mapped_vectors_have_no_plan(gpu, transform):
    """However many transforms have wrapped them."""

    def loss(x, v):
        of_vectors(DeviceMask.from_startend_row_indices(v, causal=True))
        return x.sum()

    v = startend(document_ends([3, 4])).vectors.expand(2, 1, 1, 7, 1)
    with pytest.raises(NotImplementedError, match="vmap over mask"):
        transform(loss)(torch.ones(2, 3), v)
    assert gpu.built == 0


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


@pytest.mark.parametrize("size", [0, 256, torch_calls.Calls.SMALL + 1])
def test_workspaces(gpu, monkeypatch, size):
    """Small ones serve the calls of a stream; none is shared with a graph, whose replays may run beside them."""
    monkeypatch.setattr(torch_calls, "_calls", torch_calls.Calls())
    first, second = (
        types.SimpleNamespace(workspace=None, workspace_bytes=size, stream=1, args=types.SimpleNamespace(workspace=None))
        for _ in range(2)
    )

    def used(call, keeps=True):
        workspace = torch_calls.give_forward_workspace(call, torch.device("cpu"), keeps)
        assert call.args.workspace == (None if workspace is None else workspace.data_ptr())
        assert workspace is None or workspace.numel() >= call.args.workspace_bytes == size
        return workspace

    kept = [used(first), used(first), used(second)]
    assert (kept[0] is None) == (size == 0)
    if not size:
        return
    small = size <= torch_calls.Calls.SMALL
    assert len({id(t) for t in kept}) == (1 if small else 3)
    first.stream = 2
    other = used(first)
    assert other is not kept[0] and (used(first) is other) == small and (used(second) is kept[0]) == small
    gpu.capturing = True
    inside = [used(first), used(first), used(second)]
    gpu.capturing = False
    inside.append(used(first, keeps=False))
    assert len({id(t) for t in [*kept[:1], other, *inside]}) == 6
    assert (used(first) is other) == small


def test_only_plain_calls_keep_workspaces(monkeypatch):
    """Those of graphs come from pools that torch checks for what stays there."""
    seen, forward = [], torch_calls.forward
    monkeypatch.setattr(torch_calls, "forward", lambda x, o, lse, keeps: seen.append(keeps) or forward(x, o, lse, keeps))
    q = torch.randn(1, 9, 2, 8)
    attention(q, q, q)
    torch.compile(attention, backend="eager")(q, q, q)
    torch.ops.flashmask.forward(q, q, q, None, None, [], False, -1, -1, None, 0.0, True, False)
    with torch.device("cpu"):  # as inductor's warm-up has it
        attention(q, q, q)
    assert seen == [torch_ops.HAS_SHORT_WAY, False, False, False]
