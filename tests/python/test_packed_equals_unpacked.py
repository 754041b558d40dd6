"""Packed training equals unpacked training: losses and gradients of each document, pair and answer group, on real lengths."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import flashmask  # noqa: E402
from flashmask.collate import (  # noqa: E402
    KTOCollator,
    PreferenceCollator,
    SFTCollator,
    answer_log_probs,
    answer_rewards,
    batch_mask,
    token_log_probs,
)

DATA = Path(__file__).parents[2] / "examples" / "data"
VOCABULARY, WIDTH, HEADS, HEADS_KV = 61, 32, 4, 2


class Model(torch.nn.Module):
    """Two layers of attention between an embedding and a head. attend(layer, q, k, v) takes [B, S, H, D]."""

    def __init__(self, out=VOCABULARY):
        super().__init__()
        torch.manual_seed(7)
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.positions = torch.nn.Embedding(2048, WIDTH)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH // HEADS * (HEADS + 2 * HEADS_KV)) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, out)

    def forward(self, tokens, positions, attend):
        x = self.embedding(tokens) + self.positions(positions)
        for layer, qkv in enumerate(self.qkv):
            heads = qkv(F.layer_norm(x, (WIDTH,))).unflatten(-1, (-1, WIDTH // HEADS))
            x = x + attend(layer, *heads.split([HEADS, HEADS_KV, HEADS_KV], 2)).flatten(2)
        return self.head(F.layer_norm(x, (WIDTH,)))

    def packed(self, batch, windows=(None, None)):
        masks = {window: batch_mask(batch, window) for window in windows}
        return self(
            batch["input_ids"], batch["position_ids"], lambda layer, *qkv: flashmask.attention(*qkv, masks[windows[layer]])
        )

    def alone(self, tokens, windows=(None, None)):
        """One document by itself, [tokens, out], with torch's attention and a dense mask."""
        n = len(tokens)
        i, j = torch.arange(n)[:, None], torch.arange(n)

        def attend(layer, *qkv):
            q, k, v = (t.transpose(1, 2).repeat_interleave(HEADS // t.shape[2], 1) for t in qkv)
            visible = (j <= i) if windows[layer] is None else (j <= i) & (i - j <= windows[layer])
            return F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2)

        return self(torch.as_tensor(tokens)[None], torch.arange(n)[None], attend)[0]


def gradients(model, loss):
    found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, model.parameters(), strict=True)]


def same(a, b):
    torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


def same_with_gradients(model, packed, alone):
    """Losses [n] of n groups, and the gradients of each group's own loss."""
    same(packed, alone)
    for a, b in zip(packed, alone, strict=True):
        expected = gradients(model, b)
        largest = max(y.norm() for y in expected)
        assert largest > 1e-3
        for x, y in zip(gradients(model, a), expected, strict=True):
            assert (x - y).norm() <= 1e-4 * y.norm() + 1e-6 * largest


def random_tokens(rng, n):
    return rng.integers(1, VOCABULARY, n).astype(np.int64)


def chats(count):
    rng = np.random.default_rng(0)
    lines = (DATA / "chat_turn_lengths.jsonl").read_text().splitlines()[:count]
    return [[random_tokens(rng, n) for n in json.loads(line)] for line in lines]


def preferences(start, count):
    rng = np.random.default_rng(1)
    lines = [line.split() for line in (DATA / "preference_lengths.tsv").read_text().splitlines() if line[0].isdigit()]
    return [
        {k: random_tokens(rng, int(n)) for k, n in zip(("prompt", "chosen", "rejected"), line, strict=True)}
        for line in lines[start : start + count]
    ]


def alone_log_prob(model, prompt, answer, **windows):
    """Of an answer behind its prompt, as a run of its own."""
    tokens = torch.as_tensor(np.concatenate([prompt, answer]))
    logits = model.alone(tokens, **windows)
    terms = logits[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
    return terms[max(len(prompt) - 1, 0) :].sum()


# ---- SFT ----


def sft_records():
    """The last turn is the completion."""
    return [{"prompt": np.concatenate(turns[:-1]), "completion": turns[-1]} for turns in chats(8)]


def by_document(batch, values):
    """Sums of token values by document, in the order (sequence, document)."""
    owner = batch["document_ids"].flatten().long()[batch["target_rows"]] + 1000 * (
        batch["target_rows"] // batch["labels"].shape[1]
    )
    _, number = torch.unique(owner, return_inverse=True)
    return values.new_zeros(int(number.max()) + 1).index_add(0, number, values)


def order_of(batch, records, key):
    """Indices of the records in the order (sequence, document), found by their tokens."""
    found = []
    for ids, documents in zip(batch["input_ids"], batch["document_ids"], strict=True):
        for d in range(int(documents.max()) + 1):
            own = ids[documents == d].tolist()
            found.append(next(k for k, record in enumerate(records) if key(record).tolist() == own))
    return found


def test_sft_packed_equals_unpacked():
    records, model = sft_records(), Model()
    batch = SFTCollator(1024)(records)
    assert batch["input_ids"].shape[0] < len(records) / 2
    packed = by_document(batch, -token_log_probs(model.packed(batch), batch))
    order = order_of(batch, records, lambda r: np.concatenate([r["prompt"], r["completion"]]))
    alone = torch.stack([-alone_log_prob(model, records[k]["prompt"], records[k]["completion"]) for k in order])
    same_with_gradients(model, packed, alone)


def test_sft_labels_fit_a_loss_that_shifts_by_one():
    batch, model = SFTCollator(1024)(sft_records()), Model()
    logits = model.packed(batch)
    shifted = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100)
    same(shifted, -token_log_probs(logits, batch).mean())


# ---- preference pairs ----


@pytest.mark.parametrize("windows", [None, 20])
def test_dpo_packed_equals_unpacked(windows):
    records, model = preferences(40, 5), Model()
    batch = PreferenceCollator(1024, windows={"local": 20})(records)
    assert batch["input_ids"].shape[0] <= 2
    log_probs = answer_log_probs(model.packed(batch, (None, windows and "local")), batch)
    margin = log_probs[batch["chosen"]] - log_probs[batch["rejected"]]
    order = batch["answer_record"][batch["chosen"]].tolist()
    assert sorted(order) == list(range(5))
    alone = [
        [alone_log_prob(model, records[k]["prompt"], records[k][key], windows=(None, windows)) for key in ("chosen", "rejected")]
        for k in order
    ]
    same(log_probs[batch["chosen"]], torch.stack([a for a, _ in alone]))
    same_with_gradients(model, -F.logsigmoid(0.002 * margin), torch.stack([-F.logsigmoid(0.002 * (a - b)) for a, b in alone]))


def test_reward_model_packed_equals_unpacked():
    records, model = preferences(80, 6), Model(out=1)
    batch = PreferenceCollator(768)(records)
    rewards = answer_rewards(model.packed(batch), batch)
    order = batch["answer_record"][batch["chosen"]].tolist()

    def reward(k, key):
        return model.alone(np.concatenate([records[k]["prompt"], records[k][key]]))[-1, 0]

    packed = -F.logsigmoid(rewards[batch["chosen"]] - rewards[batch["rejected"]])
    same_with_gradients(model, packed, torch.stack([-F.logsigmoid(reward(k, "chosen") - reward(k, "rejected")) for k in order]))


def test_ranked_answers_packed_equal_unpacked():
    """A group of four answers to one prompt gives six pairs."""
    sources, model = preferences(120, 4), Model(out=1)
    answers = [source[key][:60] for source in sources[:2] for key in ("chosen", "rejected")]
    record = {"prompt": sources[2]["prompt"], "answers": answers}
    batch = PreferenceCollator(2048)([record, sources[3]])
    rewards = answer_rewards(model.packed(batch), batch)
    group = batch["answer_record"][batch["chosen"]] == 0
    assert int(group.sum()) == 6 and len(group) == 7
    alone = torch.stack([model.alone(np.concatenate([record["prompt"], a]))[-1, 0] for a in answers])
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    packed = (rewards[batch["chosen"]] - rewards[batch["rejected"]])[group]
    same_with_gradients(model, -F.logsigmoid(packed).sum()[None], -sum(F.logsigmoid(alone[a] - alone[b]) for a, b in pairs)[None])


# ---- rollouts ----


def rollouts():
    """A tree of turns: (mask, tokens, positions, for each rollout the places of its tokens)."""
    parent, length, leaves = [-1, 0, 0, 1, 1, 2, -1, 6], [40, 25, 18, 30, 0, 12, 9, 21], [3, 4, 5, 7]
    mask, offset = flashmask.Mask.prefix_tree(parent, length)
    paths, positions = [], torch.zeros(sum(length), dtype=torch.long)
    for node in leaves:
        spans = []
        while node >= 0:
            spans.insert(0, torch.arange(length[node]) + int(offset[node]))
            node = parent[node]
        paths.append(torch.cat(spans))
        positions[paths[-1]] = torch.arange(len(paths[-1]))
    return mask, torch.as_tensor(random_tokens(np.random.default_rng(3), sum(length))), positions, paths


def descend(model, loss):
    for p, g in zip(model.parameters(), gradients(model, loss), strict=True):
        p.data -= 0.05 * g


def test_rollouts_that_share_turns_train_as_alone():
    """https://github.com/verl-project/verl/issues/6401, https://github.com/NVIDIA-NeMo/Automodel/issues/2385: n rollouts, whose turns
    form a tree of any depth, one of them ending where others go on. A user saw losses part from the second step on."""
    mask, tokens, positions, paths = rollouts()
    advantages = torch.tensor([1.0, -0.5, 0.7, -1.2])

    def losses(outputs):
        log_probs = [o[:-1].log_softmax(-1).gather(1, tokens[p][1:, None]).sum() for o, p in zip(outputs, paths, strict=True)]
        return -0.01 * advantages * torch.stack(log_probs)

    def shared(model):
        logits = model(tokens[None], positions[None], lambda _, *qkv: flashmask.attention(*qkv, mask))[0]
        return losses([logits[path] for path in paths])

    def separate(model):
        return losses([model.alone(tokens[path]) for path in paths])

    models = Model(), Model()
    for _ in range(3):
        packed, alone = shared(models[0]), separate(models[1])
        same(packed, alone)
        same_with_gradients(models[0], packed, separate(models[0]))
        descend(models[0], packed.sum())
        descend(models[1], alone.sum())


# ---- KTO ----


@pytest.mark.parametrize("kl", [False, True])
def test_kto_packed_equals_unpacked(kl):
    records = []
    for k, pair in enumerate(preferences(200, 3)):
        records += [{"prompt": pair["prompt"], "completion": pair["chosen"], "label": True}]
        records += [{"prompt": pair["prompt"], "completion": pair["rejected"], "label": k % 2 == 0}]
    model = Model()
    batch = KTOCollator(2048, kl=kl)(records)
    assert (
        int((batch["document_ids"] >= 0).sum())
        < sum(len(r["prompt"]) for r in records[::2]) + (1 + kl) * sum(len(r["completion"]) for r in records) + 1
    )  # every prompt is there once
    log_probs = answer_log_probs(model.packed(batch), batch)
    assert batch["answer_label"].dtype == torch.bool and len(log_probs) == 6 * (1 + kl)
    alone = []
    for k, extra, label in zip(
        batch["answer_record"].tolist(), batch["answer_kl"].tolist(), batch["answer_label"].tolist(), strict=True
    ):
        assert label == records[k]["label"]
        answer = records[(k + 1) % 6 if extra else k]["completion"]
        alone.append(alone_log_prob(model, records[k]["prompt"], answer))
    same(log_probs, torch.stack(alone))
    sign = torch.where(batch["answer_label"], 1.0, -1.0)
    same_with_gradients(model, F.sigmoid(-0.002 * sign * log_probs), F.sigmoid(-0.002 * sign * torch.stack(alone)))


# ---- user reports ----


@pytest.mark.parametrize("changed", [0, 1])
def test_documents_do_not_see_each_other(changed):
    """https://github.com/MeetKai/functionary/issues/265, https://github.com/huggingface/nanoVLM/pull/204: position ids that start
    anew keep nothing apart. https://github.com/modelscope/ms-swift/issues/5690 and
    https://github.com/axolotl-ai-cloud/axolotl/issues/449: and packing must not need a GPU."""
    model, documents = Model(), [[1, 2, 3], [4, 5, 6, 7, 8]]
    before = SFTCollator(8)([{"input_ids": d} for d in documents])
    documents[changed] = [60 - t for t in documents[changed]]
    after = SFTCollator(8)([{"input_ids": d} for d in documents])
    other = (before["document_ids"] == 1 - changed) & (before["document_ids"] == after["document_ids"])
    assert int(other.sum()) == len(documents[1 - changed])
    assert torch.equal(model.packed(before)[other], model.packed(after)[other])
    leak = [
        model(batch["input_ids"], batch["position_ids"], lambda _, *qkv: flashmask.attention(*qkv, causal=True))
        for batch in (before, after)
    ]
    assert torch.equal(leak[0][other], leak[1][other]) == bool(changed)  # without the mask the first one reaches the second


def test_padding_gives_no_gradient_and_no_nan():
    """https://github.com/hiyouga/LlamaFactory/pull/7318: loss 0 and a NaN gradient norm with packing and padding;
    https://github.com/facebookresearch/xformers/issues/722: documents of one token gave NaN."""
    model = Model()
    batch = SFTCollator(16, sequences=2)([{"input_ids": [1] * 5}, {"input_ids": [2]}, {"input_ids": [3] * 4}])
    loss = -token_log_probs(model.packed(batch), batch).mean()
    assert loss > 0 and all(g.isfinite().all() for g in gradients(model, loss))
    pad = model.embedding(batch["input_ids"]).detach().requires_grad_()
    heads = model.qkv[0](pad).unflatten(-1, (-1, WIDTH // HEADS)).split([HEADS, HEADS_KV, HEADS_KV], 2)
    out = flashmask.attention(*heads, batch_mask(batch))
    padding = batch["document_ids"] == -1
    assert (out[padding] == 0).all()
    (gradient,) = torch.autograd.grad(out.square().sum(), pad)
    assert (gradient[padding] == 0).all() and (gradient[~padding] != 0).any()
