"""Chooses the class of Transformers that computes a config's model.

A model's folder never brings a class.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

CAUSAL = ("ForCausalLM", "LMHeadModel")  # how the names of causal language models end
SENSES = ("vision_config", "audio_config", "vq_config")  # beside the fields of a language model
MULTIMODAL: tuple[Any, ...] = (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    getattr(modeling_auto, "MODEL_FOR_MULTIMODAL_LM_MAPPING", {}),
)


def class_of(config: Any) -> Any:
    """The class whose weights a folder with this config has, if it continues texts; else None."""
    causal = None if is_multimodal(config) else causal_class(config)
    mappings = (*MULTIMODAL, MODEL_FOR_CAUSAL_LM_MAPPING)
    if causal:
        return causal
    return next((mapping[type(config)] for mapping in mappings if type(config) in mapping), None)


def causal_class(config: Any) -> Any:
    """The causal language model of this config, or None.

    By Transformers' mapping, or else in the config's package. Of several it is the one that the
    config's `architectures` names.
    """
    kind = type(config)
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        return MODEL_FOR_CAUSAL_LM_MAPPING[kind]
    package, _, name = kind.__module__.rpartition(".")
    if not package.startswith("transformers.models."):
        return None
    try:
        module = import_module(f"{package}.{name.replace('configuration_', 'modeling_', 1)}")
    except ImportError:
        return None
    classes = {
        name: cls
        for name, cls in vars(module).items()
        if name.endswith(CAUSAL) and _computes(cls, kind)
    }
    named = [name for name in getattr(config, "architectures", None) or () if name in classes]
    if named:
        return classes[named[0]]
    return next(iter(classes.values())) if len(classes) == 1 else None


def _computes(cls: Any, kind: type) -> bool:
    return isinstance(cls, type) and issubclass(cls, PreTrainedModel) and cls.config_class is kind


def is_multimodal(config: Any) -> bool:
    """Whether the model reads images or sound too.

    Then it has configs of other parts beside that of its language model.
    """
    if getattr(config, "is_encoder_decoder", False):
        return False
    return config.get_text_config() is not config or any(
        getattr(config, name, None) is not None for name in SENSES
    )


def reads_both_sides(config: Any, cls: Any) -> bool:
    """Whether attention is not causal.

    That of BERT and its like is causal only if the config says is_decoder.
    """
    has_encoder = any(name.endswith("Encoder") for name in vars(sys.modules[cls.__module__]))
    return has_encoder and getattr(config, "is_decoder", None) is False
