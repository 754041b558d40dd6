"""torch.compile(fullgraph=True): one graph for all masks of a shape."""

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch_cases import DEVICES, Shape, document_ends, inputs, like, startend

from flashmask import DeviceMask, Mask, PreferenceCollator, SFTCollator, attention, batch_mask, torch_attention, torch_ops

LENGTHS = [[30, 35], [64, 1], [10, 20, 35], [65]]


def mask_of(kind, lengths, device):
    return Mask.documents(lengths, causal=True) if kind is Mask else startend(document_ends(lengths), device)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def step(run, tensors, grad):
    output = run(*tensors)
    return output, torch.autograd.grad(output, tensors, grad)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [Mask, DeviceMask])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_new_contents_do_not_recompile(backend, kind, device):
    """https://github.com/pytorch/pytorch/issues/141486 https://github.com/meta-pytorch/attention-gym/issues/159"""
    tensors = inputs(Shape(), device=device)
    grad = like(attention(*tensors), 1)

    def two_layers(q, k, v, mask):
        x = attention(q * 2, k, v, mask, causal=True, deterministic=True)
        return attention(q, k, x.mean(2, keepdim=True).expand(2, 65, 2, 24), mask, deterministic=True) + x

    run = compiled(two_layers, backend)
    for lengths in LENGTHS:  # a new object each time
        mask = mask_of(kind, lengths, device)
        with torch._dynamo.config.patch(error_on_recompile=lengths is not LENGTHS[0]):
            output, grads = step(lambda *t: run(*t, mask), tensors, grad)
        expected, expected_grads = step(lambda *t: two_layers(*t, mask), tensors, grad)
        torch.testing.assert_close(output, expected)
        for ours, other in zip(grads, expected_grads):
            torch.testing.assert_close(ours, other)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("device", DEVICES)
def test_vectors_changed_in_place(device):
    q, k, v = inputs(Shape(), device=device, requires_grad=False)
    mask = mask_of(DeviceMask, LENGTHS[0], device)
    run = compiled(lambda q, k, v, mask: attention(q, k, v, mask))
    for lengths in LENGTHS:
        mask.vectors.copy_(torch.from_numpy(document_ends(lengths)).reshape(1, 1, -1, 1))
        with torch._dynamo.config.patch(error_on_recompile=lengths is not LENGTHS[0]):
            torch.testing.assert_close(run(q, k, v, mask), attention(q, k, v, Mask.documents(lengths, causal=True)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_mask_with_a_fallback(backend, device):
    tensors = inputs(Shape(), device=device)
    grad = like(attention(*tensors), 1)
    run = compiled(lambda q, k, v, mask: attention(q, k, v, mask), backend)
    for seed in range(3):
        masks = [Mask.random_sparse(65, 65, density=0.4, seed=seed)]
        expected, expected_grads = step(lambda *t: attention(*t, masks[0]), tensors, grad)
        with torch._dynamo.config.patch(error_on_recompile=seed > 0):
            output = run(*tensors, masks.pop())  # backward has what it needs
        grads = torch.autograd.grad(output, tensors, grad)
        torch.testing.assert_close(output, expected)
        for ours, other in zip(grads, expected_grads):
            torch.testing.assert_close(ours, other)


def test_default_device_of_another_kind():
    """Whatever torch makes tensors on by default, a compiled call is right or raises; it is never the fake kernel's memory."""
    q = torch.randn(1, 9, 4, 8)
    mask = Mask.from_dense(torch.rand(1, 1, 9, 9) < 0.5)
    expected = attention(q, q, q, mask)
    run = torch.compile(lambda q: attention(q, q, q, mask), backend="eager", fullgraph=True)
    with torch.device("meta"):
        try:
            output = run(q)
        except (RuntimeError, NotImplementedError):
            output = expected
    assert torch.equal(output, expected) and torch.equal(run(q), expected)
    token = torch.empty((), dtype=torch.int64, device="meta")
    with pytest.raises(RuntimeError, match="mask: is on meta, query is on cpu"):
        torch.ops.flashmask.forward(q, q, q, None, token, [], False, -1, -1, 1.0, 0.0, False, False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [Mask, DeviceMask])
def test_lengths_that_vary(kind, device):
    """The second length makes them symbols; further ones find that graph."""
    run = compiled(lambda q, k, v, mask: attention(q, k, v, mask))
    for n, rows in enumerate([65, 100, 33, 200, 129]):
        shape = Shape(rows=rows, columns=rows)
        q, k, v = inputs(shape, device=device, requires_grad=False)
        mask = mask_of(kind, [20, rows - 20], device)
        with torch._dynamo.config.patch(error_on_recompile=n > 1):
            torch.testing.assert_close(run(q, k, v, mask), attention(q, k, v, mask))


def counted(count):
    """A mask of 65 x 65 whose keys have that many intervals."""
    starts = 3 * np.arange(count)[:, None] + np.array([0, 2])
    return Mask.from_intervals(np.broadcast_to(starts[:, None], (1, 1, count, 65, 2)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["Mask", "DeviceMask", "DeviceMask of 4"])
def test_interval_counts_that_vary(kind, device):
    """They are part of a DeviceMask's shape, and of what a GPU takes of a Mask: the second count makes a symbol, further ones find
    that graph. A Mask on the CPU, and masks of a fixed count, have one graph from the start."""
    q, k, v = inputs(Shape(), device=device, requires_grad=False)
    graphs = 1 if kind == "DeviceMask of 4" or (kind, device) == ("Mask", "cpu") else 2
    run = compiled(lambda q, k, v, mask: attention(q, k, v, mask))
    for n, count in enumerate([1, 2, 4, 3, 1]):
        mask = counted(count)
        given = mask if kind == "Mask" else mask.to(device, intervals=4 if kind == "DeviceMask of 4" else None)
        with torch._dynamo.config.patch(error_on_recompile=n >= graphs):
            torch.testing.assert_close(run(q, k, v, given), attention(q, k, v, mask))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_batches_of_a_collator():
    """Masks are made of the batch inside the graph. Packings of other records have other contents and, with a window over answers,
    other numbers of intervals, unless `intervals` fixes them."""
    q, k, v = inputs(Shape(1, 16, 16), requires_grad=False)
    few, many = {"prompt": [1] * 5, "chosen": [2], "rejected": [3]}, {"prompt": [1, 2, 3], "chosen": [4, 5], "rejected": [6, 7]}
    for collator, batches in (
        (SFTCollator(16, windows={"near": 2}), [[{"input_ids": [1] * n}] * 2 for n in (8, 3, 5)]),
        (PreferenceCollator(16, windows={"near": 2}, intervals=2), [[few], [many], [few, many]]),
    ):
        torch._dynamo.reset()

        def two_layers(q, batch):
            return attention(attention(q, k, v, batch_mask(batch))[..., :16], k, v, batch_mask(batch, "near"))

        run = compiled(two_layers)
        for n, records in enumerate(batches):
            batch = collator(records)
            masks = {name: tensor for name, tensor in batch.items() if name.startswith("mask_vectors")}
            with torch._dynamo.config.patch(error_on_recompile=n > 0):
                torch.testing.assert_close(run(q, masks), two_layers(q, masks))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_options(layout, device):
    tensors = inputs(Shape(), torch.bfloat16, device)
    if layout == "bhsd":
        tensors = [t.detach().transpose(1, 2).requires_grad_() for t in tensors]
    sinks = torch.linspace(-1, 1, 4, device=device).requires_grad_()
    mask = mask_of(Mask, LENGTHS[0], device)

    def run(q, k, v, sinks):
        options = {"softcap": 2.0, "softmax_scale": 0.3, "window_size": (20, 0), "deterministic": True}
        output, lse = attention(q, k, v, mask, sinks=sinks, return_lse=True, layout=layout, **options)
        return output.float().square().sum() + lse.sum()

    expected = torch.autograd.grad(run(*tensors, sinks), (*tensors, sinks))
    for ours, other in zip(torch.autograd.grad(compiled(run)(*tensors, sinks), (*tensors, sinks)), expected):
        torch.testing.assert_close(ours, other)


@pytest.mark.parametrize("device", DEVICES)
def test_checkpoint(device):
    tensors = inputs(Shape(), device=device)
    mask = mask_of(Mask, LENGTHS[0], device)
    grad = like(attention(*tensors), 1)

    def layer(q, k, v, mask):
        return attention(q, k, v, mask, deterministic=True)

    run = compiled(lambda q, k, v, mask: checkpoint(layer, q, k, v, mask, use_reentrant=False))
    expected, expected_grads = step(lambda *t: layer(*t, mask), tensors, grad)
    output, grads = step(lambda *t: run(*t, mask), tensors, grad)
    torch.testing.assert_close(output, expected)
    assert all(torch.equal(a, b) for a, b in zip(grads, expected_grads))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(device):
    tensors = inputs(Shape(), device=device)

    def run(q, k, v):
        with torch.autocast(device, dtype=torch.bfloat16):
            return attention(q, k, v, causal=True)

    output = compiled(run)(*tensors)
    assert output.dtype == torch.bfloat16 and torch.equal(output, run(*tensors))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_transforms_inside(backend, device):
    """torch.func.grad in what is compiled. A Mask leaves the graph there, and with fullgraph it is told so."""
    tensors = inputs(Shape(), device=device, requires_grad=False)

    def gradients(q, k, v, mask):
        return torch.func.grad(lambda *t: attention(*t, mask, deterministic=True).square().sum(), argnums=(0, 1, 2))(q, k, v)

    host = Mask.documents([30, 35], causal=True)
    for mask in (None, mask_of(DeviceMask, [30, 35], device), host):
        run = torch.compile(gradients, fullgraph=mask is not host, backend=backend)
        for ours, expected in zip(run(*tensors, mask), gradients(*tensors, mask), strict=True):
            torch.testing.assert_close(ours, expected)
    torch._dynamo.reset()
    message = "a Mask in a transform of torch.func .* pass mask.to" if torch_ops.HAS_SHORT_WAY else None  # torch 2.4 says nothing
    with pytest.raises(Exception, match=message):
        compiled(gradients, backend)(*tensors, host)


def steps_of(loss):
    """Compiled training steps, which call backward, and the number of their graphs after each."""

    def keep(graph, _):
        counts[-1] += 1
        return graph.forward

    @torch.compile(backend=keep)
    def run(*arguments):
        loss(*arguments).backward()

    counts = [0]

    def train(tensors, *arguments):
        expected = torch.autograd.grad(loss(*tensors, *arguments), tensors)
        for t in tensors:
            t.grad = None
        run(*tensors, *arguments)
        for t, other in zip(tensors, expected, strict=True):
            torch.testing.assert_close(t.grad, other)
        counts.append(counts[-1])

    return train, counts


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [Mask, DeviceMask])
def test_code_that_is_compiled_too_often(kind, device):
    """torch leaves it alone then, and torch 2.4 compiles what it calls instead, and so on inward."""
    tensors, mask = inputs(Shape(), device=device), mask_of(kind, LENGTHS[0], device)

    def loss(q, k, v, scale):
        return attention(q, k, v, mask, softmax_scale=scale, deterministic=True).square().sum()

    train, counts = steps_of(loss)
    with torch._dynamo.config.patch(cache_size_limit=2):
        for n in range(20):
            train(tensors, 0.1 + 0.01 * n)
    assert counts[10] == counts[-1]


@pytest.mark.parametrize("device", DEVICES)
def test_operators_in_code_that_is_not_compiled(device):
    """Where torch has no graph of a function, it compiles the kernels' own Python if it may."""
    tensors = inputs(Shape(), device=device)

    def loss(q, k, v):
        try:
            torch._dynamo.graph_break()
            return torch.ops.flashmask.forward(q, k, v, None, None, [], True, -1, -1, None, 0.0, True, False)[0].square().sum()
        finally:
            pass

    train, counts = steps_of(loss)
    for _ in range(3):
        train(tensors)
    assert counts[1] == counts[-1]


def triangle(b, h, i, j):
    return i >= j


BUILD = {
    "documents": lambda: Mask.documents([30, 35], causal=True),
    "intersection": lambda: Mask.causal(65) & Mask.documents([30, 35], causal=True),
    "matrix": lambda: Mask.from_dense(np.tri(65, dtype=bool)[None, None]),
    "predicate": lambda: Mask.from_mask_mod(triangle, 65, 65),
    "predicate of arrays": lambda: Mask.from_mask_mod(triangle, 65, 65, indices="numpy"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", BUILD)
def test_masks_built_inside(kind, device):
    """No graph takes them in, and none is made anew for each."""
    tensors, build = inputs(Shape(), device=device), BUILD[kind]

    def loss(q, k, v):
        return attention(q, k, v, build(), deterministic=True).square().sum()

    train, counts = steps_of(loss)
    for _ in range(4):
        train(tensors)
    assert counts[1] == counts[-1]


def test_dynamo_is_back_after_a_backward_that_fails(monkeypatch):
    """It is turned off within."""
    tensors = inputs(Shape())
    outside, graphs = torch.compiler.disable(attention), []

    @torch.compile(backend=lambda graph, _: graphs.append(graph) or graph.forward)
    def step(*t):
        try:
            outside(*t).sum().backward()
        except RuntimeError:
            pass
        return later(t[0])

    def later(x):
        return x.sin()

    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(torch_ops, "differentiate", fail)
    assert torch.equal(step(*tensors), tensors[0].sin()) and len(graphs) == 1
    assert tensors[0].grad is None


def test_plans_of_a_gpu():
    """How graphs for a GPU take masks, on a machine that may have none: the graph is made and not run."""
    graphs = []

    def keep(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return lambda *_: (torch.zeros(1),)

    def plan(x, mask):
        return torch_attention.plan_in_graph(mask, x, torch.device("cuda", 0), (True, -1, -1))

    for kind in (Mask, DeviceMask):
        torch._dynamo.reset()
        run = compiled(plan, keep)
        for n, lengths in enumerate([[30, 35], [65], [50, 50], [20, 100], [3, 300]]):
            rows = sum(lengths)
            with torch._dynamo.config.patch(error_on_recompile=n not in (0, 2)):  # the second length makes a symbol
                run(torch.zeros(rows), mask_of(kind, lengths, "cpu"))
    operators = torch.ops.flashmask.plan_from_mask, torch.ops.flashmask.plan_from_vectors
    assert len(graphs) == 4 and all(operators[n // 2] in graph for n, graph in enumerate(graphs))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_graphs_of_inductor():
    """mode="reduce-overhead" replays what it captured: the plan is built anew in each replay."""
    q, k, v = inputs(Shape(), torch.bfloat16, "cuda", requires_grad=False)
    run = compiled(lambda q, k, v, mask: attention(q, k, v, mask), "inductor", mode="reduce-overhead")
    for kind in (DeviceMask, Mask):
        for lengths in LENGTHS * 2:
            torch.compiler.cudagraph_mark_step_begin()
            output = run(q, k, v, mask_of(kind, lengths, "cuda")).clone()
            assert torch.equal(output, attention(q, k, v, Mask.documents(lengths, causal=True)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_graphs_of_inductor_with_a_workspace():
    """Before it captures, inductor runs the graph with memory of the pool, and raises where some of it stays allocated."""
    shape = Shape(batch=2, rows=2048, columns=2048, heads=8, heads_kv=8, dim=64, dim_v=64)
    tensors = inputs(shape, torch.bfloat16, "cuda", requires_grad=False)
    run = compiled(lambda *t: attention(*t, causal=True), "inductor", mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(run(*tensors).clone(), attention(*tensors, causal=True))
