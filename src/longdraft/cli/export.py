"""`longdraft export`: writes a model for other engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longdraft.cli import common
from longdraft.cli.option_groups import Dtype, Rope, TargetOptions, Weights


def export(
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    model: common.Model = "smollm2",
    dtype: Dtype = "bfloat16",
    rope: Rope = None,
    weights: Weights = None,
) -> None:
    """Write a model as a folder of safetensors with its configuration and tokenizer, as vLLM and
    Transformers read it.

    Packed weights, those of a GGUF file or of --weights, are written dequantized.
    """
    from longdraft.core.places import new_folder
    from longdraft.models.export import export as write

    folder = new_folder(out)
    target, tokenizer = common.load_target(model, TargetOptions(dtype, rope, weights))
    size = write(target, tokenizer, folder)
    typer.echo(f"{target.name}: {size / 1e6:.0f} MB in {dtype} -> {out}")
