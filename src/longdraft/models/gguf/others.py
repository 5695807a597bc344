"""GGUF files of architectures that longdraft does not read itself.

Transformers reads them, with unpacked weights.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from longdraft.core.rules import end_tokens
from longdraft.errors import InputError
from longdraft.models.gguf import marks, parts, rope
from longdraft.models.gguf.config import READ
from longdraft.models.gguf.file import AGAIN, GGUF
from longdraft.models.rope import Rope
from longdraft.models.support import refuse
from longdraft.models.untrusted import OURS, neutral

READERS = ("gguf", "accelerate")  # packages that Transformers needs to read a file


def build(file: GGUF, kind: str, dtype: torch.dtype, scaling: Rope | None) -> Any:
    """The model of a file of this architecture. Raises InputError."""
    rope.check_unscaled(file, kind)
    path = file.path
    if len(parts.files_of(path)) > 1:
        raise InputError(
            f"{path} is a part of a model of architecture {kind[:40]!r}, which is only read from "
            "whole files: merge the parts with llama-gguf-split --merge"
        )
    lacking = [name for name in READERS if find_spec(name) is None]
    if lacking:
        raise InputError(
            f"{path} contains a model of architecture {kind[:40]!r}: install "
            f"{' and '.join(lacking)} to read it dequantized, or use a model of "
            f"{', '.join(READ)}"
        )
    config = neutral(AutoConfig.from_pretrained(path.parent, **_options(file)))
    refuse(config)
    if scaling is not None:
        scaling.extend(config)
    options = {**_options(file), **OURS, "config": config, "dtype": dtype}
    reader: Any = AutoModelForCausalLM  # whose types do not show what output_loading_info returns
    hf, info = reader.from_pretrained(path.parent, output_loading_info=True, **options)
    if info["missing_keys"]:
        raise InputError(
            f"{path} lacks weights ({sorted(info['missing_keys'])[0]} and others): {AGAIN}"
        )
    hf.config.name_or_path = str(path)
    hf.name_or_path = str(path)
    ends = {*end_tokens(hf.generation_config), *marks.end_ids(file)}
    hf.generation_config.eos_token_id = sorted(ends) or None
    return hf


def tokenizer(file: GGUF) -> Any:
    made = AutoTokenizer.from_pretrained(file.path.parent, **_options(file))
    made.add_tokens(
        [AddedToken(t, normalized=False, special=True) for t in marks.retyped(file)],
        special_tokens=True,
    )
    return made


def _options(file: GGUF) -> dict[str, Any]:
    return {"gguf_file": file.path.name, "local_files_only": True, "trust_remote_code": False}
