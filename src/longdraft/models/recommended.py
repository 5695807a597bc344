"""The sampling that a model's makers recommend.

From its configuration, its GGUF file, or a table of known models. A GGUF file may have it under
general.sampling.* (llama.cpp's names); many, such as Qwen's, do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longdraft.core.sampling import Sampler
from longdraft.errors import InputError
from longdraft.models import fetch
from longdraft.models.gguf import file as gguf
from longdraft.models.lm import LM
from longdraft.sampling_parameters import WINDOW

# tokens that a repetition penalty looks back at in Transformers: the prompt too
EVERYTHING = WINDOW.high
FIELDS = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
FIELDS |= {"repetition_penalty": "penalty"}
IN_GGUF = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "penalty",
}
QWEN = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "penalty": 1.1}
# Recommendations for the models that `longdraft fetch` knows; SmolLM2's generation_config.json has
# none.
OF_FETCHED: dict[str, dict[str, float]] = {
    "smollm2": {},
    "qwen2.5-coder-0.5b": QWEN,
    "qwen2.5-coder-1.5b": QWEN,
    "gemma-3-270m": {"temperature": 1.0, "top_k": 64, "top_p": 0.95},
}


def recommended_settings(target: LM) -> dict[str, float]:
    """The recommended settings, by the names of a Sampler.

    Nothing for a model of which nothing is known.
    """
    where = Path(target.hf.name_or_path or "-")
    settings = _of_file(where) if where.is_file() else _of_config(target.hf.generation_config)
    return {"temperature": 1.0, **settings} if settings else {}


def sampler_of(settings: dict[str, float], window: int = EVERYTHING) -> Sampler:
    """A sampler with these settings.

    window: tokens that a penalty looks back at.
    """
    numbers: dict[str, Any] = {name: float(value) for name, value in settings.items()}
    if "top_k" in settings:
        numbers["top_k"] = int(settings["top_k"])
    return Sampler(**numbers, window=window) if "penalty" in numbers else Sampler(**numbers)


def recommended_sampler(target: LM) -> Sampler:
    """The sampler that the makers recommend.

    Raises InputError for a model of which nothing is known.
    """
    if not (settings := recommended_settings(target)):
        raise InputError(
            f"{target.name} recommends no sampling: give --temperature, and --top-p or "
            "--penalty if wanted"
        )
    return sampler_of(settings)


def _of_file(file: Path) -> dict[str, float]:
    """The settings in a GGUF file, else those known of the model that was fetched to this place."""
    metadata = gguf.read(file).metadata
    said = {name: metadata.get(f"general.sampling.{key}") for key, name in IN_GGUF.items()}
    said = {name: float(value) for name, value in said.items() if isinstance(value, int | float)}
    names = (name for name in fetch.SOURCES if fetch.place_of(name).resolve() == file.resolve())
    return said or dict(OF_FETCHED.get(next(names, ""), {}))


def _of_config(config: Any) -> dict[str, float]:
    """The settings of generation_config.json; nothing where it does not sample."""
    if not config.do_sample:
        return {}
    said = {name: getattr(config, field, None) for field, name in FIELDS.items()}
    return {name: value for name, value in said.items() if value is not None}
