"""Environment variables that change the speed or the behavior of this package."""

from __future__ import annotations

from collections.abc import Mapping

# prefixes of variables that affect speed
TUNING = ("OMP_", "KMP_", "MKL_", "GOMP_", "THP_", "MALLOC_")
# variables of this package; not all of them: one is a key
OWN = (
    "LONGDRAFT_NATIVE",
    "LONGDRAFT_CPU",
    "LONGDRAFT_TRITON",
    "LONGDRAFT_GRAPHS",
)
TORCH = ("ATEN_CPU_CAPABILITY", "CUDA_VISIBLE_DEVICES")


def tuning(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that affect speed, by name."""
    return {name: value for name, value in sorted(variables.items()) if name.startswith(TUNING)}


def settings(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that affect speed, and those that choose kernels."""
    return tuning(variables) | {
        name: variables[name] for name in (*OWN, *TORCH) if name in variables
    }
