"""The attention function that Transformers models call: it hands a layer's queries, keys and values to a pass."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor
from transformers import AttentionInterface

from longdraft.errors import InputError

NAME = "longdraft"
# Arguments that models pass to attention functions and that do not change the result.
HARMLESS = {"position_ids", "use_cache", "cache_position", "output_attentions", "output_hidden_states"}
HARMLESS |= {"output_router_logits", "return_dict", "is_causal", "position_embeddings"}


class AttentionPass(Protocol):
    """One forward pass. calls counts the layers that have called `attend`."""

    calls: int

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, sink: Tensor | None, /
    ) -> Tensor:
        """q [B,H,W,D], k, v [B,K,W,D] of the new nodes -> [B,W,H,Dv]."""
        ...


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    longdraft: AttentionPass | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [B,H,W,D], key, value [B,K,W,D] of the new nodes -> [B,W,H,Dv].

    Windows come from the config (architecture.windows_of). Raises InputError for arguments that would change the
    result and that no backend knows.
    """
    name = type(module).__name__
    if longdraft is None:
        raise InputError(
            f"{name} does not pass its arguments on to attention, so longdraft cannot run this architecture"
        )
    odd = sorted(k for k in others if k not in HARMLESS and others[k] is not None)
    if odd or attention_mask is not None or others.get("is_causal") is False:
        what = odd[0] if odd else "a mask of its own" if attention_mask is not None else "is_causal=False"
        raise InputError(f"{name} passes {what} to attention, which longdraft does not know: its output would be wrong")
    longdraft.calls += 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return longdraft.attend(module.layer_idx, query, key, value, scale, softcap, s_aux).contiguous(), None


AttentionInterface.register(NAME, attention)
