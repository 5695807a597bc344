"""Triton's kernels and the step at fixed places beside the reference: run under the interpreter by
gpu_interpreted.py.

Memory that a kernel must write or must not read is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from support import tiny
from torch.utils._python_dispatch import TorchDispatchMode

from longdraft.backends.cuda import CudaBackend
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import PAD, Tree
from longdraft.engine import generate as engine
from longdraft.methods import build
from longdraft.models.lm import LM
from longdraft.ops import noise, reference
from longdraft.ops.reference import Segment
from longdraft.ops.triton import functions as gpu
from longdraft.ops.triton import self_check as trial
from longdraft.ops.triton import slots
from longdraft.views import View

empty = torch.empty
LENGTHS = (37, 90)


def poisoned(*args, **options) -> torch.Tensor:
    x = empty(*args, **options)
    return x.fill_(float("nan")) if x.is_floating_point() else x


def close(found, wanted, tolerance: float = 2e-5) -> None:
    for name in ("out", "logits", "weights"):
        a = getattr(found, name)
        b = getattr(wanted, name)
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(
                a.float(),
                b.float(),
                rtol=tolerance,
                atol=tolerance,
                msg=lambda m, n=name: f"{n}: {m}",
            )


def case(H: int, K: int, T: int, D: int, sizes: list[int], masked: list[int], seed: int) -> tuple:
    g = torch.Generator().manual_seed(seed)
    # slots behind a segment's end must not be read
    poison = [torch.full((K, s + 5, D), float("nan")) for s in sizes]
    segments = []
    for s, m, p in zip(sizes, masked, poison, strict=True):
        k, v = (
            torch.cat([torch.randn(K, s, D, generator=g), p[:, s:]], 1)[:, :s] for _ in range(2)
        )
        visible = None
        if m:
            visible = torch.rand(T, m, generator=g) < 0.5
            visible[:, 0] = True
        segments.append(Segment(k, v, visible))
    return torch.randn(H, T, D, generator=g), segments


CASES = [
    (4, 4, 1, 16, [40], [0]),
    (4, 2, 3, 32, [70, 9], [0, 5]),
    (6, 3, 7, 20, [33], [7]),
    (2, 1, 1, 64, [300, 3], [0, 3]),
    (4, 4, 17, 16, [90, 20], [0, 20]),
    (4, 1, 40, 16, [70], [40]),  # 160 rows of one key head: two tiles
]


def attention() -> None:
    for seed, (H, K, T, D, sizes, masked) in enumerate(CASES):
        q, segments = case(H, K, T, D, sizes, masked, seed)
        scale = D**-0.5
        close(gpu.attend(q, segments, scale), reference.attend(q, segments, scale))
        kept = [0, T - 1]  # one row twice, where there is one
        options = {"softcap": 5.0, "sink": torch.randn(H), "keep": kept}
        close(
            gpu.attend(q, segments, scale, **options),
            reference.attend(q, segments, scale, **options),
        )


def gumbel() -> None:
    seed = torch.tensor([3, -(1 << 61)])
    position = torch.tensor([[0, 5, 1 << 33], [7, 8, 9]])
    found = gpu.gumbel(seed, position, 100, 64)
    wanted = noise.gumbel(seed, position, 100)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def first_use() -> None:
    """What a GPU is tried on before its kernels are used."""
    # the interpreter's bfloat16 products are wrong
    trial.compare(torch.device("cpu"), (torch.float32, torch.float16))


class Both:
    """A tiny model by its ordinary path and by the step at fixed places, on caches that hold the
    same two rows.
    """

    def __init__(self, name: str):
        self.lm = LM(tiny.stock(name), name)
        self.lm.backend = self.lm.eager
        self.step = CudaBackend(self.lm.architecture)
        self.caches = [self.lm.new_cache(2, 192) for _ in range(2)]
        for cache in self.caches:
            for b, prompt in enumerate(tiny.prompts(*LENGTHS)):
                self.lm.prefill(prompt, cache.row(b))

    def poison(self, cache) -> None:
        for layer in cache.layers:
            for b, n in enumerate(cache.length.tolist()):
                for x in cache.read(layer, b):
                    x[:, n:] = float("nan")

    def __call__(
        self,
        tree: Tree,
        start: int = 0,
        view: View | None = None,
        wish: Callable[[], Captures] = Captures,
    ) -> Captures:
        """The same pass twice: logits, taps and slots must agree."""
        if not start:
            for cache in self.caches:
                self.poison(cache)
        wanted = wish()
        found = wish()
        logits = self.lm(tree, self.caches[0], start, view, wanted)
        self.lm.backend = self.step
        try:
            ours = self.lm(tree, self.caches[1], start, view, found)
        finally:
            self.lm.backend = self.lm.eager
        real = tree.parent[:, start:] != PAD
        torch.testing.assert_close(ours[real], logits[real], rtol=1e-4, atol=1e-4)
        for name in ("scores", "states"):
            a = getattr(found, name)
            b = getattr(wanted, name)
            assert a.keys() == b.keys()
            for key in a:
                x, y = (a[key], b[key]) if name == "scores" else (a[key][real], b[key][real])
                torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
        for layer in self.caches[0].layers:
            for b, n in enumerate(self.caches[0].length.tolist()):
                there = torch.cat([torch.ones(n, dtype=torch.bool), (tree.parent[b] != PAD)])
                for x, y in zip(*(c.read(layer, b) for c in self.caches), strict=True):
                    end = n + tree.size
                    torch.testing.assert_close(
                        x[:, :end][:, there], y[:, :end][:, there], rtol=1e-4, atol=1e-4
                    )
                    assert x[:, end:].isnan().all() and y[:, end:].isnan().all()
        return found


def branches(*sizes: int) -> Tree:
    """One tree per row, of so many nodes below the root: node i hangs from i // 2."""
    tree = Tree.root(torch.tensor([5, 6]))
    return tree.add_below_root([[(i // 2, 7 + 3 * i) for i in range(n)] for n in sizes])


def views(layers: int) -> View:
    """20 picked slots of the second row; the first row, picking nothing, sees everything."""
    indices = torch.full((layers, 2, 20), -1)
    for layer in range(layers):
        indices[layer, 1] = (
            torch.randperm(70, generator=torch.Generator().manual_seed(layer))[:20].sort().values
        )
    return View(indices, torch.tensor([0, 75]), {i: i for i in range(layers)})


def passes() -> None:
    """Plain, a tree of ragged rows that is padded to a size, and under a view its levels one after
    another.
    """
    both = Both("qwen3")
    whole = branches(6, 5)
    both(Tree.root(torch.tensor([5, 6])))
    both(branches(3, 8))
    view = views(3)
    for start, size in ((0, 3), (3, 7)):
        part = Tree(
            whole.tokens[:, :size],
            whole.parent[:, :size],
            whole.depth[:, :size],
            whole.mask[:, :size, :size],
        )
        both(part, start, view)


def captured() -> None:
    both = Both("qwen3")
    whole = branches(4, 3)
    both(Tree.root(torch.tensor([5, 6])), wish=lambda: Captures(CaptureSpec("ends", "logits")))
    both(whole, wish=lambda: Captures(CaptureSpec("ends", "weights", split=True)))
    both(whole, wish=lambda: Captures(CaptureSpec("mean", "weights", hidden=(0, 2, 3))))
    both(whole, wish=lambda: Captures(CaptureSpec("mean", "weights", split=True)))
    both(branches(3, 3), wish=lambda: Captures(CaptureSpec("all", "weights", only=1)))


def features() -> None:
    """A window in all layers; windows in some, and soft caps; sinks."""
    for name in ("mistral-window", "gemma2-softcap", "gpt-oss"):
        Both(name)(branches(6, 4))
    Both("mistral-window")(Tree.chain(torch.arange(56).view(2, 28)))  # longer than the window


class NoHost(TorchDispatchMode):
    """Refuses what makes the host wait for a GPU, or copies from the host's memory."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        odd = (
            "_local_scalar_dense",
            "nonzero",
            "masked_select",
            "equal",
            "is_nonzero",
            "lift_fresh",
            "unique",
            "item",
        )
        assert name not in odd, f"{name} waits for the host"
        return func(*args, **(kwargs or {}))


class Launches:
    """A kernel that keeps the grids and numbers it is launched with."""

    def __init__(self, kernel, seen: list):
        self.kernel = kernel
        self.seen = seen

    def __getitem__(self, grid):
        def launch(*args, **options):
            self.seen.append((grid, [x for x in args if not isinstance(x, torch.Tensor)], options))
            return self.kernel[grid](*args, **options)

        return launch


def fixed() -> None:
    """A pass asks nothing of the host, and what it launches is the same whatever its buffers
    hold.
    """
    both = Both("qwen3")
    seen = []
    names = [
        (slots, "attend_slots"),
        (slots, "write_slots"),
        (slots, "mean_scores"),
        (gpu, "merge_splits"),
    ]
    kernels = [getattr(module, name) for module, name in names]
    for (module, name), kernel in zip(names, kernels, strict=True):
        setattr(module, name, Launches(kernel, seen))
    try:
        for tree in (branches(4, 2), branches(3, 4)):
            both(tree, wish=lambda: Captures(CaptureSpec("ends", "weights")))
            for cache in both.caches:
                cache.length.sub_(7)
        half = len(seen) // 2
        assert half and seen[half:] == seen[:half], "a launch follows the lengths"
    finally:
        for (module, name), kernel in zip(names, kernels, strict=True):
            setattr(module, name, kernel)
    (one,) = both.step.passes.values()
    one.bounds[:, 0] -= 7
    with NoHost():
        one.run()


def lossless() -> None:
    """Text by the step at fixed places: plain and a tree's, is what the ordinary path says."""
    both = Both("llama")
    prompts = tiny.prompts(40, seed=3)
    plain = engine.generate(both.lm, prompts, max_new_tokens=6)
    both.lm.backend = both.step
    assert engine.generate(both.lm, prompts, max_new_tokens=6) == plain
    assert (
        engine.generate(
            both.lm,
            prompts,
            build("vegas-tree", both.lm, widths=[2, 2], min_budget=8),
            max_new_tokens=6,
        )
        == plain
    )


CHECKS = [attention, gumbel, first_use, passes, captured, features, fixed, lossless]
