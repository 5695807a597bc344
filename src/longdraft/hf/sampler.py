"""A sampler of Transformers' logits processors, which `generate` has prepared.

They are applied to every node's own path.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as lp

from longdraft.core.constraint import Constraint
from longdraft.core.processors import READS_LENGTH, READS_NOTHING, run, usual, within
from longdraft.core.row_samplers import RowSamplers
from longdraft.core.rows import Rows
from longdraft.core.rules import Rules
from longdraft.core.sampling import Sampler
from longdraft.core.sampling_protocol import Sampling
from longdraft.core.tree import Tree
from longdraft.errors import InputError
from longdraft.sampling_parameters import MIN_P, PENALTY, TEMPERATURE, TOP_K, TOP_P

# Sampler computes these by itself, in this order.
SETTINGS = {
    lp.TemperatureLogitsWarper: TEMPERATURE,
    lp.TopKLogitsWarper: TOP_K,
    lp.TopPLogitsWarper: TOP_P,
    lp.MinPLogitsWarper: MIN_P,
}
# `generate` samples from the first of these on; processors before them depend on the text alone.
WARPERS = {
    *SETTINGS,
    lp.TypicalLogitsWarper,
    lp.EpsilonLogitsWarper,
    lp.EtaLogitsWarper,
    lp.TopHLogitsWarper,
}
IN_RANGE = SETTINGS | {lp.RepetitionPenaltyLogitsProcessor: PENALTY}
# Transformers' processors that are functions of a row's own tokens and scores. All others of its
# are refused.
PURE = {
    *READS_NOTHING,
    *READS_LENGTH,
    lp.RepetitionPenaltyLogitsProcessor,
    lp.NoRepeatNGramLogitsProcessor,
    lp.SequenceBiasLogitsProcessor,
    lp.NoBadWordsLogitsProcessor,
    lp.PrefixConstrainedLogitsProcessor,
    lp.TypicalLogitsWarper,
    lp.EpsilonLogitsWarper,
    lp.TopHLogitsWarper,
    lp.LogitNormalization,
}


@dataclass(frozen=True)
class ProcessedSampler(Sampler):
    """Changes logits by the constraint and `processors` alone.

    Each processor is called on a node's whole path. No processor brings a token back that the
    constraint excludes, or takes all that it allows. temperature 0 takes the best token, any other
    draws. before: the row's padding, which processors see as they do in Transformers. Rows that are
    processed together have the same of both.
    """

    processors: tuple[Any, ...] = ()
    before: tuple[int, ...] = ()

    def processed(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        logits = logits.float()
        if self.constraint is None:
            return self._run(self.processors, logits, tree, rows, start)
        logits = self.constraint.masked(logits, tree, rows, start)
        first = next(
            (i for i, process in enumerate(self.processors) if type(process) in WARPERS),
            len(self.processors),
        )
        for processors in (self.processors[:first], self.processors[first:]):
            logits = within(logits, self._run(processors, logits, tree, rows, start))
        return logits

    def _run(
        self, processors: tuple[Any, ...], logits: Tensor, tree: Tree, rows: Rows, start: int
    ) -> Tensor:
        return run([processors] * len(logits), logits, tree, rows, start, self.before)

    @property
    def bare(self) -> bool:
        return False

    @cached_property
    def warpers(self) -> None:
        return None


def sampler_of(
    processors: list[Any],
    do_sample: bool,
    input_ids: Tensor,
    padding: list[int],
    vocab: int,
    constraint: Constraint | None = None,
) -> Sampling:
    """A sampler that samples as `generate` does with these processors.

    input_ids: prompts [B,N], the first padding[b] of them padding.

    The constraint excludes tokens before the processors see the scores, and they bring none back.
    Where they leave none of those that it allows, they are void: those in front of the warpers
    (temperature and the like), or the others.

    Raises InputError for a processor that is not a function of a row's tokens and scores, and a
    value out of range.
    """
    for process in processors:
        _check(process, input_ids[:1], vocab)
    temperature = 1.0 if do_sample else 0.0
    if (settings := _settings(processors)) is not None:
        given = {"temperature": temperature, **settings} if do_sample else {}
        return Sampler(**given, rules=Rules(), constraint=constraint)
    made = []
    for b, (row, count) in enumerate(zip(input_ids.tolist(), padding, strict=True)):
        own = tuple(_of_row(process, b, len(input_ids)) for process in processors)
        made.append(
            ProcessedSampler(
                temperature,
                rules=Rules(),
                constraint=constraint,
                processors=own,
                before=tuple(row[:count]),
            )
        )
    return RowSamplers(made)


def _settings(processors: list[Any]) -> dict[str, Any] | None:
    """The settings of a Sampler that does the same.

    None: there are other processors, or they are in another order.
    """
    kinds = [type(process) for process in processors]
    if kinds != [kind for kind in SETTINGS if kind in kinds]:
        return None
    if not all(map(usual, processors)):
        return None
    names = [SETTINGS[kind].name for kind in kinds]
    return {name: getattr(process, name) for name, process in zip(names, processors, strict=True)}


def _of_row(process: Any, b: int, rows: int) -> Any:
    """The processor of row b alone, for those that know their row by its place in the batch."""
    if type(process) is lp.PrefixConstrainedLogitsProcessor:
        allowed = process._prefix_allowed_tokens_fn
        return lp.PrefixConstrainedLogitsProcessor(lambda _, sent: allowed(b, sent), 1)
    ignored = getattr(process, "prompt_ignore_length", None)
    if type(process) is lp.RepetitionPenaltyLogitsProcessor and isinstance(ignored, Tensor):
        return lp.RepetitionPenaltyLogitsProcessor(process.penalty, int(ignored[b]))
    return process


def _check(process: Any, prompt: Tensor, vocab: int) -> None:
    """Raises InputError for processors that cannot be used.

    These are Transformers' outside PURE or its range, and nondeterministic ones.
    """
    kind = type(process)
    if kind in IN_RANGE:
        IN_RANGE[kind].check(getattr(process, IN_RANGE[kind].name))
    if kind in PURE:
        return
    if kind.__module__.startswith("transformers."):
        raise InputError(
            f"longdraft cannot apply {kind.__name__} to drafts: leave it out, or use plain generate"
        )
    asked: Any = prompt.clone()
    first, second = (process(asked, torch.zeros(1, vocab, device=prompt.device)) for _ in range(2))
    if not torch.equal(first, second):
        raise InputError(
            f"{kind.__name__} is nondeterministic: it returned different scores for the "
            "same input. Make it a function"
            " of (input_ids, scores) alone"
        )
