"""LongSpec's block without its weights: it is built by running its target, which an outline cannot
do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longdraft.core import CaptureSpec
from longdraft.drafters import Drafter
from longdraft.drafters.block_costs import weights_read
from longdraft.drafters.glide.price import GlidePrice, slot_bytes, slots_seen
from longdraft.drafters.sizes import key_heads, mlp_width, query_heads
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.views import Full, Guided


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
        self.target = target
        c = target.layer_config
        d = c.hidden_size
        heads = query_heads(c)
        keys = key_heads(c)
        self.dim = int(getattr(c, "head_dim", None) or d // heads)
        self.keys = keys
        self.layer = max(own - set(target.windows), default=max(own))
        matrices = (4 * heads + 2 * keys) * self.dim * d + 3 * d * mlp_width(c)
        biases = (2 * heads + 2 * keys) * self.dim
        norms = 3 * d
        self.numbers = matrices + biases + norms
        widths = str(options["widths"]).split(",") if "widths" in options else []
        gamma = options.get("gamma", 0)
        self.widths = [1] * gamma if gamma else [int(w) for w in widths]
        self.paths = options.get("nodes", 0)
        guided = {k: options[k] for k in ("keep_ratio", "min_budget", "score") if k in options}
        self.policy = Guided(**guided) if guided else Full()
        self.max_depth = min(len(self.widths), self.paths or len(self.widths))
        self.is_chain = not self.paths and set(self.widths) == {1}

    def captures(self) -> CaptureSpec:
        spec = self.policy.captures()
        return CaptureSpec(rows=spec.rows, of=spec.of, only=self.layer)

    def price(self) -> GlidePrice:
        target = self.target
        return GlidePrice(
            max_depth=self.max_depth,
            read=weights_read(self.numbers * target.dtype.itemsize, target, None),
            slot=slot_bytes(target, self.layer, self.keys, self.dim, self.dim),
            seen=slots_seen(target, self.layer, self.policy.seen),
            known=target.vocab,
            widths=self.widths,
            paths=self.paths,
            compiled=False,
        )
