"""Trained drafters on disk: config.json in the speculators layout, model.safetensors, training.json."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from longdraft.drafters.eagle_block import Eagle2Block, Eagle3Block
from longdraft.drafters.glide_block import Glide
from longdraft.drafters.heads import ChainedHeads, MedusaHeads
from longdraft.errors import InputError
from longdraft.model import LM

SAMPLED = 1024  # values of each weight that make the fingerprint


@dataclass(frozen=True)
class Kind:
    """How a part is built for a target from the options in its config, and which options a part has."""

    build: Callable[..., nn.Module]
    options: Callable[[Any], dict[str, Any]]


def _medusa(target: LM, heads: int, own: bool) -> MedusaHeads:
    d = target.config.hidden_size
    return MedusaHeads(d, heads, torch.zeros(heads, target.vocab, d) if own else None)


KINDS = {
    "glide": Kind(Glide, lambda p: {"window": p.window, "with_norm": p.with_norm}),
    "heads": Kind(
        lambda target, **options: ChainedHeads(target.config.hidden_size, **options),
        lambda p: {"heads": len(p), "eps": p.eps},
    ),
    "medusa": Kind(_medusa, lambda p: {"heads": len(p), "own": p.out is not None}),
    "eagle2": Kind(lambda target: Eagle2Block(target.config), lambda p: {}),
    "eagle3": Kind(lambda target, vocab: Eagle3Block(target.config, vocab), lambda p: {"vocab": p.known}),
}


@torch.no_grad()
def fingerprint(target: LM) -> str:
    """Of every weight's name, shape and some of its values, in bfloat16: the same for a model in either dtype."""
    digest = hashlib.sha256()
    for name, weight in sorted(target.hf.named_parameters()):
        flat = weight.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // SAMPLED)].to(torch.bfloat16).cpu()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + some.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def save(part: nn.Module, kind: str, folder: Path, target: LM, facts: dict[str, Any]) -> None:
    """Write the folder's files, each replaced in one move; others there are left alone. Raises InputError."""
    verifier = {"name_or_path": target.name, "architectures": [type(target.hf).__name__]}
    config = {
        "model_type": f"longdraft-{kind}",
        "speculators_model_type": f"longdraft-{kind}",
        "speculators_config": {"algorithm": kind, "proposal_methods": [], "verifier": verifier},
        "options": KINDS[kind].options(part),
        "target": fingerprint(target),
    }
    with _written(folder, facts) as draft:
        save_file({k: v.contiguous() for k, v in part.state_dict().items()}, draft / "model.safetensors")
        (draft / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def save_model(model: Any, folder: Path, tokenizer: Any, facts: dict[str, Any]) -> None:
    """A small model as Transformers writes it, with its tokenizer. Raises InputError."""
    with _written(folder, facts) as draft:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)


@contextmanager
def _written(folder: Path, facts: dict[str, Any]) -> Iterator[Path]:
    """A folder to write in, whose files then go to `folder`, with the facts beside them."""
    draft = folder.with_name(f".{folder.name}.writing")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        (draft / "training.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(draft.iterdir()):
            file.chmod(0o644)  # safetensors writes 0600
            os.replace(file, folder / file.name)
    except (OSError, SafetensorError) as error:
        raise InputError(f"could not write {folder}: {error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load(kind: str, folder: str, target: LM, anyhow: bool = False) -> nn.Module:
    """The part in a folder, in the target's dtype and on its device. Raises InputError.

    anyhow: also where it was trained for another target.
    """
    config, weights = _config(kind, Path(folder)), _weights(Path(folder))
    if config.get("target") != fingerprint(target) and not anyhow:
        name = config.get("speculators_config", {}).get("verifier", {}).get("name_or_path", "another model")
        raise InputError(
            f"{folder} was trained for other weights than these of {target.name} ({name}, by its config): give its own"
            " target, or --any-target to draft with it all the same"
        )
    try:
        part = KINDS[kind].build(target, **config["options"])
    except TypeError:
        raise InputError(f"{folder}/config.json has options that no {kind} drafter has: {config['options']}") from None
    wanted = {name: tuple(value.shape) for name, value in part.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    odd = next((n for n in sorted(wanted.keys() | found.keys()) if wanted.get(n) != found.get(n)), None)
    if odd is not None:
        what = f"{odd} is {found.get(odd, 'missing')}, and for {target.name} it must be {wanted.get(odd, 'absent')}"
        raise InputError(f"{folder}/model.safetensors: {what}")
    part.load_state_dict(weights)
    return part.to(target.device, target.dtype).eval().requires_grad_(False)


def _config(kind: str, folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict) or not str(config.get("model_type", "")).startswith("longdraft-"):
        raise InputError(f"{folder} holds no drafter of ours (config.json): `longdraft train {kind}` makes one")
    found = config["model_type"].removeprefix("longdraft-")
    if found != kind or not isinstance(config.get("options"), dict):
        raise InputError(f"{folder} holds a drafter of kind {found}, and this method needs {kind}")
    return config


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder}/model.safetensors cannot be read: {error}") from None
