"""The features that longdraft knows, one row each, and those of a model."""

from __future__ import annotations

from typing import Any

from longdraft.backends.features.biased_keys import BiasedKeys
from longdraft.backends.features.bounded_positions import BoundedPositions
from longdraft.backends.features.compressed import Compressed
from longdraft.backends.features.differential import Differential
from longdraft.backends.features.experts import Experts
from longdraft.backends.features.feature import Feature
from longdraft.backends.features.indexer import Indexer
from longdraft.backends.features.latent import Latents
from longdraft.backends.features.layer_numbers import LayerNumbers
from longdraft.backends.features.longrope import LongRope
from longdraft.backends.features.scans.recurrent_layers import Scans
from longdraft.backends.features.shared_keys import SharedKeys
from longdraft.backends.features.temperature import Temperature
from longdraft.backends.features.uneven_layers import UnevenLayers
from longdraft.backends.features.windows import ChunkedWindows, Windows
from longdraft.errors import InputError

# In the order in which they wrap attention, the outermost first: each gets from the one before it
# what that has made of a call.
FEATURES: tuple[type[Feature], ...] = (
    BiasedKeys,
    Temperature,
    LongRope,
    Compressed,
    Indexer,
    LayerNumbers,
    Latents,
    Differential,
    SharedKeys,
    Scans,
    Windows,
    ChunkedWindows,
    UnevenLayers,
    BoundedPositions,
    Experts,
)
PLAIN = {"full_attention"}  # types of layers that need no feature
WITHOUT_ATTENTION = {"moe", "mlp"}  # and those that are an MLP alone


def features_of(hf: Any) -> tuple[Feature, ...]:
    """A model's features, in their order. Raises InputError for layers that no feature computes."""
    check_layer_types(hf.config)
    features = (kind.of(hf) for kind in FEATURES)
    return tuple(feature for feature in features if feature is not None)


def check_layer_types(config: Any) -> None:
    """Raises InputError for types of layers that are neither plain attention nor a feature's."""
    c = config.get_text_config()
    known = PLAIN | WITHOUT_ATTENTION
    for kind in FEATURES:
        known |= kind.layer_types
    odd = sorted(set(getattr(c, "layer_types", None) or ()) - known)
    if odd:
        usable = "use a model of full, sliding, chunked or indexed attention"
        raise InputError(
            f"{c.model_type} has {odd[0]} layers, which longdraft does not support yet: {usable}"
        )


def fault_of(config: Any) -> str | None:
    """Why a model with this config cannot run, as a verb and its objects; None: it can.

    Raises InputError for layers that no feature computes.
    """
    check_layer_types(config)
    faults = (kind.refuse(config) for kind in FEATURES)
    return next((fault for fault in faults if fault is not None), None)


def keeps_known_state(model: type, config: Any) -> bool:
    """Whether the state of this class of models is one that a feature rolls back."""
    return any(kind.keeps_state(model, config) for kind in FEATURES)
