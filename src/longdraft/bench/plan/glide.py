"""LongSpec's block without its weights: it is built by running its target, which an outline cannot
do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longdraft.bench.plan.drafts import DraftPass, Place, beam, passes, shape, shown, spread
from longdraft.core import CaptureSpec
from longdraft.drafters import Drafter
from longdraft.drafters.block_costs import weights_read
from longdraft.drafters.sizes import key_heads, mlp_width, query_heads
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.views import Full, Guided

WINDOW = 512  # slots of its own cache that an untrained block attends to


class GlideOutline(Drafter):
    """The sizes of a GlideDrafter by its target's config and the options of its method. Raises
    InputError.
    """

    def __init__(self, target: LM, options: Mapping[str, Any]):
        own = set(target.architecture.with_keys) - set(target.sources)
        if not own or target.architecture.latents:
            raise InputError(
                "longspec reads keys and values of one of the target's layers: use another method"
            )
        c = target.layer_config
        d = c.hidden_size
        heads = query_heads(c)
        keys = key_heads(c)
        self.dim = int(getattr(c, "head_dim", None) or d // heads)
        self.keys = keys
        self.layer = max(own - set(target.windows), default=max(own))
        self.numbers = (4 * heads + 2 * keys) * self.dim * d + 3 * d * mlp_width(c)
        widths = str(options["widths"]).split(",") if "widths" in options else []
        gamma = options.get("gamma", 0)
        self.widths = [1] * gamma if gamma else [int(w) for w in widths]
        self.paths = options.get("nodes", 0)
        self.window = options.get("window") or WINDOW
        guided = {k: options[k] for k in ("keep_ratio", "min_budget", "score") if k in options}
        self.policy = Guided(**guided) if guided else Full()
        self.max_depth = min(len(self.widths), self.paths or len(self.widths))
        self.is_chain = not self.paths and set(self.widths) == {1}

    def captures(self) -> CaptureSpec:
        spec = self.policy.captures()
        return CaptureSpec(rows=spec.rows, of=spec.of, only=self.layer)


@passes.register
def _(drafter: GlideOutline, at: Place, depth: int, width: int) -> list[DraftPass]:
    lm, (seen, _) = at.target.lm, shown(drafter.policy)
    slots = max(at.lengths if seen is None else seen(at.lengths))
    own = 2 * drafter.keys * drafter.dim * lm.dtype.itemsize * min(max(at.lengths), drafter.window)
    read = weights_read(drafter.numbers * lm.dtype.itemsize, lm, None)
    keys = float(slots * at.slot + own)
    counts = [1] * depth if drafter.paths else beam(drafter, depth, width)
    return [at.block(n, read, keys, compiled=at.target.chains) for n in counts]


@shape.register
def _(drafter: GlideOutline, depth: int, width: int) -> list[int]:
    return (
        spread(drafter.paths, depth, width)
        if drafter.paths
        else [min(n, width) for n in drafter.widths[:depth]]
    )
