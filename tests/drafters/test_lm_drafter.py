"""A small model that drafts: what its cache holds, when it runs; vocabularies and positions that
are not its own.
"""

from __future__ import annotations

import json
from functools import cache, partial

import pytest
import torch
from support import tiny
from support.checks import (
    PENALTY,
    SAMPLERS,
    SEED,
    check_eos,
    check_full_acceptance,
    check_lossless,
    plain,
)
from support.structure import close

from longdraft import InputError, Sampler, build, generate, reject, stream
from longdraft.core.verify import match
from longdraft.drafters import Drafter, Lookup, Sequential, SmallModelDrafter
from longdraft.drafters.kinds import KINDS
from longdraft.drafters.small_model import kind as small_model
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.drafters.step import speculative_step
from longdraft.engine.generate import prefill
from longdraft.models.lm import LM
from longdraft.views import Chunks, Full, SinkWindow


@cache
def often_right() -> LM:
    """The target with weights a little off: rows of a batch accept unequal numbers of its
    drafts.
    """
    hf = tiny.stock("llama")
    for p in hf.parameters():
        p.data += 0.1 * p.data.std() * torch.randn_like(p)
    return LM(hf)


CASES = {
    "often right": lambda t: SmallModelDrafter(often_right(), Full(), [1] * 2),
    "often right tree": lambda t: SmallModelDrafter(often_right(), Full(), [2, 2]),
    "chain": lambda t: SmallModelDrafter(t, Full(), [1] * 3),
    "tree": lambda t: SmallModelDrafter(t, Full(), [3, 4, 4]),
    "random chain": lambda t: SmallModelDrafter(random_lm(t, 1), Full(), [1] * 3),
    "then lookup": lambda t: Sequential(SmallModelDrafter(t, Full(), [2, 2]), Lookup(1, 3)),
}


@pytest.mark.each_value
@torch.inference_mode()
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sampler", [Sampler(), PENALTY], ids=["greedy", "penalty"])
def test_its_cache_is_that_of_the_committed_text(case, sampler):
    """After every round, for rows of unequal length and rows that have ended; a full view, so a
    prefill says what.
    """
    target = tiny.target("llama")
    drafter = CASES[case](tiny.target("llama"))
    lm = next(
        d for d in getattr(drafter, "drafters", [drafter]) if isinstance(d, SmallModelDrafter)
    )
    lengths = (40, 1, 23)
    eos = (plain("llama", sampler, lengths, 16)[1][5],)
    seqs = prefill(target, tiny.prompts(*lengths), 16, sampler, SEED, eos)
    drafter.start(seqs)
    speculative_step(target, drafter, seqs, draft=False)
    drafter.ready(seqs)
    uneven = False
    while not bool(seqs.done.all()):
        missed = seqs.length - 1 - lm.cache.length
        assert (missed >= 0).all()
        assert missed.max() <= 1  # the deepest draft of a round never ran
        uneven |= bool((missed != missed[0]).any())
        for b, n in enumerate(lm.cache.length.tolist()):
            want = lm.small.new_cache(1, n + 1)
            lm.small.prefill(seqs.tokens[b, :n].tolist(), want)
            for layer in want.layers:
                for mine, theirs in zip(lm.cache.read(layer, b), want.read(layer, 0), strict=True):
                    close(mine[:, :n], theirs[:, :n])
        speculative_step(target, drafter, seqs)
    assert uneven or not case.startswith("often")


class Counted(LM):
    """Counts its passes; for decoding alone, so prefill goes elsewhere."""

    passes = 0

    def __init__(self, hf):
        super().__init__(hf)
        chain_drafter = self.backend.chain_drafter
        self.backend.chain_drafter = lambda *args: (
            (draft := chain_drafter(*args)) and partial(self._chain, draft)
        )

    def _chain(self, draft, first, start, draws):
        self.passes += draws.count
        return draft(first, start, draws)

    def __call__(self, tree, *a, **k):
        self.passes += 1
        return super().__call__(tree, *a, **k)


@pytest.mark.parametrize("share", [True, False])
def test_a_round_costs_one_pass_a_draft(share):
    """Catching up rides in the root's pass, after full acceptance too."""
    target = tiny.target("llama")
    gamma = 4
    small = Counted(tiny.stock("llama")) if share else Counted(random_lm(target, 1).hf)
    steps = []
    for _ in match_steps(target, SmallModelDrafter(small, Full(), [1] * gamma), steps, new=30):
        pass
    small.passes -= 1  # its prefill, one chunk
    drafted = [n for n in steps[1:] if n]
    assert small.passes == sum(drafted)
    assert max(drafted) == gamma


def match_steps(target, drafter, sizes, new):
    """Decode; sizes gets how many tokens each step drafted."""

    def spy(tree, logits, sampler, rows):
        sizes.append(tree.size - 1)
        return match(tree, logits, sampler, rows)

    yield from stream(target, tiny.prompts(50), drafter, max_new_tokens=new, verify=spy)


@pytest.mark.full
@pytest.mark.parametrize("model", tiny.MAIN)
@pytest.mark.parametrize("rows", [(70,), (1,), (2, 1, 60)], ids=str)
def test_the_target_as_its_own_small_model_is_always_right(model, rows):
    build_it = lambda t: SmallModelDrafter(t, Full(), [1] * 5)  # noqa: E731
    for sampler in (SAMPLERS["greedy"], PENALTY):
        check_full_acceptance(build_it, 5, model, sampler, rows)


def test_a_prompt_within_the_budget_is_seen_whole():
    check_full_acceptance(
        lambda t: SmallModelDrafter(t, Chunks(72), [1] * 5), 5, lengths=(70, 1, 31)
    )


@pytest.mark.full
def test_an_end_token_inside_an_accepted_branch():
    check_eos(CASES["chain"])
    check_eos(CASES["tree"], "gpt-oss", (70, 31, 50))


# Vocabularies -------------------------------------------------------------------------------------


@cache
def resized(vocab: int) -> LM:
    """The tiny Llama with rows cut off its embedding and head, or added; the added ones win most of
    its drafts.
    """
    hf = tiny.stock("llama")
    hf.resize_token_embeddings(vocab, mean_resizing=False)
    torch.nn.init.normal_(hf.get_output_embeddings().weight.data[96:], std=5.0)
    return LM(hf)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_padded_vocabulary_is_cut(sampler):
    check_full_acceptance(
        lambda t: build("sd", t, resized(104), gamma=5), 5, "llama", sampler, (70, 31)
    )


@pytest.mark.each_value
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("widths", [[1] * 4, [3, 4, 4]], ids=str)
def test_tokens_unknown_to_the_small_model(sampler, widths):
    policy = Chunks(40, every=2)
    assert max(map(max, tiny.prompts(70, 31))) >= 88
    stats = check_lossless(
        lambda t: SmallModelDrafter(resized(88), policy, widths, t.vocab),
        "llama",
        sampler,
        (70, 31),
    )
    assert sum(stats.accepted) > 0


@pytest.mark.parametrize("vocab", [88, 104])
@pytest.mark.parametrize("widths", [[1] * 3, [2, 200]], ids=str)
def test_reject_with_another_padding(vocab, widths):
    """A level wider than the small model's vocabulary reaches tokens that it cannot draw."""
    lm = tiny.target("llama")
    drafter = lambda: SmallModelDrafter(resized(vocab), Full(), widths, 96)  # noqa: E731
    greedy = generate(lm, tiny.prompts(70, 31), drafter(), max_new_tokens=12, verify=reject)
    assert greedy == plain("llama", Sampler(), (70, 31), 12)
    rows = generate(
        lm, tiny.prompts(70, 31), drafter(), max_new_tokens=12, verify=reject, sampler=PENALTY
    )
    assert [len(r) for r in rows] == [12, 12]


@pytest.mark.parametrize("vocab", [64, 200])
def test_another_vocabulary_is_refused(vocab):
    with pytest.raises(
        InputError, match=f"vocabulary of {vocab} is not the target's of 96"
    ) as error:
        build("sd", tiny.target("llama"), resized(vocab))
    assert "\n" not in str(error.value)


def test_a_fetched_tokenizer_is_compared_like_a_folders(monkeypatch, tmp_path):
    """A target by Hub id has no folder of its own name."""
    words = {
        "target": {"a": 0, "b": 1},
        "same": {"a": 0, "b": 1, "pad": 2},
        "other": {"a": 1, "b": 0},
    }
    for name, vocab in words.items():
        (tmp_path / name).write_text(json.dumps({"model": {"vocab": vocab}}))
    models = {name: LM(tiny.stock("llama")) for name in [*words, "none"]}
    for name, lm in models.items():
        lm.hf.name_or_path = f"org/{name}"
    where = lambda name, *a, **k: str(tmp_path / name.removeprefix("org/"))  # noqa: E731
    monkeypatch.setattr(small_model, "cached_file", where)
    monkeypatch.setattr(small_model, "load_lm", lambda name, *a: models[name])
    for name in ("same", "none"):
        assert KINDS["lm"].load(name, models["target"]) is models[name]
    with pytest.raises(
        InputError, match="token 0 is 'b' in the drafter other and 'a' in the target"
    ) as error:
        KINDS["lm"].load("other", models["target"])
    assert "\n" not in str(error.value)


# Positions ----------------------------------------------------------------------------------------


def short_sighted(positions: int, model: str = "llama") -> LM:
    hf = tiny.stock(model)
    hf.config.max_position_embeddings = positions
    return LM(hf)


@pytest.mark.parametrize("model", ["llama", "qwen3", "gpt-oss", "glm4"])
def test_positions_beyond_its_own_are_the_true_ones(model):
    """Rotations give any position: a drafter of 32 positions draws at 70 what the target draws
    there.
    """
    check_full_acceptance(
        lambda t: SmallModelDrafter(short_sighted(32, model), Full(), [1] * 5), 5, model
    )


def test_positions_it_cannot_have_do_not_stop_it():
    small = short_sighted(32)
    small.architecture.reach = 32  # as of a model with a table of positions
    check_lossless(
        lambda t: SmallModelDrafter(small, SinkWindow(4, 0.07, 16), [1] * 4),
        "llama",
        lengths=(70, 20),
    )


def test_a_rotation_that_changes_with_the_length_is_not_extended():
    hf = tiny.stock("llama")
    assert LM(hf).reach > 1 << 20
    hf.model.rotary_emb.rope_type = "dynamic"
    assert LM(hf).reach == 512


# The random one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama", "qwen3", "gpt-oss", "gemma2-softcap", "deepseek"])
def test_a_random_small_model_costs_a_tenth(model):
    target = tiny.target(model)
    state = torch.get_rng_state()
    small = random_lm(target, 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert small.nbytes() <= max(0.1 * target.nbytes(), 4 * (96 * 16 + 2 * 13 * 256 + 500))
    assert (small.vocab, small.positions, small.dtype) == (
        target.vocab,
        target.positions,
        target.dtype,
    )
    again = random_lm(target, 3)
    other = random_lm(target, 4)
    weights = [m.hf.get_input_embeddings().weight for m in (small, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_drafter_of_any_kind_is_found_by_name():
    """What the command line does with --random-drafter."""
    from longdraft.methods import METHODS

    target = tiny.target("qwen3")
    for name in ("sd", "sd-sparse", "budgetdraft"):
        needs = METHODS[name].needs
        assert needs is not None
        assert isinstance(build(name, target, KINDS[needs].random(target, 0), gamma=2), Drafter)
        with pytest.raises(InputError, match=f"{name} needs a drafter"):
            build(name, target)


BAD = {
    "budget": ({"budget": 23}, "option budget is 23: give 24 or more"),
    "chunk": ({"chunk": 0}, "option chunk is 0"),
    "score": ({"score": "best"}, "give obs_window or"),
    "every": ({"every": -1}, "option every is -1"),
    "gamma": ({"gamma": 0}, "option gamma is 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(case):
    options, words = BAD[case]
    with pytest.raises(InputError, match=words):
        build("budgetdraft", tiny.target("llama"), tiny.target("llama"), **options)


@torch.inference_mode()
def test_a_round_without_a_draft_does_not_commit_the_last_ones_nodes():
    """Such rounds are observed too (Pace, and rows that enter beside it); the scratch is of the
    round before.
    """
    target = tiny.target("llama")
    drafter = SmallModelDrafter(often_right(), Full(), [1] * 3)
    seqs = prefill(target, tiny.prompts(40), 40, Sampler(), SEED, ())
    drafter.start(seqs)
    for n in range(12):
        speculative_step(target, drafter, seqs, draft=n % 2 == 1)
        cached = int(drafter.cache.length[0])
        fresh = drafter.small.new_cache(1, 128)
        drafter.small.prefill(seqs.tokens[0, :cached].tolist(), fresh)
        for layer in fresh.layers:
            for x, y in zip(drafter.cache.read(layer, 0), fresh.read(layer, 0), strict=True):
                close(x[:, :cached], y[:, :cached])
