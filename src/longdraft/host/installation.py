"""The origin of this package's installation, and the versions of other packages."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

from longdraft.host.checkout import PACKAGE, checkout
from longdraft.host.system_files import text

NAME = "longdraft"
BOUND = re.compile(r"(>=|<)\s*(\d+(?:\.\d+)*)")


def origin(package: Path = PACKAGE) -> dict[str, Any]:
    """The kind and the place of this installation.

    kind: "checkout", "unpacked sdist", "wheel", "sdist", "folder" or "unknown"; where: its folder,
    address or tag. pip writes down the origin of a file that was named to it. Of an index it says
    nothing; a wheel from there is for many systems (manylinux), and one that pip builds from an
    sdist is for this one.
    """
    root = package.parents[1]
    if (root / "pyproject.toml").is_file() and package == root / "src" / NAME:
        if (root / "PKG-INFO").is_file():
            return {"kind": "unpacked sdist", "where": str(root)}
        return {"kind": "checkout", "where": str(root), **checkout()}
    try:
        installed = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        return {"kind": "unknown", "where": str(package)}
    return _installed(installed.read_text("direct_url.json"), installed.read_text("WHEEL"))


def _installed(direct: str | None, wheel: str | None) -> dict[str, Any]:
    """The origin from pip's direct_url.json, if it wrote one, and the wheel's own description."""
    source = json.loads(direct) if direct else {}
    url = str(source.get("url", ""))
    if "archive_info" in source:
        return {"kind": "wheel" if url.endswith(".whl") else "sdist", "where": url}
    if source:
        return {"kind": "folder", "where": url}
    if not (tag := re.search(r"^Tag: (.+)$", wheel or "", re.MULTILINE)):
        return {"kind": "unknown", "where": "no tag"}
    return {"kind": "wheel" if "manylinux" in tag[1] else "sdist", "where": tag[1]}


def version(package: str) -> str | None:
    """The version of an installed package; None without one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def bounds(package: Path = PACKAGE) -> dict[str, str]:
    """{package: its supported versions, like ">=5.17,<5.24"}, of the checkout or installation."""
    root = package.parents[1]
    project = "" if root.name == "site-packages" else text(root / "pyproject.toml")
    if project and package.parent.name == "src":
        declared = tomllib.loads(project)["project"]
        optional = declared.get("optional-dependencies", {}).values()
        lines = [*declared["dependencies"], *chain.from_iterable(optional)]
    else:
        lines = metadata.requires(NAME) or []
    supported: dict[str, str] = {}
    for line in lines:
        named = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*\(?([<>=!~][^;)]*)", line)
        if named:
            supported.setdefault(named[1].lower().replace("_", "-"), named[2].replace(" ", ""))
    return supported


def within(version: str, bound: str) -> bool:
    """Tells whether a version is within bounds of the forms >= and <.

    Versions are compared by the numbers at their beginning.
    """
    numbers = _numbers(version)
    for sign, limit in BOUND.findall(bound):
        reached = numbers >= _numbers(limit)
        if reached != (sign == ">="):
            return False
    return True


def _numbers(version: str) -> list[int]:
    """The numbers that begin a version, without zeros at the end: [5, 17] of "5.17.0+cpu"."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(n) for n in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers
