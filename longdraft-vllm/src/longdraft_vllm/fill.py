"""fill: each next token of a draft is copied from the text or recycled, whichever is likelier to be
right.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from longdraft.drafters import Suffix as SuffixDrafter
from longdraft.drafters.fill.calibration import Calibration, Guess
from longdraft.drafters.fill.continuations import Continuations
from longdraft_vllm.recycle import Recycle
from longdraft_vllm.texts import Texts

USUAL = 0.4  # how often a recycled token is right, before anything is known
DEEPEST = 4  # recycled tokens are counted by depth, up to this one


class Vote(NamedTuple):
    """A source's guess that this token comes next."""

    token: int
    source: Calibration
    guess: Guess


class Made(NamedTuple):
    """A draft that begins at place `start` of its text, with all votes for each of its tokens."""

    start: int
    chain: list[int]
    votes: list[list[Vote]]


class Fill(Recycle):
    """A draft follows, token by token, the source that is believed more; each vote is compared with
    the text that followed, so a source that is wrong is believed less.

    The sources are continuations of the text, as in suffix, and recycle's table. As vLLM verifies
    chains, there are no branches. What was learned of a request is its own.
    """

    def __init__(self, vllm_config: Any):
        super().__init__(vllm_config)
        self.texts = Texts(SuffixDrafter, vllm_config.scheduler_config.max_num_seqs)
        self.copying: dict[str, Calibration] = {}
        self.recycling: dict[str, Calibration] = {}
        self.made: dict[str, Made] = {}

    def chains(self, texts: dict[str, Any]) -> dict[str, list[int]]:
        for kept in (self.copying, self.recycling, self.made):
            for request in kept.keys() - self.tables.keys():
                del kept[request]
        for request, text in texts.items():
            if request in self.made:
                learn(self.made.pop(request), text)
        drafters = self.texts.drafters(texts)
        for request, text in texts.items():
            self.made[request] = self.drafted(request, text, Continuations(drafters[request]))
        return {request: self.made[request].chain for request in texts}

    def drafted(self, request: str, text: Any, copies: Continuations) -> Made:
        """The draft after this text. copies: of the text alone."""
        copying = self.copying.setdefault(request, Calibration())
        recycling = self.recycling.setdefault(request, Calibration())
        table = self.tables.get(request, {})
        last = int(text[-1])
        match = copies.at_root(0)
        made = Made(len(text), [], [])
        for depth in range(min(self.most, self.longest - len(text) - 1)):
            votes = [
                Vote(proposal.token, copying, proposal.guess)
                for proposal in copies.proposals(0, match)[:1]
            ]
            if last in table:
                guess = Guess(min(depth, DEEPEST), USUAL)
                votes.append(Vote(table[last], recycling, guess))
            if not votes:
                break
            last = max(votes, key=lambda vote: vote.source.chance(vote.guess)).token
            match = copies.after(0, match, last)
            made.chain.append(last)
            made.votes.append(votes)
        return made


def learn(made: Made, text: Any) -> None:
    """Compare a draft's votes with the text that followed, up to its first wrong token."""
    for said, drafted, votes in zip(text[made.start :], made.chain, made.votes, strict=False):
        for vote in votes:
            vote.source.add(vote.guess, vote.token == int(said))
        if int(said) != drafted:
            return
