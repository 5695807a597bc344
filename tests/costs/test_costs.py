"""Counts of passes are those of real caches and modules; terms are found again; costs of unmeasured
models.
"""

from __future__ import annotations

import math
import random
from dataclasses import fields, replace

import pytest
import torch
from support import tiny
from torch import nn

from longdraft.core import CaptureSpec, Tree
from longdraft.costs import counts, passes
from longdraft.costs.counts import ModelCounts, counted, counts_of, pass_over
from longdraft.costs.fit import fit, predicted
from longdraft.costs.machines import MACHINES, machine_of
from longdraft.costs.passes import Pass, PassCosts, overlapped
from longdraft.errors import InputError
from longdraft.models.memory_traffic import InCodes, keys_read, weights_of

MODELS = [
    "llama",
    "mistral-window",
    "qwen3-mixed",
    "gpt-oss",
    "deepseek",
    "llama-mqa",
    "qwen3-kv8",
    "qwen3-a8",
]
SPECS = [
    None,
    CaptureSpec(),
    CaptureSpec(rows="ends"),
    CaptureSpec(rows="mean", of="weights"),
    CaptureSpec("last"),
]


def filled(name: str, *lengths: int):
    """The model and a cache with rows of these lengths."""
    model = tiny.target(name)
    cache = model.new_cache(len(lengths), max(lengths) + 8)
    for b, prompt in enumerate(tiny.prompts(*lengths)):
        model.prefill(prompt, cache.row(b))
    return model, cache


@torch.inference_mode()
def check_keys(name: str) -> None:
    model, cache = filled(name, 50, 9)
    assert pass_over(model, [50, 9], 3).keys == keys_read(model, cache)

    def seen(lengths: list[int]) -> list[int]:
        return [min(n, 7) for n in lengths]

    assert pass_over(model, [50, 9], 1, seen=seen).keys == keys_read(model, cache, seen)
    for bits in (4, 8):
        codes = InCodes(lambda lengths: [min(n, 5) for n in lengths], bits)
        assert pass_over(model, [50, 9], 1, seen=seen, codes=codes).keys == keys_read(
            model, cache, seen, codes=codes
        )


@pytest.mark.parametrize("name", MODELS)
def test_keys_are_those_that_a_cache_holds(name, monkeypatch):
    check_keys(name)
    if name == "mistral-window":  # planted: counts that forget windows
        broken = replace(
            counts_of(tiny.target(name)),
            keys=(replace(counts_of(tiny.target(name)).keys[0], span=None),),
        )
        monkeypatch.setattr(counts, "counts_of", lambda model: broken)
        with pytest.raises(AssertionError):
            check_keys(name)


@pytest.mark.parametrize("name", ["llama", "qwen3-a8", "llama-torch-a8", "qwen3"])
def test_products_are_those_of_the_linear_layers(name):
    """As torch's own layers see them: inputs times outputs of each call, for one node."""
    model = tiny.target(name)
    done = []

    def see(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        done.append(args[0].shape[-1] * output.shape[-1])

    layers = [m for m in model.hf.modules() if hasattr(m, "in_features")]
    hooks = [m.register_forward_hook(see) for m in layers]
    try:
        with torch.inference_mode():
            model.eager.forward(
                Tree.root(torch.tensor([5])), model.new_cache(1, 4), 0, None, tiny.Captures()
            )
    finally:
        for hook in hooks:
            hook.remove()
    assert len(done) == len(layers)
    assert pass_over(model, [10], 1).products == sum(done)
    assert pass_over(model, [10, 3], 4).products == 8 * sum(done)


@torch.inference_mode()
def test_states_are_those_of_a_row():
    model, cache = filled("qwen3.5", 20, 30)
    for b, n in enumerate((20, 30)):
        assert cache.row(b).states_at(n)
    shape = counts_of(model)
    assert shape.states == 2 * cache.states(0).nbytes() > 0
    assert pass_over(model, [20, 30], 1).keys == 2 * shape.states + keys_read(model, cache)
    assert counts_of(tiny.target("llama")).states == 0


def test_experts_count_by_their_share():
    model = tiny.target("qwen3-moe")
    p = pass_over(model, [5], 1)
    shared = weights_of(model)
    assert p.weights == shared.read(1) < shared.shared + shared.experts
    sizes = {True: 0, False: 0}
    for name, x in model.hf.named_parameters():
        if x.dim() > 1 and "embed" not in name:
            sizes[".experts." in name] += x.numel()
    assert p.products == sizes[False] + sizes[True] / 2  # 2 of 4 experts


@pytest.mark.parametrize("spec", SPECS, ids=str)
@torch.inference_mode()
def test_scores_are_those_that_a_pass_computes(spec):
    model, cache = filled("mistral-window" if spec is None else "qwen3-mixed", 40)
    captured = tiny.Captures(spec or CaptureSpec())
    model(Tree.chain(torch.tensor([[5, 6, 7]])), cache, captured=captured)
    p = pass_over(model, [40], 3, scored=spec, chosen=True)
    kept = 0 if spec is None or spec.rows is None else {"ends": 2, "last": 1, "mean": 3}[spec.rows]
    assert p.scored == 40 * len(captured.scores) * kept
    full = sum(n not in model.windows for n in range(model.depth))
    assert p.chosen == 40 * full and not pass_over(model, [40], 3).chosen
    assert (p.rows, p.nodes, p.drawn) == (1, 3, 3 * model.vocab)
    assert pass_over(model, [40], 1, chained=True).chained


def test_attention_grows_with_nodes_heads_and_slots():
    model = tiny.target("llama")  # 3 layers of 4 query heads of 16
    assert pass_over(model, [10, 20], 5).pairs == 5 * 30 * 3 * 4 * 32


def test_work_overlaps_in_part():
    for a, b in [(1.0, 0.0), (1.0, 1.0), (3.0, 2.0), (0.0, 0.0), (1e-9, 5.0)]:
        assert max(a, b) * (1 - 1e-12) <= overlapped(a, b) <= (a + b) * (1 + 1e-12)
        assert overlapped(a, b) == overlapped(b, a)
    assert overlapped(0.0, 2.0) == pytest.approx(2.0)


def test_more_work_never_costs_less():
    costs = counted(tiny.target("llama"))
    base = Pass(1, 1, 1e6, 1e6, 1e6, 1e6, 10, 10, 10)
    least = costs.seconds(base)
    for f in fields(Pass):
        if f.name != "chained":
            assert costs.seconds(replace(base, **{f.name: 1000 * getattr(base, f.name)})) > least, (
                f.name
            )
    assert costs.seconds(replace(base, chained=True)) < least
    assert all(getattr(costs, f.name) > 0 for f in fields(PassCosts))


TRUE = PassCosts(4e-4, 1e-4, 2e-11, 3e-12, 3e-11, 2e-12, 2e-5, 2e-5, 2e-10, 0.0, 5e-10)


def points(seed: int, noise: float = 0.03):
    """Passes of a model of the size of SmolLM2, and what they would take."""
    model = ModelCounts(
        weights_of(tiny.target("llama")).__class__(96_000_000), 134_000_000, KEYS, 49152, 30
    )
    rng = random.Random(seed)
    found = []
    for rows in (1, 2, 8):
        for context in (64, 1024, 8192):
            for nodes in (1, 2, 5, 12):
                scored = CaptureSpec(rows="mean") if nodes == 5 else None
                found.append([pass_over(model, [context] * rows, nodes, scored=scored)])
            chain = [
                pass_over(model, [context] * rows, 1, seen=few, chained=i > 0) for i in range(6)
            ]
            found += [chain, chain[:1]]
    return [(p, predicted(TRUE, p) * math.exp(rng.gauss(0, noise))) for p in found]


KEYS = (counts.Keys(30, 768, ((8, 408), (4, 240)), 1152),)


def few(lengths: list[int]) -> list[int]:
    return [n // 10 for n in lengths]


def worst(costs: PassCosts, seed: int) -> float:
    return max(abs(math.log(predicted(costs, p) / s)) for p, s in points(seed, 0.0))


def test_terms_are_found_from_measurements():
    start = PassCosts(
        1e-4, 3e-4, 4e-11, 1e-11, 2e-11, 1e-11, 1e-5, 1e-5, 1e-10, 1e-9, 1e-9, 1e-4, 1e-5, 1e-4
    )
    fitted = fit(points(1), start)
    assert worst(fitted, 2) < 0.15 < 0.3 < worst(start, 2)
    assert (fitted.step, fitted.choose, fitted.block) == (start.step, start.choose, start.block)
    assert all(getattr(fitted, f.name) >= 0 for f in fields(PassCosts))


def test_points_that_are_far_off_count_little():
    disturbed = [(p, s * (4 if i % 9 == 3 else 1)) for i, (p, s) in enumerate(points(3))]
    start = PassCosts(1e-4, 3e-4, 4e-11, 1e-11, 2e-11, 1e-11, 1e-5, 1e-5, 1e-10, 0.0, 1e-9)
    assert worst(fit(disturbed, start), 4) < 0.15


def test_a_machine_that_is_slower_throughout_is_one_factor():
    """From a single pass: the terms that it does not show are scaled like those that it does."""
    [(p, seconds)] = points(5)[:1]
    fitted = fit([(p, 3 * seconds)], TRUE)
    assert (
        worst(
            replace(fitted, **{f.name: getattr(fitted, f.name) / 3 for f in fields(PassCosts)}), 6
        )
        < 0.12
    )


def test_no_points_and_wrong_times():
    assert fit([], TRUE) is TRUE
    with pytest.raises(ValueError, match="not positive"):
        fit([(Pass(), 0.0)], TRUE)


def test_a_fit_without_overlap_is_worse(monkeypatch):
    """Planted: the larger of two times alone, where they overlap in part."""
    measured = points(7, 0.0)

    def error() -> float:
        fitted = fit(measured, TRUE)
        errors = sorted(abs(math.log(predicted(fitted, p) / s)) for p, s in measured)
        return errors[int(0.9 * len(errors))]

    assert error() < 1e-6
    monkeypatch.setattr(passes, "overlapped", max)
    assert error() > 0.01


def test_costs_of_an_unmeasured_model_are_those_of_a_machine():
    model = tiny.target("llama")
    assert (
        counted(model) == counted(model) == counted(model, "cpu") == counted(model, MACHINES["CPU"])
    )
    p = pass_over(model, [100_000], 1)
    seconds = {name: counted(model, name).seconds(p) for name in MACHINES}
    assert seconds["B200"] < seconds["H200"] < seconds["H100"] < seconds["A100"] < seconds["CPU"]
    assert seconds["A100"] < seconds["RTX 4090"] < seconds["CPU"]
    assert machine_of("rtx4090") is machine_of("RTX-4090") is MACHINES["RTX 4090"]
    assert machine_of(torch.device("cpu")) is MACHINES["CPU"]
    with pytest.raises(InputError, match="choose A100"):
        machine_of("abacus")


def test_a_model_that_python_runs_layer_by_layer_has_dearer_passes():
    eager = counts_of(tiny.target("llama-torch"))
    native = replace(counts_of(tiny.target("llama-torch")), one_call=True)
    assert not eager.one_call and counted(eager).call > counted(native).call
