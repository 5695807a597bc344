"""Extends a model with rotary positions to longer contexts by scaling its rotations.

Without training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longdraft.errors import InputError

SCALINGS = ("yarn", "linear")
MAX_FACTOR = 1024
HOW = (
    f"give KIND:FACTOR like yarn:2, where KIND is {' or '.join(SCALINGS)} and FACTOR a number "
    f"above 1, up to {MAX_FACTOR}"
)


@dataclass(frozen=True)
class Rope:
    """A scaling of rotations that gives a model `factor` times its positions.

    As text KIND:FACTOR.
    """

    kind: str
    factor: float

    @classmethod
    def parse(cls, text: str) -> Rope:
        """The scaling that a text KIND:FACTOR names.

        Raises InputError.
        """
        kind, _, number = text.partition(":")
        try:
            factor = float(number)
        except ValueError:
            factor = 0.0
        if kind not in SCALINGS or not 1 < factor <= MAX_FACTOR:
            raise InputError(f"rope is {text[:40]!r}: {HOW}")
        return cls(kind, factor)

    def __str__(self) -> str:
        return f"{self.kind}:{str(self.factor).removesuffix('.0')}"

    def extend(self, config: Any) -> None:
        """Change a configuration that no model has been built from yet.

        Raises InputError for a model without plain rotary positions.
        """
        c = config.get_text_config()
        parameters = getattr(c, "rope_parameters", None)
        positions = getattr(c, "max_position_embeddings", None)
        if not parameters or not positions:
            raise InputError(
                f"{c.model_type} has no rotary positions, which --rope scales: leave --rope out"
            )
        if any(isinstance(r, dict) for r in parameters.values()):
            raise InputError(
                f"{c.model_type} has a rotation per kind of layer, which --rope cannot "
                "scale: leave it out"
            )
        if (kind := parameters.get("rope_type", "default")) != "default":
            raise InputError(
                f"the model's rotary positions are already scaled ({kind}): leave --rope out"
            )
        scaled = {**parameters, "rope_type": self.kind, "factor": self.factor}
        if self.kind == "yarn":
            scaled["original_max_position_embeddings"] = positions
            if hasattr(c, "original_max_position_embeddings"):
                c.original_max_position_embeddings = positions  # Transformers would prefer this one
        c.rope_parameters = scaled
        c.max_position_embeddings = int(positions * self.factor)
