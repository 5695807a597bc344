"""How this package was installed, and which versions of others it found."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from longdraft.host.checkout import PACKAGE, checkout
from longdraft.host.files import text

NAME = "longdraft"
BOUND = re.compile(r"(>=|<)\s*(\d+(?:\.\d+)*)")


def origin(package: Path = PACKAGE) -> dict[str, Any]:
    """kind: "checkout", "unpacked sdist", "wheel", "sdist", "folder" or "unknown"; where: its
    folder, address or tag.

    pip writes down where a file came from that was named to it. Of an index it says nothing; a
    wheel from there is for many systems (manylinux), and one that pip builds from an sdist is for
    this one.
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
    """From pip's direct_url.json, if it wrote one, and the wheel's own description."""
    found = json.loads(direct) if direct else {}
    url = str(found.get("url", ""))
    if "archive_info" in found:
        return {"kind": "wheel" if url.endswith(".whl") else "sdist", "where": url}
    if found:
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
    """{package: its supported versions, like ">=5.17,<5.24"}, of the checkout or of what is
    installed.
    """
    project = (
        text(package.parents[1] / "pyproject.toml")
        if package.parents[1].name != "site-packages"
        else ""
    )
    if project and package.parent.name == "src":
        declared = tomllib.loads(project)["project"]
        optional = declared.get("optional-dependencies", {}).values()
        lines = [*declared["dependencies"], *(line for extra in optional for line in extra)]
    else:
        lines = metadata.requires(NAME) or []
    found: dict[str, str] = {}
    for line in lines:
        named = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*\(?([<>=!~][^;)]*)", line)
        if named:
            found.setdefault(named[1].lower().replace("_", "-"), named[2].replace(" ", ""))
    return found


def within(version: str, bound: str) -> bool:
    """Whether a version is within bounds of the forms >= and <, compared by the numbers at its
    beginning.
    """
    have = _numbers(version)
    return all(
        have >= _numbers(than) if sign == ">=" else have < _numbers(than)
        for sign, than in BOUND.findall(bound)
    )


def _numbers(version: str) -> list[int]:
    """[5, 17] of "5.17.0+cpu": zeros at the end do not count."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(n) for n in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers
