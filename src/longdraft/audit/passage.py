"""Decodes one prompt plainly and by a method, compares the outputs, and judges every difference."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from longdraft.audit.audit_plan import AuditPrompt, DecodingWay
from longdraft.audit.ties import Replay
from longdraft.core import Rows, Sampling, Sequences, Tree, Verdict, Verifier, match, verify
from longdraft.drafters import Drafter
from longdraft.engine.decode_session import DecodeSession, RowsSnapshot
from longdraft.engine.generate import Stats, Step, decode
from longdraft.models.lm import LM
from longdraft.prompts.prompt_file import Keeper
from longdraft.recording.decode_figures import diversity

# relative to a layer's largest key or value in float32: a thousand times the rounding error
MAX_ERROR = 1e-3
KEPT = 16  # highest scores of plain decoding that are kept for each step
Tick = Callable[[int], None]  # called with the number of tokens that were just decoded


@dataclass
class Tally:
    """The number of plain decoding's tokens that were compared so far, and every difference."""

    tokens: int = 0
    differences: list[dict[str, Any]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    @property
    def ties(self) -> int:
        return sum(d["kind"] == "tie" for d in self.differences)

    @property
    def failures(self) -> int:
        return len(self.differences) - self.ties


@dataclass
class Comparison:
    """One prompt decoded in one way: plainly, in wider passes (the control), and by the method."""

    prompt: AuditPrompt
    index: int
    way: DecodingWay
    plain: list[int] = field(default_factory=list)
    method: Tally = field(default_factory=Tally)
    control: Tally = field(default_factory=Tally)
    interrupted: bool = False

    def record(self) -> dict[str, Any]:
        tally = self.method
        stats = self.method.stats
        sampler = json.dumps(self.way.sampler.described)
        return {
            "index": self.index,
            "prompt": self.prompt.name,
            "prompt_tokens": len(self.prompt.tokens),
            "way": str(self.way),
            "sampler": json.loads(sampler),  # as it is read back: lists for tuples
            "seed": self.way.seed,
            "tokens": tally.tokens,
            "differences": len(tally.differences),
            "ties": tally.ties,
            "failures": tally.failures,
            "found": tally.differences,
            "control_tokens": self.control.tokens,
            "control_ties": self.control.ties,
            "control_failures": self.control.failures,
            "verify_steps": stats.steps,
            "accepted": sum(stats.accepted),
            "mean_acceptance_length": stats.mean_acceptance_length,
            "acceptance_per_position": stats.acceptance_per_position,
            **diversity([self.plain]),
            **({"interrupted": True} if self.interrupted else {}),
        }


class Unchosen(Exception):
    """A token was emitted that the target did not choose in the pass that verified it."""


def checked_match(tree: Tree, logits: Tensor, sampler: Sampling, rows: Rows) -> Verdict:
    """Verifies as verify.match does, and checks each token.

    Raises Unchosen for a token that the logits of the same pass do not choose (no rounding here).
    """
    verdict = verify.match(tree, logits, sampler, rows)
    own = sampler.draw(logits, tree, rows).gather(1, verdict.path)
    real = torch.arange(own.shape[1], device=own.device) < verdict.count[:, None]
    if bool(((own != verdict.emitted) & real).any()):
        raise Unchosen(
            "a token was emitted that the target did not choose in the pass that verified it"
        )
    return verdict


class Passage:
    """A prompt whose keys and values no drafter may change.

    `damaged` is set once a drafter did, and ends the passage's use. Plain decoding's keys and
    values are kept: after a tie, the method continues from plain decoding's exact state.
    """

    def __init__(
        self,
        target: LM,
        prompt: AuditPrompt,
        build: Callable[[], Drafter],
        tolerance: float,
        verify: Verifier | None = None,
        kept: Keeper | None = None,
    ):
        self.target = target
        self.build = build
        self.tolerance = tolerance
        self.verify = verify or checked_match
        self.damaged = False
        self.altered: str | None = None
        self.session = DecodeSession(target, [prompt.tokens], prompt.new, eos=(), kept=kept)
        self.session.seal()
        self.begin = int(self.session.cache.length[0])

    def _reference(self, comparison: Comparison, tick: Tick) -> None:
        """Decode plainly; keep the best tokens and scores of each step, and new keys and values."""
        self.best: list[tuple[list[int], list[float]]] = []

        def spy(tree: Tree, logits: Tensor, sampler: Sampling, rows: Rows) -> Verdict:
            top = sampler.scores(logits, tree, rows)[0, 0].topk(min(KEPT, logits.shape[-1]))
            self.best.append((top.indices.tolist(), top.values.tolist()))
            return match(tree, logits, sampler, rows)

        self.session.sampler = comparison.way.sampler
        self.session.seed = comparison.way.seed
        for step in self.session.decode(verify=spy):
            comparison.plain += step.tokens[0]
            tick(len(step.tokens[0]))
        cache = self.session.cache
        end = self.begin + len(comparison.plain)
        self.keys = {
            n: [x[:, self.begin : end].clone() for x in cache.stored(n, 0)] for n in cache.layers
        }

    def _new_keys(self) -> list[tuple[Tensor, Tensor]]:
        """The new tokens' keys and values: (a view of the cache, plain decoding's values)."""
        pairs = list[tuple[Tensor, Tensor]]()
        for layer, saved in self.keys.items():
            for x, old in zip(self.session.cache.stored(layer, 0), saved, strict=True):
                if old.shape[2]:  # layers that cache keys alone have values of width 0
                    pairs.append((x[:, self.begin : self.begin + old.shape[1]], old))
        return pairs

    @torch.inference_mode()
    def _from(self, comparison: Comparison, count: int) -> Sequences:
        """The exact state of plain decoding after its first `count` tokens."""
        cache = self.session.cache
        text = comparison.prompt.tokens + comparison.plain[:count]
        left = len(comparison.plain) - count
        self.session.rewind()
        if cache.recurrences and count:  # of recurrent layers, only the prompt's states are kept
            self.target.extend_cache(
                torch.tensor([text[self.begin : self.begin + count]], device=self.target.device),
                cache,
            )
        for now, old in self._new_keys():
            now.copy_(old)
        cache.length.fill_(self.begin + count)
        seqs = self.target.sequences(
            [text], left, cache, comparison.way.sampler, comparison.way.seed, eos=()
        )
        # some of the model's rules count new tokens
        seqs.prompt.fill_(len(comparison.prompt.tokens))
        seqs.limit.fill_(len(comparison.plain))
        return seqs

    def _keys_differ(self) -> bool:
        """Tells whether the new tokens' keys and values differ from plain decoding's.

        Rounding does not count. With an exact backend and tolerance 0, they must be equal bit for
        bit. Otherwise bfloat16 is not checked: rounding may select another expert, whose keys are
        different.
        """
        if self.target.exact and not self.tolerance:
            return not all(torch.equal(new, old) for new, old in self._new_keys())
        if self.target.dtype != torch.float32:
            return False
        return any(
            not bool((x - old).abs().max() <= MAX_ERROR * old.abs().max())
            for x, old in self._new_keys()
        )

    def compare(self, comparison: Comparison, tick: Tick) -> None:
        """Decode plainly, then in wider passes (the control), and by the method.

        The method is last, because it may damage the cache.
        """
        self._reference(comparison, tick)
        if self.tolerance:
            build = partial(Replay, comparison.prompt.tokens + comparison.plain)
            self._follow(comparison, comparison.control, build, match, lambda n: tick(1))
        self._follow(comparison, comparison.method, self.build, self.verify, tick)
        why = None
        if damage := self.altered or self.session.altered():
            self.damaged = True
            why = f"the method changed {damage}"
        elif not comparison.method.failures and self._keys_differ():
            why = "the new tokens' keys and values are not plain decoding's"
        if why:
            comparison.method.differences.append({"kind": "failure", "position": None, "why": why})

    def _follow(
        self,
        comparison: Comparison,
        tally: Tally,
        build: Callable[[], Drafter],
        verifier: Verifier,
        tick: Tick,
    ) -> None:
        """Compare with plain decoding's output.

        After a tie, decoding continues from that output; a failure ends it.
        """
        while tally.tokens < len(comparison.plain) and not tally.failures:
            seqs = self._from(comparison, tally.tokens)
            steps = decode(self.target, build(), seqs, verifier, tally.stats)
            try:
                mismatch = self._walk(comparison, tally, seqs, steps, tick)
            except Unchosen as error:
                tally.differences.append(
                    {"kind": "failure", "position": tally.tokens, "why": str(error)}
                )
                break
            if mismatch is None:
                break
            position, token = mismatch
            tally.differences.append(self._judge(comparison, position, token))
            tally.tokens += 1

    def _walk(
        self,
        comparison: Comparison,
        tally: Tally,
        seqs: Sequences,
        steps: Iterator[Step],
        tick: Tick,
    ) -> tuple[int, int | None] | None:
        """Take steps until the first difference.

        Returns its position and the token emitted there, or None.
        """
        snapshot = RowsSnapshot(seqs)
        for step in steps:
            for token in step.tokens[0]:
                if token != comparison.plain[tally.tokens]:
                    return tally.tokens, token
                tally.tokens += 1
            snapshot.extend(step)
            tick(len(step.tokens[0]))
        self.altered = snapshot.altered()
        return (tally.tokens, None) if tally.tokens < len(comparison.plain) else None

    def _judge(self, comparison: Comparison, position: int, token: int | None) -> dict[str, Any]:
        """A record of a difference: it is a tie if its gap is within a tolerance above 0.

        The gap: by how much plain decoding scored this token below its own.
        """
        T = comparison.way.sampler.temperature
        tokens, scores = self.best[position]
        # dividing by a low temperature magnifies rounding errors
        within = self.tolerance / (min(T, 1.0) or 1.0)
        gap = scores[0] - scores[tokens.index(token)] if token in tokens else None
        tie = gap is not None and 0 < within >= gap
        apart = scores[0] - scores[1]
        return {
            "kind": "tie" if tie else "failure",
            "position": position,
            "plain": comparison.plain[position],
            "method": token,
            "gap": gap,
            "top2_gap": apart if apart < float("inf") else None,
        }
