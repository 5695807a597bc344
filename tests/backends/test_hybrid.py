"""The native pass of a model with recurrent layers, beside the eager one and beside itself."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest
import torch
from tiny_models import build, config
from torch import Tensor

from longdraft.backends.native.gated_delta import GatedDelta, in_one_thread, own_threads
from longdraft.core import Captures, CaptureSpec, KVCache, Tree
from longdraft.models.lm import LM
from longdraft.ops import native

if native.library() is None:
    pytest.skip("no build of the native kernels runs here", allow_module_level=True)


def hybrid(dtype: torch.dtype = torch.float32, **changes: Any) -> LM:
    small = config("qwen3_5_text")
    for name, value in changes.items():
        setattr(small, name, value)
    lm = LM(build(small).to(dtype))
    assert lm.backend.name == "native" and lm.exact
    return lm


def tokens(count: int, rows: int = 1) -> Tensor:
    return torch.randint(3, 96, (rows, count), generator=torch.Generator().manual_seed(count))


def run(lm: LM, given: Tensor, sizes: list[int]) -> tuple[Tensor, KVCache]:
    """Logits of rows [B,N] that are committed in passes of these sizes, and the cache."""
    cache = lm.new_cache(len(given), 32)
    out = list[Tensor]()
    for part in given.split(sizes, 1):
        with cache.appending(part.shape[1]):
            out.append(lm(Tree.chain(part), cache))
    return torch.cat(out, 1), cache


def tree() -> Tree:
    """A root with two branches, one of which branches again."""
    given = tokens(7)
    whole = Tree.root(tokens(7)[:, 0])
    for i, parent in enumerate([0, 0, 1, 1, 2, 4], 1):
        whole = whole.grow(torch.tensor([[parent]]), given[:, i : i + 1])
    return whole


@torch.inference_mode()
@pytest.mark.parametrize("keys", [1, 2, 4])
def test_equals_transformers(keys: int) -> None:
    lm = hybrid(linear_num_key_heads=keys)
    given = tokens(40)
    spec = CaptureSpec(hidden=(0, 2, 4))
    captured = Captures(spec)
    expected = Captures(spec)
    actual = lm(Tree.chain(given), lm.new_cache(1, 64), captured=captured)
    right = lm.eager.forward(Tree.chain(given), lm.new_cache(1, 64), 0, None, expected)
    torch.testing.assert_close(actual, right, rtol=1e-3, atol=2e-3)
    for layer in spec.hidden:
        torch.testing.assert_close(
            captured.states[layer], expected.states[layer], rtol=1e-3, atol=2e-3
        )


@pytest.mark.full
@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_the_passes(dtype: torch.dtype) -> None:
    lm = hybrid(dtype)
    given = tokens(150, rows=2)
    expected, _ = run(lm, given, [1] * 150)
    for sizes in ([128, 22], [7] * 21 + [3], [100, 1, 8, 41]):
        assert torch.equal(run(lm, given, sizes)[0], expected), sizes
    assert torch.equal(run(lm, given[1:], [128, 22])[0], expected[1:])


@torch.inference_mode()
def test_nodes_of_a_tree_are_those_of_their_paths() -> None:
    lm = hybrid()
    given = tokens(20)
    branching = tree()
    _, cache = run(lm, given, [20])
    actual = lm(branching, cache)
    for node in range(7):
        path = [i for i in range(7) if branching.mask[0, node, i]]
        alone = torch.cat([given, branching.tokens[:, path]], 1)
        assert torch.equal(run(lm, alone, [1] * alone.shape[1])[0][0, -1], actual[0, node]), node


@torch.inference_mode()
def test_a_gate_of_the_node_beside_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = hybrid()
    given = tokens(12)
    expected, _ = run(lm, given, [1] * 12)
    compute = GatedDelta.__call__

    def shifted(self: GatedDelta, lib: Any, scans: Any, inputs: Tensor, B: int, W: int) -> Tensor:
        return compute(self, lib, scans, inputs.roll(-1), B, W)

    monkeypatch.setattr(GatedDelta, "__call__", shifted)
    assert not torch.equal(run(lm, given, [12])[0], expected)


def threads_beside(block) -> list[int]:
    """Torch's threads inside the block: in the thread that is in it, in one that begins there, and
    in one from before.

    Then what the first one has after the block.
    """
    inside = Event()
    seen = Event()
    found = []

    def from_before() -> None:
        torch.get_num_threads()
        inside.wait(10)
        found.append(torch.get_num_threads())
        seen.set()

    older = Thread(target=from_before)
    newer = Thread(target=lambda: found.append(torch.get_num_threads()))
    older.start()
    with block():
        own = torch.get_num_threads()
        newer.start()
        newer.join()
        inside.set()
        seen.wait(10)
        older.join()
    return [own, *found, torch.get_num_threads()]


@contextmanager
def of_all_threads():
    """The planted fault."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_other_threads_keep_torchs_threads():
    """An eager model may compute beside a hybrid, in a thread that began during its pass."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        own, *others = threads_beside(in_one_thread)
        assert others == [3, 3, 3] and own == (3 if own_threads() is None else 1)
        assert threads_beside(of_all_threads)[1] == 1
    finally:
        torch.set_num_threads(before)
