"""The eager backend of a model whose heads are divided among processes
(models/tensor_parallel.py).
"""

from __future__ import annotations

from torch import Tensor

from longdraft.backends.architecture import Architecture
from longdraft.backends.eager import Eager
from longdraft.core import Captures, KVCache, KVView, Tree
from longdraft.core.processes import Team
from longdraft.errors import InputError


class Divided(Eager):
    """Every process attends with its own heads to its own cache, and all have the same logits.

    Scores are means over the process's own heads, by which it selects slots for them (better than
    by all heads, and without an exchange: docs/log). Those of a single layer are means over all
    heads: they can select for a small model, which is whole in each process and must draft the
    same.
    """

    def __init__(self, architecture: Architecture, team: Team):
        super().__init__(architecture)
        kind = architecture.config.model_type
        for feature in architecture.features:
            if feature.undivided:
                raise InputError(f"{kind}{feature.undivided}: start it without torchrun")
        self.team = team

    def forward(
        self,
        tree: Tree,
        cache: KVCache,
        start: int,
        view: KVView | None,
        captured: Captures,
        logits: int = 0,
    ) -> Tensor:
        self.team.agree("pass", tree.tokens, tree.parent, cache.length, start, logits)
        node_logits = super().forward(tree, cache, start, view, captured, logits)
        if captured.spec.only is not None:
            for scores in captured.scores.values():
                scores /= self.team.size
            self.team.sum(captured.scores.values())
        return node_logits
