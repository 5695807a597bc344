"""Methods of other installed packages, found by entry points of the group `longdraft.methods`.

Each entry point names a Method. They are looked up, and their packages imported, only when all
methods are listed or a name is not one of longdraft's. Nothing in a model's folder or in the
current folder is imported.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import NamedTuple

from longdraft.drafters.kinds import KINDS
from longdraft.errors import InputError
from longdraft.methods.family import MethodFamily
from longdraft.methods.method import ANY, Method
from longdraft.methods.table import CONTROLS, METHODS

GROUP = __name__.rpartition(".")[0]  # longdraft.methods: this package's own name
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
MAX_NAME = 40  # characters of a name


class Added(NamedTuple):
    """A method of another package."""

    package: str
    method: Method


def names() -> list[str]:
    """The names of all methods of packages, also of those that `find` refuses."""
    return sorted(_entries().keys() - METHODS.keys() - CONTROLS.keys())


def find(name: str) -> Added | None:
    """The method of this name; None if no package names one.

    Raises InputError if it cannot be used.
    """
    if name not in _entries():
        return None
    outcome = _outcome(name)
    if isinstance(outcome, str):
        raise InputError(outcome)
    return outcome


def listed() -> tuple[dict[str, Added], list[str]]:
    """All methods that can be used, by name, and a line about each of the others."""
    outcomes = {name: _outcome(name) for name in sorted(_entries())}
    usable = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Added)}
    return usable, [outcome for outcome in outcomes.values() if isinstance(outcome, str)]


@cache
def _entries() -> dict[str, tuple[EntryPoint, ...]]:
    """The packages' entry points by the name of the method."""
    packages: dict[str, Distribution] = {}
    for dist in sorted(filter(_points, distributions()), key=_in_the_current_folder):
        packages.setdefault(re.sub(r"[-_.]+", "-", str(dist.name)).lower(), dist)
    entries: dict[str, tuple[EntryPoint, ...]] = {}
    for dist in packages.values():
        for entry in _points(dist):
            entries[entry.name] = (*entries.get(entry.name, ()), entry)
    return entries


def _points(dist: Distribution) -> list[EntryPoint]:
    """A package's entry points of the group; none if its list of entry points is damaged."""
    try:
        return list(dist.entry_points.select(group=GROUP))
    except (TypeError, ValueError, OSError):
        return []


@cache
def _outcome(name: str) -> Added | str:
    """The method, or one line on why it cannot be used.

    A package whose import fails is not imported again.
    """
    try:
        return _load(name, *_entries()[name])
    except InputError as problem:
        return str(problem)


def _load(name: str, entry: EntryPoint, *others: EntryPoint) -> Added:
    """Import the method that an entry point names.

    Raises InputError.
    """
    package = _package(entry)
    if name in METHODS or name in CONTROLS:
        raise InputError(
            f"the package {package} has a method {name!r}, which is longdraft's own name: rename it"
        )
    if others:
        packages = " and ".join(map(_package, (entry, *others)))
        raise InputError(
            f"the packages {packages} both have a method {name!r}: uninstall one of them"
        )
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        what = f"small letters, digits and single hyphens, {MAX_NAME} characters at most"
        raise InputError(f"the package {package} has a method {name!r}: a name takes {what}")
    if entry.dist and _in_the_current_folder(entry.dist):
        raise InputError(
            f"the package {package} lies in the current folder, which is not an "
            "installation: install it"
        )
    try:
        method = entry.load()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the method {name!r} of the package {package} cannot be imported: {_line(error)}"
        ) from None
    if fault := _fault(method):
        raise InputError(
            f"the method {name!r} of the package {package} cannot be used: {entry.value} {fault}"
        )
    return Added(package, method)


def _fault(method: object) -> str | None:
    """The fault of a method's record; None if it can be used."""
    if not isinstance(method, Method):
        return f"is a {type(method).__name__}, not a longdraft.methods.Method"
    texts = (method.drafts, method.paper)
    if not isinstance(method.family, MethodFamily) or not all(
        isinstance(text, str) for text in texts
    ):
        return "has a family that is no Family, or texts that are no texts"
    if method.needs not in (None, ANY, *KINDS):
        return f"needs drafter weights of kind {method.needs!r}: the kinds are {', '.join(KINDS)}"
    if method.trial is not None:
        return "has a trial, and `auto` tries longdraft's own methods only"
    try:
        method.options.model_fields  # noqa: B018
    except Exception as error:
        return f"has options that cannot be read: {_line(error)}"
    return None


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "?"


def _in_the_current_folder(dist: Distribution) -> bool:
    """Whether a package lies in the current folder, which may be a model's.

    `python -m` searches it too.
    """
    try:
        return os.path.samefile(str(dist.locate_file("")), os.curdir)
    except OSError:
        return False


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
