"""Triton's kernels of recurrent layers beside their specification: run under the interpreter by
gpu_interpreted.py.

Memory that a kernel must write or must not read is NaN.
"""

from __future__ import annotations

from pathlib import Path

import tiny_models
import torch
from torch import Tensor

from longdraft import build, generate, ops
from longdraft.models.lm import LM
from longdraft.ops import scan
from longdraft.ops.scan import Order, Terms
from longdraft.ops.triton import scan_kernels, scans

CPU = torch.device("cpu")
# A fork whose last branch has a fork; a second path from the root; token 6 is padding; 9 follows
# the settled state.
BRANCHES = [(-1, [0, 1]), (0, [2]), (0, [3, 4]), (2, [5]), (2, [7, 8]), (-1, [9])]
TOKENS = 10
KNOWN = 2
KEPT = (0, 1)  # tokens
KINDS = [(True, True, False, 20, 12), (True, False, True, 8, 24), (False, False, False, 16, 17)]


def terms_of(
    delta: bool, normalized: bool, channels: bool, N: int, P: int, kind=torch.float32, seed: int = 0
) -> Terms:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    # queries are a part of a wider tensor, as models split them
    wide = draw(TOKENS - KNOWN, 3, 2, N).to(kind)
    gate = -draw(TOKENS, 4, N).abs() if channels else -draw(TOKENS, 4).abs()
    k = draw(TOKENS, 2, N).to(kind)
    v = draw(TOKENS, 4, P).to(kind)
    beta = draw(TOKENS, 4).sigmoid()
    return Terms(k, v, gate, beta if delta else None, wide[:, 1], N**-0.5, normalized)


def near(computed: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(computed.double(), wanted.double(), rtol=1e-5, atol=1e-5)


def tree() -> Order:
    return scan.depth_first(BRANCHES, TOKENS, CPU, keep=KEPT)


def along() -> None:
    """Over a tree and a chain, from a state and from none, by float64."""
    for n, kind in enumerate(KINDS):
        terms = terms_of(*kind, kind=torch.float16 if n == 0 else torch.float32)
        state = torch.randn(4, kind[3], kind[4], generator=torch.Generator().manual_seed(1))
        for order, held in ((tree(), state), (scan.chain(TOKENS, CPU), None)):
            out, saved = scans.along(terms, held, order)
            wanted, states = scan.along(terms, held, order, torch.float64)
            near(out, wanted)
            near(saved, states)


def same_bits() -> None:
    """A chain in one launch, in two, and as the path of a tree, and its replay: one state."""
    terms = terms_of(*KINDS[0])
    whole = scans.along(terms, None, scan.chain(TOKENS, CPU))[1][0]

    def part(tokens: slice) -> Terms:
        return Terms(
            *(x[tokens] for x in (terms.k, terms.v, terms.gate, terms.beta)),
            None,
            terms.scale,
            True,
        )

    first = scans.along(part(slice(7)), None, scan.chain(7, CPU))[1][0]
    assert torch.equal(
        scans.along(part(slice(7, None)), first, scan.chain(TOKENS - 7, CPU))[1][0], whole
    )
    assert torch.equal(scans.along(part(slice(None)), None, scan.chain(TOKENS, CPU))[1][0], whole)
    line = scan.depth_first([(-1, list(range(7))), (0, [7]), (0, [8, 9])], TOKENS, CPU, keep=(6,))
    assert torch.equal(scans.along(terms, None, line)[1][0], first)


def convolution() -> None:
    g = torch.Generator().manual_seed(2)
    x, state, taps, bias = (
        torch.randn(*s, generator=g) for s in ((6, 300), (3, 300), (300, 4), (300,))
    )
    windows = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 8], [5, 6, 7, 8]], dtype=torch.int32)
    for held, added in ((state, bias), (None, None)):
        source = torch.cat([torch.zeros_like(state) if held is None else held, x])
        wanted = (source[windows] * taps.T).sum(1) + (0 if added is None else added)
        near(scans.convolve(held, x, windows, taps, added), wanted)


def texts() -> None:
    """What hybrids write with these kernels and a tree of drafts is what they write with torch and
    without drafts.
    """
    usual = ops.scans
    for kind in ("qwen3_5_text", "nemotron_h"):
        lm = LM(tiny_models.build(tiny_models.config(kind)))
        prompts = [tiny_models.prompt(4)]
        plain = generate(lm, prompts, max_new_tokens=3)
        ops.scans = lambda x: scans
        try:
            drafts = build("vegas-tree", lm, widths=[2, 1], min_budget=4)
            assert generate(lm, prompts, drafts, max_new_tokens=3) == plain
        finally:
            ops.scans = usual


CHECKS = [along, same_bits, convolution, texts]
SOURCE = Path(scan_kernels.__file__)
STATE = "state + place, mask=here, other=0.0)"
FAULTS = {
    "a branch reads its sibling's state": (SOURCE, "if before >= 0:", "if before >= 99:", along),
    "a path from the root goes on": (
        SOURCE,
        "if before < -1:",
        "if (before < -1) & (i == 0):",
        along,
    ),
    "a state has a token too many": (
        SOURCE,
        "now, mask=here",
        "now + key[:, None] * new[None, :], mask=here",
        along,
    ),
    "a head reads another's keys": (SOURCE, "head // GROUP * k_head", "head % 2 * k_head", along),
    "a query keeps its length": (SOURCE, "query = unit(query)", "query = query", along),
    "a state loses bits between launches": (
        SOURCE,
        STATE,
        STATE + ".to(tl.float16).to(tl.float32)",
        same_bits,
    ),
    "a convolution forgets its left context": (
        SOURCE,
        "value += early",
        "value += 0 * early",
        convolution,
    ),
}
