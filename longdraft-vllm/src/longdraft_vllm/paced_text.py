"""How much of the drafts that cost nothing to make is worth verifying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longdraft_vllm import contract
from longdraft_vllm.options import METHODS, paced
from longdraft_vllm.pace import Pace, Row, Shape, agree


class PacedText:
    """Every draft is compared with the text that followed, whether or not it was verified."""

    def __init__(self, usual: float, most: int):
        self.pace = Pace(usual, most)
        self._rows: dict[object, Row] = {}
        # where a draft begins in its text, and the draft
        self._made: dict[object, tuple[int, list[int]]] = {}

    def begin(
        self, texts: Mapping[object, Sequence[int]], new: Mapping[object, int], alone: bool
    ) -> None:
        """A step has ended, and its rows have these texts and so many new tokens."""
        before = self._rows
        self._rows = {id: Row(len(text), new[id]) for id, text in texts.items()}
        self.pace.saw(self._rows, alone)
        for id, row in self._rows.items():
            if id in before and before[id].length != row.length - row.new:  # another request
                self._made.pop(id, None)
                self.pace.acceptance.own.pop(id, None)
        self._made = {id: made for id, made in self._made.items() if id in texts}
        for id, (start, chain) in list(self._made.items()):
            said = texts[id][start : start + len(chain)]
            right = next(
                (i for i, (a, b) in enumerate(zip(said, chain, strict=False)) if a != b), len(said)
            )
            if right < len(said) or right == len(chain):
                self.pace.acceptance.saw(id, right, len(chain))
                del self._made[id]

    def cut(self, chains: dict[object, list[int]]) -> dict[object, list[int]]:
        """What to verify of these drafts, the same in all processes."""
        ranked = sorted(
            (-chance, at, id)
            for id, chain in chains.items()
            for at, chance in enumerate(self.pace.acceptance.chances(id)[: len(chain)])
        )
        shapes = []
        gained = 0.0
        for drafted, (minus, _, _) in enumerate(ranked, 1):
            gained -= minus
            shapes.append(Shape(drafted, gained, 0.0, drafted))
        found = self.pace.pick(self._rows, shapes) if self._rows else None
        count = 0
        if self._rows:
            count = agree(found.payload if found else 0)
        lengths = dict.fromkeys(chains, 0)
        for _, _, id in ranked[:count]:
            lengths[id] += 1
        for id, chain in chains.items():
            if chain and id not in self._made:
                self._made[id] = (self._rows[id].length, chain)
        self.pace.ended(self._rows, count)
        return {id: chain[: lengths[id]] for id, chain in chains.items()}


class FromTexts:
    """A method that drafts from texts: of its drafts, those are proposed that its pace expects to
    be faster.

    Texts have any names, such as rows or requests.
    """

    def __init__(self, vllm_config: Any):
        contract.check("pace")
        self.most = vllm_config.speculative_config.num_speculative_tokens
        self.longest = vllm_config.model_config.max_model_len
        usual = METHODS[type(self).__name__].usual
        self.pace = PacedText(usual, self.most) if paced(vllm_config) else None

    def paced_chains(
        self, texts: dict[Any, Any], new: dict[Any, int], alone: bool
    ) -> dict[Any, list[int]]:
        """{name: text} of rows that got tokens -> their drafts. new: how many tokens. alone: no
        other rows run.
        """
        if self.pace is None:
            return self.chains(texts)
        self.pace.begin(texts, new, alone)
        return self.pace.cut(self.chains(texts))

    def chains(self, texts: dict[Any, Any]) -> dict[Any, list[int]]:
        """{name: text} -> {name: what probably follows, as far as it fits into the model's
        context}.
        """
        raise NotImplementedError
