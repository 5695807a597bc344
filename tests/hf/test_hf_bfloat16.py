"""hf_generate in bfloat16: it differs from Transformers' generate at ties, as often as Transformers
does in float32.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hf_agreement import CONTROL, Agreement, compare, longdraft_by
from support import tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

from longdraft.audit.ties import TOLERANCE
from longdraft.bench.inputs import stdlib_prompt
from longdraft.bench.records import read_records
from longdraft.core import Rows, Sampler, Tree, Verdict, match
from longdraft.hf import wrapped
from longdraft.models.loading import BUNDLED

METHODS = {"plain": {}, "vegas": {"gamma": 4, "min_budget": 16}, "lookup": {"n": 2}}
LENGTHS = (31, 40, 66, 52)
NEW = 24


def found(name: str, *methods: str, new: int = NEW) -> dict[str, Agreement]:
    model = tiny.stock(name, dtype=torch.bfloat16)
    runs = {method: longdraft_by(model, method, **METHODS[method]) for method in methods}
    agreed = compare(model, tiny.prompts(*LENGTHS), new, runs)
    assert all(a.tokens == len(LENGTHS) * new for a in agreed.values())
    return agreed


def fault(agreed: dict[str, Agreement], method: str) -> str:
    """Why differences are no rounding; empty if they are."""
    return agreed[method].fault(agreed[CONTROL], TOLERANCE["bfloat16"]) or ""


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(n, marks=pytest.mark.full) for n in ("llama-mha", "qwen3"))]
)
def test_differences_are_ties_as_rare_as_those_of_float32(name):
    agreed = found(name, "plain", "vegas")
    assert fault(agreed, "plain") == fault(agreed, "vegas") == ""


@pytest.mark.full
def test_so_they_are_in_text():
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    model = AutoModelForCausalLM.from_pretrained(BUNDLED, dtype="bfloat16")
    model.generation_config.eos_token_id = None
    ids, _ = stdlib_prompt(tokenizer, 4 * 256)
    prompts = [ids[i * 256 :][:256] for i in range(4)]
    agreed = compare(model, prompts, 48, {m: longdraft_by(model, m, **METHODS[m]) for m in METHODS})
    assert [fault(agreed, m) for m in METHODS] == ["", "", ""]


def swapped(within: float):
    """A verifier that takes the second best token where it scores so little below the best."""

    def verify(tree: Tree, logits: torch.Tensor, sampler: Sampler, rows: Rows) -> Verdict:
        best = logits.topk(2)
        near = best.values[..., :1] - best.values[..., 1:] <= within
        return match(
            tree,
            logits.scatter_add(-1, best.indices[..., :1], -1e4 * near.to(logits)),
            sampler,
            rows,
        )

    return verify


@pytest.mark.full
def test_wrong_choices_would_be_noticed(monkeypatch):
    monkeypatch.setattr("longdraft.hf.generation.match", swapped(4.0))
    assert "no tie" in fault(found("llama", "plain"), "plain")


@pytest.mark.full
def test_wrong_choices_that_look_like_ties_are_too_many(monkeypatch):
    monkeypatch.setattr("longdraft.hf.generation.match", swapped(0.125))
    assert "at most, beside the control's" in fault(found("llama", "plain", new=128), "plain")


@pytest.mark.full
def test_other_numbers_would_be_noticed(monkeypatch):
    """A model whose weights have 4 bits."""
    lm_of = wrapped.lm_of
    monkeypatch.setattr(
        "longdraft.hf.generation.lm_of", lambda model: lm_of(model).quantized("int4")
    )
    assert fault(found("llama", "plain"), "plain")


def test_the_page_has_the_measured_rate():
    root = Path(__file__).resolve().parents[2]
    found = [
        r
        for _, r in read_records(
            root / "benchmarks" / "records" / "2026-11-24-hf-agreement.jsonl.gz"
        )
    ]
    equal = {r["engine"]: r["equal"] for r in found}
    page = (root / "docs" / "lossless.md").read_text(encoding="utf-8")
    rows = "`longdraft.hf_generate` \\| {0} \\|\n\\| `generate` in float32 \\| {2} \\|"
    wanted = "How many of {1} greedy bfloat16 outputs .*\\| " + rows
    assert all(r["git_dirty"] is False for r in found)
    assert equal["longdraft, plain"] == equal["longdraft, vegas"]
    figures = equal["longdraft, plain"], found[0]["outputs"], equal["transformers in float32"]
    assert re.search(wanted.format(*figures), page, re.DOTALL)
    assert not re.search(wanted.format(figures[0] + 1, *figures[1:]), page, re.DOTALL)
