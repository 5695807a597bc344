"""A state along the paths of a tree in one launch: its order is right, and passes use it on a
GPU.
"""

from __future__ import annotations

import inspect
import random

import pytest
import tiny_models
import torch
from support import tiny
from support.listed import full
from torch import Tensor

from longdraft import build, generate, ops
from longdraft.backends.features.scans import recurrent_pass
from longdraft.backends.features.scans.recurrences import Additive, DeltaRule, StateSpace, convolved
from longdraft.backends.features.scans.recurrent_pass import RowPlan
from longdraft.core.states import RowStates
from longdraft.core.tree import PAD, Tree
from longdraft.models.lm import LM
from longdraft.ops import scan
from longdraft.ops.scan import ON, Order, Terms, chain


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g) for shape in shapes]


def terms_of(tokens: int, wanted: int, seed: int = 0) -> Terms:
    k, v, g, beta, q = drawn(
        seed, (tokens, 2, 8), (tokens, 4, 6), (tokens, 4), (tokens, 4), (wanted, 2, 8)
    )
    return Terms(k, v, -g.abs(), beta.sigmoid(), q, 8**-0.5, normalized=True)


KINDS = {
    "delta rule": (DeltaRule(True), lambda k, v, g, beta: (k, v, g, beta)),
    "delta rule, a gate for each channel": (
        DeltaRule(False), lambda k, v, g, beta: (0.3 * k, v, g[..., None] * k.abs().repeat(1, 2,
        1), beta)
    ),
    "decaying sum": (Additive(), lambda k, v, g, beta: (g, k, v)),
    "state space": (StateSpace(-torch.tensor([0.5, 1, 2, 4])), lambda k, v, g, beta: (v, g.abs(),
    k)),
    "state space, a decay for each channel": (StateSpace(-torch.rand(4, 8)), lambda k, v, g,
    beta: (v, g.abs(), k)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_kernels_are_given_is_the_recurrence(kind):
    own, inputs_of = KINDS[kind]
    terms, (state,) = terms_of(7, 7), drawn(3, (4, 8, 6))
    inputs = inputs_of(terms.k, terms.v, terms.gate, terms.beta)
    for held in (state, None):
        out, end = own.run(held, inputs, (terms.q,))
        computed, saved = scan.along(
            own.terms(inputs, (terms.q,)), held, chain(7, torch.device("cpu"))
        )
        torch.testing.assert_close(computed, out)
        torch.testing.assert_close(saved[0], end)
        replayed = scan.along(own.terms(inputs, None), held, chain(7, torch.device("cpu")))
        assert torch.equal(replayed[1], saved) and not replayed[0].numel()


def by_paths(terms: Terms, state: Tensor, parent: list[int], first: int) -> Tensor:
    """The outputs of tokens from `first` on, each from a chain of its own ancestors."""
    assert terms.beta is not None and terms.q is not None
    out = torch.zeros(len(parent) - first, *terms.v.shape[1:])
    for i in range(first, len(parent)):
        path = []
        node = i
        while parent[i] != PAD and node >= 0:
            path.insert(0, node)
            node = parent[node]
        if path:
            own = Terms(
                terms.k[path], terms.v[path], terms.gate[path], terms.beta[path],
                terms.q[[i - first]],
                terms.scale, terms.normalized,
            )  # fmt: skip
            out[i - first] = scan.along(own, state, chain(len(path), torch.device("cpu")))[0][0]
    return out


def a_tree(seed: int) -> tuple[int, int, list[int]]:
    """(committed tokens without a state, start, parents of the nodes), with padding and forks of
    every depth.
    """
    r = random.Random(seed)
    size = r.randint(1, 14)
    parent = [-1]
    for i in range(1, size):
        parent.append(
            PAD if r.random() < 0.1 else r.choice([p for p in range(i) if parent[p] != PAD])
        )
    start = r.randint(0, size - 1) if r.random() < 0.5 else 0
    return r.randint(0, 4), start, parent


# the last branch of a fork has a fork, whose first branch has one
FORKS = (
    0,
    0,
    [-1, 0, 0, 2, 3, 3, 2],
)


def settled(plan: RowPlan, terms: Terms, state: Tensor, kept: Tensor) -> bool:
    """Whether a state was kept after each stop, and it is that of the tokens up to there."""
    for token, own in zip(plan.kept, kept, strict=True):
        tokens = slice(token + 1)
        assert terms.beta is not None
        alone = Terms(
            terms.k[tokens],
            terms.v[tokens],
            terms.gate[tokens],
            terms.beta[tokens],
            None,
            terms.scale,
            True,
        )
        if not torch.equal(
            scan.along(alone, state, chain(token + 1, torch.device("cpu")))[1][0], own
        ):
            return False
    return True


def order_is_right(order_of, count: int = 60) -> bool:
    for seed, (early, start, parent) in enumerate([FORKS, *map(a_tree, range(count))]):
        plan = RowPlan(RowStates(position=3), 3 + early, parent, start)
        order = order_of(plan)
        terms, (state,) = (
            terms_of(len(plan.parent), len(plan.parent) - plan.known, seed),
            drawn(seed, (4, 8, 6)),
        )
        computed, saved = scan.along(terms, state, order)
        wanted = by_paths(terms, state, plan.parent, plan.known)
        if not torch.equal(computed, wanted) or not settled(plan, terms, state, saved):
            return False
    return True


def test_each_branch_continues_its_parents_state():
    assert order_is_right(lambda plan: plan.order(torch.device("cpu")))


def changed(change):
    def order_of(plan: RowPlan) -> Order:
        order = plan.order(torch.device("cpu"))
        steps = order.steps.clone()
        change(steps)
        return Order(steps, order.saved, order.kept, order.all)

    return order_of


def a_sibling(steps: Tensor) -> None:
    steps[:, 1][steps[:, 1] >= 0] = ON


def the_first_slot(steps: Tensor) -> None:
    steps[:, 1:].clamp_(max=0)


def a_token_too_many(steps: Tensor) -> None:
    steps[:, 2] = steps[:, 2].roll(1)


@pytest.mark.parametrize("fault", [a_sibling, the_first_slot, a_token_too_many])
def test_planted_a_branch_that_reads_another_state(fault):
    assert not order_is_right(changed(fault))


def test_planted_a_slot_that_is_taken_too_early(monkeypatch):
    source = inspect.getsource(scan.depth_first)
    free = "min(free)"
    assert source.count(free) == 1
    names = dict(vars(scan))
    exec(source.replace(free, "len(keep) + len(slots)"), names)
    monkeypatch.setattr(recurrent_pass, "depth_first", names["depth_first"])
    assert not order_is_right(lambda plan: plan.order(torch.device("cpu")))


class Spec:
    """What a GPU's kernels compute, by their specification, and how many launches there were."""

    def __init__(self) -> None:
        self.scans = 0
        self.convolutions = 0
        self.branches = 0

    def along(self, terms: Terms, state: Tensor | None, order: Order) -> tuple[Tensor, Tensor]:
        self.scans += 1
        self.branches += int((order.steps[:, 1] >= 0).sum())
        return scan.along(terms, state, order)

    def convolve(self, state, x, windows, taps, bias) -> Tensor:
        self.convolutions += 1
        source = torch.cat(
            [x.new_zeros(taps.shape[1] - 1, x.shape[1]) if state is None else state, x]
        )
        return convolved(source[windows], taps, bias).to(x.dtype)


@pytest.mark.parametrize("kind", ["qwen3_5_text", pytest.param("nemotron_h", marks=full)])
def test_passes_by_kernels_write_the_text_of_torch(kind, monkeypatch):
    lm = LM(tiny_models.build(tiny_models.config(kind)))
    gpu = Spec()
    prompts = tiny.prompts(21, 140, seed=5)
    plain = generate(lm, prompts, max_new_tokens=12)
    monkeypatch.setattr(ops, "scans", lambda x: gpu)
    assert generate(lm, prompts, max_new_tokens=12) == plain
    tree = build("vegas-tree", lm, widths=[2, 2], min_budget=8)
    assert generate(lm, prompts, tree, max_new_tokens=12) == plain
    assert gpu.scans and gpu.convolutions and gpu.branches


@pytest.mark.parametrize("gpu", [None, Spec()], ids=["torch", "kernels"])
@torch.no_grad()
def test_a_row_may_have_no_new_node(gpu, monkeypatch):
    """The other row's are computed as they are alone."""
    monkeypatch.setattr(ops, "scans", lambda x: gpu)
    lm = LM(tiny_models.build(tiny_models.config("qwen3_5_text")))
    cache = lm.new_cache(2, 32)
    alone = lm.new_cache(1, 32)
    for held in (cache.row(0), cache.row(1), alone):
        lm.extend_cache(torch.arange(3, 9)[None], held)
    tree = Tree.chain(torch.tensor([[5], [5]]))
    lm(tree, cache)
    lm(tree.row(0), alone)
    tree = tree.grow(torch.tensor([[0], [PAD]]), torch.tensor([[7], [7]]))
    torch.testing.assert_close(lm(tree, cache, 1)[:1], lm(tree.row(0), alone, 1))


def test_planted_a_kernel_that_forgets_the_state_changes_the_text(monkeypatch):
    class Forgets(Spec):
        def along(self, terms, state, order):
            return super().along(terms, None, order)

    lm = LM(tiny_models.build(tiny_models.config("qwen3_5_text")))
    gpu = Forgets()
    plain = generate(lm, tiny.prompts(21, seed=5), max_new_tokens=12)
    monkeypatch.setattr(ops, "scans", lambda x: gpu)
    assert generate(lm, tiny.prompts(21, seed=5), max_new_tokens=12) != plain


def test_without_a_gpu_torch_computes_scans():
    assert ops.scans(torch.zeros(1)) is None
