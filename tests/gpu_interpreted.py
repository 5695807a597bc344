"""The Triton kernels under the interpreter, beside the reference: run by test_gpu.py in a process of its own."""

from __future__ import annotations

import torch

from longdraft.ops import gpu, noise, reference
from longdraft.ops.reference import Segment


def close(found, wanted, tolerance: float = 2e-5) -> None:
    for name in ("out", "logits", "weights"):
        a, b = getattr(found, name), getattr(wanted, name)
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(
                a.float(), b.float(), rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


def case(H: int, K: int, T: int, D: int, sizes: list[int], masked: list[int], seed: int) -> tuple:
    g = torch.Generator().manual_seed(seed)
    poison = [torch.full((K, s + 5, D), float("nan")) for s in sizes]  # slots behind a segment's end must not be read
    segments = []
    for s, m, p in zip(sizes, masked, poison, strict=True):
        k, v = (torch.cat([torch.randn(K, s, D, generator=g), p[:, s:]], 1)[:, :s] for _ in range(2))
        visible = None
        if m:
            visible = torch.rand(T, m, generator=g) < 0.5
            visible[:, 0] = True
        segments.append(Segment(k, v, visible))
    return torch.randn(H, T, D, generator=g), segments


for seed, (H, K, T, D, sizes, masked) in enumerate(
    [
        (4, 4, 1, 16, [40], [0]),
        (4, 2, 3, 32, [70, 9], [0, 5]),
        (6, 3, 7, 20, [33], [7]),
        (2, 1, 1, 64, [600, 3], [0, 3]),
        (4, 4, 17, 16, [90, 20], [0, 20]),
    ]
):
    q, segments = case(H, K, T, D, sizes, masked, seed)
    scale = D**-0.5
    close(gpu.attend(q, segments, scale), reference.attend(q, segments, scale))
    kept = [0, T - 1] if T > 1 else [0]
    sink = torch.randn(H)
    options = {"softcap": 5.0, "sink": sink, "keep": kept}
    close(gpu.attend(q, segments, scale, **options), reference.attend(q, segments, scale, **options))

q, (segment,) = case(4, 2, 2, 16, [90], [0], 9)
slots = torch.randperm(90)[:31]
out, lse, _ = gpu.attend_segment(q.reshape(2, 4, 16), segment, 0.25, None, None, slots)
picked = Segment(segment.k[:, slots], segment.v[:, slots])
wanted = reference.attend_one(q, picked, 0.25, None)
torch.testing.assert_close(out[:, 0].reshape(4, 2, 16), wanted[0], rtol=2e-5, atol=2e-5)
torch.testing.assert_close(lse[:, 0].reshape(4, 2), wanted[1], rtol=2e-5, atol=2e-5)

seed, position = torch.tensor([3, -(1 << 61)]), torch.tensor([[0, 5, 1 << 33], [7, 8, 9]])
torch.testing.assert_close(gpu.gumbel(seed, position, 100, 64), noise.gumbel(seed, position, 100), rtol=1e-6, atol=1e-6)
print("right")
