"""Refuses models that would not run correctly."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from longdraft.backends.architecture import NAME
from longdraft.backends.dense import lacks_interface, obstacle
from longdraft.backends.features.table import fault_of, keeps_known_state
from longdraft.errors import InputError
from longdraft.families import FAMILIES
from longdraft.models.classes import causal_class, class_of, is_multimodal, reads_both_sides
from longdraft.models.comparison import disagreement
from longdraft.models.shrunk import changes_rotation, shrunk

# Architectures that the tests compare with Transformers' attention; any other is compared once,
# when it is loaded.
TESTED = {family.model_type for family in FAMILIES if family.tested}


def refuse(config: Any, cls: Any = None) -> None:
    """Raises InputError for models that longdraft cannot run.

    They are no causal LM, lack what a backend needs, or have layers without keys.
    cls: the class of the model (None: the one that `load` would choose).
    """
    kind = getattr(config, "model_type", "?")
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"{kind} has an encoder, and longdraft continues texts: use a decoder-only model"
        )
    cls = cls or class_of(config)
    if cls is None or not cls.can_generate():
        raise InputError(f"{kind} is not a causal language model of Transformers: use one that is")
    if reads_both_sides(config, cls):
        raise InputError(
            f"{kind} reads the tokens on both sides, since its config.json does not say "
            "is_decoder=true: use a decoder-only model"
        )
    c = config.get_text_config()
    if more := needs_beside_text(cls, c):
        raise InputError(f"{kind} {more}: use a model that continues texts alone")
    fault = fault_of(config)
    cls = (is_multimodal(config) and causal_class(c)) or cls
    stateful = getattr(cls, "_is_stateful", False)
    why = None
    if stateful and not keeps_known_state(cls, c):
        why = "keeps a state that cannot be rolled back"
    if fault is not None:
        why = fault
    if adds_biases(cls):
        why = "adds a bias of positions to its attention scores"
    if why is None and lacks_interface(cls) and (lacking := obstacle(cls, c)):
        why = f"has no attention interface in Transformers and {lacking}"
    if why:
        raise InputError(
            f"{kind} {why}, so longdraft cannot run it: use a Llama, Qwen or Mistral "
            "model, for example"
        )


def needs_beside_text(cls: Any, config: Any) -> str | None:
    """The reason why a prompt of tokens is not enough for this class; None: it is."""
    accepted = inspect.signature(cls.forward).parameters
    if getattr(config, "cross_attention_layers", None):
        return "has layers that attend to images, which longdraft does not read"
    if "pixel_values" in accepted and accepted["pixel_values"].default is inspect.Parameter.empty:
        return "needs an image with every prompt, which longdraft does not read"
    if "shared_kv_states" in accepted:
        return "reads the keys of another model, for which it drafts"
    return "writes blocks of tokens by diffusion" if "Diffusion" in cls.__name__ else None


def adds_biases(cls: Any) -> bool:
    """Whether its module's attention function takes a bias of positions beside the mask."""
    own = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
    return own is not None and "position_bias" in inspect.signature(own).parameters


def verify(hf: Any) -> None:
    """Probe a model whose architecture the tests do not cover.

    Any error in the probe is an InputError.
    """
    kind = hf.config.model_type
    if kind not in TESTED:
        in_one_line(kind, lambda: probe(hf))


def in_one_line(kind: str, action: Callable[[], Any]) -> Any:
    """The result of an action.

    Raises InputError, with the first line of the reason, where a model's modules fail.
    """
    try:
        return action()
    except InputError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(
            f"{kind} cannot be run: {reason[:300].rstrip('.')}; use a Llama, Qwen or "
            "Mistral model, for example"
        ) from error


@torch.inference_mode()
def probe(hf: Any, tokens: int = 12) -> None:
    """Raises InputError if a pass differs from Transformers' own.

    For architectures that the tests do not cover. The windows, chunks and borders of its config are
    shrunk to these few tokens, because a difference that begins later would not show; rotations
    that change with the length are compared on both sides of their border.
    """
    if counts_from_padding(hf):
        raise InputError(
            f"{hf.config.model_type} counts positions from its padding token's number on, but in "
            "Transformers' generate from 0, so its output is not defined: use another architecture"
        )
    for long in (True, False) if changes_rotation(hf.config) else (True,):
        with shrunk(hf, tokens, long):
            error = disagreement(hf, tokens)
        if error is not None:
            raise InputError(
                f"{hf.config.model_type}: {NAME}'s attention differs from Transformers' "
                f"own by {error:.1%}"
                " of the largest logit, so its output would be wrong: use another architecture"
            )


def counts_from_padding(hf: Any) -> bool:
    """Whether positions begin behind the padding token's number by default, as in RoBERTa.

    That is in a pass without given positions.
    """
    tables = (getattr(m, "position_embeddings", None) for m in hf.modules())
    return any(isinstance(t, torch.nn.Embedding) and t.padding_idx is not None for t in tables)
