"""The rotary positions of a GGUF file, under today's keys and older ones.

A key that changes them is never ignored.
"""

from __future__ import annotations

from math import isclose, log
from typing import Any

import torch
from torch import Tensor

from longdraft.errors import InputError
from longdraft.models.gguf.file import AGAIN, GGUF
from longdraft.ops.packed import Packed

FACTORS = "rope_freqs.weight"  # of Llama 3.1 and later: what each rotary frequency is divided by
LONG = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
TENSORS = (FACTORS, *LONG.values())
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# all that is read under {architecture}.rope.
READ = ("dimension_count", "freq_base", "freq_base_swa", "scale_linear")
READ += ("scaling.type", "scaling.factor", "scaling.original_context_length", "scaling.attn_factor")
READ += ("scaling.yarn_beta_fast", "scaling.yarn_beta_slow")
UNUSED = ("scaling.finetuned",)  # says how the model was trained, and changes nothing
# of positions of images, which are equal in a text
SECTIONS = {"qwen35": "dimension_sections", "qwen35moe": "dimension_sections"}
# see _check_neutral
NEUTRAL = (
    "scaling.yarn_ext_factor",
    "scaling.yarn_attn_factor",
    "scaling.yarn_log_multiplier",
)
INSTEAD = "use the model's safetensors"


def parameters(
    file: GGUF, kind: str, positions: int, by_multiplier: float | None = None
) -> dict[str, Any]:
    """Transformers' rope_parameters of a model of this architecture. Raises InputError.

    by_multiplier: what YaRN's multiplier is multiplied with; None: there must be none.
    """
    _check_keys(file, kind)
    base = _number(file, kind, "freq_base", 10000.0)
    if not base > 0:
        raise InputError(f"{file.path} has rotary positions of base {base}: {AGAIN}")
    made: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    scaling, factor = _scaling(file, kind)
    _check_neutral(file, kind, scaling, factor, by_multiplier is not None)
    if _has_long_factors(file):
        return made | _of_long_texts(file, kind, positions)
    if (factors := _factors(file)) is not None:
        if scaling != "none":
            raise InputError(
                f"{file.path} scales its rotary positions twice ({FACTORS} and {scaling}): "
                f"{INSTEAD}"
            )
        return {**made, "rope_type": "llama3", "factor": float(factors.max()), **LLAMA3}
    if scaling == "none":
        return made
    made |= {"rope_type": scaling, "factor": factor}
    if scaling != "yarn":
        return made
    made |= _yarn(file, kind, positions, factor)
    multiplier = _number(file, kind, NEUTRAL[2])
    if by_multiplier is None or not multiplier:
        return made
    return made | dict.fromkeys(("mscale", "mscale_all_dim"), multiplier * by_multiplier)


def _has_long_factors(file: GGUF) -> bool:
    return any(name in file.tensors for name in LONG.values())


def _of_long_texts(file: GGUF, kind: str, positions: int) -> dict[str, Any]:
    """LongRoPE: factors for long texts and for short ones."""
    made: dict[str, Any] = {"rope_type": "longrope"}
    for name, stored in LONG.items():
        factors = _factors(file, stored)
        if factors is None or not bool((factors > 0).all()):
            raise InputError(f"{file.path} lacks {stored}, or it has factors of 0: {AGAIN}")
        made[name] = factors.tolist()
    original = file.get(f"{kind}.rope.scaling.original_context_length", int, positions)
    if not 1 < original <= positions:
        raise InputError(f"{file.path} claims an original context length of {original}: {AGAIN}")
    by = _number(file, kind, "scaling.attn_factor", 1.0)
    return made | {"original_max_position_embeddings": original, "attention_factor": by}


def check_unscaled(file: GGUF, kind: str) -> None:
    """Raises InputError for a file whose scaled rotations Transformers would read as plain ones."""
    scaling, factor = _scaling(file, kind)
    if scaling != "none":
        raise _refused(file, kind, "scaling.factor", factor)
    _check_neutral(file, kind, scaling, factor)
    if odd := next((name for name in file.tensors if name.startswith("rope_f")), None):
        raise InputError(
            f"{file.path} has factors of its rotary frequencies ({odd}), which are not "
            f"read: {INSTEAD}"
        )


def module_of(hf: Any) -> str | None:
    """The name of the module that computes rotations in a model's body; None: it has none."""
    return next((n for n in ("rotary_emb", "pos_emb") if getattr(hf.model, n, None)), None)


def check(file: GGUF, hf: Any) -> None:
    """Raises InputError for a file whose factors of rotary frequencies are not those of Llama 3."""
    factors = _factors(file)
    if factors is None:
        return
    frequencies = getattr(hf.model, module_of(hf) or "").inv_freq
    exponents = torch.arange(len(frequencies)) / len(frequencies)
    base = hf.config.rope_parameters["rope_theta"] ** -exponents
    same_shape = factors.shape == frequencies.shape
    if not same_shape or not torch.allclose(base / factors, frequencies, rtol=1e-3):
        raise InputError(
            f"{file.path}: {FACTORS} has factors that are not those of Llama 3: {INSTEAD}"
        )


def _scaling(file: GGUF, kind: str) -> tuple[str, float]:
    """The kind of scaling (none, linear or yarn), and the factor.

    A file without a type means linear, and a factor of 0 means 1.
    """
    scaling = file.get(f"{kind}.rope.scaling.type", str, "linear")
    factor = _number(file, kind, "scaling.factor", _number(file, kind, "scale_linear", 0.0)) or 1.0
    if scaling == "longrope" and _has_long_factors(file):
        return "none", 1.0
    if scaling not in ("none", "linear", "yarn"):
        raise InputError(
            f"{file.path} has the rope scaling {scaling[:40]!r}: use a model with none, "
            "linear or yarn"
        )
    if not factor > 0:
        raise InputError(f"{file.path} scales its rotary positions by {factor}: {AGAIN}")
    return ("none", 1.0) if scaling == "none" or factor == 1 else (scaling, factor)


def original_positions(file: GGUF, kind: str, positions: int) -> int:
    """The positions before any scaling. Raises InputError."""
    original = file.get(f"{kind}.rope.scaling.original_context_length", int, positions)
    if original < 1:
        raise InputError(f"{file.path} claims an original context length of {original}: {AGAIN}")
    return original


def _yarn(file: GGUF, kind: str, positions: int, factor: float) -> dict[str, Any]:
    original = original_positions(file, kind, positions)
    made: dict[str, Any] = {"original_max_position_embeddings": original}
    if (by := _number(file, kind, "scaling.attn_factor", 1.0)) != 1:
        made["attention_factor"] = _magnitude(factor) * by
    for ours in ("beta_fast", "beta_slow"):
        if (value := _number(file, kind, f"scaling.yarn_{ours}")) is None:
            continue
        if not value > 0:
            raise _refused(file, kind, f"scaling.yarn_{ours}", value)
        made[ours] = value
    return made


def _magnitude(factor: float) -> float:
    """The factor by which YaRN multiplies queries and keys."""
    return 1 + 0.1 * log(factor) if factor > 1 else 1.0


def _check_keys(file: GGUF, kind: str) -> None:
    """Raises InputError for a key whose meaning is not known."""
    begin = f"{kind}.rope."
    known = {*READ, *UNUSED, *NEUTRAL, SECTIONS.get(kind)}
    odd = next(
        (k for k in file.metadata if k.startswith(begin) and k.removeprefix(begin) not in known),
        None,
    )
    if odd is not None:
        raise _refused(file, kind, odd.removeprefix(begin), file.metadata[odd])


def _check_neutral(
    file: GGUF, kind: str, scaling: str, factor: float, reads_multiplier: bool = False
) -> None:
    """Raises InputError for a value that is not the one that the file would mean without it.

    Programs read the last two for some architectures only. The first is YaRN's share, where less
    than 0 means unset. attn_factor is read for YaRN, and must be 1 elsewhere.
    """
    share, magnitude, multiplier = (_number(file, kind, name) for name in NEUTRAL)
    if share is not None and factor != 1 and share >= 0 and share != (scaling == "yarn"):
        raise _refused(file, kind, NEUTRAL[0], share)
    if magnitude is not None and not isclose(magnitude, _magnitude(factor), rel_tol=1e-4):
        raise _refused(file, kind, NEUTRAL[1], magnitude)
    if multiplier and not reads_multiplier:
        raise _refused(file, kind, NEUTRAL[2], multiplier)
    by = _number(file, kind, "scaling.attn_factor", 1.0)
    reads_factor = scaling == "yarn" or _has_long_factors(file)
    if not by > 0 or (by != 1 and not reads_factor):
        raise _refused(file, kind, "scaling.attn_factor", by)


def _refused(file: GGUF, kind: str, name: str, value: Any) -> InputError:
    return InputError(
        f"{file.path} has {kind}.rope.{name[:40]} = {str(value)[:40]}, which longdraft "
        f"does not read: {INSTEAD}"
    )


def _number(file: GGUF, kind: str, name: str, default: float | None = None) -> Any:
    return file.get(f"{kind}.rope.{name}", float, default)


def _factors(file: GGUF, name: str = FACTORS) -> Tensor | None:
    stored = file.tensors.get(name)
    factors = None if stored is None else stored.read()
    return None if factors is None or isinstance(factors, Packed) else factors.float()
