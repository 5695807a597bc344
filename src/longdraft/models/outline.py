"""A model of which only the configuration is read, for arithmetic on models of any size.

The model's weights need not be here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from longdraft.errors import InputError
from longdraft.models.classes import causal_class, class_of
from longdraft.models.lm import LM
from longdraft.models.loading import BUNDLED, DTYPES, HUB_ID, reachable
from longdraft.models.quantized import planned
from longdraft.models.quantized import reader as quantized
from longdraft.models.quantized.scheme import Scheme
from longdraft.models.rope import Rope
from longdraft.models.support import in_one_line, refuse
from longdraft.models.untrusted import neutral

LAYERS = 4096  # more would take minutes to build, and no model has as many
HOW = "give 'bundled', a folder with a config.json, or a Hub id like org/name"


def outline(
    name: str,
    dtype: str = "bfloat16",
    rope: str | None = None,
    kv: str | None = None,
    packs_experts: bool = True,
) -> LM:
    """A model whose weights lie on the device "meta", where they take no memory and have no values.

    name: 'bundled', a folder with a config.json, or a Hub id, of which the config alone is
    downloaded. dtype, rope, kv: as for `load`. packs_experts: whether those of gpt-oss stay packed,
    as on a CPU. Quantized weights take the bytes that they would take in memory. Raises InputError.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype[:40]!r}: choose {' or '.join(DTYPES)}")
    scaling = None if rope is None else Rope.parse(rope)
    config, scheme = _config(name, packs_experts)
    in_one_line(name, lambda: refuse(config))
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if not isinstance(layers, int) or layers > LAYERS:
        raise InputError(
            f"the config.json of {name} states {str(layers)[:20]} layers: give that of a real model"
        )
    if scaling is not None:
        scaling.extend(config)
    return in_one_line(name, lambda: outline_of(config, DTYPES[dtype], name, rope, kv, scheme))


def outline_of(
    config: Any,
    dtype: torch.dtype = torch.bfloat16,
    name: str = "",
    rope: str | None = None,
    kv: str | None = None,
    scheme: Scheme | None = None,
) -> LM:
    """The outline of a model from its config.

    scheme: of its quantized weights.

    Of a multimodal model that of its language model, if Transformers has a class for it.
    """
    text = config.get_text_config()
    own = causal_class(text)
    cls = class_of(config) if own is None else own
    if own is not None:
        config = text
    with torch.device("meta"):
        hf = cls._from_config(config, dtype=dtype, attn_implementation="eager")
        note = None if scheme is None else planned.put(hf, scheme)
        return LM(hf, name, rope, note=note, kv=None if kv == "full" else kv)


def _config(name: str, packs_experts: bool) -> tuple[Any, Scheme | None]:
    """The config that a name stands for, and the scheme of its weights. Raises InputError."""
    folder = BUNDLED if name == "bundled" else Path(name).expanduser()
    local = folder.is_dir()
    if local and not (folder / "config.json").is_file():
        raise InputError(f"{name} has no config.json: {HOW}")
    if not local and (folder.exists() or not re.fullmatch(HUB_ID, name)):
        raise InputError(f"no model folder at {name}: {HOW}")
    options = {"local_files_only": local or not reachable(name), "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(str(folder) if local else name, **options)
        scheme = quantized.taken(config, packs_experts)
        return neutral(config), scheme
    except InputError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(
            f"cannot read the config of {name}: {reason[:300].rstrip('.')}; {HOW}"
        ) from error
