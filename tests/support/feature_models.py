"""Tiny models that have each feature of backends/features/table.py.

Lists of models in tests follow from the table: a feature without a row in SHOWN_BY is an error when
tests are collected. A name is a model_type of benchmarks/tiny_models.py, or one of BUILT.
"""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models
from support import borders

from longdraft.backends.features import table
from longdraft.backends.features.feature import Feature

SHOWN_BY = {  # by the feature's name; the first one stands for the others in short tests
    "BiasedKeys": ("doge",),
    "Temperature": ("llama4_text",),
    "LongRope": ("longrope",),
    "Compressed": ("deepseek_v4",),
    "Indexer": (
        *("deepseek_v32", "minimax_m3_vl_text", "glm_moe_dsa", "axk2", "hy_v4"),
        "dots3_note",
    ),
    "LayerNumbers": ("zamba",),
    "Latents": (
        *("deepseek_v3", "deepseek_v2", "glm4_moe_lite", "longcat_flash", "minicpm3"),
        *("youtu", "axk1"),
    ),
    "Differential": ("diffllama",),
    "SharedKeys": ("gemma3n_text",),
    "Scans": (
        *("nemotron_h", "zamba", "minimax", "zaya", "qwen3_next", "qwen3_5_text"),
        *("qwen3_5_moe_text", "olmo_hybrid", "kimi_linear", "bailing_hybrid"),
        *("granitemoehybrid", "bamba", "falcon_h1", "zamba2", "jamba", "lfm2", "lfm2_moe"),
        *("lfm3", "recurrent_gemma", "mamba", "mamba2", "falcon_mamba"),
    ),
    "Windows": ("gemma3",),
    "ChunkedWindows": ("llama4_text",),
    "UnevenLayers": ("gemma4_text",),
    "BoundedPositions": ("gpt2", "opt"),
    "Experts": ("mixtral",),
}
BUILT = {"longrope": borders.longrope}  # by changes of a configuration that do not fit a model_type


def models_with(feature: type[Feature]) -> tuple[str, ...]:
    """Names of models that have this feature."""
    name = feature.__name__
    if name not in SHOWN_BY:
        raise KeyError(f"no tiny model has {name}: add one to SHOWN_BY in feature_models.py")
    return SHOWN_BY[name]


def one_of_each() -> list[str]:
    """A model for each feature of the table, without repeats."""
    return list(dict.fromkeys(models_with(feature)[0] for feature in table.FEATURES))


def stock(name: str) -> Any:
    """A random Transformers model of this name."""
    if name in BUILT:
        return BUILT[name]()
    if name not in tiny_models.KINDS:
        pytest.skip("this version of Transformers has no such model")
    return tiny_models.build(tiny_models.config(name))
