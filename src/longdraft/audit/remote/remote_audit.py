"""The audit of a server: the same requests with speculation and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from longdraft.audit.remote.at_once import at_once
from longdraft.audit.remote.differences import (
    Difference,
    first_difference,
    movement,
    tolerance_of,
)
from longdraft.audit.remote.endpoint import Endpoint, EndpointReply, Refused
from longdraft.audit.remote.frequencies import FrequencyTest, by_rank, by_text, unscored
from longdraft.audit.remote.passages import RemotePassage
from longdraft.audit.remote.reported_drafts import SpeculationSeen
from longdraft.errors import InputError

WORDS_OF_LENGTH = ("context", "too long", "maximum", "exceed", "length", "tokens", "too large")
PREFIXES = 4  # texts that are sampled after

Tick = Callable[[int, str], None]


@dataclass(frozen=True)
class AuditPlan:
    """The size of an audit, and its error rate."""

    passages: Sequence[RemotePassage]
    new: int = 128
    levels: Sequence[int] = (1, 4, 8)
    samples: int = 64
    sampled_new: int = 16
    top: int = 5
    seed: int = 0
    error_rate: float = 1e-3
    tolerance: float | None = None


@dataclass(frozen=True)
class ComparedText:
    """An answer compared with plain decoding's."""

    passage: RemotePassage
    level: int
    size: int
    difference: Difference | None


@dataclass(frozen=True)
class SampledTest:
    """A test of samples: of the audited server, or of plain decoding as a control."""

    name: str
    control: bool
    result: FrequencyTest


@dataclass
class RemoteAudit:
    """An audit, and what is known so far."""

    audited: Endpoint
    plain: Endpoint
    plan: AuditPlan
    scored: bool = True
    skipped: list[tuple[str, str]] = field(default_factory=list)
    prompt_tokens: dict[str, int | None] = field(default_factory=dict)
    moved: list[float] = field(default_factory=list)
    controls: list[ComparedText] = field(default_factory=list)
    compared: list[ComparedText] = field(default_factory=list)
    tests: list[SampledTest] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: SpeculationSeen = field(default_factory=SpeculationSeen)

    @property
    def steps(self) -> int:
        """Requests, for a progress bar."""
        plan = self.plan
        texts = len(plan.passages)
        per_level = sum(max(texts, level) for level in plan.levels)
        sampled = 3 * plan.samples * min(PREFIXES, texts)
        return texts + 2 * per_level + sampled

    @property
    def tolerance(self) -> float:
        """The largest gap that counts as a tie."""
        if self.plan.tolerance is not None:
            return self.plan.tolerance
        gaps = [
            c.difference.gap
            for c in self.controls
            if c.difference and c.difference.gap is not None and not c.difference.bound
        ]
        return tolerance_of(self.moved, gaps)

    def prepare(self) -> None:
        """Find the models and what the servers accept, with one short request each."""
        for endpoint in (self.audited, self.plain):
            try:
                endpoint.find_model()
                endpoint.find_sampling()
                endpoint.ask("Once upon a time", 2)
            except Refused as error:
                raise InputError(f"{endpoint.url} refuses a request: {error}") from error
        self.scored = self._probe()
        if not self.scored:
            self.notes.append(
                f"{self.plain.url} gives no log-probabilities: differences cannot be called ties "
                "or faults, and samples cannot be judged."
            )

    def _probe(self) -> bool:
        try:
            tokens = self.plain.ask("Once upon a time", 2, top=self.plan.top).tokens
        except Refused:
            return False
        return bool(tokens) and len(tokens[0].top) > 1

    def run(self, tick: Tick) -> None:
        """Every request; the results are in the fields as they come."""
        replies = self._references(tick)
        if not replies:
            raise InputError("the server answered none of the texts: give shorter --lengths")
        for level in self.plan.levels:
            chosen = _cycle(list(replies), level)
            for passage, reply in self._answers(self.plain, chosen, level, tick):
                self.moved.append(movement(replies[passage], reply))
                difference = first_difference(replies[passage], reply)
                self.controls.append(ComparedText(passage, level, len(reply.text), difference))
        for level in self.plan.levels:
            chosen = _cycle(list(replies), level)
            for passage, reply in self._answers(self.audited, chosen, level, tick):
                difference = first_difference(replies[passage], reply)
                self.compared.append(ComparedText(passage, level, len(reply.text), difference))
        if self.scored and self.plan.samples:
            first = sorted(replies, key=lambda p: not p.sampled)
            self._sample(first[:PREFIXES], tick)

    def _references(self, tick: Tick) -> dict[RemotePassage, EndpointReply]:
        """Plain decoding's answers alone, to the texts that both servers have room for."""
        replies = dict[RemotePassage, EndpointReply]()
        top = self.plan.top if self.scored else None
        for passage in self.plan.passages:
            tick(1, f"plain: {passage.name}")
            try:
                reply = self.plain.ask(passage.text, self.plan.new, top=top)
                self.audited.ask(passage.text, 1)
            except Refused as error:
                about_length = any(w in error.message.lower() for w in WORDS_OF_LENGTH)
                if error.status not in (400, 413, 422, 500) or not about_length:
                    raise InputError(f"{passage.name}: {error}") from error
                self.skipped.append((passage.name, error.message))
                continue
            replies[passage] = reply
            self.seen.plain.add(reply)
            self.prompt_tokens[passage.name] = reply.prompt_tokens
        return replies

    def _answers(
        self, endpoint: Endpoint, chosen: list[RemotePassage], level: int, tick: Tick
    ) -> Iterator[tuple[RemotePassage, EndpointReply]]:
        top = self.plan.top if self.scored and endpoint is self.plain else None
        calls = [partial(endpoint.ask, p.text, self.plan.new, top=top) for p in chosen]
        name = "plain" if endpoint is self.plain else "audited"
        for i, reply in at_once(calls, level):
            tick(1, f"{name}, {level} at once")
            checked = _checked(reply, chosen[i].name)
            kind = self.seen.plain if endpoint is self.plain else self.seen.greedy
            kind.add(checked)
            yield chosen[i], checked

    def _sample(self, prefixes: list[RemotePassage], tick: Tick) -> None:
        """The tests of samples: two by the probabilities reported, one against plain samples."""
        plan = self.plan
        every: dict[bool, list[EndpointReply]] = {True: [], False: []}
        for n, passage in enumerate(prefixes):
            seed = plan.seed + 3 * n * plan.samples
            plain = self._samples(self.plain, passage, seed, plan.top, tick)
            scored = self._samples(self.audited, passage, seed + plan.samples, plan.top, tick)
            silent = self._samples(self.audited, passage, seed + 2 * plan.samples, None, tick)
            every[True] += plain
            every[False] += scored
            texts = by_text([r.text for r in plain], [r.text for r in silent])
            self._add(f"beginnings: {passage.name}", False, texts)
            self._add(f"ranks: {passage.name}", False, by_rank(scored, plan.top))
        left_out = unscored(every[False])
        if left_out:
            total = sum(len(r.tokens or []) for r in every[False])
            self.notes.append(
                f"{left_out} of {total} sampled tokens have no probabilities in the audited "
                "server's answers (drafted ones, perhaps): the tests by rank leave them out."
            )
        self._add("ranks: all texts", True, by_rank(every[True], plan.top))
        self._add("ranks: all texts", False, by_rank(every[False], plan.top))

    def _add(self, name: str, control: bool, result: FrequencyTest | None) -> None:
        if result is None:
            self.notes.append(f"{name}: too few samples for a test.")
        else:
            self.tests.append(SampledTest(name, control, result))

    def _samples(
        self, endpoint: Endpoint, passage: RemotePassage, seed: int, top: int | None, tick: Tick
    ) -> list[EndpointReply]:
        plan = self.plan
        calls = [
            partial(endpoint.ask, passage.text, plan.sampled_new, 1.0, seed + i, top)
            for i in range(plan.samples)
        ]
        replies = list[tuple[int, EndpointReply]]()
        for i, reply in at_once(calls, max(plan.levels)):
            tick(1, f"samples: {passage.name}")
            checked = _checked(reply, passage.name)
            kind = self.seen.silent if top is None else self.seen.scored
            if endpoint is self.plain:
                kind = self.seen.plain
            kind.add(checked)
            replies.append((i, checked))
        return [reply for _, reply in sorted(replies, key=lambda pair: pair[0])]

    def threshold(self, control: bool) -> float:
        """The error rate of one test, so that all together have the one that was asked for."""
        planned = 1 if control else 2 * min(PREFIXES, len(self.prompt_tokens)) + 1
        return self.plan.error_rate / planned

    @property
    def sampling_described(self) -> bool:
        """Whether plain samples agree with the probabilities that plain decoding reports."""
        rate = self.threshold(True)
        return all(t.result.p > rate for t in self.tests if t.control)

    def verdict(self, test: SampledTest) -> str:
        """ok, fault or unjudged.

        A server whose plain samples do not follow its reported probabilities, because it changes
        them before sampling, can be judged only by its plain samples.
        """
        if test.result.p > self.threshold(test.control):
            return "ok"
        if test.control or (test.name.startswith("ranks") and not self.sampling_described):
            return "unjudged"
        return "fault"


def _cycle(replied: list[RemotePassage], level: int) -> list[RemotePassage]:
    """The texts, repeated until there is one for each request that runs at a time."""
    return [replied[i % len(replied)] for i in range(max(level, len(replied)))]


def _checked(reply: Any, name: str) -> EndpointReply:
    if isinstance(reply, Refused):
        raise InputError(f"{name}: {reply}") from reply
    if isinstance(reply, BaseException):
        raise reply
    return reply
