"""The requests and events of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index

from longdraft.core import UNBOUNDED, Sampler, match
from longdraft.drafters.plain import PlainDecoding
from longdraft.engine.generate import check
from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.ops import row_seed
from longdraft.sampling_parameters import SEED


@dataclass(frozen=True)
class Request:
    """A prompt and everything that determines its output.

    owner: whose earlier prompts it may use (PrefixCache). method: the name of its drafter in the
    session; deepest: how deep its drafts may be, 0 for plain decoding.
    """

    id: int
    prompt: list[int]
    max_new_tokens: int
    seed: int
    eos: tuple[int, ...]
    sampler: Sampler
    logprobs: int | None = None
    prompt_logprobs: bool = False
    owner: str = ""
    method: str = ""
    deepest: int = UNBOUNDED

    @property
    def need(self) -> int:
        """The slots that it may fill."""
        return len(self.prompt) + self.max_new_tokens


@dataclass(frozen=True)
class PromptRead:
    """Facts about a prompt that was read.

    known: how many of its tokens were in the prefix cache. logprobs: of all its tokens but the
    first.
    """

    known: int
    logprobs: list[TokenLogprobs] | None


def make_request(
    target: LM,
    room: int,
    prompt: Iterable[int],
    max_new_tokens: int,
    seed: int,
    eos: Iterable[int],
    sampler: Sampler,
    logprobs: int | None,
    prompt_logprobs: bool,
) -> Request:
    """A request, still without its id, that can run in a row of `room` slots.

    Raises InputError for any other.
    """
    try:
        tokens = [index(t) for t in prompt]
        ends = tuple(index(t) for t in eos)
    except TypeError as error:
        raise InputError(
            f"a prompt and its end tokens must be lists of token ids: {error}"
        ) from None
    check(target, [tokens], max_new_tokens, PlainDecoding(), match)
    SEED.check(seed)
    own = row_seed(int(seed), 0)
    request = Request(
        0,
        tokens,
        max_new_tokens,
        own,
        ends,
        sampler.under(target.rules()),
        logprobs,
        prompt_logprobs,
    )
    if request.need > room:
        needs = (
            f"{len(tokens)} prompt tokens and {max_new_tokens} new ones need {request.need} slots"
        )
        raise InputError(f"{needs}, and a row has {room}: give more slots or a shorter prompt")
    if any(t >= target.vocab for t, _ in sampler.bias):
        raise InputError(
            f"a biased token is not in the model's vocabulary of {target.vocab}: leave it out"
        )
    return request


def held_up(waiting: Sequence[Request], needs: Mapping[int, int], rows: int, slots: int) -> int:
    """The number of these requests that must wait for another to end.

    These are all that follow the first ones with free rows and slots. needs: the slots of each
    request that has not ended, by id, whether it waits or not. rows, slots: of the session.
    """
    ids = {r.id for r in waiting}
    inside = [need for id, need in needs.items() if id not in ids]
    rows = rows - len(inside)
    slots = slots - sum(inside)
    for i, request in enumerate(waiting):
        slots -= request.need
        if i >= rows or slots < 0:
            return len(waiting) - i
    return 0


@dataclass(frozen=True)
class ReadingProgress:
    """How far a prompt has been read: `done` of its `total` tokens, `known` of them from the prefix
    cache, in this many seconds since it was begun.
    """

    total: int
    known: int
    done: int
    seconds: float


@dataclass(frozen=True)
class Event:
    """New tokens of a request and, in its last event, how it ended.

    ended: "eos" (the last token is an end token), "length", "cancelled" or "failed"; None if it has
    not ended. error: why it failed. drafted: how deep this step's draft was. sources: what proposed
    each of the drafts that were accepted, see Drafter.proposed_by. logprobs: those of `tokens`, if
    they were asked for. prompt: in the first event with tokens, the facts about the prompt.
    reading: the progress of the prompt, in an event without tokens (see Session.watch).
    """

    id: int
    tokens: list[int]
    ended: str | None = None
    error: BaseException | None = None
    drafted: int = 0
    sources: Sequence[str] = ()
    logprobs: list[TokenLogprobs] | None = None
    prompt: PromptRead | None = None
    reading: ReadingProgress | None = None

    @property
    def accepted(self) -> int:
        """How many drafts were accepted."""
        return len(self.sources)
