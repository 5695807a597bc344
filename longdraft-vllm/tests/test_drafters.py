"""Drafters that `longdraft export-drafter` wrote draft in an unmodified vLLM what they draft in
longdraft.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import VOCAB, save_llama
from engine import COUNT, Request, engine, mixed, run, serve
from transformers import AutoModelForCausalLM
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from longdraft import Sampler, Stats, build
from longdraft.core import match
from longdraft.drafters.base import Drafter
from longdraft.drafters.dflash.block import random_dflash
from longdraft.drafters.eagle.block import random_eagle3
from longdraft.drafters.kinds import KINDS, export_drafter
from longdraft.engine.generate import decode, prefill
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm

LAYERS = 8  # a target of fewer than 7 has no three different states for EAGLE-3
SAID = 3  # how many tokens the target ever says, so that random drafts are often right
LENGTHS = (5, 40, 150)
NEW = 40
OPTIONS = {"eagle3": {"topk": 1, "levels": COUNT, "nodes": COUNT + 1}, "dflash": {"gamma": COUNT}}
MASK = 7


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> LM:
    folder = save_llama(tmp_path_factory.mktemp("target"), layers=LAYERS)
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.nn.init.zeros_(model.lm_head.weight[SAID:])
    model.save_pretrained(folder)
    return load_lm(folder, "float32")


def random_drafter(kind: str, target: LM, causal: bool = False) -> Any:
    if kind == "eagle3":
        block = random_eagle3(target, 1, 2 * SAID)
        block.d2t.copy_(torch.arange(2 * SAID))  # every second token, of which some are said
        return block
    block = random_dflash(target, 1, layers=2, slots=COUNT + 1, window=32, causal=causal)
    block.mask.data.copy_(target.hf.get_input_embeddings().weight[MASK])
    return block


def exported(kind: str, module: Any, target: LM, folder: Path) -> dict[str, Any]:
    """What a user gives vLLM for this drafter."""
    KINDS[kind].save(module, folder / "ours", target, {})
    export_drafter(folder / "ours", folder / "theirs", target)
    return {"method": kind, "model": str(folder / "theirs"), "num_speculative_tokens": COUNT}


def prompts() -> list[list[int]]:
    g = torch.Generator().manual_seed(5)
    return [torch.randint(3, VOCAB, (n,), generator=g).tolist() for n in LENGTHS]


def by_longdraft(
    target: LM, drafter: Drafter, prompt: list[int]
) -> tuple[list[int], list[list[int]]]:
    """The new tokens, and what each step drafted."""
    drafts: list[list[int]] = []
    watch = lambda result: drafts.append(result.tree.tokens[0, 1:].tolist())  # noqa: E731
    seqs = prefill(target, [prompt], NEW, Sampler(), 0, (), keep=drafter.prompt_captures())
    tokens = [
        t for step in decode(target, drafter, seqs, match, Stats(), watch) for t in step.tokens[0]
    ]
    return tokens, drafts[1:]  # the first step does not draft


def by_vllm(
    monkeypatch, target: LM, spec: dict[str, Any]
) -> list[tuple[list[int], list[list[int]]]]:
    """The same of vLLM, for each prompt alone and read in one pass."""
    drafts: list[list[int]] = []

    def propose(self, *args, **given):
        found = good(self, *args, **given)
        drafts.append(found[0].tolist())
        return found

    good = SpecDecodeBaseProposer.propose
    monkeypatch.setattr(SpecDecodeBaseProposer, "propose", propose)
    llm = engine(
        target.name,
        None,
        speculative_config=spec,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,
    )
    found = []
    for prompt in prompts():
        drafts.clear()
        [tokens] = serve(llm, [Request(prompt, NEW)]).outputs
        found.append((tokens, list(drafts)))
    return found


def same(drafts: list[list[int]], mine: list[list[int]]) -> bool:
    """Whether vLLM drafted what longdraft did, which drafts nothing beyond the last token."""
    return [d[: len(m)] for d, m in zip(drafts, mine, strict=False)] == mine


@pytest.mark.parametrize("name", ["eagle3", "dflash", "dflash-causal"])
def test_the_same_drafts(monkeypatch, tmp_path, target, name):
    kind, _, causal = name.partition("-")
    module = random_drafter(kind, target, bool(causal))
    drafter = build(kind, target, drafter=module, **OPTIONS[kind])
    theirs = by_vllm(monkeypatch, target, exported(kind, module, target, tmp_path))
    steps = 0
    for prompt, (tokens, drafts) in zip(prompts(), theirs, strict=True):
        ours, mine = by_longdraft(target, drafter, prompt)
        assert tokens == ours
        assert same(drafts, mine)
        steps += len(mine)
    assert steps < 0.8 * len(LENGTHS) * NEW  # many drafts were accepted


def test_states_of_the_layer_after_are_caught(monkeypatch, tmp_path, target):
    """The planted fault: ids that count one layer too many."""
    module = random_drafter("eagle3", target)
    spec = exported("eagle3", module, target, tmp_path)
    path = Path(spec["model"]) / "config.json"
    config = json.loads(path.read_text())
    config["eagle_aux_hidden_state_layer_ids"] = [
        n + 1 for n in config["eagle_aux_hidden_state_layer_ids"]
    ]
    path.write_text(json.dumps(config))
    drafter = build("eagle3", target, drafter=module, **OPTIONS["eagle3"])
    theirs = by_vllm(monkeypatch, target, spec)
    assert not any(
        same(d, by_longdraft(target, drafter, p)[1])
        for p, (_, d) in zip(prompts(), theirs, strict=True)
    )


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_outputs_equal_plain_decoding(tmp_path, target, kind):
    spec = exported(kind, random_drafter(kind, target), target, tmp_path)
    found = run(target.name, None, mixed(VOCAB, 256), speculative_config=spec)
    assert found.drafted > 100 and found.accepted > 10
    assert found.outputs == run(target.name, None, mixed(VOCAB, 256)).outputs
