"""The native step's numbers do not depend on how many threads compute them: the same bits with one,
two and three.

(The rest of the suite runs on one.) The prompt is always read with one thread: torch does that, and
promises no such thing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support import tiny
from test_native import bushy

from longdraft import Sampler, Stats
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.sampling import ChainDraws
from longdraft.core.tree import Tree
from longdraft.drafters import PlainDecoding, SelfDrafter
from longdraft.engine.decode_session import DecodeSession
from longdraft.models.lm import LM
from longdraft.views import Guided, SinkWindow, View

pytestmark = pytest.mark.usefixtures("build")  # each build in turn
each_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)
each_model = pytest.mark.parametrize("model", ["llama", "qwen3-mixed", "wide"])


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def lm_of(model: str, dtype: torch.dtype) -> LM:
    lm = LM(tiny.stock(model, dtype=dtype), model)
    assert lm.backend.name == "native"
    return lm


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    assert len(a) == len(b) > 0
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.each_value
@torch.inference_mode()
@each_dtype
@each_model
def test_a_pass(model, dtype):
    """Rows of unequal lengths, one past a block of keys; trees and chains; whole and under a view;
    with taps.
    """
    lm = lm_of(model, dtype)
    lengths = (1100, 41, 300) if model == "wide" else (400, 41, 133)
    cache = lm.new_cache(3, max(lengths) + 64)
    prompts = tiny.prompts(*lengths)
    for b, p in enumerate(prompts):
        lm.prefill(p[:-1], cache.row(b))
    root = Tree.root(torch.tensor([p[-1] for p in prompts]))
    wide = Tree.chain(torch.cat([root.tokens, torch.randint(3, 96, (3, 20))], 1))

    def run() -> list[torch.Tensor]:
        found = []
        for tree in (root, bushy(root), wide):
            for rows, of, split in (
                ("all", "logits", True),
                ("mean", "weights", False),
                ("mean", "weights", True),
            ):
                captured = Captures(CaptureSpec(rows=rows, of=of, split=split, hidden=(0, 2)))
                found += [
                    lm(tree, cache, captured=captured),
                    *captured.scores.values(),
                    *captured.states.values(),
                ]
            found.append(lm(tree, cache, view=SinkWindow(4, 0.07, 16).view(cache)))
            ends = [(b, n, n + tree.size) for b, n in enumerate(cache.length.tolist())]
            found += [
                x[:, n:end].clone()
                for i in cache.layers
                for b, n, end in ends
                for x in cache.read(i, b)
            ]
        return found

    with threads(1):
        want = run()
    for count in (2, 3):
        with threads(count):
            assert same(run(), want), f"{count} threads"


@pytest.mark.each_value
@torch.inference_mode()
@each_dtype
@each_model
def test_a_drafted_chain(model, dtype):
    lm = lm_of(model, dtype)
    prompts = tiny.prompts(300, 41)
    cache = lm.new_cache(2, 340)
    for b, p in enumerate(prompts):
        lm.prefill(p[:-1], cache.row(b))
    first = torch.tensor([p[-1] for p in prompts])
    found = []
    view = View(torch.arange(0, 40, 3)[None, None].expand(1, 2, -1), torch.tensor([250, 40]))
    for count in (1, 2):
        with threads(count):
            for seen in (None, view):
                for temperature in (0.0, 1.0):
                    step = lm.backend.chain_drafter(cache, seen)
                    assert step is not None
                    draws = ChainDraws(
                        12, [Sampler(temperature)] * 2, torch.tensor([3, 4]), cache.length + 1
                    )
                    found.append(step(first, 0, draws))
    assert same(found[:4], found[4:])


@each_dtype
def test_speculation_with_two_threads_is_plain_decoding_with_one(dtype):
    """What is drafted and accepted is the same too."""
    lm = lm_of("qwen3", dtype)
    runs = DecodeSession(lm, tiny.prompts(200, 90), 12, Sampler(1.0), 3)
    found = []
    for count in (1, 2):
        with threads(count):
            stats = Stats()
            drafted = runs.rows(SelfDrafter(lm, Guided(0.07, 16), [2, 3, 3]), stats)
            found.append((runs.rows(PlainDecoding()), drafted, stats.accepted, stats.steps))
    plain, drafted, *_ = found[0]
    assert plain == drafted and found[1] == found[0]
