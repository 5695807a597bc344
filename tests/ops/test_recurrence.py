"""The kernel for recurrences along chains, in every build that this machine can run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from longdraft.backends.recurrences import Additive, DeltaRule, StateSpace
from longdraft.core.states import Inputs
from longdraft.ops import native, recurrence
from longdraft.ops.scan import Terms

BUILDS = [kind for kind in native.NEEDS if native.opened(kind)[0] is not None]
CASES = ["delta", "delta by key", "plain delta", "additive", "additive by key", "mamba", "narrow mamba"]
T = 150  # tokens: more than two tiles of the kernel


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    lib = native.opened(request.param)[0]
    monkeypatch.setattr(recurrence.native, "library", lambda: lib)
    yield request.param


def scan_of(case: str) -> tuple[DeltaRule | Additive | StateSpace, Inputs, Tensor]:
    """A recurrence, its inputs of T tokens and queries; no size is a multiple of a vector, but those of "delta"."""
    torch.manual_seed(3)
    G, H, N, P = (2, 4, 64, 96) if case == "delta" else (2, 4, 20, 37)

    def decays(*shape: int) -> Tensor:
        return -0.3 * torch.rand(T, *shape)

    k, q, v = torch.randn(T, G, N), torch.randn(T, G, N), torch.randn(T, H, P)
    if "delta" in case:
        g = decays(H, N) if "by key" in case else decays(H)
        k = k if case != "plain delta" else k / k.norm(dim=-1, keepdim=True)
        return DeltaRule(case != "plain delta"), (k, v, g, torch.rand(T, H)), q
    if "additive" in case:
        return Additive(), (decays(H, N) if "by key" in case else decays(H), k, v), q
    D, S = 130, 16 if "narrow" in case else 5
    x, dt, B, C = torch.randn(T, D, 1), torch.rand(T, D), torch.randn(T, 1, S), torch.randn(T, 1, S)
    return StateSpace(-torch.rand(D, S)), (x, dt, B), C


def of(inputs: Inputs, tokens: slice) -> Inputs:
    return tuple(x[tokens] for x in inputs)


def in_parts(scan: DeltaRule | Additive | StateSpace, inputs: Inputs, q: Tensor, sizes: list[int]) -> list[Tensor]:
    """Outputs and the last state of a chain in calls of these sizes."""
    state, outputs, begin = None, list[Tensor](), 0
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
                assert all(map(torch.equal, in_parts(scan, inputs, q, sizes), expected)), (count, sizes[0])
            state = scan.replay(scan.replay(None, of(inputs, slice(71))), of(inputs, slice(71, None)))
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
    with pytest.raises(ValueError, match="4 heads, 64 keys and 96 values"):
        recurrence.scan(Terms(k, v, g, beta[:, :2], q), None)
    with pytest.raises(ValueError, match="has shapes"):
        recurrence.scan(Terms(k, v, g, beta, q), torch.zeros(4, 64, 95))
    with pytest.raises(RuntimeError, match="shapes of a recurrence"):
        recurrence.scan(Terms(k, v[:, :3], g[:, :3]), None)
