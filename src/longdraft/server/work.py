"""A request that is ready to run, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

from longdraft.core import Sampler
from longdraft.server.talk import Talk


@dataclass(frozen=True)
class Times:
    """Seconds: until a request begins to be answered, and until it is answered."""

    queue_s: float
    request_s: float


@dataclass
class Work:
    """A request that is ready to run. prompt_logprobs: those of the prompt are wanted too; silent: no new tokens.

    owner: see Session.submit. talk: how a chat's answers are read. grammar: what they must be (Lark, llguidance's).
    """

    prompt: list[int]
    limit: int
    sampler: Sampler
    seed: int
    n: int
    stops: list[str]
    eos: tuple[int, ...]
    logprobs: int | None
    prompt_logprobs: bool = False
    silent: bool = False
    owner: str = ""
    talk: Talk | None = None
    grammar: str | None = None
