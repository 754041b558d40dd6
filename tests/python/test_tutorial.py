"""Code written for the published FlashMask tutorial, with only the import changed."""

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402


def dense_attention(q, k, v, visible):
    """As the tutorial calls it. torch 2.4's kernel for CPUs gives NaN to rows whose first several hundred keys are hidden; its
    plain formula does not."""
    with sdpa_kernel(SDPBackend.MATH) if torch.__version__.startswith("2.4.") else nullcontext():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def test_tutorial():
    """Names, shapes and result keys are the tutorial's; tensors are [batch, heads, length, head_dim] there."""
    from flashmask import FlashMaskAttention, FlashMaskRepresentation, flashmask_attention

    lengths = [1024, 512, 1536, 1024]
    heads, dim = 4, 256
    mask = FlashMaskRepresentation.from_packed_samples(sample_lengths=lengths, causal=True)
    assert mask.fms.dtype == torch.int32 and mask.fms.nbytes == mask.fme.nbytes == 16384
    dense = mask.to_dense_mask()  # (4096, 4096) bool, True = visible
    assert dense.nbytes / (mask.fms.nbytes + mask.fme.nbytes) == 512

    attention = FlashMaskAttention(dim=dim, num_heads=heads, block_r=64, block_c=64)
    q, k, v = (torch.randn(1, heads, sum(lengths), dim // heads) for _ in range(3))
    out, stats = attention(q, k, v, mask)
    assert out.shape == q.shape
    assert stats["total_tiles"] == 4096 and stats["skipped_tiles"] == 3488 and stats["computed_tiles"] == 608
    assert abs(stats["skip_ratio"] - 3488 / 4096) < 1e-12

    reference = dense_attention(q, k, v, dense)
    assert torch.allclose(out, reference, atol=1e-5)

    pair = FlashMaskRepresentation.from_dpo_pair(prompt_len=96, chosen_len=26, rejected_len=35)
    q, k, v = (torch.randn(1, heads, 157, 64) for _ in range(3))
    same = dense_attention(q, k, v, pair.to_dense_mask())
    ours = flashmask_attention(q, k, v, fms=pair.fms, fme=pair.fme, layout="bhsd")
    assert torch.allclose(ours, same, atol=1e-5)
