"""The results of a session's newest step for each row, beside its tokens."""

from __future__ import annotations

from longdraft.drafters.step import StepResult
from longdraft.engine.generate import Step
from longdraft.engine.requests import Event, PromptRead, Request
from longdraft.engine.token_logprobs import TokenLogprobs, token_logprobs


class NewestStep:
    """The draft depths and log-probabilities of the newest step.

    drafted: how deep each row's draft was. logprobs: by row, for the requests that asked for them.
    """

    def __init__(self) -> None:
        self.drafted = list[int]()
        self.logprobs = dict[int, list[TokenLogprobs]]()

    def take(self, result: StepResult, requests: list[Request]) -> None:
        """Replace the results by those of a step for these requests, one in each row."""
        verdict = result.verdict
        self.drafted = result.drafted
        self.logprobs = {}
        for b, request in enumerate(requests):
            if request.logprobs is not None:
                n = int(result.count[b])
                nodes = result.logits[b, verdict.path[b, :n]]
                tokens = verdict.emitted[b, :n]
                self.logprobs[b] = token_logprobs(nodes, tokens, request.logprobs)

    def event(
        self, b: int, request: Request, done: Step, over: bool, prompt: PromptRead | None
    ) -> Event:
        """The event of row b. over: whether the row is done. prompt: see Event."""
        tokens = done.tokens[b]
        return Event(
            request.id,
            tokens,
            ended=done.ended(b, request.eos) if over else None,
            drafted=self.drafted[b],
            sources=done.sources[b],
            logprobs=self.first(b, len(tokens)),
            prompt=prompt,
        )

    def first(self, b: int, count: int) -> list[TokenLogprobs] | None:
        """The log-probabilities of the first tokens of a row, if it asked for them."""
        return self.logprobs[b][:count] if b in self.logprobs else None
