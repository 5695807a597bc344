"""The oldest supported versions are those of pyproject.toml, each of them a bound that pip can be
held to.
"""

from __future__ import annotations

import pytest
from oldest import PYPROJECT, bounds, constraints

ROOT = PYPROJECT.parent
TEXT = PYPROJECT.read_text(encoding="utf-8")


def test_every_dependency_has_a_lower_bound():
    found = bounds(TEXT)
    assert {"torch", "transformers", "accelerate", "triton", "fastapi"} <= found.keys()
    with pytest.raises(AssertionError, match="no lower bound"):
        bounds(TEXT.replace('"rich>=14"', '"rich"'))


def test_constraints_hold_each_package_once():
    lines = constraints(TEXT, (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    names = [line.split("==")[0].split("<")[0].lower() for line in lines]
    assert len(names) == len(set(names)) and f"torch=={bounds(TEXT)['torch']}" in lines
    assert any(line.startswith("pytest==") for line in lines)
