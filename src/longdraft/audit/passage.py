"""One prompt decoded plainly and by a method: how far their texts were compared, and every difference, judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longdraft.audit.ties import Replay
from longdraft.bench.run import distinct
from longdraft.core import verify
from longdraft.core.rows import Rows
from longdraft.core.sampling import Sampler
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict, Verifier, match
from longdraft.drafters import Drafter
from longdraft.engine.decode_session import DecodeSession, Witness
from longdraft.engine.generate import Stats, Step, decode

if TYPE_CHECKING:
    from longdraft.audit.audit import Audit, Prompt, Way

ASTRAY = 1e-3  # of a layer's largest key or value in float32: a thousand times what rounding does
KEPT = 16  # best tokens of plain decoding whose scores are remembered


@dataclass
class Tally:
    """How much of plain decoding's text was compared so far, and every difference."""

    tokens: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    @property
    def ties(self) -> int:
        return sum(d["kind"] == "tie" for d in self.found)

    @property
    def failures(self) -> int:
        return len(self.found) - self.ties


@dataclass
class Run:
    """One prompt decoded one way: plainly, then again in wider passes (the control), and by the method."""

    prompt: Prompt
    index: int
    way: Way
    plain: list[int] = field(default_factory=list)
    method: Tally = field(default_factory=Tally)
    control: Tally = field(default_factory=Tally)
    interrupted: bool = False

    def record(self) -> dict[str, Any]:
        found, stats = self.method, self.method.stats
        return {
            "index": self.index,
            "prompt": self.prompt.name,
            "prompt_tokens": len(self.prompt.tokens),
            "way": str(self.way),
            "sampler": asdict(self.way.sampler),
            "seed": self.way.seed,
            "tokens": found.tokens,
            "differences": len(found.found),
            "ties": found.ties,
            "failures": found.failures,
            "found": found.found,
            "control_tokens": self.control.tokens,
            "control_ties": self.control.ties,
            "control_failures": self.control.failures,
            "verify_steps": stats.steps,
            "accepted": sum(stats.accepted),
            "mean_acceptance_length": stats.mean_acceptance_length,
            "acceptance_per_position": stats.acceptance_per_position,
            **{f"distinct_{n}": distinct([self.plain], n) for n in range(1, 5)},
            **({"interrupted": True} if self.interrupted else {}),
        }


class Unchosen(Exception):
    """A token came out that the target did not choose in the very pass that verified it."""


def recounted(tree: Tree, logits: Tensor, sampler: Sampler, rows: Rows) -> Verdict:
    """verify.match, whatever it has become. What it lets through must be what the target says in this pass, to the bit:
    rounding between passes is no excuse here. Raises Unchosen.
    """
    verdict = verify.match(tree, logits, sampler, rows)
    own = sampler.draw(logits, tree, rows).gather(1, verdict.path)
    real = torch.arange(own.shape[1], device=own.device) < verdict.count[:, None]
    if bool(((own != verdict.emitted) & real).any()):
        raise Unchosen("a token came out that the target did not choose in the pass that verified it")
    return verdict


class Passage:
    """A prompt whose keys and values no drafter may change: `damaged` when one did, and then all that follows is void.

    Plain decoding's own keys are kept, so that after a tie the method goes on exactly from where plain decoding was.
    """

    def __init__(self, audit: Audit, prompt: Prompt):
        self.audit, self.damaged = audit, False
        self.altered: str | None = None
        self.runs = DecodeSession(audit.target, [prompt.tokens], prompt.new, eos=())
        self.runs.seal()
        self.begin = int(self.runs.cache.length[0])

    def _reference(self, run: Run, tick: Callable[[int], None]) -> list[tuple[list[int], list[float]]]:
        """Decode plainly; the best tokens and scores of every step."""
        best = []

        def spy(tree: Tree, logits: Tensor, sampler: Sampler, rows: Rows) -> Verdict:
            top = sampler.scores(logits, tree, rows)[0, 0].topk(min(KEPT, logits.shape[-1]))
            best.append((top.indices.tolist(), top.values.tolist()))
            return match(tree, logits, sampler, rows)

        self.runs.sampler, self.runs.seed = run.way.sampler, run.way.seed
        for step in self.runs.decode(verify=spy):
            run.plain += step.tokens[0]
            tick(len(step.tokens[0]))
        cache, end = self.runs.cache, self.begin + len(run.plain)
        self.keys = {n: [x[:, self.begin : end].clone() for x in cache.read(n, 0)] for n in cache.layers}
        return best

    @torch.inference_mode()
    def _from(self, run: Run, at: int) -> Sequences:
        """Plain decoding's state after its first `at` tokens, to the bit."""
        cache = self.runs.cache
        for layer, saved in self.keys.items():
            for x, old in zip(cache.read(layer, 0), saved, strict=True):
                x[:, self.begin : self.begin + old.shape[1]] = old
        cache.length.fill_(self.begin + at)
        text, left = run.prompt.tokens + run.plain[:at], len(run.plain) - at
        seqs = Sequences.on(self.audit.target, [text], left, cache, run.way.sampler, run.way.seed, eos=())
        seqs.prompt.fill_(len(run.prompt.tokens))  # the model's rules may count from its end
        seqs.limit.fill_(len(run.plain))
        return seqs

    def _astray(self) -> bool:
        """Whether the new tokens' keys and values are other than plain decoding's, beyond rounding.

        Where passes are exact and nothing is tolerated, they must be the same bits. Elsewhere not asked in bfloat16,
        where rounding may choose another expert and with it other keys.
        """
        pairs = [
            (x[:, self.begin : self.begin + old.shape[1]], old)
            for layer, saved in self.keys.items()
            for x, old in zip(self.runs.cache.read(layer, 0), saved, strict=True)
        ]
        if self.audit.target.exact and not self.audit.tolerance:
            return not all(torch.equal(new, old) for new, old in pairs)
        if self.audit.target.dtype != torch.float32:
            return False
        return not all(bool((new - old).abs().max() <= ASTRAY * old.abs().max()) for new, old in pairs)

    def compare(self, run: Run, tick: Callable[[int], None]) -> None:
        """Decode plainly, then in wider passes, and last by the method, which is the one that is not trusted."""
        audit, best = self.audit, self._reference(run, tick)
        if audit.tolerance:
            build = partial(Replay, run.prompt.tokens + run.plain)
            self._follow(run, run.control, best, build, match, lambda n: tick(1))
        self._follow(run, run.method, best, audit.build, audit.verify or recounted, tick)
        why = None
        if damage := self.altered or self.runs.altered():
            self.damaged, why = True, f"the method changed {damage}"
        elif not run.method.failures and self._astray():
            why = "the new tokens' keys and values are not plain decoding's"
        if why:
            run.method.found.append({"kind": "failure", "position": None, "why": why})

    def _follow(
        self,
        run: Run,
        tally: Tally,
        best: list[tuple[list[int], list[float]]],
        build: Callable[[], Drafter],
        verifier: Verifier,
        tick: Callable[[int], None],
    ) -> None:
        """Compare with plain decoding's text. After a tie decoding goes on from that text; a failure ends it."""
        while tally.tokens < len(run.plain) and not tally.failures:
            seqs = self._from(run, tally.tokens)
            steps = decode(self.audit.target, build(), seqs, verifier, tally.stats)
            try:
                at = self._walk(run, tally, seqs, steps, tick)
            except Unchosen as error:
                tally.found.append({"kind": "failure", "position": tally.tokens, "why": str(error)})
                break
            if at is None:
                break
            tally.found.append(self._judge(run, *at, *best[at[0]]))
            tally.tokens += 1

    def _walk(
        self, run: Run, tally: Tally, seqs: Sequences, steps: Iterator[Step], tick: Callable[[int], None]
    ) -> tuple[int, int | None] | None:
        """Take steps up to a difference: (position, the token that was said there)."""
        witness = Witness(seqs)
        for step in steps:
            for token in step.tokens[0]:
                if token != run.plain[tally.tokens]:
                    return tally.tokens, token
                tally.tokens += 1
            witness.take(step)
            tick(len(step.tokens[0]))
        self.altered = witness.altered()
        return (tally.tokens, None) if tally.tokens < len(run.plain) else None

    def _judge(
        self, run: Run, position: int, token: int | None, tokens: list[int], scores: list[float]
    ) -> dict[str, Any]:
        """A tie: plain decoding preferred its own token over this one by no more than a tolerance above 0."""
        T = run.way.sampler.temperature
        within = self.audit.tolerance / (min(T, 1.0) or 1.0)  # a low temperature magnifies rounding
        gap = scores[0] - scores[tokens.index(token)] if token in tokens else None
        tie = gap is not None and 0 < within >= gap
        apart = scores[0] - scores[1]
        return {
            "kind": "tie" if tie else "failure",
            "position": position,
            "plain": run.plain[position],
            "method": token,
            "gap": gap,
            "top2_gap": apart if apart < float("inf") else None,
        }
