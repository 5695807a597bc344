"""benchmarks/coverage.py says what became of a model: what runs, what is refused, and what is
wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

import coverage
import pytest
import tiny_models
from support import feature_models

import longdraft.models.lm
from longdraft import InputError
from longdraft.backends.features import table
from longdraft.backends.features.compressed import Compressed
from longdraft.models.support import refuse

sys.path.append(str(Path(__file__).parents[2] / "docs"))
import models

WORKS = models.WORKS
# A model of each layout and one with each feature, with a tree and a view. Every kind of model runs
# with these two methods when backends, models or versions changed (tests/changed.py), and weekly
# with all methods.
LAYOUTS = ("gpt2", "opt", "phi", "falcon", "bloom", "nemotron")
EVERY_KIND_OF_LAYER = [*dict.fromkeys([*LAYOUTS, "mistral4", *feature_models.one_of_each()])]
EACH_KIND = [  # one takes half a minute, and test_indexers.py runs it with two methods
    pytest.param(kind, marks=pytest.mark.weekly if kind == "deepseek_v4" else ())
    for kind in EVERY_KIND_OF_LAYER
]
FEW = {name: coverage.METHODS[name] for name in ("recycle", "vegas-tree")}


@pytest.mark.full
@pytest.mark.parametrize("kind", EACH_KIND)
def test_every_kind_of_layer_runs(kind):
    if kind in tiny_models.KINDS:
        record = coverage.examined(kind, FEW)
    else:
        record = coverage.decoded(feature_models.stock(kind), FEW)
    assert record["class"] in WORKS, record


@pytest.mark.full
@pytest.mark.parametrize(
    "methods",
    [
        pytest.param(FEW, id="two_methods"),
        pytest.param(coverage.METHODS, id="all_methods", marks=pytest.mark.weekly),
    ],
)
@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_every_model_type_runs_or_is_refused(kind, methods):
    record = coverage.examined(kind, methods)
    assert record["class"] in (*WORKS, "refused"), record
    assert kind not in EVERY_KIND_OF_LAYER or record["class"] in WORKS


def one_of_each_combination_of_layers() -> list[str]:
    """Kinds that run, by the table of docs/models.md."""
    return list(
        {tuple(r["layers"]): r["kind"] for r in models.records() if r["class"] in WORKS}.values()
    )


def refused(kinds: list[str]) -> dict[str, str]:
    """The kinds among these whose configuration is refused, with the reason."""
    found = {}
    for kind in set(kinds) & set(tiny_models.KINDS):  # this version of Transformers may have fewer
        try:
            refuse(tiny_models.config(kind))
        except InputError as error:
            found[kind] = str(error)
    return found


@pytest.mark.full
def test_what_the_table_says_runs_is_not_refused(monkeypatch):
    kinds = one_of_each_combination_of_layers()
    assert len(kinds) >= 12 and "deepseek_v4" in kinds and refused(kinds) == {}
    # planted: one kind is forgotten
    known = tuple(kind for kind in table.FEATURES if kind is not Compressed)
    monkeypatch.setattr(table, "FEATURES", known)
    assert set(refused(kinds)) == {"deepseek_v4"} & set(tiny_models.KINDS)


@pytest.mark.full
def test_nothing_that_the_table_says_runs_is_refused():
    assert refused([r["kind"] for r in models.records() if r["class"] in WORKS]) == {}


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("llama", {"exact", "equal"}),
        ("gemma2", {"exact", "equal"}),
        ("bloom", {"equal"}),
        ("rwkv", {"refused"}),
    ],
)
def test_what_became_of_a_kind(kind, outcome):
    record = coverage.examined(kind, {"vegas": coverage.METHODS["vegas"]})
    assert record["class"] in outcome, record
    assert ("why" in record) == (outcome == {"refused"})


@pytest.mark.parametrize("kind", ["inkling_text", "inkling_mm_model"])
def test_a_bias_of_positions_is_refused_before_a_model_is_built(kind, monkeypatch):
    """Building one needs scipy, and decoding would fail only at the first pass."""
    config = tiny_models.config(kind)
    with pytest.raises(InputError, match="adds a bias of positions"):
        refuse(config)
    monkeypatch.setattr("longdraft.models.support.adds_biases", lambda cls: False)  # planted
    refuse(config)


def test_a_method_that_says_something_else_is_a_failure(monkeypatch):
    say = coverage.generate
    other = lambda lm, p, d=None, **more: say(lm, p, seed=int(d is not None), **more)  # noqa: E731
    monkeypatch.setattr(coverage, "generate", other)
    record = coverage.examined("llama", {"lookup": coverage.METHODS["lookup"]})
    assert record["why"] == "lookup: another output (T=1)"


@pytest.mark.full
def test_a_model_that_says_something_else_is_a_failure(monkeypatch):
    project = longdraft.models.lm.LM.__call__
    monkeypatch.setattr(
        longdraft.models.lm.LM, "__call__", lambda *a, **k: project(*a, **k).flip(-1)
    )
    monkeypatch.setattr(coverage, "probe", lambda hf: None)
    record = coverage.examined("gemma2", {})
    assert record["why"] == "greedy output differs from Transformers' generate"


def test_a_tiny_configuration_has_each_kind_of_layer():
    config = tiny_models.config("llama4_text")
    assert (
        set(config.layer_types) == {"chunked_attention", "full_attention"}
        and config.hidden_size == tiny_models.WIDTH
    )
