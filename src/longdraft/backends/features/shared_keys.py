"""Layers that attend to the keys and values of an earlier layer and have none of their own (Gemma
3n, Gemma 4).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor

from longdraft.backends.current_pass import CurrentPass
from longdraft.backends.features.feature import Attend, Call, Feature


class SharedKeys(Feature):
    """sources {layer: the layer whose keys it reads} of the layers without their own keys."""

    models = "Gemma 3n, Gemma 4"
    computed = "keys are cached once, and a view of the source layer serves its readers"

    def __init__(self, sources: dict[int, int]):
        self.sources = sources

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        sources = sources_of(hf)
        return cls(sources) if sources else None

    def around(self, p: CurrentPass) -> AbstractContextManager[object]:
        """Tells Transformers which nodes the layers without keys must compute. Given a number of
        logits, it computes them for the last nodes only, also where more is captured.
        """
        spec = p.captured.spec if p.captured is not None else None
        if p.logits and spec is not None and (spec.hidden or spec.rows is not None):
            assert p.position is not None
            count = p.position.shape[1]
            last = torch.arange(count - p.logits, count, device=p.position.device)
            p.arguments["logits_to_keep"] = last
        return nullcontext()

    def attend(self, proceed: Attend, call: Call) -> Tensor:
        if call.layer in self.sources:
            call.layer = self.sources[call.layer]
            call.key = call.key[:, :, :0]
            call.value = call.value[:, :, :0]
        return proceed(call)


def sources_of(hf: Any) -> dict[int, int]:
    """{layer: the layer whose keys it reads} of the layers without their own keys.

    Transformers marks them (`is_kv_shared_layer`); they read those of the last layer of their type
    that has its own.
    """
    attentions = [m for m in hf.get_decoder().modules() if hasattr(m, "is_kv_shared_layer")]
    sharing = {m.layer_idx for m in attentions if m.is_kv_shared_layer}
    if not sharing:
        return {}
    types: list[str] = hf.config.get_text_config().layer_types
    own = [layer for layer in range(len(types)) if layer not in sharing]
    return {
        layer: max(n for n in own if n < layer and types[n] == types[layer])
        for layer in sorted(sharing)
    }
