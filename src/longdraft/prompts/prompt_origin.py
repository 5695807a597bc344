"""The facts beside its tokens on which the bits of a prompt's keys depend.

A saved prompt is used only where they agree.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, groupby
from pathlib import Path

import torch
from torch import Tensor

from longdraft.core.provenance import processor, versions
from longdraft.errors import InputError
from longdraft.models.identity import fingerprint
from longdraft.models.lm import LM
from longdraft.ops import native

PACKAGE = Path(__file__).parents[1]
# packages whose code decides how keys are computed
COMPUTING = (
    "ops",
    "core",
    "backends",
    "models",
)
UNRELATED = {
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "architectures",
}

Shapes = dict[int, tuple[int, int, int, torch.dtype]]
StateShapes = dict[int, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class Origin:
    """The origin of keys: two targets with equal `facts` compute equal bits for equal tokens.

    facts: by name, in the order in which differences are reported. shapes: as KVCache.shapes. bits:
    of a number of a key that is stored as a code, or 0. positions: the largest number of tokens.
    block: LM.prompt_block. states: the shape and dtype of each recurrent layer's states, in their
    order.
    """

    facts: dict[str, str]
    shapes: Shapes
    states: StateShapes
    bits: int
    positions: int
    block: int

    def under(self, rotation: str) -> Origin:
        """The origin of keys with these rotations (LM.rotation)."""
        if not rotation:
            return self
        return replace(self, facts=self.facts | {"rotation": f"of {rotation} texts"})

    @property
    def digest(self) -> str:
        return sha256(json.dumps(self.facts).encode()).hexdigest()

    def difference(self, facts: dict[str, str]) -> str | None:
        """The first fact in which a file's differ, in words; None if there is none."""
        for name, ours in self.facts.items():
            theirs = facts.get(name, "unknown")
            if theirs != ours:
                return f"{name} {theirs[:80]!r}, and this model has {ours[:80]!r}"
        return "more facts than this version knows" if facts != self.facts else None


@torch.inference_mode()
def origin_of(target: LM) -> Origin:
    """The origin of a target's keys; reads all weights once, and runs one token.

    Raises InputError for a model that is divided among processes.
    """
    if target.team.size > 1:
        raise InputError(
            "saved prompts are for one process: start it without torchrun, or leave "
            "--prompt-cache out"
        )
    scratch = target.new_cache(1, 1)
    target.prefill([0], scratch)
    shapes = scratch.shapes
    known = fingerprint(target)
    states = {n: (tuple(x.shape), x.dtype) for n, x in sorted((scratch.states_at(1) or {}).items())}
    c = target.config
    kernels = target.backend.kernels
    digest = known.get("stored", known["digest"])
    facts = {
        "model": f"{c.model_type} of {c.num_hidden_layers} layers {c.hidden_size} wide, {digest}",
        "rope": target.rope or "none",
        "quantized weights": target.weights or "none",
        "dtype": _word(target.dtype),
        "8-bit keys": target.kv or "none",
        "8-bit activations": target.activations or "none",
        "layout": _layout(shapes),
        **({"states": _listed(states)} if states else {}),
        "backend": target.backend.name + (f" {kernels}" if kernels else ""),
        **versions(),
        "kernels": _kernels(kernels),
        "code": _code(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "configuration": _configuration(c),
        "weights": _weights(target),
    }
    del facts["python"]
    if target.prompt_block > 1:  # torch reads prompts, and may add in another order
        facts |= {"threads": str(torch.get_num_threads()), "processor": processor(target.device)}
    return Origin(facts, shapes, states, target.kv_bits, target.positions, target.prompt_block)


def bytes_of(x: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, over the same memory."""
    return x.detach().view(-1).view(torch.uint8).numpy().data


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _layout(shapes: Shapes) -> str:
    """The layouts of runs of equal layers.

    Each has their number, their key heads, and the numbers of a key and of a value.
    """
    runs = [
        (list(same), shape)
        for shape, same in groupby(sorted(shapes), key=lambda layer: shapes[layer])
    ]
    return ", ".join(
        f"{len(same)} layers {h} x {k} + {h} x {v} {_word(t)}" for same, (h, k, v, t) in runs
    )


def _listed(states: StateShapes) -> str:
    """The number and shape of each run of states that are alike."""
    runs = [(shape, len(list(same))) for shape, same in groupby(states.values())]
    return ", ".join(
        f"{count} of {'x'.join(map(str, size))} {_word(t)}" for (size, t), count in runs
    )


def _kernels(name: str | None) -> str:
    """A digest of the compiled kernels.

    Builds of other sources or by another compiler may round differently.
    """
    lib = native.opened(f"_{name}")[0] if name else None
    return "none" if lib is None else sha256(Path(lib._name).read_bytes()).hexdigest()[:32]


def _code() -> str:
    """A digest of the Python code that computes keys."""
    files = sorted(chain.from_iterable((PACKAGE / room).rglob("*.py") for room in COMPUTING))
    return sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:32]


def _configuration(config: object) -> str:
    """A digest of config.json beside the sizes, such as rotations, windows and scales."""
    said = {k: v for k, v in config.to_dict().items() if k not in UNRELATED}  # type: ignore[attr-defined]
    return sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _weights(target: LM) -> str:
    """A digest of every bit of the weights.

    The fingerprint takes a sample, in which a small change may not show.
    """
    digest = sha256()
    parts = chain(target.hf.named_parameters(), target.hf.named_buffers())
    for name, x in sorted(parts, key=lambda part: part[0]):
        digest.update(f"{name} {list(x.shape)} {x.dtype} ".encode())
        if x.numel():
            digest.update(bytes_of(x.detach().cpu().contiguous()))
    return digest.hexdigest()[:32]
