"""Methods that draft from tokens alone, as vLLM's `custom_class` proposers (for its newer runner:
speculator.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from longdraft.drafters import Lookup as LookupDrafter
from longdraft.drafters import Suffix as SuffixDrafter
from longdraft_vllm import contract
from longdraft_vllm.options import options_of
from longdraft_vllm.paced_text import FromTexts
from longdraft_vllm.plain_steps import sample_plainly
from longdraft_vllm.repairs import repair_sampling
from longdraft_vllm.texts import Texts


class NGrams(FromTexts):
    """Proposes, for each row that has just got tokens, the continuation that its own text makes
    likeliest.

    vLLM verifies chains, so the best path of a tree is proposed. Rows that were given no token,
    because they are still read or were dropped, get no drafts; neither do rows whose drafts would
    not fit into the model's context.
    """

    drafter: type

    def __init__(self, vllm_config: Any):
        contract.check("text")
        super().__init__(vllm_config)
        options = options_of(vllm_config, type(self).__name__, **self.defaults())
        self.texts = Texts(
            lambda: self.drafter(**options), vllm_config.scheduler_config.max_num_seqs
        )

    def defaults(self) -> dict[str, Any]:
        return {}

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM's older runner asks every drafter to load its model. There is none, but vLLM's
        sampler needs changes.
        """
        repair_sampling()
        sample_plainly()

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        new = {row: len(tokens) for row, tokens in enumerate(sampled_token_ids) if tokens}
        texts = {row: token_ids_cpu[row, : num_tokens_no_spec[row]] for row in new}
        for row, chain in self.paced_chains(texts, new, len(new) == len(drafts)).items():
            drafts[row] = chain
        return drafts

    def chains(self, texts: dict[Any, np.ndarray]) -> dict[Any, list[int]]:
        room = {name: min(self.most, self.longest - len(text) - 1) for name, text in texts.items()}
        drafters = self.texts.drafters(
            {name: text for name, text in texts.items() if room[name] > 0}
        )
        return {name: drafter.best(0, room[name]) for name, drafter in drafters.items()}


class Lookup(NGrams):
    """lookup: what followed the latest occurrence of the longest suffix."""

    drafter = LookupDrafter

    def defaults(self) -> dict[str, Any]:
        return {"count": self.most}


class Suffix(NGrams):
    """suffix: the likeliest continuation of the row's own text."""

    drafter = SuffixDrafter

    def defaults(self) -> dict[str, Any]:
        # branches use nodes too, and only one path of them is proposed
        return {"nodes": 4 * self.most}
