"""Environment variables that change speed, or what this package does."""

from __future__ import annotations

from collections.abc import Mapping

TUNING = ("OMP_", "KMP_", "MKL_", "GOMP_", "THP_", "MALLOC_")  # prefixes of those that affect speed
# not all of them: one is a key
OWN = (
    "LONGDRAFT_NATIVE",
    "LONGDRAFT_CPU",
    "LONGDRAFT_TRITON",
    "LONGDRAFT_GRAPHS",
)
TORCH = ("ATEN_CPU_CAPABILITY", "CUDA_VISIBLE_DEVICES")


def tuning(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that affect speed, by name."""
    return {name: value for name, value in sorted(variables.items()) if name.startswith(TUNING)}


def settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Those, and what chooses kernels."""
    return tuning(variables) | {
        name: variables[name] for name in (*OWN, *TORCH) if name in variables
    }
