"""The kernel for recurrences along the paths of a tree, in every build that this machine can
run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from longdraft.backends.features.scans.recurrences import Additive, DeltaRule, StateSpace
from longdraft.core.states import Inputs
from longdraft.ops import native, recurrence
from longdraft.ops.scan import COMMITTED, ON, Order, Terms, chain, depth_first

BUILDS = [kind for kind in native.NEEDS if native.opened(kind)[0] is not None]
CASES = [
    "delta",
    "delta by key",
    "plain delta",
    "additive",
    "additive by key",
    "mamba",
    "narrow mamba",
]
T = 150  # tokens: more than two tiles of the kernel


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    lib = native.opened(request.param)[0]
    monkeypatch.setattr(recurrence.native, "library", lambda: lib)
    yield request.param


def scan_of(case: str) -> tuple[DeltaRule | Additive | StateSpace, Inputs, Tensor]:
    """A recurrence, its inputs of T tokens and queries; no size is a multiple of a vector, but
    those of "delta".
    """
    torch.manual_seed(3)
    G, H, N, P = (2, 4, 64, 96) if case == "delta" else (2, 4, 20, 37)

    def decays(*shape: int) -> Tensor:
        return -0.3 * torch.rand(T, *shape)

    k = torch.randn(T, G, N)
    q = torch.randn(T, G, N)
    v = torch.randn(T, H, P)
    if "delta" in case:
        g = decays(H, N) if "by key" in case else decays(H)
        k = k if case != "plain delta" else k / k.norm(dim=-1, keepdim=True)
        return DeltaRule(case != "plain delta"), (k, v, g, torch.rand(T, H)), q
    if "additive" in case:
        return Additive(), (decays(H, N) if "by key" in case else decays(H), k, v), q
    D = 130
    S = 16 if "narrow" in case else 5
    x = torch.randn(T, D, 1)
    dt = torch.rand(T, D)
    B = torch.randn(T, 1, S)
    C = torch.randn(T, 1, S)
    return StateSpace(-torch.rand(D, S)), (x, dt, B), C


def of(inputs: Inputs, tokens: slice | list[int]) -> Inputs:
    return tuple(x[tokens] for x in inputs)


def in_parts(
    scan: DeltaRule | Additive | StateSpace, inputs: Inputs, q: Tensor, sizes: list[int]
) -> list[Tensor]:
    """Outputs and the last state of a chain in calls of these sizes."""
    state = None
    outputs = list[Tensor]()
    begin = 0
    for size in sizes:
        part = slice(begin, begin + size)
        out, state = scan.run(state, of(inputs, part), (q[part],))
        outputs.append(out)
        begin += size
    assert begin == T and state is not None
    return [torch.cat(outputs), state]


@pytest.mark.parametrize("case", CASES)
def test_equals_torch(build: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scan, inputs, q = scan_of(case)
    actual = in_parts(scan, inputs, q, [100, 50])
    monkeypatch.setattr(recurrence.native, "library", lambda: None)
    for a, b in zip(actual, in_parts(scan, inputs, q, [T]), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_calls_threads_or_outputs(build: str, case: str) -> None:
    scan, inputs, q = scan_of(case)
    expected = in_parts(scan, inputs, q, [T])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for sizes in ([1] * T, [8] * 18 + [6], [64, 64, 22], [3, 147]):
                assert all(map(torch.equal, in_parts(scan, inputs, q, sizes), expected)), (
                    count,
                    sizes[0],
                )
            state = scan.replay(
                scan.replay(None, of(inputs, slice(71))), of(inputs, slice(71, None))
            )
            assert torch.equal(state, expected[1])
    finally:
        torch.set_num_threads(threads)


def test_the_given_state_stays(build: str) -> None:
    scan, inputs, q = scan_of("delta")
    state = scan.replay(None, inputs)
    before = state.clone()
    scan.run(state, inputs, (q,))
    assert torch.equal(state, before)


def test_a_token_too_many_is_noticed(build: str) -> None:
    """The fault that replay must not have: the comparison above would see it."""
    scan, inputs, _ = scan_of("delta")
    state = scan.replay(None, of(inputs, slice(8)))
    assert not torch.equal(state, scan.replay(None, of(inputs, slice(9))))


def test_shapes_that_contradict_each_other_are_refused(build: str) -> None:
    _, (k, v, g, beta), q = scan_of("delta")
    whole = chain(T, torch.device("cpu"))
    with pytest.raises(ValueError, match="4 heads, 64 keys and 96 values"):
        recurrence.along(Terms(k, v, g, beta[:, :2], q), None, whole)
    with pytest.raises(ValueError, match="has shapes"):
        recurrence.along(Terms(k, v, g, beta, q), torch.zeros(4, 64, 95), whole)
    with pytest.raises(RuntimeError, match="shapes of a recurrence"):
        recurrence.along(Terms(k, v[:, :3], g[:, :3]), None, whole)


@pytest.mark.parametrize("step", [(T, ON, -1), (3, -3, -1), (3, 1, -1), (3, ON, 1), (3, ON, -2)])
def test_orders_beyond_the_tokens_or_slots_are_refused(
    build: str, step: tuple[int, int, int]
) -> None:
    _, (k, v, g, beta), _ = scan_of("delta")
    order = Order(torch.tensor([(0, COMMITTED, 0), step], dtype=torch.int32), 1, 1)
    with pytest.raises(RuntimeError, match="shapes of a recurrence"):
        recurrence.along(Terms(k, v, g, beta), None, order)


def a_tree(seed: int, size: int) -> tuple[list[tuple[int, list[int]]], list[list[int]]]:
    """Segments of a random tree of `size` tokens in depth-first order, whose numbers are shuffled,
    and each one's path to its last token.
    """
    draw = random.Random(seed)
    left = draw.sample(range(T), size)
    segments = list[tuple[int, list[int]]]()
    paths = list[list[int]]()

    def grow(after: int, path: list[int], depth: int) -> None:
        own = [left.pop() for _ in range(min(len(left), draw.randint(1, 6)))]
        if own:
            number = len(segments)
            segments.append((after, own))
            paths.append(path + own)
            for _ in range(draw.randint(0, 3) if depth < 5 else 0):
                grow(number, paths[number], depth + 1)

    while left:
        grow(-1, [], 0)
    return segments, paths


@pytest.mark.each_value
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [9, 149])
def test_a_tree_in_a_call_has_the_bits_of_its_paths(build: str, case: str, size: int) -> None:
    """In one tile of the kernel and in two; from a state; a token that was left out has an output
    of zero.
    """
    assert tree_differs(case, size) == 0


def tree_differs(case: str, size: int) -> int:
    """How many paths of trees have other outputs or kept states than alone."""
    scan, inputs, q = scan_of(case)
    start = scan.replay(None, inputs)
    # tokens before have no outputs
    first = 5
    different = 0
    for seed in range(3):
        segments, paths = a_tree(seed, size)
        keep = (paths[0][0], paths[len(paths) // 2][-1])
        order = depth_first(segments, T, torch.device("cpu"), keep)
        out, kept = scan.along(start, inputs, (q[first:],), order)
        expected = torch.zeros_like(out)
        for path in paths:
            wanted, _ = scan.run(start, of(inputs, path), (q[path],))
            for i, token in enumerate(path):
                if token >= first:
                    expected[token - first] = wanted[i]
        different += int((out != expected).flatten(1).any(1).sum())
        for state, token in zip(kept, keep, strict=True):
            path = next(path[: path.index(token) + 1] for path in paths if token in path)
            different += not torch.equal(state, scan.replay(start, of(inputs, path)))
    return different


def test_planted_a_branch_of_another_state_is_noticed(
    build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    along = recurrence.along

    def wrong(terms: Terms, state: Tensor | None, order: Order) -> tuple[Tensor, Tensor]:
        steps = order.steps.clone()
        steps[:, 1][steps[:, 1] >= 0] = ON
        return along(terms, state, Order(steps, order.saved, order.kept, order.all))

    monkeypatch.setattr(recurrence, "along", wrong)
    assert tree_differs("delta", 149)
