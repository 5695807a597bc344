"""Writes a model for other engines: a folder with config.json, safetensors and tokenizer files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longdraft.backends.packed_experts import PackedExperts
from longdraft.backends.packed_linear import PackedLinear
from longdraft.core.places import new_folder
from longdraft.errors import InputError
from longdraft.models.classes import class_of, is_multimodal
from longdraft.models.lm import LM

SHARD = "4GB"


def export(lm: LM, tokenizer: Any, out: Path) -> int:
    """Write the model in its dtype, packed weights dequantized -> how many bytes of weights.

    The folder appears once it is complete. An output matrix that equals the embedding is written
    once, as tied.
    Raises InputError.
    """
    if is_multimodal(lm.hf.config):
        raise InputError(
            f"Transformers has no class for the text part of {lm.hf.config.model_type} alone, "
            "so it cannot be exported: use the original folder"
        )
    out = new_folder(out)
    part = out.with_name(out.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        plain = _plain(lm)
        plain.save_pretrained(part, max_shard_size=SHARD)
        tokenizer.save_pretrained(part)
        os.replace(part, out)
    except OSError as error:
        raise InputError(
            f"cannot write {out} ({error.strerror or error}): give another --out"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return sum(file.stat().st_size for file in out.glob("*.safetensors"))


@torch.no_grad()
def _plain(lm: LM) -> Any:
    """The same model with Transformers' own layers only."""
    weights = {name: x.detach() for name, x in lm.hf.state_dict().items()}
    for name, module in lm.hf.named_modules():
        if isinstance(module, PackedExperts):
            for key in [key for key in weights if key.startswith(f"{name}.")]:
                del weights[key]
            weights |= {f"{name}.{key}": x for key, x in module.matrices(lm.dtype).items()}
        elif isinstance(module, PackedLinear) and f"{name}.{module.parts[0]}" in weights:
            for key in module.parts:
                del weights[f"{name}.{key}"]
            weights[f"{name}.weight"] = module.weight.to(lm.dtype)
    config = type(lm.hf.config).from_dict(lm.hf.config.to_dict())
    config.tie_word_embeddings = _tied(lm.hf, weights)
    cls: Any = class_of(config)
    with torch.device("meta"):
        made: nn.Module = cls._from_config(config, dtype=lm.dtype)
    made.load_state_dict(weights, strict=True, assign=True)
    made.generation_config = lm.hf.generation_config  # type: ignore[assignment]
    if config.tie_word_embeddings:
        made.tie_weights()  # type: ignore[operator]
    return made


def _tied(hf: Any, weights: dict[str, Tensor]) -> bool:
    """Whether the output matrix equals the embedding."""
    names = {id(m): name for name, m in hf.named_modules()}
    head = hf.get_output_embeddings()
    table = hf.get_input_embeddings()
    output, embedding = (weights.get(f"{names[id(m)]}.weight") for m in (head, table))
    has_bias = getattr(head, "bias", None) is not None
    return (
        output is not None
        and embedding is not None
        and not has_bias
        and torch.equal(output, embedding)
    )
