"""Draft, verify, commit: one loop for plain and speculative decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import torch

from longdraft.core import PromptSpec, Sampler, Sampling, Sequences, Verifier, match, reject
from longdraft.drafters.base import Drafter
from longdraft.drafters.forced import with_forced
from longdraft.drafters.plain import PlainDecoding
from longdraft.drafters.step import StepResult, clock, speculative_step
from longdraft.engine.acceptance_counts import AcceptanceCounts
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.prompts.prompt_file import Keeper, PromptFill, read_prompt, store_prompts

LIKELY = 1024  # tokens of an answer, which most do not reach


@dataclass
class Stats:
    """The totals of a run.

    accepted[i]: steps of unfinished rows whose i-th drafted token was accepted. sources: accepted
    drafts by the name of what proposed them, see Drafter.proposed_by. prefill_s is the
    target's prefill; start_s is the drafter's work before the first step, such as a prefill of its
    own; decode_s is all steps. predicted_speedup: the drafter's forecast when the text began, new
    tokens per second of its steps over plain decoding's; None: it does not predict.
    """

    prefill_s: float = 0.0
    start_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    decode_s: float = 0.0
    steps: int = 0  # verify passes of unfinished rows, without the first step, which never drafts
    emitted: int = 0
    accepted: list[int] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    drafts: AcceptanceCounts = field(default_factory=AcceptanceCounts)
    predicted_speedup: float | None = None

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted drafts per verify step: the bonus token counts."""
        return 1 + sum(self.accepted) / self.steps if self.steps else 1.0

    @property
    def acceptance_per_position(self) -> list[float]:
        return [a / self.steps for a in self.accepted]


@dataclass
class Step:
    """The result of one step.

    tokens[b]: the tokens that it emitted in row b: accepted drafts, then the target's own token.
    sources[b]: what proposed each of the drafts among them, see Drafter.proposed_by. failed: the
    error of each row that has just ended without meeting its constraint. The end token of such a
    row is left out.
    """

    tokens: list[list[int]]
    sources: list[list[str]]
    failed: dict[int, InputError] = field(default_factory=dict)

    def ended(self, b: int, eos: tuple[int, ...]) -> str | None:
        """The way in which row b, now done, has ended: "eos" or "length"; None: it failed."""
        if b in self.failed:
            return None
        return "eos" if self.tokens[b][-1] in eos else "length"


def step(
    target: LM,
    drafter: Drafter,
    seqs: Sequences,
    verify: Verifier,
    stats: Stats,
    draft: bool = True,
    watch: Callable[[StepResult], None] | None = None,
) -> Step:
    """One decoding step.

    Without a draft it is a plain step, whose pass still keeps the states that the drafter captures.
    watch: is called with the result.
    """
    begin = clock(target.device)
    unfinished = (~seqs.done).tolist()
    before = seqs.length.tolist()
    result = speculative_step(target, drafter, seqs, verify, draft=draft)
    count = result.count.tolist()
    stats.draft_s += result.draft_s
    stats.verify_s += clock(target.device) - begin - result.draft_s
    # An end token counts as accepted, a token dropped at the limit does not; a row that is done
    # takes none.
    verified = result.verdict.count.tolist()
    accepted = [min(n, v - 1) for n, v in zip(count, verified, strict=True)]
    sources = _sources(drafter, result, accepted)
    if draft:
        _count(stats, unfinished, accepted, result.drafted)
    for names in sources:
        stats.sources.update(names)
    stats.emitted += sum(count)
    if watch is not None:
        watch(result)
    tokens = list[list[int]]()
    for b, (start, new) in enumerate(zip(before, count, strict=True)):
        tokens.append(seqs.tokens[b, start : start + new].tolist())
    failed = _failures(seqs, unfinished)
    for b in failed:  # the end token that nothing else could follow means nothing
        tokens[b] = tokens[b][:-1]
        sources[b] = sources[b][: len(tokens[b])]
    return Step(tokens, sources, failed)


def _sources(drafter: Drafter, result: StepResult, accepted: list[int]) -> list[list[str]]:
    """By row, what proposed each accepted draft."""
    if not any(accepted):
        return [[] for _ in accepted]
    paths = zip(result.verdict.path.tolist(), accepted, strict=True)
    return [[drafter.proposed_by(node) for node in path[1 : 1 + n]] for path, n in paths]


def _failures(seqs: Sequences, unfinished: list[bool]) -> dict[int, InputError]:
    """The errors of rows that have ended in this step without meeting their constraint."""
    if not seqs.sampler.constrained:
        return {}
    ended = [b for b, done in enumerate(seqs.done.tolist()) if done and unfinished[b]]
    return {b: InputError(why) for b in ended if (why := seqs.sampler.failure(seqs, b))}


def _count(stats: Stats, unfinished: list[bool], accepted: list[int], drafted: list[int]) -> None:
    for counts, good, depth in zip(unfinished, accepted, drafted, strict=True):
        stats.steps += counts
        stats.drafts.add(depth if counts else 0, good)
        stats.accepted += [0] * (good - len(stats.accepted))
        for i in range(good):
            stats.accepted[i] += 1


def check(
    target: LM, prompts: list[list[int]], max_new_tokens: int, drafter: Drafter, verify: Verifier
) -> None:
    """Raises InputError for arguments that would only fail later."""
    target.check_process()
    if max_new_tokens < 1:
        raise InputError(f"max-new-tokens is {max_new_tokens}: give 1 or more")
    if not prompts or not all(prompts):
        raise InputError("the prompt has no tokens: give at least one")
    longest = max(map(len, prompts))
    if longest + max_new_tokens > target.positions:
        room = max(target.positions - longest, 0)
        raise InputError(
            f"{longest} prompt tokens and {max_new_tokens} new ones exceed the model's "
            f"{target.positions} positions:"
            f" give at most {room} new tokens" + ("" if room else " (and a shorter prompt)")
        )
    tokens = list(chain.from_iterable(prompts))
    odd = next((t for t in tokens if not 0 <= t < target.vocab), None)
    if odd is not None:
        raise InputError(
            f"prompt token {odd} is not in the model's vocabulary of {target.vocab}: use "
            "the model's own tokenizer"
        )
    other = next((t for t in tokens if t in target.placeholders), None)
    if other is not None:
        kind = target.placeholders[other]
        raise InputError(
            f"prompt token {other} stands for {kind}, and longdraft reads text only: leave "
            f"the {kind} out"
        )
    check_pair(drafter, verify)


def check_pair(drafter: Drafter, verify: Verifier) -> None:
    """Raises InputError if the verifier needs draft probabilities and the drafter keeps none."""
    if verify is reject and not drafter.never_drafts and not drafter.has_draft_probs:
        raise InputError(
            "verify=reject needs a drafter that keeps its draft probabilities; "
            f"{type(drafter).__name__} does not:"
            " use verify=match"
        )


def planned(prompt: int, new: int) -> int:
    """The number of slots that a text fills: the last of its new tokens is never run."""
    return prompt + new - 1


def border_of(target: LM) -> int | None:
    """The maximum number of slots with the rotations of short texts (longrope).

    None: rotations do not change.
    """
    longrope = target.architecture.longrope
    return None if longrope is None else longrope.border


def likely(target: LM, prompt: int, most: int) -> int:
    """The number of new tokens to plan for, if the request names none and may have `most`.

    prompt: the length of its prompt. A row has the rotations of the longest text that it may
    become, so room that is hardly ever used would give every short text those of long ones. It ends
    at the border instead, unless an answer may well cross it.
    """
    border = border_of(target)
    if border is None or planned(prompt, most) <= border:
        return most
    short = border + 1 - prompt
    return short if short >= min(LIKELY, most) else most


@torch.inference_mode()
def prefill(
    target: LM,
    prompts: list[list[int]],
    max_new_tokens: int,
    sampler: Sampling,
    seed: int,
    eos: tuple[int, ...] | None = None,
    report: Callable[[int], None] | None = None,
    keep: PromptSpec | None = None,
    kept: Keeper | None = None,
    reads: list[PromptFill] | None = None,
) -> Sequences:
    """Write all prompt tokens but the last to a new cache; the last one is the first root.

    A prompt that an earlier row has too is copied from there. report, keep: see LM.prefill. kept:
    where prompts are loaded from. reads: a list to which each row's PromptFill is added.
    """
    reads = [] if reads is None else reads
    cache = target.new_cache(len(prompts), max(map(len, prompts)) + max_new_tokens + 128)
    for b, prompt in enumerate(prompts):
        cache.planned[b] = planned(len(prompt), max_new_tokens)
    seqs = target.sequences(prompts, max_new_tokens, cache, sampler, seed, eos)
    for b, prompt in enumerate(prompts):
        if (same := prompts.index(prompt)) < b:
            cache.move(same, b)
            seqs.prompt_states[b] = seqs.prompt_states[same]
            reads.append(replace(reads[same], seconds=0.0, whole_s=0.0))
            if report is not None:
                report(len(prompt) - 1)
        else:
            seqs.prompt_states[b], read = read_prompt(
                target, prompt[:-1], cache.row(b), kept, report, keep
            )
            reads.append(read)
    return seqs


def stream(
    target: LM,
    prompts: list[list[int]],
    drafter: Drafter | None = None,
    max_new_tokens: int = 256,
    sampler: Sampling | None = None,
    seed: int = 0,
    eos: tuple[int, ...] | None = None,
    verify: Verifier = match,
    stats: Stats | None = None,
    prompt_cache: Keeper | None = None,
) -> Iterator[Step]:
    """Decode a batch of prompts (token ids, of any lengths); yields the tokens of each step.

    Row b draws with row_seed(seed, b), so its output does not depend on the other rows (if the
    target is not exact: except at ties within rounding). A row ends at the first token of eos
    (None: the model's end tokens; (): none). drafter None is plain decoding. prompt_cache: a
    PromptFile, whose prompt is not read again. Raises InputError for bad arguments before any work,
    and at the end if a constraint could not be met.
    """
    drafter = drafter or PlainDecoding()
    sampler = sampler or Sampler()
    stats = stats if stats is not None else Stats()
    check(target, prompts, max_new_tokens, drafter, verify)
    begin = clock(target.device)
    keep = drafter.prompt_captures()
    reads = list[PromptFill]()
    seqs = prefill(
        target, prompts, max_new_tokens, sampler, seed, eos, None, keep, prompt_cache, reads
    )
    stats.prefill_s += clock(target.device) - begin
    store_prompts(prompt_cache, prompts, seqs.cache, reads)
    yield from decode(target, drafter, seqs, verify, stats)


def decode(
    target: LM,
    drafter: Drafter,
    seqs: Sequences,
    verify: Verifier,
    stats: Stats,
    watch: Callable[[StepResult], None] | None = None,
) -> Iterator[Step]:
    """Decode prefilled rows to their ends.

    The first step does not draft: it captures the last prompt token's pass. watch: see `step`.
    Raises InputError at the end if a row's text does not meet its constraint.
    """
    begin = clock(target.device)
    drafter = with_forced(drafter, seqs.sampler)
    drafter.verified_by(verify)
    with torch.inference_mode():
        drafter.start(seqs)
    stats.start_s += clock(target.device) - begin
    stats.predicted_speedup = drafter.forecast
    draft = False
    failed = dict[int, InputError]()
    while not bool(seqs.done.all()):
        begin = clock(target.device)
        with torch.inference_mode():
            out = step(target, drafter, seqs, verify, stats, draft, watch)
        stats.decode_s += clock(target.device) - begin
        draft = True
        failed |= out.failed
        yield out
    if failed:
        row = min(failed)
        raise failed[row] if len(seqs.length) == 1 else InputError(f"row {row}: {failed[row]}")


def generate(
    target: LM, prompts: list[list[int]], drafter: Drafter | None = None, **options
) -> list[list[int]]:
    """The new tokens of each row.

    Options as for stream.
    """
    return rows_of(stream(target, prompts, drafter, **options), len(prompts))


def rows_of(steps: Iterable[Step], count: int) -> list[list[int]]:
    """The new tokens of each of `count` rows, from all steps."""
    rows = [list[int]() for _ in range(count)]
    for step in steps:
        for row, tokens in zip(rows, step.tokens, strict=True):
            row += tokens
    return rows
