"""A recording of decoding, step by step: the drafts, their origin, acceptance and times.

docs/traces.md describes it. The models below are the format of a trace file; a reader must refuse
another `version`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from itertools import chain
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from longdraft.core import Sampler, Tree
from longdraft.core.tree import PAD
from longdraft.drafters.base import Drafter
from longdraft.drafters.step import StepResult
from longdraft.engine.generate import Stats
from longdraft.models.lm import LM
from longdraft.models.text import Detokenizer, token_text
from longdraft.views.base import View

BINS = 256  # parts of the cache whose reading is told apart
MAX_PROMPT = 20_000  # characters of a prompt that a trace contains

Percent = Annotated[int, Field(ge=0, le=100)]
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Node(_Part):
    """A drafted token.

    parent: an index of `nodes`, or -1 for the last token before the round. by: the name of its
    proposer.
    """

    parent: Annotated[int, Field(ge=-1)]
    token: Count
    text: str
    by: str


class Round(_Part):
    """One decoding step.

    at_s: the lane's clock when it ended: seconds of its own steps. draft_s: of these, its draft.
    tokens, texts: its additions to the output; the first `accepted` of them were drafted. path:
    their indices in `nodes`, the draft's tree with parents first. shown: the share of the cache
    that the draft read, in percent, for each of up to 256 equal parts of the trace's `slots`, as a
    mean over layers; null if it read everything, or if nothing was drafted.
    """

    at_s: Annotated[float, Field(ge=0)]
    draft_s: Annotated[float, Field(ge=0)]
    tokens: list[Count]
    texts: list[str]
    accepted: Count
    nodes: list[Node]
    path: list[Count]
    shown: Annotated[list[Percent], Field(max_length=BINS)] | None


class Lane(_Part):
    """The output of one method.

    ended: "eos", "length" or "cancelled"; null while it runs.
    """

    method: str
    options: dict[str, Any]
    ended: Literal["eos", "length", "cancelled"] | None = None
    rounds: list[Round] = Field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return list(chain.from_iterable(round.tokens for round in self.rounds))


class Trace(_Part):
    """One or two lanes of one prompt; of two, the first is plain decoding.

    slots: the prompt's tokens and the most new ones. prompt: its text, perhaps shortened. equal:
    whether the lanes' outputs are the same; null if there is one lane, or if one has not ended.
    """

    format: Literal["longdraft-trace"] = "longdraft-trace"
    version: Literal[1] = 1
    model: str
    exact: bool
    seed: int
    sampler: dict[str, int | float | str]
    prompt_tokens: Count
    slots: Count
    prompt: str
    time: str
    equal: bool | None = None
    lanes: Annotated[list[Lane], Field(min_length=1, max_length=2)]

    def compare(self) -> None:
        """Set `equal` if both lanes have ended."""
        if len(self.lanes) == 2 and all(lane.ended in ("eos", "length") for lane in self.lanes):
            first, second = self.lanes
            self.equal = first.output == second.output


def new_trace(
    target: LM,
    tokenizer: Any,
    prompt: list[int],
    limit: int,
    sampler: Sampler,
    seed: int,
    lanes: list[Lane],
) -> Trace:
    """A trace that has no rounds yet."""
    return Trace(
        model=target.name,
        exact=target.exact,
        seed=seed,
        sampler={k: _plain(v) for k, v in sampler.described.items()},
        prompt_tokens=len(prompt),
        slots=len(prompt) + limit,
        prompt=shortened(tokenizer.decode(prompt, clean_up_tokenization_spaces=False)),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        lanes=lanes,
    )


def _plain(value: Any) -> int | float | str:
    """A number unchanged; any other value, such as biases and rules, as JSON."""
    return value if isinstance(value, int | float) else json.dumps(value)


def shortened(text: str) -> str:
    """The text, without its middle if it is long."""
    half = MAX_PROMPT // 2
    return text if len(text) <= MAX_PROMPT else f"{text[:half]}\n[...]\n{text[-half:]}"


@dataclass
class _Seen:
    """The facts of a step that are kept until its round is made."""

    tree: Tree
    by: list[str]
    path: list[int]
    tokens: list[int]
    view: View | None
    length: int
    draft_s: float
    at_s: float


class Recorder:
    """Makes the rounds of a decode of one row.

    It is the decode's `watch`; `rounds` returns those not yet returned. Watching takes almost no
    time, so that it does not slow the decode that is being recorded. stats: the decode's.
    """

    def __init__(
        self, drafter: Drafter, stats: Stats, tokenizer: Any, prompt_tokens: int, slots: int
    ):
        self.drafter = drafter
        self.stats = stats
        self.text = Detokenizer(tokenizer)
        self.slots = slots
        self.length = prompt_tokens
        self.edges = edges(slots)
        self._seen: list[_Seen] = []
        self._word = cache(partial(token_text, tokenizer))

    def __call__(self, result: StepResult) -> None:
        count = int(result.count[0])
        verdict = result.verdict
        tree = result.tree
        view = self.drafter.view_read() if tree.size > 1 else None
        if not isinstance(view, View) or view.seen([self.length]) == [self.length]:
            view = None
        accepted = min(count, int(verdict.count[0]) - 1)
        self._seen.append(
            _Seen(
                tree,
                [self.drafter.proposed_by(i) for i in range(1, tree.size)],
                verdict.path[0, 1 : accepted + 1].tolist(),
                verdict.emitted[0, :count].tolist(),
                view,
                self.length - 1,
                result.draft_s,
                self.stats.draft_s + self.stats.verify_s,
            )
        )
        self.length += count

    def rounds(self) -> Iterator[Round]:
        seen = self._seen
        self._seen = []
        return map(self._round, seen)

    def _round(self, seen: _Seen) -> Round:
        parents = seen.tree.parent[0].tolist()
        tokens = seen.tree.tokens[0].tolist()
        real = [i for i in range(1, len(parents)) if parents[i] != PAD]
        place = {0: -1} | {node: i for i, node in enumerate(real)}
        nodes = [
            Node(
                parent=place[parents[i]],
                token=tokens[i],
                text=self._word(tokens[i]),
                by=seen.by[i - 1],
            )
            for i in real
        ]
        return Round(
            at_s=seen.at_s,
            draft_s=seen.draft_s,
            tokens=seen.tokens,
            texts=[self.text.push([token]) for token in seen.tokens],
            accepted=len(seen.path),
            nodes=nodes,
            path=[place[node] for node in seen.path],
            shown=None if seen.view is None else shown(seen.view, seen.length, self.edges),
        )


def edges(slots: int) -> Tensor:
    """The beginning of each of the equal parts of the slots, and the end of the last one."""
    return torch.linspace(0, slots, min(BINS, slots) + 1).round().long()


def shown(view: View, length: int, edges: Tensor) -> list[int]:
    """The share of each part's committed slots that row 0 of the view shows, in percent.

    length: the number of committed slots.
    """
    chosen = view.indices[:, 0]
    # one for each layer, perhaps for each key head
    selections = chosen[..., 0].numel() if chosen.shape[-1] else 1
    counts = torch.bincount(chosen[chosen >= 0], minlength=length)[:length]
    counts = counts.double().cpu() / selections
    counts[view.starts[0] :] = 1
    total = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    ends = edges.clamp(max=length)
    parts = total[ends].diff()
    sizes = ends.diff()
    return (100 * parts / sizes.clamp(min=1)).round().long().clamp(0, 100).tolist()
