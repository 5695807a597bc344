"""A conversation on one model: keys and values are kept from one answer to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from longdraft.core import Sampler, Sampling, match
from longdraft.drafters.base import Drafter
from longdraft.drafters.plain import PlainDecoding
from longdraft.drafters.step import clock
from longdraft.engine.generate import Stats, Step, check, decode, planned
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.prompts.prompt_file import stored
from longdraft.prompts.prompt_origin import origin_of
from longdraft.prompts.saved_prompt import SavedPrompt, write


class Conversation:
    """A conversation; each answer equals `generate` of its whole prompt.

    Only tokens that the cache does not hold yet are prefilled. If the target is not exact, the two
    can differ at ties within rounding: keys that were decoded are not read again. tokens: those
    whose keys and values the cache holds. One answer at a time.
    """

    def __init__(self, target: LM, sampler: Sampling | None = None, seed: int = 0):
        self.target = target
        self.seed = seed
        self.sampler = (sampler or Sampler()).under(target.rules())
        self.cache = target.new_cache(1, 0)
        self.tokens = list[int]()
        self.cache.keep_checkpoints(target.checkpoints)
        # keys of whole blocks of a prompt are kept
        self._block = target.prompt_block if target.exact else 1

    def known(self, prompt: list[int]) -> int:
        """The number of a prompt's first tokens that need no prefill."""
        end = min(len(self.tokens), len(prompt) - 1)  # the last one is the root of the first step
        shared = next((i for i in range(end) if self.tokens[i] != prompt[i]), end)
        return self.cache.resumable(self._whole(shared))

    def _whole(self, count: int) -> int:
        """The number of a prompt's first `count` tokens that are in whole blocks."""
        return count - count % self._block

    def _plan(self, slots: int) -> None:
        """Let the cache's text fill this many slots.

        Keys whose rotations do not fit the new length are dropped.
        """
        if self.target.rotation(int(self.cache.planned[0])) != self.target.rotation(slots):
            self.tokens = []
        with torch.inference_mode():
            self.cache.planned.fill_(slots)

    def save(self, path: str | Path) -> None:
        """Keep the content of the cache in a file, which is there as a whole or not at all.

        Raises OSError, and InputError if the cache holds nothing, or if the target is not exact:
        keys that were decoded are not those of a prompt there.
        """
        why = self._not_saved()
        if why:
            raise InputError(
                f"this conversation cannot be saved ({why}): use a PromptFile for its prompts"
            )
        layers = stored(self.cache.row(0), len(self.tokens))
        states = self.cache.states_at(len(self.tokens))
        if states is None:
            raise InputError(
                "this conversation was shortened where no state was kept: save it after "
                "its next answer"
            )
        write(Path(path).expanduser(), origin_of(self.target), self.tokens, layers, states=states)

    def _not_saved(self) -> str:
        """The reason why the cache's keys cannot be saved; empty if they can."""
        if not self.target.exact:
            return "decoded keys of this backend are not a prompt's"
        if self.tokens:
            return ""
        if self._block == 1:
            return "nothing was said yet"
        return f"no block of {self._block} tokens was read yet"

    @torch.inference_mode()
    def load(self, path: str | Path) -> None:
        """Hold the content of a file, of a conversation or a prompt.

        Raises FileNotFoundError, and InputError for a file that this target would not have written.
        """
        origin = origin_of(self.target).under(self.target.rotation(int(self.cache.planned[0])))
        with SavedPrompt.open(Path(path).expanduser(), origin) as saved:
            saved.check_whole()
            self.tokens = []
            self.cache.resume(saved.about.count, saved.read(self.cache, saved.about.count))
        self.tokens = saved.tokens[: self._whole(len(saved.tokens))]

    def answer(
        self,
        prompt: list[int],
        max_new_tokens: int,
        drafter: Drafter | None = None,
        stats: Stats | None = None,
        report: Callable[[int], None] | None = None,
    ) -> Iterator[Step]:
        """The steps that continue the whole prompt.

        Leaving them early keeps the tokens that were decoded. report: see LM.prefill. Raises
        InputError for bad arguments before any work.
        """
        drafter = drafter or PlainDecoding()
        stats = stats if stats is not None else Stats()
        check(self.target, [prompt], max_new_tokens, drafter, match)
        self._plan(planned(len(prompt), max_new_tokens))
        begin = clock(self.target.device)
        kept = self.known(prompt)
        self.tokens = self.tokens[:kept]
        with torch.inference_mode():
            self.cache.truncate(kept)
            states = self.target.prefill(
                prompt[kept:-1], self.cache, report=report, keep=drafter.prompt_captures()
            )
        self.tokens = prompt[: self._whole(len(prompt) - 1)]
        stats.prefill_s += clock(self.target.device) - begin
        seqs = self.target.sequences([prompt], max_new_tokens, self.cache, self.sampler, self.seed)
        seqs.prompt_states[0] = states
        try:
            yield from decode(self.target, drafter, seqs, match, stats)
        finally:
            if self._block == 1:
                self.tokens = seqs.tokens[0, : int(self.cache.length[0])].tolist()
