"""What `auto` chooses from, and that it stays lossless."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support import tiny
from transformers import LlamaConfig, LlamaForCausalLM

from longdraft import InputError, Sampler, build, generate
from longdraft.core import Captures
from longdraft.drafters import Drafter, Fill, SelfDrafter
from longdraft.drafters.kinds import KINDS
from longdraft.methods import METHODS, Method
from longdraft.methods.drafter_weights import checkpoint_of
from longdraft.methods.self_speculative import by_a_copy
from longdraft.methods.trials import candidates, kinds_beside
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm
from longdraft.models.memory_traffic import keys_read, slot_bytes
from longdraft.ops import native
from longdraft.views import Guided

NATIVE = pytest.mark.skipif(
    native.library() is None, reason="packed weights are fast on the native backend alone"
)


# by kind of drafter weights
TRIED = {method.needs: method.trial for method in METHODS.values() if method.trial}


def lm_of(**sizes) -> LM:
    return LM(LlamaForCausalLM(LlamaConfig(**tiny.BASE | sizes)))


def models_of(auto: Drafter) -> list[Drafter]:
    """The model drafters among which it chooses."""
    assert isinstance(auto, Fill)
    return [source.drafter for source in auto.sources]


@pytest.mark.full
@NATIVE
def test_a_copy_comes_first():
    lm = lm_of()
    first, other = models_of(build("auto", lm))
    assert isinstance(first, SelfDrafter) and first.model is lm.quantized("int8")
    assert isinstance(other, SelfDrafter) and other.model is lm
    assert list(lm.copies) == ["int8"]


@pytest.mark.full
@NATIVE
def test_the_saving_is_what_the_copy_saves():
    for tied in (False, True):
        lm = lm_of(tie_word_embeddings=tied)
        for kind in ("int8", "int4"):
            copy = lm.quantized(kind)
            assert lm.saving(kind) == pytest.approx(1 - copy.nbytes() / lm.nbytes())
            assert copy.saving(kind) == 0


@pytest.mark.full
@pytest.mark.parametrize("kind", ["int4", "eager", "odd"])
def test_no_copy_is_made_where_it_cannot_pay(tmp_path, kind):
    if kind == "int4":
        tiny.stock("llama").save_pretrained(tmp_path)
        lm = load_lm(str(tmp_path), "float32", "cpu", weights="int4")
    else:
        odd = {
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
        }
        lm = lm_of(**odd if kind == "odd" else {})
        lm.backend = lm.eager if kind == "eager" else lm.backend
    assert by_a_copy(lm) == [] and not lm.copies
    assert len(models_of(build("auto", lm))) == 1


@NATIVE
def test_no_copy_is_made_of_experts():
    """It would save as much of the memory as a dense model's."""
    target = tiny.target("qwen3-moe-bf16")
    assert target.saving("int8") > 0.25
    assert by_a_copy(target) == []


def test_all_keys_are_read_while_they_are_few_beside_the_weights():
    """Its least number of slots holds a quarter of the bytes of the copy's weights."""
    small = lm_of()
    large = lm_of(hidden_size=512, intermediate_size=1024, num_hidden_layers=8)
    cache = small.new_cache(1, 40)
    small.prefill(list(range(3, 43)), cache)
    assert 40 * slot_bytes(small) == keys_read(small, cache)
    floors = [by_a_copy(lm)[0].policy.min_budget for lm in (small, large)]
    assert floors[0] == 256 and floors[1] > 1000
    assert floors[1] * slot_bytes(large) == pytest.approx(
        large.quantized("int8").nbytes() / 4, rel=0.01
    )


def check_trials(methods: dict[str, Method]) -> None:
    """Every kind of drafter weights has one method that `auto` tries, and no two methods have the
    same place.
    """
    tried = [method for method in methods.values() if method.trial]
    assert sorted(method.needs for method in tried if method.needs) == sorted(KINDS)
    places = [(method.trial.named, method.trial.place) for method in tried]
    assert len(set(places)) == len(places)


def test_the_records_say_what_is_tried_and_when():
    check_trials(METHODS)
    assert kinds_beside(METHODS.values()) == ["glide", "mtp", "heads", "budget"]
    without = {name: method for name, method in METHODS.items() if name != "eagle3"}
    alike = METHODS | {"vegas": replace(METHODS["vegas"], trial=METHODS["longspec-guided"].trial)}
    for wrong in (without, alike):
        with pytest.raises(AssertionError):
            check_trials(wrong)
    lm = tiny.target("llama")
    with pytest.raises(InputError, match="no method that needs drafter weights of kind eagle3"):
        candidates(without.values(), lm, {"eagle3": None})


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_that_is_named_is_tried(tmp_path, kind):
    """It was once loaded, ignored, and recorded as used: whatever is named must be among the
    drafters.
    """
    lm = tiny.target("llama")
    rows = tiny.prompts(40)
    auto = build("auto", lm, {kind: KINDS[kind].random(lm, 3)})
    found = models_of(auto)
    tried = models_of(build("auto", lm))
    assert len(found) == len(tried) + 1, f"weights of kind {kind} are ignored"
    if TRIED[kind].named:
        assert type(found[0]) is not type(tried[0])
    assert generate(lm, rows, auto, max_new_tokens=8) == generate(lm, rows, max_new_tokens=8)
    if kind not in ("lm", "budget"):
        KINDS[kind].save(KINDS[kind].random(lm, 3), tmp_path / kind, lm, {})
        assert len(models_of(build("auto", lm, tmp_path / kind))) == len(found)


@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler(temperature=1.0)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("name", ["llama", "mistral-window", "llama-bf16"])
def test_it_is_lossless(name, sampler):
    lm = tiny.target(name)
    rows = tiny.prompts(70, 31)
    options = {"max_new_tokens": 96, "sampler": sampler, "seed": 5}
    assert generate(lm, rows, build("auto", lm), **options) == generate(lm, rows, **options)


def test_scores_are_kept_only_where_a_view_leaves_something_out():
    lm = lm_of()
    policy = Guided(0.07, 32)
    assert policy.captures().rows is not None
    cache = lm.new_cache(1, 64)
    for length, kept in ((20, False), (31, False), (32, True), (50, True)):
        lm.prefill(list(range(3, 3 + length - int(cache.length))), cache)
        policy.update(cache, Captures())
        assert (policy.captures().rows is not None) is kept, length
    policy.start(lm, torch.zeros(1, 30, dtype=torch.long), cache)
    assert policy.captures().rows is None


def test_a_checkpoint_of_the_hub_is_looked_for_among_its_downloads(tmp_path, monkeypatch):
    """Its layers for further tokens are tried, as those of a folder; nothing is downloaded."""
    folder = tmp_path / "models--org--name"
    own = folder / "snapshots" / ("1" * 40)
    own.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("1" * 40)
    (own / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert checkpoint_of("org/name") == own
    assert checkpoint_of("org/other") is None
    assert checkpoint_of("bundled") is None
    assert checkpoint_of(str(own)) == own
