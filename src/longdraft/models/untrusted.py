"""Keeps a model's files from running code, downloading, and reading outside their folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import (
    get_tokenizer_config,
    tokenizer_class_from_name,
)
from transformers.utils.hub import cached_file

from longdraft.core.files import read_json
from longdraft.errors import InputError

# for from_pretrained, instead of the config's
OURS = {"attn_implementation": "eager", "experts_implementation": None}
# keys that would patch modules or name another file of weights
IGNORED = ("fusion_config", "transformers_weights")
UNDONE = ("mxfp4", "fp8")  # quantizations that Transformers can undo when it reads the weights
QUIET = ("gated_repo", "missing_entries", "connection_errors")


def check_weights(where: str, local: bool) -> None:
    """Raises InputError for an adapter, and for shards outside the folder.

    An adapter's config names a model and a package.
    """
    if _file(where, "adapter_config.json", local):
        raise InputError(
            f"{where} has an adapter (adapter_config.json), which longdraft does not load: merge "
            "it into its model (peft's merge_and_unload) and use the merged model"
        )
    index = _file(where, "model.safetensors.index.json", local)
    shards = read_json(index).get("weight_map") if index else {}
    names = shards.values() if isinstance(shards, dict) else [None]
    odd = next((n for n in names if not _inside(n)), "")
    if odd != "":
        raise InputError(
            f"{where}: model.safetensors.index.json names {str(odd)[:80]!r} as a file of weights: "
            "it may only name *.safetensors files in the model's own folder"
        )


def neutral(config: Any) -> Any:
    """The config without keys that select code to run.

    Raises InputError if the model needs them.
    """
    for part in _parts(config):
        for key in IGNORED:
            if getattr(part, key, None) is not None:
                setattr(part, key, None)
        quantization = getattr(part, "quantization_config", None)
        if quantization is None:
            continue
        kind = quantization.get("quant_method") if isinstance(quantization, dict) else None
        if kind not in UNDONE:
            raise InputError(
                f"the weights are quantized ({str(kind)[:40]}), which longdraft does not read "
                "here: use the model's unquantized weights"
            )
        # otherwise kernels from the Hub would run
        part.quantization_config = {**quantization, "dequantize": True}
    return config


def check_tokenizer(where: str, config: Any, local: bool) -> None:
    """Raises InputError if the named class is not a tokenizer.

    Transformers would load any of its classes.
    """
    own = get_tokenizer_config(where, local_files_only=local).get("tokenizer_class")
    for name in (own, getattr(config, "tokenizer_class", None)):
        if name is None:
            continue
        cls = tokenizer_class_from_name(name) if isinstance(name, str) else object
        if cls is not None and not (
            isinstance(cls, type) and issubclass(cls, PreTrainedTokenizerBase)
        ):
            raise InputError(
                f"{where}: its tokenizer_class is {str(name)[:60]!r}, which is not a tokenizer"
            )


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        if (part := getattr(config, name, None)) is not None:
            yield from _parts(part)


def _inside(name: Any) -> bool:
    path = PurePosixPath(name) if isinstance(name, str) and "\\" not in name else None
    return (
        path is not None
        and not path.is_absolute()
        and ".." not in path.parts
        and path.suffix == ".safetensors"
    )


def _file(where: str, name: str, local: bool) -> Path | None:
    """A file of a model's folder, or of its repository on the Hub; None if there is none."""
    quiet: dict[str, Any] = {f"_raise_exceptions_for_{error}": False for error in QUIET}
    path = cached_file(where, name, local_files_only=local, **quiet)
    return Path(path) if path else None
