"""Refuses models that would not run correctly."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from longdraft.backends.architecture import NAME, windows_of
from longdraft.backends.compressed import compress_rates
from longdraft.core.tree import Tree
from longdraft.errors import InputError
from longdraft.models.lm import LM

# Architectures that the tests compare with Transformers' attention; any other is compared once, when it is loaded.
TESTED = {"llama", "qwen2", "qwen3", "mistral", "gpt_oss", "qwen3_moe"}


def refuse(config: Any) -> None:
    """Raises InputError for models that are no causal LM, lack the attention interface, or have layers without keys."""
    kind = getattr(config, "model_type", "?")
    try:
        cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise InputError(f"{kind} is not a causal language model of Transformers: use one that is") from None
    windows_of(config)
    c = config.get_text_config()
    ropes = getattr(c, "rope_parameters", None) or {}
    if any(r.get("rope_type") == "longrope" for r in (ropes, *ropes.values()) if isinstance(r, dict)):
        why = "longrope changes its rotation for long texts, which makes cached keys wrong"
        raise InputError(f"{kind}'s {why}: use a model with another rope type")
    stateful = getattr(cls, "_is_stateful", False) and not compress_rates(config)
    if stateful or not getattr(cls, "_supports_attention_backend", False):
        why = "keeps a state that cannot be rolled back" if stateful else "has no attention interface in Transformers"
        raise InputError(f"{kind} {why}, so longdraft cannot run it: use a Llama, Qwen or Mistral model, for example")


@torch.inference_mode()
def probe(hf: Any, tokens: int = 12) -> None:
    """Raises InputError if one pass differs from Transformers' own, for architectures that the tests do not cover."""
    config = hf.config.get_text_config()
    ids = torch.arange(3, 3 + tokens, device=hf.device)[None] % config.vocab_size
    window = getattr(config, "sliding_window", None)
    if window:
        config.sliding_window = tokens // 3  # short enough for these tokens to show which layers have it
    try:
        hf.set_attn_implementation("eager")
        stock = hf(input_ids=ids, use_cache=False).logits.float()
        lm = LM(hf)
        cache = lm.new_cache(1, 2 * tokens)
        lm.prefill(ids[0, : tokens // 2].tolist(), cache)
        ours = lm(Tree.chain(ids[:, tokens // 2 :]), cache).float()
    finally:
        if window:
            config.sliding_window = window
    error = (ours - stock[:, tokens // 2 :]).abs().max() / stock.abs().max()
    if not error < 0.05:
        raise InputError(
            f"{hf.config.model_type}: {NAME}'s attention differs from Transformers' own by {float(error):.1%}"
            " of the largest logit, so its output would be wrong: use another architecture"
        )
