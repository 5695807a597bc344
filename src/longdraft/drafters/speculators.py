"""The layout in which the project `speculators` stores drafters, and from which vLLM runs them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from longdraft.drafters.checkpoint import CONFIG, LAYOUT, WEIGHTS, replacing, verifier
from longdraft.drafters.kind import Layout
from longdraft.drafters.released import Released
from longdraft.errors import InputError
from longdraft.models.lm import LM

TYPE = "speculators_model_type"
CHOICE = "speculators_config"


def check(source: Released, target: LM, kinds: Sequence[str]) -> None:
    """Raises InputError for a folder in this layout whose kind or target is another; others are not
    looked at.

    kinds: those of this layout that are kinds of ours too.
    """
    c = source.config
    if TYPE not in c:
        return
    if isinstance(c.get("longdraft"), dict):
        raise InputError(
            f"{source.folder} is in longdraft's own layout: give it to --drafter unchanged"
        )
    algorithm = c.get(CHOICE, {}).get("algorithm", c[TYPE])
    if c[TYPE] not in kinds or algorithm != c[TYPE]:
        stated = c[TYPE] if algorithm == c[TYPE] else f"{c[TYPE]} with the algorithm {algorithm}"
        raise InputError(
            f"{source.folder} is a speculator of kind {stated}: longdraft reads "
            f"{' and '.join(kinds)}"
        )
    layer = c.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise InputError(
            f"{source.folder}/{CONFIG} lacks transformer_layer_config: download it with "
            "its own config"
        )
    vocab = layer.get("vocab_size", target.vocab)
    if vocab != target.vocab:
        name = c.get(CHOICE, {}).get("verifier", {}).get("name_or_path") or "another target"
        sizes = f"which has {vocab} tokens, and this target has {target.vocab}"
        raise InputError(
            f"{source.folder} was trained for {name}, {sizes}: give the target that it was "
            "trained for (-m)"
        )


def check_kind(source: Released, kind: str) -> None:
    """Raises InputError if the weights of a folder in this layout are those of another kind than it
    says.
    """
    said = source.config.get(TYPE, kind)
    if said != kind:
        raise InputError(
            f"{source.folder} says that it is a speculator of kind {said}, but its weights "
            f"are of {kind}"
        )


def write(kind: str, layout: Layout, target: LM, out: Path, origin: str) -> None:
    """The folder of an exported drafter; it replaces a drafter that was there. Raises
    InputError.
    """
    weights = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in layout.weights.items()
    }
    dtype = next(t.dtype for t in weights.values() if t.is_floating_point())
    method = {"proposal_type": "greedy", "speculative_tokens": layout.drafted}
    config: dict[str, Any] = {
        **layout.config,
        "dtype": str(dtype).removeprefix("torch."),
        "tie_word_embeddings": False,
        TYPE: kind,
        "speculators_version": LAYOUT,
        CHOICE: {
            "algorithm": kind,
            "proposal_methods": [method | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "default_proposal_method": "greedy",
            "verifier": verifier(target),
        },
    }
    with replacing(out, {"exported_from": origin}) as draft:
        save_file(weights, draft / WEIGHTS, {"format": "pt"})
        (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
