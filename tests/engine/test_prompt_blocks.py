"""Where torch reads prompts, their keys depend on how many tokens a pass has: blocks by position
give the same bits.

The builds here read prompts as the build for AMX does (`prefills` is False), or do everything in
torch; a block has 64 tokens instead of 1024.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from support import tiny
from support.listed import BUILD, read_in_any_parts
from torch import Tensor

from longdraft import Sampler, Session, generate
from longdraft.core import KVCache, PromptSpec
from longdraft.drafters import Drafter
from longdraft.engine.conversation import Conversation
from longdraft.engine.requests import Request
from longdraft.engine.row_pool import RowPool
from longdraft.models.lm import LM
from longdraft.ops import native
from longdraft.prompts.prefix_cache import PrefixCache

BLOCK = 64
LENGTHS = (300, 281, 410, 333, 390, 310)
NEW = 32
SLOTS = 480
SCORED = {"logprobs": 0, "prompt_logprobs": True}

needs_native = pytest.mark.skipif(
    native.library() is None, reason="the native kernels are not built"
)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr("longdraft.models.lm.PART", BLOCK)


@cache
def reader(kind: str) -> LM:
    """ "amx": decodes natively and reads prompts in torch; "torch": does both there. In bfloat16
    unless it says so.
    """
    lm = LM(
        tiny.stock("llama", dtype=torch.float32 if kind.endswith("float32") else torch.bfloat16),
        kind,
    )
    if kind.startswith("amx"):
        lm.backend.prefills = False  # type: ignore[attr-defined]
    else:
        lm.backend = lm.eager
    return lm


each_reader = pytest.mark.parametrize(
    "kind",
    [
        pytest.param("amx", marks=needs_native),
        pytest.param("amx float32", marks=needs_native),
        "torch",
    ],
)


# Keys ---------------------------------------------------------------------------------------------


def bits(row: KVCache, count: int) -> list[Tensor]:
    """The first keys and values of a row."""
    return [
        x[:, :count].contiguous().view(torch.uint8) for n in row.layers for x in row.stored(n, 0)
    ]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def requested(prompt: list[int], **more) -> Request:
    return Request(1, prompt, 4, 0, (), Sampler(), **more)


def entered(pool: RowPool, request: Request, most: int) -> int:
    """Read a request's prompt, `most` tokens at a time -> how many tokens were known."""
    pool.begin(request)
    while pool.entering is not None:
        pool.read(most, PromptSpec())
    return pool.reads.pop(request.id).known


@torch.inference_mode()
def compared(kind: str, most: int, **more) -> tuple[bool, int]:
    """Whether the keys in a session's second row are those of `generate`, for two prompts in turn;
    tokens known.
    """
    lm = reader(kind)
    prompts = tiny.prompts(*LENGTHS[:3])
    pool = RowPool(lm, 2, SLOTS, PrefixCache(1000, 16, tails=True))
    equal = True
    known = 0
    entered(pool, requested(prompts[0]), most)
    for prompt in (prompts[1], prompts[1][:200] + prompts[2][:150]):
        want = lm.new_cache(1, len(prompt) + NEW)
        last = len(prompt) - 1
        lm.prefill(prompt[:-1], want)
        known = entered(pool, requested(prompt, **more), most)
        equal = equal and same(bits(pool.whole.cache.row(1), last), bits(want, last))
        pool.leave(1)
    return equal, known


@pytest.mark.each_value
@each_reader
@pytest.mark.parametrize("most", [1, 7, 30, 64, 1000])
def test_keys_have_the_same_bits_in_any_parts(kind, most):
    # of the 200 tokens that both prompts begin with, the whole blocks
    assert compared(kind, most) == (
        True,
        192,
    )


@each_reader
def test_keys_have_the_same_bits_where_the_prompt_is_scored(kind):
    assert compared(kind, 100, **SCORED) == (True, 0)


@needs_native
@pytest.mark.parametrize(
    "kind,most,more", [("amx", 7, {}), ("amx float32", 30, {}), ("amx", 100, SCORED)]
)
def test_keys_of_other_parts_would_be_noticed(kind, most, more, monkeypatch):
    monkeypatch.setattr(LM, "prompt_block", 1)
    assert not compared(kind, most, **more)[0]


@torch.inference_mode()
def test_a_prompt_goes_on_only_at_a_border():
    """The cache of prefixes has room for part of a block."""
    lm, [prompt] = reader("torch"), tiny.prompts(300)
    pool = RowPool(lm, 1, SLOTS, PrefixCache(160, 16))
    assert entered(pool, requested(prompt), 1000) == 0
    pool.leave(0)
    assert pool.prefixes is not None and pool.prefixes.used == 1
    assert entered(pool, requested(prompt), 1000) == 128


@torch.inference_mode()
@pytest.mark.parametrize("length", [200, 1])
def test_scores_of_a_prompt_are_the_models_own(length):
    lm, [prompt] = reader("amx float32"), tiny.prompts(length)
    pool = RowPool(lm, 1, SLOTS)
    request = requested(prompt, logprobs=2, prompt_logprobs=True)
    pool.begin(request)
    while pool.entering is not None:
        pool.read(100, PromptSpec())
    scored = pool.reads[1].logprobs
    law = tiny.eager("llama")(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert scored is not None and [x.token for x in scored] == prompt[1:]
    for at, x in enumerate(scored):
        assert x.logprob == pytest.approx(float(law[at, x.token]), abs=1e-4) and len(x.top) == 2


# Texts --------------------------------------------------------------------------------------------


def alone(lm: LM, prompt: list[int], seed: int) -> list[int]:
    return generate(lm, [prompt], max_new_tokens=NEW, sampler=Sampler(1.0), seed=seed, eos=())[0]


def under_load(lm: LM, batch: int, drafter: Drafter | None = None, seed: int = 0) -> list[bool]:
    """Of four requests and four that go on from their answers: which say what they say alone."""
    prompts = tiny.prompts(*LENGTHS[:4], seed=seed)
    found = list[bool]()
    with Session(
        lm, drafter, batch, SLOTS, Sampler(1.0), chunk=7, prefixes=PrefixCache(4000, 16)
    ) as s:
        for _ in range(2):
            texts = {s.submit(p, NEW, seed=i, eos=()): list[int]() for i, p in enumerate(prompts)}
            while s.running or s.waiting:
                for event in s.step():
                    texts[event.id] += event.tokens
            said = list(texts.values())
            found += [
                text == alone(lm, p, i)
                for i, (p, text) in enumerate(zip(prompts, said, strict=True))
            ]
            prompts = [p + text[:26] for p, text in zip(prompts, said, strict=True)]
    return found


@pytest.mark.full
@needs_native
@pytest.mark.parametrize("method", ["plain", "vegas", "lookup"])
def test_a_request_under_load_is_what_it_is_alone(method):
    lm = reader("amx")
    assert lm.exact and all(under_load(lm, 3, BUILD[method](lm) if method != "plain" else None))


@pytest.mark.full
@needs_native
def test_a_text_read_in_other_parts_would_be_noticed(monkeypatch):
    monkeypatch.setattr(LM, "prompt_block", 1)
    assert not all(all(under_load(reader("amx"), 3, seed=seed)) for seed in range(20))


@pytest.mark.full
def test_one_request_at_a_time_is_what_it_is_alone_on_any_backend():
    assert all(under_load(reader("torch"), 1))


def conversation(kind: str, seed: int = 0) -> bool:
    """Whether every answer of a conversation is that of `generate`."""
    lm, [text, more] = reader(kind), tiny.prompts(150, 30, seed=seed)
    talk = Conversation(lm, Sampler(1.0), seed=5)
    found = []
    for _ in range(3):
        answer = [t for step in talk.answer(text, NEW) for t in step.tokens[0]]
        found.append(answer == alone(lm, text, 5))
        text = text + answer + more
    return all(found)


@pytest.mark.full
@needs_native
@pytest.mark.parametrize("kind", ["amx", "amx float32"])
def test_a_conversation_is_what_its_prompts_give(kind):
    assert conversation(kind)


@pytest.mark.full
@needs_native
def test_keys_of_answers_in_a_conversation_would_be_noticed(monkeypatch):
    monkeypatch.setattr(LM, "prompt_block", 1)
    # most texts have no tie that rounding decides
    assert not all(conversation("amx", seed) for seed in range(20))


# Where nothing changes ----------------------------------------------------------------------------


@read_in_any_parts
def test_native_prompts_are_read_in_any_parts():
    assert tiny.target("llama").prompt_block == 1


@needs_native
def test_torch_reads_prompts_in_blocks():
    assert reader("amx").prompt_block == reader("torch").prompt_block == BLOCK
