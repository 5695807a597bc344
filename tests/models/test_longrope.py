"""Rotations that change with the length of the text: each row has those of the length that it may
reach.
"""

from __future__ import annotations

import coverage
import pytest
import torch
from support import borders
from support.borders import BORDER
from transformers import LlamaConfig

from longdraft import generate
from longdraft.backends.features.longrope import LongRope
from longdraft.engine.conversation import Conversation
from longdraft.engine.row_pool import RowPool
from longdraft.engine.session import Session
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.shrunk import shrunk
from longdraft.models.support import probe, refuse
from longdraft.prompts.prefix_cache import PrefixCache
from longdraft.prompts.prompt_file import PromptFile

NEW = coverage.NEW
# the longest prompt whose text stays short: its last new token is never run
EDGE = BORDER + 1 - NEW
SIDES = {"short": (EDGE, 9), "long": (BORDER + 1, 60), "both": (BORDER + 8, EDGE)}
FAST = {("lookup", "both"), ("vegas-tree", "both")}


@pytest.fixture(scope="module")
def lm():
    hf = borders.longrope()
    refuse(hf.config)
    return LM(hf, "phi3")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["phi3", pytest.param("phimoe", marks=pytest.mark.full)])
def test_plain_decoding_is_transformers_on_both_sides(kind, side):
    expected = borders.by_transformers(borders.longrope(kind), *SIDES[side])
    assert borders.plain(LM(borders.longrope(kind)), *SIDES[side]) == expected


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("method", "side"),
    [
        pytest.param(m, s, marks=() if (m, s) in FAST else pytest.mark.full)
        for m in coverage.METHODS
        for s in SIDES
    ],
)
def test_methods_are_plain_decoding_on_both_sides(lm, method, side):
    assert not borders.fault(lm, method, *SIDES[side])


@pytest.mark.each_value
@pytest.mark.full
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("method", sorted(set(coverage.METHODS) - {"quantspec"}))
def test_methods_are_plain_decoding_with_scales_of_both_sides(method, side):
    assert not borders.fault(LM(borders.longrope("phimoe"), "phimoe"), method, *SIDES[side])


@pytest.mark.full
def test_a_text_that_may_cross_the_border_is_long_from_its_start(lm):
    """Transformers decodes its first tokens with the short factors, and computes all keys again at
    the border.
    """
    always = LM(borders.longrope(short=borders.LONG))
    expected = borders.plain(always, EDGE + 1, BORDER)
    assert borders.plain(lm, EDGE + 1, BORDER) == expected
    assert borders.by_transformers(borders.longrope(), EDGE + 1, BORDER) != expected
    assert borders.plain(lm, EDGE) != borders.plain(always, EDGE)


def test_a_row_does_not_depend_on_its_neighbors(lm):
    rows = [borders.plain(lm, n)[0] for n in SIDES["both"]]
    assert borders.plain(lm, *SIDES["both"]) == rows


def test_sides_by_the_whole_batch_are_seen(monkeypatch, lm):
    rows = borders.plain(lm, *SIDES["both"])
    long = LongRope.long
    monkeypatch.setattr(
        LongRope, "long", lambda self, cache: [any(long(self, cache))] * len(cache.length)
    )
    assert borders.plain(lm, *SIDES["both"]) != rows


def test_a_cache_for_short_texts_refuses_to_cross_the_border(lm):
    cache = lm.new_cache(1, BORDER)
    lm.prefill(borders.prompts(BORDER)[0], cache)
    assert int(cache.length[0]) == BORDER
    with pytest.raises(
        InputError, match=f"texts of up to {BORDER} tokens, where the model's rotation changes"
    ):
        lm.prefill([5, 6], cache)


def answers(lm: LM, prefixes: PrefixCache | None) -> list[list[int]]:
    """Of one prompt, as a short text, as a long one, and as a short one again, one after
    another.
    """
    (prompt,), said = borders.prompts(EDGE), []
    with Session(lm, batch=2, slots=borders.POSITIONS, prefixes=prefixes) as session:
        for new in (NEW, 2 * NEW, NEW):
            session.submit(prompt, new, eos=())
            tokens: list[int] = []
            while session.running or session.waiting or not tokens:
                tokens += [t for event in session.step() for t in event.tokens]
            said.append(tokens)
    return said


@pytest.mark.full
def test_requests_share_keys_of_their_own_side_alone(monkeypatch, lm):
    expected = [borders.plain(lm, EDGE, new=new)[0] for new in (NEW, 2 * NEW, NEW)]
    assert expected[0] != expected[1][:NEW]
    prefixes = PrefixCache(256, 4)
    lm.architecture.longrope, block = lm.architecture.longrope, lm.prompt_block
    monkeypatch.setattr(LM, "prompt_block", property(lambda self: 4 if block > 1 else 1))
    assert answers(lm, prefixes) == expected and prefixes.hits > 0
    monkeypatch.setattr(RowPool, "_owner", lambda self, request: request.owner)
    assert answers(lm, PrefixCache(256, 4)) != expected


@pytest.mark.full
def test_a_saved_prompt_is_of_its_side(tmp_path, lm):
    (prompt,), file = borders.prompts(EDGE), PromptFile(tmp_path / "prompt.safetensors", lm)
    for _ in range(2):
        said = generate(lm, [prompt], max_new_tokens=NEW, eos=(), prompt_cache=file)
        assert said == borders.plain(lm, EDGE)
    with pytest.raises(
        InputError, match="rotation 'of short texts', and this model has 'of long texts'"
    ):
        generate(lm, [prompt], max_new_tokens=NEW + 1, eos=(), prompt_cache=file)


@pytest.mark.full
def test_a_conversation_that_grows_beyond_the_border_is_read_again(monkeypatch, lm):
    def say(talk: Conversation) -> list[list[int]]:
        said = []
        text = borders.prompts(EDGE)[0]
        for new in (NEW, NEW, 4):
            said.append([t for step in talk.answer(text, new) for t in step.tokens[0]])
            text = text + said[-1]
        return said

    first = say(Conversation(lm))
    text = borders.prompts(EDGE)[0]
    for tokens, new in zip(first, (NEW, NEW, 4), strict=True):
        assert [tokens] == generate(lm, [text], max_new_tokens=new)
        text = text + tokens
    monkeypatch.setattr(Conversation, "_plan", lambda self, slots: self.cache.planned.fill_(slots))
    assert say(Conversation(lm)) != first


@pytest.mark.parametrize("kind", ["phi3", pytest.param("phimoe", marks=pytest.mark.full)])
def test_the_probe_compares_both_sides_and_leaves_them_alone(kind):
    """Transformers computes the long factors in the first long pass, which is the probe's, and may
    keep them.
    """
    hf = borders.longrope(kind)
    ids = torch.arange(3, 15)[None]
    with torch.inference_mode():
        with shrunk(hf, ids.shape[1]):
            long = hf(ids, use_cache=False).logits
        assert not torch.allclose(hf(ids, use_cache=False).logits, long)
    expected = borders.by_transformers(borders.longrope(kind), BORDER + 1)
    assert borders.by_transformers(hf, BORDER + 1) == borders.plain(LM(hf), BORDER + 1) == expected


def test_the_probe_at_load_sees_the_wrong_side(monkeypatch):
    hf = borders.longrope()
    probe(hf)
    monkeypatch.setattr(LongRope, "long", lambda self, cache: [False] * len(cache.length))
    monkeypatch.setattr(
        LongRope, "positions", lambda self, position, cache: position.clamp(max=self.border - 1)
    )
    with pytest.raises(InputError, match="differs from Transformers' own"):
        probe(hf)


@pytest.mark.full
def test_dynamic_rotations_run_up_to_the_models_positions():
    """They change beyond these only, where a request is refused."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64, rope_parameters=rope,
    )  # fmt: skip
    hf = borders.built(config)
    refuse(config)
    expected = borders.by_transformers(hf, 64 - NEW, 17)
    lm = LM(hf)
    assert borders.plain(lm, 64 - NEW, 17) == expected and lm.backend is lm.eager
    assert not borders.fault(lm, "vegas-tree", 64 - NEW, 17)
    with pytest.raises(InputError, match="exceed the model's 64 positions"):
        borders.plain(lm, 65 - NEW)
