"""The package and those that it needs: where they come from, and whether their versions are
supported.
"""

from __future__ import annotations

import os

from longdraft.doctor.part import Part, Problem, short
from longdraft.host import environment as variables
from longdraft.host import installation
from longdraft.version import __version__

NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "llguidance")
OPTIONAL = ("triton",)


def package() -> Part:
    found = installation.origin()
    where = found["where"]
    if sha := found.get("git_sha"):
        where = f"{short(where)}, {sha[:10]}{' with changes' if found['git_dirty'] else ''}"
    facts = {"version": __version__, **found, "where": short(found["where"])}
    return Part([f"longdraft {__version__}, {found['kind']} ({short(where)})"], facts)


def versions() -> Part:
    found = {name: installation.version(name) for name in NEEDED + OPTIONAL}
    supported = installation.bounds()
    problems = []
    for name, version in found.items():
        bound = supported.get(name, "")
        wanted = f"pip install '{name}{bound}'"
        if version is None and name in NEEDED:
            problems.append(Problem(f"{name} is not installed", wanted, fails=True))
        elif version is not None and not installation.within(version, bound):
            problems.append(Problem(f"{name} {version} is not supported ({bound})", wanted))
    line = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    return Part(
        [line],
        {"found": found, "supported": {n: supported[n] for n in found if n in supported}},
        problems,
    )


def environment() -> Part:
    found = variables.settings(os.environ)
    return Part(
        [", ".join(f"{name}={value}" for name, value in found.items()) or "nothing set"],
        {"set": found},
    )
