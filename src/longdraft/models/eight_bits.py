"""Weights stored in 8 bits: half the size of bfloat16 on disk.

Read back, they are ordinary weights in float32.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from longdraft.core.files import read_json
from longdraft.core.places import new_folder
from longdraft.errors import InputError

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
MARK = {"longdraft": "int8 rows"}  # in the file's metadata
SCALE = ".row_scale"  # name of a matrix's scales: its own name and this
MIN_ELEMENTS = 1024  # elements of a matrix that is worth packing


def pack(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pack each matrix [..,outputs,inputs] as int8 and float32 scales [..,outputs].

    There is one scale per row; all other tensors are unchanged. Round to nearest, so an element
    moves by at most its row's largest magnitude / 254.
    """
    packed = dict[str, Tensor]()
    for name, x in weights.items():
        if not x.is_floating_point() or x.dim() < 2 or x.numel() < MIN_ELEMENTS:
            packed[name] = x.contiguous()
            continue
        rows = x.detach().to("cpu", torch.float32)
        scale = rows.abs().amax(-1) / 127
        codes = (rows / scale.clamp(min=1e-30)[..., None]).round().to(torch.int8)
        packed[name] = codes.contiguous()
        packed[name + SCALE] = scale.contiguous()
    return packed


def unpack(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that `pack` was given, packed matrices in float32.

    Raises ValueError for a matrix without fitting scales.
    """
    unpacked = dict[str, Tensor]()
    for name, x in weights.items():
        if name.endswith(SCALE):
            continue
        if x.dtype != torch.int8:
            unpacked[name] = x
            continue
        scale = weights.get(name + SCALE)
        if scale is None or scale.shape != x.shape[:-1] or not scale.is_floating_point():
            raise ValueError(f"{name} has no scale for each of its rows")
        unpacked[name] = x.float() * scale.float()[..., None]
    return unpacked


def is_packed(file: Path) -> bool:
    """Whether a safetensors file was stored in 8 bits; False if it cannot be read."""
    try:
        with safe_open(file, "pt") as weights:
            return (weights.metadata() or {}).get("longdraft") == MARK["longdraft"]
    except (OSError, SafetensorError):
        return False


def read(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, those in 8 bits in float32. Raises InputError."""
    try:
        weights = load_file(file)
        return unpack(weights) if is_packed(file) else weights
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{file} is damaged ({error}): copy or make it again") from None


def load_model(cls: Any, where: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A Transformers model from a folder stored in 8 bits, and the report of its loading."""
    hf, info = cls.from_pretrained(None, state_dict=read(Path(where) / WEIGHTS), **options)
    hf.config.name_or_path = where
    hf.name_or_path = where
    if (Path(where) / GENERATION_CONFIG_NAME).is_file():
        hf.generation_config = GenerationConfig.from_pretrained(where, local_files_only=True)
    return hf, info


def store(folder: Path, out: Path) -> tuple[int, int]:
    """Copy a drafter's folder with its weights in 8 bits -> bytes of weights before and after.

    Raises InputError.
    """
    read_json(folder / CONFIG)  # says what is wrong with a folder that is none
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"{folder} has no {WEIGHTS}: give the folder of a trained drafter")
    if is_packed(folder / WEIGHTS):
        raise InputError(f"{folder} is stored in 8 bits already: give one that is not")
    out = new_folder(out)
    if out.is_relative_to(folder.resolve()):
        raise InputError(f"--out is in the folder that is copied, {folder}: give another --out")
    part = out.with_name(out.name + ".part")
    packed = pack(read(folder / WEIGHTS))
    try:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(folder, part, ignore=shutil.ignore_patterns(WEIGHTS))
        save_file(packed, part / WEIGHTS, MARK)
        (part / WEIGHTS).chmod(0o644)  # safetensors writes 0600
        part.replace(out)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"cannot write {out} ({error}): make room, or give another --out"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return (folder / WEIGHTS).stat().st_size, (out / WEIGHTS).stat().st_size
