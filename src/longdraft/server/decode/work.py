"""A request that is ready to run, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

from longdraft.core import Sampler
from longdraft.server.decode.method_choice import OWN, ChosenMethod
from longdraft.server.decode.talk import Dialogue


@dataclass(frozen=True)
class Times:
    """Limits in seconds: until a request's prompt begins to be read, and until it is answered."""

    queue_s: float
    request_s: float


@dataclass
class RequestWork:
    """A request that is ready to run.

    Each prompt has n choices of at most `limit` new tokens, and prompt i has seeds[i].
    prompt_logprobs: those of the prompts are wanted too; silent: no new tokens. least: see Reply.
    owner: see Session.submit. talk: how a chat's answers are read. method: how they are drafted.
    progress: whether the stream tells how far the prompts are read.
    """

    prompts: list[list[int]]
    limit: int
    sampler: Sampler
    seeds: list[int]
    n: int
    stops: list[str]
    eos: tuple[int, ...]
    logprobs: int | None
    least: int = 0
    prompt_logprobs: bool = False
    silent: bool = False
    owner: str = ""
    talk: Dialogue | None = None
    method: ChosenMethod = OWN
    progress: bool = False

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))
