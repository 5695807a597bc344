"""The methods inside vLLM are one table, which names and options, the choice of classes and the
README follow.

vLLM itself is not needed: nothing here runs a method.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from longdraft.methods import METHODS

PLUGIN = Path(__file__).resolve().parents[2] / "longdraft-vllm"
README = (PLUGIN / "README.md").read_text(encoding="utf-8")
CPU = "vllm.v1.worker.cpu_worker.CPUWorker"


@pytest.fixture
def options(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(PLUGIN / "src")
    return import_module("longdraft_vllm.options")


def config(model: str | None, v2: bool = False, **given: Any) -> SimpleNamespace:
    """A user's choice of a class of longdraft_vllm, as vLLM has it before the plugin completes
    it.
    """
    return SimpleNamespace(
        speculative_config=model
        and SimpleNamespace(method="custom_class", model=model, num_speculative_tokens=5),
        additional_config={"longdraft": given},
        use_v2_model_runner=v2,
        parallel_config=SimpleNamespace(worker_cls=CPU),
        scheduler_config=SimpleNamespace(scheduler_cls=None, max_num_seqs=3),
        model_config=SimpleNamespace(max_model_len=200),
    )


def check_options(offered: Any) -> None:
    """Its options are of longdraft's method, or its own."""
    known = METHODS[offered.method].options.model_fields.keys()
    assert set(offered.options) <= known and not offered.extra.keys() & known


def test_the_table_is_that_of_the_readme(options):
    rows = re.findall(r"^\| `longdraft_vllm\.(\w+)` \| ([\w-]+) \| .* \| (.*) \|$", README, re.M)
    table = {name: (method, tuple(re.findall(r"`(\w+)`", listed))) for name, method, listed in rows}
    assert table == {o.name: (o.method, (*o.options, *o.extra)) for o in options.METHODS.values()}
    for offered in options.METHODS.values():
        check_options(offered)
        with pytest.raises(AssertionError):
            check_options(replace(offered, options=("depth",)))


def test_every_name_is_a_class_that_says_what_it_drafts(options, monkeypatch):
    package = import_module("longdraft_vllm")
    monkeypatch.setattr(import_module("longdraft_vllm.contract"), "check", lambda part: None)
    assert set(package.__all__) == {"register", *options.METHODS}
    for name, offered in options.METHODS.items():
        made = getattr(package, name)(config(offered.model))
        assert (
            type(made).__name__ == name and hasattr(made, "propose") and hasattr(made, "load_model")
        )
        assert hasattr(made, "select") is (offered.drafts_from == "target")
        assert hasattr(made, "chains") is (offered.drafts_from != "target")
        assert hasattr(made, "read") is (offered.drafts_from == "logits")
    with pytest.raises(AttributeError, match="has no attribute 'Medusa'"):
        package.Medusa  # noqa: B018


def test_options_have_the_defaults_and_limits_of_the_record(options):
    view = import_module("longdraft_vllm.views").Vegas(
        config("longdraft_vllm.Vegas", min_budget=64, every=2)
    )
    assert (view.keep_ratio, view.min_budget, view.reach, view.every) == (0.07, 64, 8, 2)
    window = import_module("longdraft_vllm.views").MagicdecStream(
        config("longdraft_vllm.MagicdecStream", keep_ratio=1)
    )
    assert (window.sink, window.keep_ratio, window.min_budget, window.every) == (4, 1.0, 256, 1)
    given = config("longdraft_vllm.Lookup", n=2)
    assert options.options_of(given, "Lookup", count=5) == {"n": 2, "count": 5}
    given.additional_config["longdraft"]["count"] = 3
    assert options.options_of(given, "Lookup", count=5) == {"n": 2, "count": 3}
    for name, wrong, says in (
        (
            "Vegas",
            {"gamma": 3},
            "Vegas has no option gamma; its options are keep_ratio, min_budget, reach, every",
        ),
        ("Vegas", {"keep_ratio": 7}, "option keep_ratio is 7: give a number above 0"),
        ("Recycle", {"nodes": 3}, "Recycle has no option nodes; its options are keyed_noise"),
    ):
        with pytest.raises(ValueError, match=says):
            options.options_of(config(None, **wrong), name)


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("name", [None, "Suffix", "Lookup", "Recycle", "Vegas", "MagicdecStream"])
def test_the_classes_that_a_method_needs_are_chosen(options, monkeypatch, name, v2):
    plugin = import_module("longdraft_vllm.plugin")
    monkeypatch.setattr(plugin.contract, "check", lambda part: None)
    made = config(name and options.METHODS[name].model, v2)
    plugin.choose(made)
    worker = (
        "longdraft_vllm.cpu.Worker"
        if name in ("Recycle", "Vegas", "MagicdecStream") and not v2
        else CPU
    )
    assert made.parallel_config.worker_cls == worker
    ours = plugin.SCHEDULER if name in ("Vegas", "MagicdecStream") else None
    assert made.scheduler_config.scheduler_cls == ours
    if name == "Vegas":
        others = config("longdraft_vllm.Vegas", v2)
        monkeypatch.setitem(
            options.METHODS, name, replace(options.METHODS[name], drafts_from="text")
        )
        plugin.choose(others)
        assert others.scheduler_config.scheduler_cls is None


def test_the_newer_runner_accepts_those_that_run_there(options, monkeypatch):
    v2 = import_module("longdraft_vllm.v2")
    fit = True
    monkeypatch.setattr(v2.contract, "fits", lambda *parts: fit)
    refused = "speculative method 'custom_class'"
    features = v2.accepting(lambda self: [refused, "another feature"])
    for offered in options.METHODS.values():
        assert features(config(offered.model)) == ["another feature"]
    assert (
        features(config("somebody.Else")) == features(config(None)) == [refused, "another feature"]
    )
    fit = False
    assert refused in features(config("longdraft_vllm.Vegas"))


def test_a_process_that_drafts_nothing_imports_neither_longdraft_nor_torch():
    code = (
        "import sys, longdraft_vllm.plugin; print({'torch', 'longdraft', 'longdraft.core'} & "
        "sys.modules.keys())"
    )
    there = {"PYTHONPATH": str(PLUGIN / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=there, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
