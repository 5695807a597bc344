"""Every implementation of attention against the specification, ops.reference, and that against
plain softmax.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longdraft import ops
from longdraft.ops import Segment, cpu, reference

IMPLEMENTATIONS = {"cpu": cpu.attend}
if ops.attend is not cpu.attend:
    IMPLEMENTATIONS["this machine's"] = ops.attend

# Largest error allowed, on values and scaled logits of order 1: float32 sums in another order; in
# bfloat16 (8 bits of
# precision, relative error 2^-9 a rounding) the weights and the output are each rounded.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}

each_implementation = pytest.mark.parametrize(
    "attend", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS
)


FEW = [1, 2, 3, 5, 8, 17]
MANY = [64, 128, 129, 300]


@st.composite
def cases(draw, queries=(*FEW, *MANY)) -> dict:
    """A call of attend: 1-3 segments, of which any may have a masked tail; the last one shows each
    query a key.
    """
    T = draw(st.sampled_from(queries))
    K = draw(st.integers(1, 3))
    G = draw(st.integers(1, 4))
    D = draw(st.sampled_from([8, 16, 20, 64]))
    Dv = draw(st.sampled_from([D, D, D, 24]))
    g = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    segments = []
    for last in [False] * draw(st.integers(0, 2)) + [True]:
        S = draw(st.integers(1, 90)) if not last else draw(st.integers(T, T + 40))
        visible = None
        if draw(st.booleans()):
            M = draw(st.integers(1, S)) if not last else T
            visible = torch.rand(T, M, generator=g) < 0.5
            if last:
                visible.fill_diagonal_(True)  # every query must see a key somewhere
        before = draw(st.integers(0, 5))
        after = draw(st.integers(0, 5))
        segments.append(
            (buffer(g, K, S, D, before, after), buffer(g, K, S, Dv, before, after), visible)
        )
    found = {
        "q": torch.randn(T, K * G, D, generator=g).transpose(0, 1),
        "segments": segments,
        "scale": D**-0.5,
    }
    found["softcap"] = draw(st.sampled_from([None, None, 2.0]))
    found["sink"] = torch.randn(K * G, generator=g) if draw(st.booleans()) else None
    found["keep"] = draw(st.sampled_from([None, [0], [T - 1], sorted({0, T - 1})]))
    return found


def buffer(
    g: torch.Generator, K: int, S: int, D: int, before: int, after: int
) -> tuple[Tensor, slice]:
    """A larger buffer that holds NaN around the S slots to be read: what is not visible must not
    leak.
    """
    x = torch.full((K, before + S + after, D), float("nan"))
    x[:, before : before + S] = torch.randn(K, S, D, generator=g)
    return x, slice(before, before + S)


def arguments(case: dict, dtype: torch.dtype) -> dict:
    def cut(x: tuple[Tensor, slice]) -> Tensor:
        return x[0].to(dtype)[:, x[1]]

    segments = [Segment(cut(k), cut(v), visible) for k, v, visible in case["segments"]]
    sink = None if case["sink"] is None else case["sink"].to(dtype)
    return {**case, "q": case["q"].to(dtype), "segments": segments, "sink": sink}


def in_float32(call: dict) -> dict:
    """The same numbers, computed without further rounding."""
    segments = [Segment(s.k.float(), s.v.float(), s.visible) for s in call["segments"]]
    sink = None if call["sink"] is None else call["sink"].float()
    return {**call, "q": call["q"].float(), "segments": segments, "sink": sink}


def check_equal(found: Tensor | None, want: Tensor | None, tolerance: float) -> None:
    assert (found is None) == (want is None)
    if found is not None and want is not None:
        assert found.shape == want.shape
        hidden = want == float("-inf")
        assert torch.equal(found == float("-inf"), hidden)
        error = (found.float() - want).masked_fill(hidden, 0).abs().max()
        # NaN fails, too
        assert float(error) < tolerance * max(1.0, float(want.masked_fill(hidden, 0).abs().max()))


def check_implementation(attend, case: dict, dtype: torch.dtype) -> None:
    call = arguments(case, dtype)
    found = attend(**call)
    want = reference.attend(**in_float32(call))
    for name in ("out", "logits", "weights"):
        check_equal(getattr(found, name), getattr(want, name), TOLERANCE[dtype])
    assert found.out.dtype == dtype


@pytest.mark.full
@each_implementation
@given(cases())
@settings(max_examples=300)
def test_equals_the_reference_in_float32(attend, case):
    check_implementation(attend, case, torch.float32)


@pytest.mark.full
@each_implementation
@given(cases())
@settings(max_examples=80)
def test_equals_the_reference_in_bfloat16(attend, case):
    check_implementation(attend, case, torch.bfloat16)


@pytest.mark.full
@given(cases())
@settings(max_examples=60)
def test_the_reference_is_softmax_over_what_is_visible(case):
    """The specification itself, written once more without parts: one softmax a head over the keys
    joined.
    """
    call = arguments(case, torch.float32)
    q = call["q"].double()
    segments = call["segments"]
    scale = call["scale"]
    groups = q.shape[0] // segments[0].k.shape[0]
    k, v = (torch.cat([getattr(s, n) for s in segments], 1).double() for n in "kv")
    mask = torch.cat([reference.full_mask(s, q.shape[1]) for s in segments], 1)
    for head in range(q.shape[0]):
        logits = q[head] @ k[head // groups].T * scale
        if call["softcap"]:
            logits = call["softcap"] * torch.tanh(logits / call["softcap"])
        weights = logits.masked_fill(~mask, float("-inf")).exp()
        below = weights.sum(1, keepdim=True)
        if call["sink"] is not None:
            below = below + call["sink"][head].double().exp()
        out = (weights / below) @ v[head // groups]
        check_equal(reference.attend(**call).out[:, head], out.float(), TOLERANCE[torch.float32])


@pytest.mark.full
@given(cases(FEW))
@settings(max_examples=30)
def test_how_keys_are_cut_into_segments_does_not_matter(case):
    """The same keys as one segment or several: what a view's compact copy rests on."""
    call = arguments({**case, "keep": None}, torch.float32)
    want = reference.attend(**call).out
    parts = [p for s in call["segments"] for p in cpu._split(s)]
    pieces = [p for p in parts if p.visible is not None]
    for p in parts:
        if p.visible is None:
            pieces += [Segment(*x) for x in zip(p.k.split(7, 1), p.v.split(7, 1), strict=True)]
    for attend in (reference.attend, *IMPLEMENTATIONS.values()):
        check_equal(attend(**{**call, "segments": pieces}).out, want, TOLERANCE[torch.float32])


def test_a_merge_with_nothing_is_no_change():
    out = torch.randn(2, 3, 4)
    lse = torch.randn(2, 3)
    nothing = (torch.zeros(2, 3, 4), torch.full((2, 3), float("-inf")))
    for a, b in (((out, lse), nothing), (nothing, (out, lse))):
        merged = reference.merge(a, b)
        assert torch.equal(merged[0], out) and torch.equal(merged[1], lse)


@each_implementation
def test_large_logits_stay_finite(attend):
    """Attention sinks in trained models reach logits of hundreds."""
    q = torch.full((2, 3, 16), 40.0)
    k = torch.randn(1, 50, 16, generator=torch.Generator().manual_seed(0)) * 10
    segments = [Segment(k[:, :20], k[:, :20]), Segment(k[:, 20:], k[:, 20:])]
    check_equal(attend(q, segments, 1.0).out, reference.attend(q, segments, 1.0).out, 1e-4)
