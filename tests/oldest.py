"""Prints the oldest supported versions as constraints for pip: every lower bound in pyproject.toml,
as an equality.

python tests/oldest.py --names            # the packages alone python tests/oldest.py
constraints.txt    # other packages, such as those of the tests, as the given file has them
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
GROUPS = ("serve", "parallel", "gpu")  # the extras that code of the library needs
BOUND = re.compile(r"([\w.-]+)>=([\d.]+)")


def bounds(text: str) -> dict[str, str]:
    """Each package of the library with its lower bound."""
    project = tomllib.loads(text)["project"]
    needed = [
        *project["dependencies"],
        *(x for group in GROUPS for x in project["optional-dependencies"][group]),
    ]
    found = [BOUND.match(line) for line in needed]
    assert all(found), f"a dependency has no lower bound: {needed}"
    return {_key(match[1]): match[2] for match in found if match}


def constraints(text: str, others: str) -> list[str]:
    """Lines for pip's --constraint."""
    oldest = bounds(text)
    kept = [
        line
        for line in others.splitlines()
        if line[:1] not in "#" and _key(re.split("[<=>~]", line)[0]) not in oldest
    ]
    return [*(f"{name}=={version}" for name, version in oldest.items()), *kept]


def _key(name: str) -> str:
    return name.lower().replace("-", "_")


if __name__ == "__main__":
    if sys.argv[1:] == ["--names"]:
        print(*bounds(PYPROJECT.read_text(encoding="utf-8")))
        sys.exit()
    print(
        "\n".join(
            constraints(
                PYPROJECT.read_text(encoding="utf-8"), Path(sys.argv[1]).read_text(encoding="utf-8")
            )
        )
    )
