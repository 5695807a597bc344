"""Models whose attention does not use Transformers' attention interface say what Transformers says,
tree or chain.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import coverage
import pytest
import tiny_models
import torch

from longdraft import InputError, Sampler, Session, build, generate, hf_generate
from longdraft.backends.dense import Dense
from longdraft.backends.dense_pass import DensePass
from longdraft.core import PAD, Captures, CaptureSpec, Tree
from longdraft.models.lm import LM
from longdraft.models.support import probe, refuse
from longdraft.ops.native import library
from longdraft.views.base import View

VARIANTS = {  # of a kind's tiny configuration
    "falcon-alibi": {"alibi": True, "multi_query": False, "num_kv_heads": 4},
    "falcon-new": {"new_decoder_architecture": True},
    "falcon-serial": {"alibi": True, "parallel_attn": False},
}
KINDS = ("falcon", "bloom")
FULL = (
    "mpt",
    "gptj",
    "gpt_neo",
    "codegen",
    "gpt_neox_japanese",
    "biogpt",
    "xglm",
    *VARIANTS,
)
ELSEWHERE = ("stablelm",)  # native kernels compute it where they run
SHAPES = (*KINDS, *(pytest.param(kind, marks=pytest.mark.full) for kind in (*FULL, *ELSEWHERE)))
FAST = {"falcon-new": ("vegas-tree", "quantspec"), "bloom": ("vegas", "eagle3")}
ROTATE = {"longspec"}  # drafters that need a rotation of Llama's kind
PREFIX = 40  # more than gpt_neo's window
ROUNDING = 2e-3  # of logits: more than this is a fault
# by row
SIBLINGS = [
    [(0, 5), (0, 6), (1, 7), (2, 8), (2, 9), (3, 10)],
    [(0, 11), (0, 5), (0, 12), (3, 13)],
]


@cache
def model(kind: str) -> Any:
    config = tiny_models.config(kind.split("-")[0])
    for name, value in VARIANTS.get(kind, {}).items():
        setattr(config, name, value)
    hf = tiny_models.build(config)
    hf.generation_config.eos_token_id = None
    return hf


@cache
def target(kind: str) -> LM:
    return LM(fresh(kind), "tiny", backend=lambda eager: eager)


def fresh(kind: str) -> Any:
    """Another model with the same weights and a config of its own: Dense sets the implementation in
    it.
    """
    return tiny_models.build(deepcopy(model(kind).config))


def logits_of(kind: str, tokens: list[int]) -> torch.Tensor:
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        return model(kind)(
            input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False
        ).logits[0]


def prompts() -> list[list[int]]:
    return [tiny_models.prompt(PREFIX), tiny_models.prompt(17)]


def filled(lm: LM):
    """A cache of two rows of unequal lengths."""
    cache = lm.new_cache(2, 64)
    for b, prompt in enumerate(prompts()):
        lm.prefill(prompt, cache.row(b))
    return cache


def tree() -> Tree:
    return Tree.root(torch.tensor([4, 5])).plant(SIBLINGS)


def error(kind: str) -> float:
    """The largest difference between a node's logits in a tree over a batch and those of its path
    as one text.
    """
    lm = target(kind)
    worst = 0.0
    whole = tree()
    with torch.inference_mode():
        ours = lm(whole, filled(lm))
    for b, prompt in enumerate(prompts()):
        for node in range(len(SIBLINGS[b]) + 1):
            path = whole.tokens[b, whole.mask[b, node]].tolist()
            worst = max(
                worst, float((ours[b, node] - logits_of(kind, prompt + path)[-1]).abs().max())
            )
    return worst


@pytest.mark.parametrize("kind", SHAPES)
def test_a_node_of_a_tree_says_what_its_path_says_alone(kind):
    assert isinstance(target(kind).backend, Dense) and not target(kind).exact
    assert error(kind) < ROUNDING


def test_native_kernels_come_before_modules_without_the_interface():
    name = LM(fresh("stablelm"), "tiny").backend.name
    assert name == ("dense" if library() is None else "native")


@pytest.mark.parametrize("kind", KINDS)
def test_siblings_that_see_each_other_are_noticed(kind, monkeypatch):
    right = DensePass._mask
    monkeypatch.setattr(DensePass, "_mask", lambda self, *a: torch.zeros_like(right(self, *a)))
    assert error(kind) > 0.1


@pytest.mark.parametrize(
    "kind", ["bloom", *(pytest.param(k, marks=pytest.mark.full) for k in ("mpt", "falcon-alibi"))]
)
@pytest.mark.whole
def test_a_bias_by_slot_instead_of_position_is_noticed(kind, monkeypatch):
    right = DensePass._bias

    def by_slot(self, *args):
        self.position, kept = torch.arange(self.end), self.position
        self._columns, told = max(self._columns, self.end), self._columns
        given = args[2]
        table = given[..., -told:] if kind != "mpt" else given
        slope = table[..., 1:2] - table[..., :1]
        wide = slope * torch.arange(self.end)
        try:
            return right(self, *args[:2], wide)
        finally:
            self.position = kept
            self._columns = told

    monkeypatch.setattr(DensePass, "_bias", by_slot)
    assert error(kind) > ROUNDING


@pytest.mark.full
def test_a_local_layer_that_reads_everything_is_noticed(monkeypatch):
    monkeypatch.setattr(target("gpt_neo").architecture, "spans", {})
    assert error("gpt_neo") > 1e-2


def selection(layers: int, heads: int) -> View:
    """Five slots of each row, others in each layer and key head."""
    g = torch.Generator().manual_seed(0)
    slots = [torch.randperm(12, generator=g)[:5].sort().values for _ in range(layers * 2 * heads)]
    indices = torch.stack(slots).view(layers, 2, heads, 5)
    return View(indices, torch.tensor([30, 14]), {n: n for n in range(layers)})


def view_error(kind: str) -> float:
    """The largest difference between a pass that reads selected slots and one that masks all
    others.
    """
    lm = target(kind)
    whole = tree()
    caches = filled(lm), filled(lm)
    heads = caches[0].shapes[0][0]
    view = selection(lm.depth, heads)
    masked = DensePass._mask
    lowest = torch.finfo(lm.dtype).min

    def hide(self: DensePass, layer: int, selected: Any) -> torch.Tensor:
        mask = masked(self, layer, selected)
        if layer in self.spans:
            return mask
        hidden = torch.ones(heads, self.end, dtype=torch.bool).scatter(
            1, view.indices[layer, self.b], False
        )
        hidden[:, view.starts[self.b] :] = False
        by_head = hidden.repeat_interleave(lm.config.num_attention_heads // heads, 0)
        return mask.masked_fill(by_head[None, :, None], lowest)

    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        ours = lm(whole, caches[0], view=view)
        patch.setattr(DensePass, "_mask", hide)
        expected = lm(whole, caches[1])
    return float(((ours - expected) * (whole.parent > PAD)[..., None]).abs().max())


@pytest.mark.parametrize(
    "kind", [k for k in SHAPES if "xglm" not in str(k)]
)  # its masks are the same for all heads
def test_a_view_reads_the_selected_slots_at_their_positions(kind):
    assert view_error(kind) < 2e-3


def test_positions_of_neighboring_copies_instead_of_slots_are_noticed(monkeypatch):
    right = DensePass._bias
    monkeypatch.setattr(
        DensePass, "_bias", lambda self, n, s, g: right(self, n, None if s is None else s * 0, g)
    )
    assert view_error("bloom") > 1e-2


def methods(kind: str, names: tuple[str, ...]) -> dict[str, str]:
    refuse(model(kind).config)
    probe(fresh(kind))
    record = coverage.decoded(
        fresh(kind), {n: o for n, o in coverage.METHODS.items() if not names or n in names}
    )
    assert record["class"] == "equal" and record["backend"] == "dense", record
    return record["methods"]


@pytest.mark.full
@pytest.mark.parametrize("kind", FAST)
def test_methods_say_what_plain_and_transformers_say(kind):
    assert set(methods(kind, FAST[kind]).values()) == {""}


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", [*FULL[:2], *(pytest.param(k, marks=pytest.mark.weekly) for k in ("bloom", *FULL[2:]))]
)
def test_every_method_says_what_plain_and_transformers_say(kind):
    faults = {name: why for name, why in methods(kind, ()).items() if why}
    print(faults)
    assert "shows no queries" in faults.pop("magicdec-quest")
    assert all(why.startswith(coverage.REFUSED) for why in faults.values())
    assert faults.keys() <= {"mtp", *ROTATE}, faults


@pytest.mark.parametrize("kind", ["bloom", pytest.param("falcon", marks=pytest.mark.full)])
def test_rows_of_a_session_come_and_go(kind):
    lm = target(kind)
    sampler = Sampler(temperature=1.0)
    given = [(31, 8), (9, 14), (17, 3), (1, 9), (24, 5)]
    session = Session(lm, build("vegas", lm, gamma=3, min_budget=12), 2, 64, sampler)
    for i, (length, new) in enumerate(given):
        session.submit(tiny_models.prompt(length), max_new_tokens=new, seed=i, eos=())
    texts: dict[int, list[int]] = {}
    while session.running or session.waiting:
        for event in session.step():
            texts.setdefault(event.id, []).extend(event.tokens)
    for i, (length, new) in enumerate(given):
        [alone] = generate(
            lm, [tiny_models.prompt(length)], max_new_tokens=new, seed=i, sampler=sampler, eos=()
        )
        assert texts[i + 1] == alone


@pytest.mark.parametrize("kind", SHAPES)
def test_captures_are_those_of_transformers(kind):
    lm = target(kind)
    hf = fresh(kind)
    chain = Tree.chain(torch.tensor([[4, 5, 6], [7, 8, 9]]))
    captured = Captures(CaptureSpec(rows="all", of="weights", hidden=(0, 1)))
    with torch.inference_mode():
        lm(chain, filled(lm), captured=captured)
        assert set(captured.scores) == set(range(lm.depth)) - set(lm.windows)
        for b, prompt in enumerate(prompts()):
            ids = torch.tensor([[*prompt, *chain.tokens[b].tolist()]])
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
            hf.config._attn_implementation = model(kind).config._attn_implementation
            states = hf(**given, output_hidden_states=True).hidden_states
            for n in (0, 1):
                torch.testing.assert_close(
                    captured.states[n][b], states[n][0, -3:], rtol=1e-3, atol=2e-3
                )
            if hf.config.model_type == "falcon" and hf.config.alibi:
                continue  # where its modules return weights they add alibi twice
            hf.config._attn_implementation = "eager"
            attentions = hf(**given, output_attentions=True).attentions
            known = len(prompt) + 1
            for layer, scores in captured.scores.items():
                weights = attentions[layer][0, :, -3:, :known].mean(0)
                torch.testing.assert_close(scores[b, :, 0, :known], weights, rtol=1e-3, atol=1e-4)
                assert bool((scores[b, :, 0, known:] == float("-inf")).all())


def test_logits_rank_keys_as_weights_do():
    """Logits, apart from a constant: their softmax over all keys are the weights."""
    lm = target("bloom")
    scores = {}
    for of in ("weights", "logits"):
        captured = Captures(CaptureSpec(rows="first", of=of, split=True, only=1))
        with torch.inference_mode():
            lm(Tree.chain(torch.tensor([[4, 5], [7, 8]])), filled(lm), captured=captured)
        scores[of] = captured.scores[1]
    torch.testing.assert_close(
        scores["logits"].softmax(-1), scores["weights"].clamp(min=0), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("kind", SHAPES)
def test_parts_of_a_prompt_and_the_last_logits_alone(kind, monkeypatch):
    lm = target(kind)
    prompt = prompts()[0]
    monkeypatch.setattr(Dense, "max_nodes", 16)
    cache = lm.new_cache(1, 64)
    with torch.inference_mode():
        lm.prefill(prompt[:-1], cache)
        last = lm(Tree.root(torch.tensor(prompt[-1:])), cache, logits=1)
    torch.testing.assert_close(last[0], logits_of(kind, prompt)[-1:], rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_generate_of_transformers(kind):
    hf = model(kind)
    ids = torch.tensor([tiny_models.prompt(20)])
    given = {
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": 10,
        "do_sample": False,
        "pad_token_id": 0,
    }
    expected = hf.generate(ids, **given)
    drafted = hf.generate(ids, custom_generate=hf_generate, method="lookup", **given)
    assert drafted.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("kind", "lacking"), [("cpmant", "position_ids"), ("openai-gpt", "past_key_values"), ("trocr",
    "position_ids"),
                          ("blt", "groups of bytes")]
)  # fmt: skip
def test_others_are_refused_with_what_they_lack(kind, lacking):
    with pytest.raises(
        InputError, match=f"{kind} has no attention interface in Transformers and .*{lacking}"
    ):
        refuse(tiny_models.default(kind))


def test_a_view_by_queries_is_refused():
    lm = target("bloom")
    quest = build("magicdec-quest", lm, gamma=3, min_budget=12, page=4)
    with pytest.raises(InputError, match="bloom's attention shows no queries"):
        generate(lm, [tiny_models.prompt(40)], quest, max_new_tokens=6)


def test_a_probe_notices_siblings_that_see_each_other(monkeypatch):
    right = DensePass._mask
    monkeypatch.setattr(DensePass, "_mask", lambda self, *a: torch.zeros_like(right(self, *a)))
    with pytest.raises(InputError, match="differs from Transformers' own"):
        probe(fresh("bloom"))
