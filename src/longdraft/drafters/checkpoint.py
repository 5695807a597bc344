"""Drafter modules on disk: a folder whose config.json states the kind and the target that it was
trained for.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_origin, get_type_hints

from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from longdraft.core.files import read_json
from longdraft.core.places import new_folder
from longdraft.drafters.kind import DrafterKind
from longdraft.drafters.released import fill
from longdraft.errors import InputError
from longdraft.models import eight_bits
from longdraft.models.identity import fingerprint
from longdraft.models.lm import LM
from longdraft.models.loading import HUB_ID, reachable
from longdraft.version import __version__

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
FACTS = "training.json"
FILES = (WEIGHTS, CONFIG, FACTS)
# what targets of the same sizes may differ in
VARIES = (
    "digest",
    "rope",
    "weights",
    "stored",
    "kv",
    "activations",
)
LAYOUT = "0.9.0"  # the version of `speculators` whose fields config.json has


@dataclass(frozen=True)
class ModuleKind(DrafterKind):
    """Stored as model.safetensors, config.json and training.json, without what the module shares
    with the target.

    options_of(module): the arguments it was built with, as JSON. build(target, **options): an
    untrained module with the same shapes; the annotations of its parameters are the types that the
    options must have.
    """

    options_of: Callable[[Any], dict[str, Any]]
    build: Callable[..., nn.Module]
    files: ClassVar[tuple[str, ...] | None] = FILES

    def save(
        self, weights: Any, folder: Path, target: LM, facts: dict[str, Any], tokenizer: Any = None
    ) -> None:
        """The weights keep their dtype. A drafter that was in the folder is replaced; other files
        raise InputError.
        """
        with replacing(Path(folder), facts) as draft:
            save_file(
                {k: v.detach().cpu().contiguous() for k, v in weights.state_dict().items()},
                draft / WEIGHTS,
            )
            config = describe(weights, self.name, self.options_of(weights), target)
            (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def load(self, folder: str, target: LM, any_target: bool = False) -> nn.Module:
        place = _place(folder)
        config = read_config(place)
        ours = config["longdraft"]
        if ours.get("kind") != self.name:
            held = f"{folder} holds a drafter of kind {ours.get('kind')}"
            raise InputError(f"{held}; this method needs one of kind {self.name}")
        _same_target(folder, config, target, any_target)
        weights = eight_bits.read(place / WEIGHTS)
        try:
            module = self.build(target, **self._checked(ours["options"]))
        except InputError:
            raise
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as e:
            raise InputError(
                f"{folder}/{CONFIG}: bad options ({type(e).__name__}: {e}): export it again"
            ) from None
        fill(module, weights, folder)
        return module.to(target.device, target.dtype).eval().requires_grad_(False)

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options, if each has the type of the parameter it is for. Raises ValueError."""
        types = get_type_hints(self.build)
        for name, value in options.items():
            hint = types.get(name, type(value))
            wanted = get_origin(hint) or hint  # dict of dict[str, Any]
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                raise ValueError(f"{name} is {str(value)[:40]!r}, and must be a {wanted.__name__}")
        return options


@contextmanager
def replacing(folder: Path, facts: dict[str, Any]) -> Generator[Path]:
    """A new folder to write in, which replaces `folder` at the end; nothing changes on an error.
    Raises InputError.
    """
    folder = new_folder(folder, replaced=None)
    draft, old = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("writing", "old"))
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        yield draft
        (draft / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        for file in draft.iterdir():
            file.chmod(0o644)  # safetensors writes 0600
        if folder.exists() and not {p.name for p in folder.iterdir()} <= {
            p.name for p in draft.iterdir()
        }:
            raise InputError(
                f"{folder} has other files in it: give a new folder, or one that only "
                "contains a drafter"
            )
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"cannot write {folder} ({error}): make room, or give another folder"
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def describe(module: nn.Module, kind: str, options: dict[str, Any], target: LM) -> dict[str, Any]:
    """config.json: the fields of `speculators`, and under "longdraft" what `load` checks and builds
    from.
    """
    return {
        "model_type": f"longdraft-{kind}",
        "architectures": [type(module).__name__],
        "dtype": str(next(module.parameters()).dtype).removeprefix("torch."),
        "speculators_model_type": f"longdraft-{kind}",
        "speculators_version": LAYOUT,
        "speculators_config": {
            "algorithm": f"longdraft-{kind}",
            "proposal_methods": [
                {"proposal_type": "greedy", "verifier_accept_k": 1, "accept_tolerance": 0.0}
            ],
            "default_proposal_method": "greedy",
            "verifier": verifier(target),
        },
        "longdraft": {
            "version": __version__,
            "kind": kind,
            "options": options,
            "target": fingerprint(target),
        },
    }


def verifier(target: LM) -> dict[str, Any]:
    """The entry about a drafter's target in `speculators` files: no path on this machine."""
    where = Path(target.name)
    name = where.name if where.is_absolute() else target.name
    return {"name_or_path": name, "architectures": [type(target.hf).__name__]}


def _place(source: str) -> Path:
    """The local folder; a Hub id is downloaded (safetensors and JSON only). Raises InputError."""
    folder = Path(source).expanduser()
    if folder.exists() or not re.fullmatch(HUB_ID, source):
        return folder
    local = not reachable(source)
    try:
        return Path(
            snapshot_download(
                source, allow_patterns=[WEIGHTS, CONFIG, FACTS], local_files_only=local
            )
        )
    except Exception as error:  # the library and its transports raise many types
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(
            f"cannot fetch the drafter {source} from the Hub: {reason[:300].rstrip('.')}"
        ) from None


def read_config(place: Path) -> dict[str, Any]:
    """config.json of a saved drafter. Raises InputError that says what the folder holds instead."""
    if not (place / CONFIG).is_file():
        fault = f"{place} has no {CONFIG}" if place.is_dir() else f"no drafter at {place}"
        raise InputError(
            f"{fault}: give the folder that `longdraft train` or `longdraft import` wrote"
        )
    config = read_json(place / CONFIG)
    ours = config.get("longdraft")
    if not isinstance(ours, dict) or not all(
        isinstance(ours.get(k), dict) for k in ("options", "target")
    ):
        raise InputError(
            f"{place} is not in longdraft's layout: `longdraft import {place} --out DIR` "
            "converts it"
        )
    if not (place / WEIGHTS).is_file():
        pickled = sorted(
            p.name for p in place.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".ckpt")
        )
        why = (
            f"only pickled weights ({pickled[0]}), which can run code when read"
            if pickled
            else f"no {WEIGHTS}"
        )
        raise InputError(
            f"{place} has {why}: give a folder with {WEIGHTS} (`longdraft import` makes one)"
        )
    return config


def _same_target(folder: str, config: dict[str, Any], target: LM, any_target: bool) -> None:
    """Raises InputError if the drafter was trained for a target of other sizes, or (not any_target)
    other weights or rotations.

    Weights are compared as they are stored: quantizing them moves a target's choices little, so a
    drafter for the model drafts for its quantized forms too.
    """
    trained = config["longdraft"]["target"]
    given = fingerprint(target)
    try:
        verifier = config["speculators_config"]["verifier"]["name_or_path"] or "another target"
    except (LookupError, TypeError):
        verifier = "another target"
    odd = next((k for k in given if k not in VARIES and trained.get(k) != given[k]), None)
    if odd is not None:
        was = f"{folder} was trained for {verifier}, whose {odd} is {trained.get(odd)}"
        raise InputError(
            f"{was}; here it is {given[odd]}: give a drafter that was trained for this target"
        )
    same_weights = _stored(trained) == _stored(given)
    if not (any_target or (same_weights and trained.get("rope") == given.get("rope"))):
        part = "rotary positions" if same_weights else "weights"
        was = f"{folder} was trained for {verifier}, whose {part} are not this target's"
        how = "give a drafter that was trained for this target, or add --any-target"
        raise InputError(
            f"{was}: {how} (the output stays correct, but drafts may be accepted less often)"
        )


def _stored(target: dict[str, Any]) -> Any:
    """The digest of a fingerprint's weights before any quantizing."""
    return target.get("stored", target.get("digest"))
