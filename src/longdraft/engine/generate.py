"""Draft, verify, commit: the one loop of plain and speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from longdraft.core.sampling import Sampler
from longdraft.core.sequences import Sequences
from longdraft.core.verify import Verifier, match, reject
from longdraft.drafters.base import Drafter
from longdraft.drafters.step import clock, speculative_step
from longdraft.errors import InputError
from longdraft.models.lm import LM


@dataclass
class Stats:
    """Sums over a run. accepted[i]: steps (of live rows) whose i-th drafted token was accepted.

    prefill_s is the target's prefill; start_s is what the drafter does before the first round, a prefill of its own
    above all; decode_s is all rounds.
    """

    prefill_s: float = 0.0
    start_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    decode_s: float = 0.0
    steps: int = 0  # verify passes that had a draft behind them or could have had one, per live row
    emitted: int = 0
    accepted: list[int] = field(default_factory=list)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted drafts per verify step: the bonus token is counted."""
        return 1 + sum(self.accepted) / self.steps if self.steps else 1.0

    @property
    def acceptance_per_position(self) -> list[float]:
        return [a / self.steps for a in self.accepted]


@dataclass
class Step:
    """tokens[b]: what one step gave row b. All but the last are accepted drafts; the last is the target's own."""

    tokens: list[list[int]]


def step(target: LM, drafter: Drafter, seqs: Sequences, verify: Verifier, stats: Stats, draft: bool = True) -> Step:
    """One round. Without a draft it is a plain decoding step that also fills the taps."""
    begin, live, before = clock(target.device), (~seqs.done).tolist(), seqs.length.tolist()
    done = speculative_step(target, drafter, seqs, verify, draft=draft)
    count = done.count.tolist()
    stats.draft_s += done.draft_s
    stats.verify_s += clock(target.device) - begin - done.draft_s
    if draft:
        _count(stats, live, count, done.verdict.count.tolist())
    stats.emitted += sum(count)
    return Step([seqs.tokens[b, n : n + c].tolist() for b, (n, c) in enumerate(zip(before, count, strict=True))])


def _count(stats: Stats, live: list[bool], taken: list[int], verified: list[int]) -> None:
    """A token cut off by the limit is not counted as accepted; an end token among the drafts is."""
    for alive, n, v in zip(live, taken, verified, strict=True):
        stats.steps += alive
        good = min(n, v - 1) if alive else 0
        stats.accepted += [0] * (good - len(stats.accepted))
        for i in range(good):
            stats.accepted[i] += 1


def check(target: LM, prompts: list[list[int]], max_new_tokens: int, drafter: Drafter, verify: Verifier) -> None:
    """Raises InputError for what could only fail later."""
    target.check_process()
    if max_new_tokens < 1:
        raise InputError(f"max-new-tokens is {max_new_tokens}: give 1 or more")
    if not prompts or not all(prompts):
        raise InputError("the prompt has no tokens: give at least one")
    longest = max(map(len, prompts))
    if longest + max_new_tokens > target.positions:
        room = max(target.positions - longest, 0)
        raise InputError(
            f"{longest} prompt tokens and {max_new_tokens} new ones exceed the model's {target.positions} positions:"
            f" give at most {room} new tokens" + ("" if room else " (and a shorter prompt)")
        )
    odd = next((t for p in prompts for t in p if not 0 <= t < target.vocab), None)
    if odd is not None:
        raise InputError(
            f"prompt token {odd} is not in the model's vocabulary of {target.vocab}: use the model's own tokenizer"
        )
    check_pair(drafter, verify)


def check_pair(drafter: Drafter, verify: Verifier) -> None:
    """Raises InputError where the verifier needs what the drafter does not keep."""
    if verify is reject and type(drafter) is not Drafter and not drafter.has_draft_probs:
        raise InputError(
            f"verify=reject needs a drafter that keeps its law; {type(drafter).__name__} does not: use match"
        )


@torch.inference_mode()
def prefill(
    target: LM,
    prompts: list[list[int]],
    max_new_tokens: int,
    sampler: Sampler,
    seed: int,
    eos: tuple[int, ...] | None = None,
) -> Sequences:
    """All prompt tokens but the last go to the cache; the last is the first root."""
    cache = target.new_cache(len(prompts), max(map(len, prompts)) + max_new_tokens + 128)
    seqs = Sequences.on(target, prompts, max_new_tokens, cache, sampler, seed, eos)
    for b, prompt in enumerate(prompts):
        target.prefill(prompt[:-1], cache.row(b))
    return seqs


def stream(
    target: LM,
    prompts: list[list[int]],
    drafter: Drafter | None = None,
    max_new_tokens: int = 256,
    sampler: Sampler | None = None,
    seed: int = 0,
    eos: tuple[int, ...] | None = None,
    verify: Verifier = match,
    stats: Stats | None = None,
) -> Iterator[Step]:
    """Decode prompts (token ids, of any lengths) side by side; yields what each step gave.

    Row b draws with row_seed(seed, b), so its text does not depend on the rows beside it. A row ends at the first token
    of eos (None: the model's end tokens; (): it decodes past them). drafter None is plain decoding.
    Raises InputError before any work on bad arguments.
    """
    drafter, sampler, stats = drafter or Drafter(), sampler or Sampler(), stats if stats is not None else Stats()
    check(target, prompts, max_new_tokens, drafter, verify)
    begin = clock(target.device)
    seqs = prefill(target, prompts, max_new_tokens, sampler, seed, eos)
    stats.prefill_s += clock(target.device) - begin
    yield from decode(target, drafter, seqs, verify, stats)


def decode(target: LM, drafter: Drafter, seqs: Sequences, verify: Verifier, stats: Stats) -> Iterator[Step]:
    """Decode prefilled rows to their ends. The first step drafts nothing: it taps the last prompt token.

    What the drafter does before it (a prefill of its own, say) is stats.start_s, and counts against the method.
    """
    begin = clock(target.device)
    with torch.inference_mode():
        drafter.start(seqs)
    stats.start_s += clock(target.device) - begin
    draft = False
    while not bool(seqs.done.all()):
        begin = clock(target.device)
        with torch.inference_mode():
            out = step(target, drafter, seqs, verify, stats, draft)
        stats.decode_s += clock(target.device) - begin
        draft = True
        yield out


def generate(target: LM, prompts: list[list[int]], drafter: Drafter | None = None, **options) -> list[list[int]]:
    """The new tokens of each row; options as in stream."""
    rows: list[list[int]] = [[] for _ in prompts]
    for out in stream(target, prompts, drafter, **options):
        for row, tokens in zip(rows, out.tokens, strict=True):
            row += tokens
    return rows
