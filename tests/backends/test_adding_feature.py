"""A feature made by the steps of docs/adding-an-architecture.md runs a model that has it."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support import tiny

from longdraft import generate
from longdraft.backends.features import table
from longdraft.core import Tree
from longdraft.errors import InputError
from longdraft.models.lm import LM

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-an-architecture.md").read_text(encoding="utf-8")
FILES = {
    title: textwrap.dedent(text)
    for title, text in re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```$', PAGE, re.M | re.S)
}
FEATURE = "src/longdraft/backends/features/head_gates.py"
ROW = "src/longdraft/backends/features/table.py"
NAME = "longdraft.backends.features.head_gates"


def gated() -> torch.nn.Module:
    """A Llama whose attention modules give a gate for each head to the attention function."""
    hf = tiny.stock("llama")
    for n, layer in enumerate(hf.model.layers):
        attention = layer.self_attn
        attention.head_gate = torch.nn.Buffer(torch.linspace(0.2, 1.5, 4) + 0.1 * n)
        attention.register_forward_pre_hook(
            lambda module, args, kwargs: (args, kwargs | {"gate": module.head_gate}),
            with_kwargs=True,
        )
    return hf


def right_logits(ids: list[int]) -> torch.Tensor:
    """Transformers' own, of the same model with the gates in its output matrices."""
    hf = tiny.stock("llama")
    for n, layer in enumerate(hf.model.layers):
        weight = layer.self_attn.o_proj.weight
        gate = torch.linspace(0.2, 1.5, 4) + 0.1 * n
        weight.data *= gate.repeat_interleave(weight.shape[1] // 4)
    with torch.inference_mode():
        return hf(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


@pytest.fixture
def module(monkeypatch) -> ModuleType:
    """The page's file as a module."""
    module = ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, module)
    exec(compile(FILES[FEATURE], FEATURE, "exec"), vars(module))
    return module


@pytest.fixture
def added(module, monkeypatch) -> ModuleType:
    """The feature in the table, by the row of the page."""
    (kind,) = eval(f"({FILES[ROW]})", vars(module))
    monkeypatch.setattr(table, "FEATURES", (kind, *table.FEATURES))
    return module


def check_gates() -> None:
    lm = LM(gated())
    (prompt,) = tiny.prompts(30)
    cache = lm.new_cache(1, 64)
    lm.prefill(prompt[:-1], cache)
    logits = lm(Tree.root(torch.tensor(prompt[-1:])), cache)[0, -1]
    torch.testing.assert_close(logits, right_logits(prompt), rtol=1e-3, atol=1e-3)


def test_a_model_runs_with_the_feature_of_the_page(added):
    check_gates()
    lm = LM(gated())
    assert type(lm.architecture.features[0]).__name__ == "HeadGates"
    assert lm.backend.name == "eager"
    assert len(generate(lm, tiny.prompts(20), max_new_tokens=4, eos=())[0]) == 4


def test_without_its_row_the_argument_is_refused():
    with pytest.raises(InputError, match="passes gate to attention, which longdraft does not know"):
        check_gates()


def test_a_feature_that_forgets_its_gates_is_caught(added, monkeypatch):
    def attend(self, proceed, call):
        call.arguments.pop("gate")
        return proceed(call)

    monkeypatch.setattr(added.HeadGates, "attend", attend)
    with pytest.raises(AssertionError):
        check_gates()


def test_the_page_has_the_table_of_features(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import features

    assert features.main(["--check"]) == 0, "run python docs/features.py"
    rows = features.rows(table.FEATURES[1:])
    monkeypatch.setattr(features, "rows", lambda: rows)
    assert features.main(["--check"]) == 1
