"""The rotary positions of drafters with a separate rotation: those of the target's or a release's
config.
"""

from __future__ import annotations

from typing import Any

from longdraft.drafters.released import Released
from longdraft.errors import InputError

# their frequencies do not depend on the length of the context
ROPES = (
    "default",
    "linear",
    "llama3",
    "yarn",
)


def ropes_of(config: Any) -> dict[str, Any]:
    """The RoPE parameters of a target's or a drafter's config; only theta where drafters do not
    support the type.

    Of a target that has them by the layers' type, those of full attention if these rotate.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    by_type = [
        p for p in (parameters.get("full_attention"), *parameters.values()) if isinstance(p, dict)
    ]
    parameters = by_type[0] if by_type else parameters
    theta = float(parameters.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type", "default")
    if kind == "default" or kind not in ROPES:
        return {"rope_type": "default", "rope_theta": theta}
    return {
        **{k: v for k, v in parameters.items() if k != "partial_rotary_factor"},
        "rope_theta": theta,
    }


def released_ropes(source: Released, c: dict[str, Any]) -> dict[str, Any]:
    """Theta and scaling, as written by older or newer releases in their config c."""
    parameters = dict(c.get("rope_parameters") or c.get("rope_scaling") or {})
    kind = parameters.pop("type", None) or parameters.get("rope_type") or "default"
    if kind not in ROPES:
        raise InputError(
            f"{source.folder} has rope type {kind}; longdraft's drafters support {', '.join(ROPES)}"
        )
    return {"rope_theta": float(c.get("rope_theta") or 10000.0), **parameters, "rope_type": kind}
