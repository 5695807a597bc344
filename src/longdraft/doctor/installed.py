"""The package and those that it needs: their origins, and whether their versions are supported."""

from __future__ import annotations

import os

from longdraft.doctor.part import Finding, PartReport, short
from longdraft.host import environment as variables
from longdraft.host import installation
from longdraft.version import __version__

NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "llguidance")
OPTIONAL = ("triton",)


def package() -> PartReport:
    origin = installation.origin()
    where = origin["where"]
    if sha := origin.get("git_sha"):
        where = f"{short(where)}, {sha[:10]}{' with changes' if origin['git_dirty'] else ''}"
    facts = {"version": __version__, **origin, "where": short(origin["where"])}
    return PartReport([f"longdraft {__version__}, {origin['kind']} ({short(where)})"], facts)


def versions() -> PartReport:
    installed = {name: installation.version(name) for name in NEEDED + OPTIONAL}
    supported = installation.bounds()
    problems = []
    for name, version in installed.items():
        bound = supported.get(name, "")
        wanted = f"pip install '{name}{bound}'"
        if version is None and name in NEEDED:
            problems.append(Finding(f"{name} is not installed", wanted, fails=True))
        elif version is not None and not installation.within(version, bound):
            problems.append(Finding(f"{name} {version} is not supported ({bound})", wanted))
    line = ", ".join(f"{name} {version}" for name, version in installed.items() if version)
    bounds = {name: supported[name] for name in installed if name in supported}
    return PartReport([line], {"found": installed, "supported": bounds}, problems)


def environment() -> PartReport:
    settings = variables.settings(os.environ)
    line = ", ".join(f"{name}={value}" for name, value in settings.items())
    return PartReport([line or "nothing set"], {"set": settings})
