"""Drafters with weights on disk: a folder that says what it is and for which target it was trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from longdraft.core.files import read_json
from longdraft.drafters.eagle.block import Eagle2Block, Eagle3Block
from longdraft.drafters.glide.block import Glide
from longdraft.drafters.heads.drafter import ChainedHeads, MedusaHeads
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.version import __version__

WEIGHTS, CONFIG, FACTS = "model.safetensors", "config.json", "training.json"
LAYOUT = "0.9.0"  # of `speculators`, whose fields config.json has
SAMPLE = 1 << 12  # numbers of one tensor that its digest reads: another model of the same shape differs in most


@dataclass(frozen=True)
class Kind:
    """options: a part -> what it is built from, as JSON; build: a target and these -> a part of the same shapes."""

    options: Callable[[Any], dict[str, Any]]
    build: Callable[[LM, dict[str, Any]], nn.Module]


FIELDS: dict[str, type] = {"window": int, "with_norm": bool, "heads": int, "eps": float, "own": bool, "vocab": int}


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Options whose values are of the right types. Raises ValueError."""
    for name, value in options.items():
        kind = FIELDS.get(name, dict)
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(f"{name} is {str(value)[:40]!r}, and must be a {kind.__name__}")
    return options


def _medusa(target: LM, o: dict[str, Any]) -> MedusaHeads:
    d, count = target.config.hidden_size, o["heads"]
    return MedusaHeads(d, count, torch.zeros(count, target.vocab, d) if o["own"] else None)


KINDS = {
    "glide": Kind(lambda p: {"window": p.window, "with_norm": p.with_norm}, lambda t, o: Glide(t, **o)),
    "heads": Kind(lambda p: {"heads": len(p), "eps": p.eps}, lambda t, o: ChainedHeads(t.config.hidden_size, **o)),
    "medusa": Kind(lambda p: {"heads": len(p), "own": p.out is not None}, _medusa),
    "eagle2": Kind(lambda p: {"layer": p.layer}, lambda t, o: Eagle2Block(SimpleNamespace(**o["layer"]))),
    "eagle3": Kind(
        lambda p: {"layer": p.layer, "vocab": p.known},
        lambda t, o: Eagle3Block(SimpleNamespace(**o["layer"]), o["vocab"]),
    ),
}


def fingerprint(target: LM) -> dict[str, Any]:
    """What a drafter depends on: the target's sizes, and a digest of some of each weight.

    The digest reads weights as bfloat16, so it is the same whichever dtype the target was loaded in.
    """
    if target.known is not None:
        return target.known
    c, digest = target.config, sha256()
    for name, p in sorted(target.hf.named_parameters()):
        digest.update(f"{name} {list(p.shape)} ".encode())
        digest.update(_sample(p.detach()))
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    return {"model_type": c.model_type, **{k: getattr(c, k, None) for k in sizes}, "digest": digest.hexdigest()[:32]}


def _sample(p: Tensor) -> bytes:
    """Every n-th number as bfloat16."""
    flat = p.reshape(-1)[:: max(1, p.numel() // SAMPLE)]
    return flat.to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes()


def save(part: nn.Module, kind: str, folder: Path, target: LM, facts: dict[str, Any]) -> None:
    """Write a part as model.safetensors, config.json and training.json (facts): all three, or nothing.

    Weights keep the part's dtype; what it shares with the target is not in them. A drafter that was there is replaced;
    a folder with anything else in it raises InputError.
    """
    with _replacing(Path(folder), facts) as draft:
        save_file({k: v.detach().cpu().contiguous() for k, v in part.state_dict().items()}, draft / WEIGHTS)
        (draft / CONFIG).write_text(json.dumps(describe(part, kind, target), indent=2) + "\n", encoding="utf-8")


def save_model(model: Any, tokenizer: Any, folder: Path, facts: dict[str, Any]) -> None:
    """A whole small model as Transformers writes it, with its tokenizer and the facts. As `save` otherwise."""
    with _replacing(Path(folder), facts) as draft:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)


@contextmanager
def _replacing(folder: Path, facts: dict[str, Any]) -> Iterator[Path]:
    """A folder to write in; it then takes the place of `folder`, with the facts in it, or nothing is changed."""
    draft, old = (folder.with_name(f".{folder.name}.{what}") for what in ("writing", "old"))
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        yield draft
        (draft / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        for file in draft.iterdir():
            file.chmod(0o644)  # safetensors writes 0600
        if folder.exists() and not {p.name for p in folder.iterdir()} <= {p.name for p in draft.iterdir()}:
            raise InputError(f"{folder} has other files in it: give a new folder, or one that holds a drafter alone")
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {folder} ({error}): make room, or give another folder") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def describe(part: nn.Module, kind: str, target: LM) -> dict[str, Any]:
    """config.json: the fields of `speculators`, and under "longdraft" what `load` builds and checks."""
    mine = next(part.parameters()).dtype
    where = Path(target.name)
    return {
        "model_type": f"longdraft-{kind}",
        "architectures": [type(part).__name__],
        "dtype": str(mine).removeprefix("torch."),
        "speculators_model_type": f"longdraft-{kind}",
        "speculators_version": LAYOUT,
        "speculators_config": {
            "algorithm": f"longdraft-{kind}",
            "proposal_methods": [{"proposal_type": "greedy", "verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": where.name if where.is_absolute() else target.name,
                "architectures": [type(target.hf).__name__],
            },
        },
        "longdraft": {
            "version": __version__,
            "kind": kind,
            "options": KINDS[kind].options(part),
            "target": fingerprint(target),
        },
    }


def load(kind: str, folder: str, target: LM, anyhow: bool = False) -> nn.Module:
    """The part of this kind that lies in a folder, in the target's dtype and on its device.

    anyhow: also one that was trained for another target of the same sizes. Raises InputError.
    """
    place = Path(folder).expanduser()
    config = read_config(place)
    mine = config["longdraft"]
    if mine["kind"] != kind:
        raise InputError(f"{folder} holds a drafter of kind {mine['kind']}; this method needs one of kind {kind}")
    _same_target(folder, config, target, anyhow)
    weights = read_weights(place / WEIGHTS)
    try:
        part = KINDS[kind].build(target, _checked(mine["options"]))
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder}/{CONFIG}: bad options ({type(error).__name__}: {error}): export it again") from None
    fill(part, weights, folder)
    return part.to(target.device, target.dtype).eval().requires_grad_(False)


def read_config(place: Path) -> dict[str, Any]:
    """config.json of a saved drafter. Raises InputError that says what lies there instead."""
    if not place.is_dir():
        raise InputError(f"no drafter at {place}: give the folder that `longdraft train` or `longdraft import` wrote")
    if not (place / CONFIG).is_file():
        raise InputError(f"{place} has no {CONFIG}: give the folder that `longdraft train` or `import` wrote")
    config = read_json(place / CONFIG)
    mine = config.get("longdraft")
    if not isinstance(mine, dict) or not all(isinstance(mine.get(k), dict) for k in ("options", "target")):
        raise InputError(f"{place} is not in longdraft's layout: `longdraft import {place} --out DIR` reads others")
    if not isinstance(mine.get("kind"), str) or mine["kind"] not in KINDS:
        raise InputError(f"{place} holds a drafter of kind {mine.get('kind')}: known are {', '.join(KINDS)}")
    if not (place / WEIGHTS).is_file():
        pickled = sorted(p.name for p in place.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        why = f"only pickled weights ({pickled[0]}), which can run code when read" if pickled else f"no {WEIGHTS}"
        raise InputError(f"{place} has {why}: give a folder with {WEIGHTS} (`longdraft import` makes one)")
    return config


def read_weights(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file. Raises InputError."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} is damaged ({error}): copy or make it again") from None


def _same_target(folder: str, config: dict[str, Any], target: LM, anyhow: bool) -> None:
    """Raises InputError on a drafter of another target; `anyhow` lets other weights pass, never other sizes."""
    then, now = config["longdraft"]["target"], fingerprint(target)
    verifier = _within(config, "speculators_config", "verifier", "name_or_path") or "another target"
    odd = next((k for k in now if k != "digest" and then.get(k) != now[k]), None)
    if odd is not None:
        was = f"{folder} was trained for {verifier}, whose {odd} is {then.get(odd)}"
        raise InputError(f"{was}; here it is {now[odd]}: give the drafter of this target")
    if then.get("digest") != now["digest"] and not anyhow:
        raise InputError(
            f"{folder} was trained for {verifier}, whose weights are not this target's: give the drafter of this"
            " target, or --any-target to use it all the same (the text stays right, it may only be slower)"
        )


def _within(found: Any, *keys: str) -> Any:
    """What lies under these keys of objects within objects; None where one is missing, or is no object."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def fill(part: nn.Module, weights: dict[str, Tensor], where: str) -> None:
    """Put weights into a part. Raises InputError that names a missing, surplus or misshapen one."""
    wanted = part.state_dict()
    missing, surplus = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or surplus:
        what = f"lacks {missing[0]}" if missing else f"has a surplus {surplus[0]}"
        raise InputError(f"{where}: {what}: its weights are not those of a {type(part).__name__} for this target")
    for name, want in wanted.items():
        if weights[name].shape != want.shape:
            raise InputError(
                f"{where}: {name} is {list(weights[name].shape)}, and {list(want.shape)} for this target: give the"
                " drafter that was trained for it"
            )
        if weights[name].is_floating_point() != want.is_floating_point():
            raise InputError(f"{where}: {name} is of {weights[name].dtype}, which is no kind of {want.dtype}")
    if isinstance(part, Eagle3Block):
        tokens = torch.arange(part.known) + weights["d2t"].cpu()
        if tokens.min() < 0 or tokens.max() >= part.layer["vocab_size"] or len(tokens.unique()) < part.known:
            raise InputError(f"{where}: d2t does not name a token of the target for each of the drafter's own")
    part.load_state_dict(weights)
