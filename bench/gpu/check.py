"""Attention in f32 for sampled rows and keys, straight from the vectors: what every result is compared with.

Tensors are [B, S, H, D]; a sample is one batch item and one query head. Row results need all keys of the row. Key results need
every row's lse and output: those of the call under test, which the row results check on their sample.
"""

import torch

ROWS = 48
OUTPUT_TOLERANCE = 8e-3  # bf16: P and O are rounded once each, 2^-8 relative
GRADIENT_TOLERANCE = 2e-2
LSE_TOLERANCE = 2e-3  # of the larger of 1 and the lse


def relative(got, want):
    """Norm of the difference over the norm of the truth; NaN stays NaN and fails every comparison."""
    difference = (got.float() - want).norm().item()
    size = want.norm().item()
    return difference / size if size > 0 else difference


def visible(vectors, rows, columns):
    """[rows, columns] of bool; vectors: [Sk, 2 M] of one plane."""
    intervals = vectors[columns].view(len(columns), -1, 2)
    inside = (rows[:, None, None] >= intervals[None, :, :, 0]) & (rows[:, None, None] < intervals[None, :, :, 1])
    return inside.any(-1)


class Sample:
    """One batch item and query head, in f32."""

    def __init__(self, inputs, vectors, batch, head):
        q, k, v, do = inputs
        self.batch, self.head, self.group = batch, head, q.shape[2] // k.shape[2]
        kv = head // self.group
        self.q, self.do = q[batch, :, head].float(), do[batch, :, head].float()
        self.k, self.v = k[batch, :, kv].float(), v[batch, :, kv].float()
        plane = vectors[batch % vectors.shape[0], head // (q.shape[2] // vectors.shape[1])]
        self.vectors, self.scale = plane, q.shape[3] ** -0.5
        self.all = torch.arange(q.shape[1], device=q.device)

    def rows(self, rows):
        """Output, lse and gradient of the query of some rows."""
        hidden = ~visible(self.vectors, rows, self.all)
        scores = (self.scale * self.q[rows] @ self.k.T).masked_fill(hidden, -torch.inf)
        lse = torch.logsumexp(scores, -1)
        p = torch.where(hidden, 0.0, torch.exp(scores - lse[:, None]))  # an empty row: 0
        output, do = p @ self.v, self.do[rows]
        delta = (do * output).sum(-1, keepdim=True)
        return output, lse, self.scale * (p * (do @ self.v.T - delta)) @ self.k

    def keys(self, keys, output, lse):
        """This head's part of the gradients of some keys and values; output and lse: of every row."""
        seen = visible(self.vectors, self.all, keys)
        p = torch.where(seen, torch.exp(self.scale * self.q @ self.k[keys].T - lse[:, None]), 0.0)
        delta = (self.do * output.float()).sum(-1, keepdim=True)
        ds = p * (self.do @ self.v[keys].T - delta)
        return self.scale * ds.T @ self.q, p.T @ self.do


def sampled(length, device, seed):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(length, (ROWS,), generator=generator)
    drawn[:2] = torch.tensor([0, length - 1])
    return drawn.to(device)


def check_sample(inputs, vectors, results, place):
    """Errors of O, lse, dQ, dK, dV at one (batch item, key head); results: output, lse or None, grads or None."""
    output, lse, grads = results
    batch, kv = place
    group = inputs[0].shape[2] // inputs[1].shape[2]
    head, errors = kv * group, {}
    rows = sampled(inputs[0].shape[1], output.device, 7 * batch + kv)
    sample = Sample(inputs, vectors, batch, head)
    want, want_lse, want_dq = sample.rows(rows)
    errors["output"] = relative(output[batch, rows, head], want)
    if lse is not None:
        got, finite = lse[batch, head, rows], torch.isfinite(want_lse)
        same = torch.equal(got[~finite], want_lse[~finite])
        off = ((got - want_lse).abs() / want_lse.abs().clamp(min=1))[finite]
        errors["lse"] = (off.max().item() if len(off) else 0.0) if same else float("nan")
    if grads is None:
        return errors
    errors["grad_query"] = relative(grads[0][batch, rows, head], want_dq)
    want_dk, want_dv = 0, 0
    for h in range(head, head + group):
        one = Sample(inputs, vectors, batch, h)
        row_lse = lse[batch, h] if lse is not None else torch.cat([one.rows(part)[1] for part in one.all.split(2048)])
        dk, dv = one.keys(rows, output[batch, :, h], row_lse)
        want_dk, want_dv = want_dk + dk, want_dv + dv
    errors["grad_key"] = relative(grads[1][batch, rows, kv], want_dk)
    errors["grad_value"] = relative(grads[2][batch, rows, kv], want_dv)
    return errors


def check(inputs, vectors, output, lse=None, grads=None):
    """The worst error of each result at two places, and whether all are within tolerance and every element is a number."""
    whole = all(torch.isfinite(t).all().item() for t in [output] + (grads or []))
    places = {(0, 0), (inputs[1].shape[0] - 1, inputs[1].shape[2] - 1)}
    worst = {}
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    for place in places:
        for name, error in check_sample(inputs, vectors, (output, lse, grads), place).items():
            worst[name] = error if not error <= worst.get(name, 0.0) else worst.get(name, 0.0)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    limit = {"output": OUTPUT_TOLERANCE, "lse": LSE_TOLERANCE}
    return worst, whole and all(error <= limit.get(name, GRADIENT_TOLERANCE) for name, error in worst.items())
