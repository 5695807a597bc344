"""The way in which a checkpoint stores quantized matrices, and what its formats share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log2
from typing import Any

from torch import Tensor

from longdraft.errors import InputError
from longdraft.models.quantized.forms import PackedForm
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.ops.packed import Packed

# Gates, if there are some, up and down of all experts of a layer, one after the other.
OfExperts = tuple[Packed, ...]
# (the tensors, a layer's name, its outputs and inputs) -> its weights, float32 if unpacked
Matrix = Callable[[Checkpoint, str, tuple[int, int]], Packed | Tensor]
# the name of a matrix -> its usual form, as the config alone implies it; None: it is not packed
FormOf = Callable[[str], PackedForm | None]
INSTEAD = "use the model's unquantized weights or a GGUF file"
# An expression of a config may take 2 to this power steps for a name: some milliseconds.
MOST_DOUBLINGS = 24


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint stores the weights of quantized layers.

    A layer is quantized if it has the tensor `marker`. matrix: reads its weights. leaves: the names
    of its tensors, except for the bias. form: for plans, which read no weights. tables: whether
    embeddings are quantized, too. note: what a user should know about all of them.
    """

    name: str
    marker: str
    leaves: tuple[str, ...]
    matrix: Matrix
    form: FormOf
    tables: bool = False
    note: str | None = None

    def layers(self, files: Checkpoint) -> list[str]:
        """The names of the quantized layers."""
        end = f".{self.marker}"
        return [name.removesuffix(end) for name in files.names if name.endswith(end)]


def setting(settings: dict[str, Any], scheme: str, name: str, known: tuple[Any, ...]) -> Any:
    """A setting of a config; if it is missing, the first known one.

    Raises InputError for one that is not known.
    """
    value = settings.get(name)
    if value is None:
        return known[0]
    if type(value) is bool or value not in known:
        choices = ", ".join(str(k) for k in known if k is not None)
        raise InputError(
            f"the weights are quantized by {scheme} with {name} {str(value)[:40]}, and longdraft "
            f"reads {choices}: {INSTEAD}"
        )
    return known[known.index(value)]


def group_size(settings: dict[str, Any], scheme: str, default: int) -> int:
    """Inputs that share a scale; -1: all. Raises InputError for a number that is neither."""
    size = settings.get("group_size", default)
    if isinstance(size, bool) or not isinstance(size, int) or not (size == -1 or size > 0):
        raise InputError(
            f"the weights are quantized by {scheme} with group_size {str(size)[:40]}, which is "
            f"neither -1 nor a positive number: {INSTEAD}"
        )
    return size


def texts(settings: dict[str, Any], scheme: str, name: str) -> list[str]:
    """A setting that is a list of names. Raises InputError for anything else."""
    found = settings.get(name) or []
    if not isinstance(found, list) or not all(isinstance(x, str) for x in found):
        raise InputError(
            f"the weights are quantized by {scheme} with {name} {str(found)[:40]}, which is no "
            f"list of names: {INSTEAD}"
        )
    return found


def is_named(name: str, patterns: list[str]) -> bool:
    """Whether a layer contains one of these names, or matches one after "re:"."""
    for pattern in patterns:
        if pattern.startswith("re:"):
            if matches(pattern.removeprefix("re:"), name):
                return True
        elif f".{pattern}." in f".{name}.":
            return True
    return False


def matches(pattern: str, name: str) -> bool:
    """Whether the beginning of a name matches. Raises InputError for what is no expression, and
    for one that may take very long.
    """
    if doublings(pattern) > MOST_DOUBLINGS:
        raise InputError(
            f"{pattern[:60]!r}, which names quantized layers, could take very long to match: "
            f"{INSTEAD}"
        )
    try:
        return re.match(pattern, name) is not None
    except re.error:
        raise InputError(
            f"{pattern[:60]!r}, which names quantized layers, is no regular expression: {INSTEAD}"
        ) from None


def doublings(pattern: str) -> float:
    """How often the steps of a failing match may double at most, in a name of 64 characters.

    A repeat can end at 64 places, and an option or an alternative can be taken or not; a group that
    is repeated multiplies what is in it without a bound.
    """
    plain = re.sub(r"\\.", "x", pattern, flags=re.DOTALL)
    if re.search(r"\)[*+{]", plain):
        return inf
    repeats = len(re.findall(r"[*+{]", plain))
    options = plain.count("?")
    return 6 * repeats + options + sum(log2(1 + part.count("|")) for part in plain.split("("))
