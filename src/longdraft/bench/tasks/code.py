"""Source files that a machine has: Python's standard library and the packages that longdraft
depends on.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

from longdraft.bench.tasks.task import sha256

PACKAGES = (
    "huggingface_hub",
    "jinja2",
    "networkx",
    "numpy",
    "pydantic",
    "rich",
    "sympy",
    "torch",
    "transformers",
)
# Folders of tests, of tables of data and of copies of other packages.
LEFT_OUT = {
    "test",
    "tests",
    "testing",
    "encodings",
    "pydoc_data",
    "lib2to3",
    "idlelib",
    "turtledemo",
    "site-packages",
}
LEFT_OUT |= {
    "_vendor",
    "_vendored",
    "vendor",
    "generated",
    "dist-packages",
    "__pycache__",
    "ensurepip",
    "lib-dynload",
}
LONGEST_LINE = 200  # characters; longer ones are data
# bytes
SMALLEST = 1 << 10
LARGEST = 1 << 18


@dataclass(frozen=True)
class File:
    """A source file. name: its path within Python's library or within the folder of packages."""

    name: str
    path: Path
    bytes: int

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def module(self) -> str:
        return (
            self.name.removesuffix(".py")
            .removesuffix("/__init__")
            .removeprefix("stdlib/")
            .replace("/", ".")
        )

    @cached_property
    def text(self) -> str | None:
        """None if it is not code in UTF-8 that this Python reads."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        return (
            text
            if parsed(text) and max(map(len, text.splitlines()), default=0) <= LONGEST_LINE
            else None
        )

    @cached_property
    def source(self) -> tuple[str, str]:
        """Its name and sha256, for records."""
        return self.name, sha256(self.text or "")


@cache
def files() -> tuple[File, ...]:
    """All files, ordered by name."""
    roots = [("stdlib", Path(sysconfig.get_path("stdlib")))]
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            roots.append((package, Path(next(iter(spec.submodule_search_locations)))))
    listed = []
    for name, root in roots:
        for path in root.rglob("*.py"):
            inside = path.relative_to(root)
            if (
                not LEFT_OUT & {*inside.parts[:-1]}
                and SMALLEST <= (size := path.stat().st_size) <= LARGEST
            ):
                listed.append(File(f"{name}/{inside.as_posix()}", path, size))
    return tuple(sorted(listed, key=lambda f: f.name))


def shuffled(seed: int, *about: object) -> random.Random:
    """Random numbers that depend on these words alone, on every machine and in every process."""
    return random.Random("/".join(map(str, (seed, *about))))


def mixed(names: list[str], rng: random.Random) -> list[str]:
    """In random order, but a name of each package before a second one of any: some have many more
    files.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition("/")[0], []).append(name)
    order = list(groups.values())
    rng.shuffle(order)
    for same in order:
        rng.shuffle(same)
    return [name for row in zip_longest(*order) for name in row if name is not None]


def folders() -> dict[str, list[File]]:
    """The files of each folder, by its name."""
    by_folder: dict[str, list[File]] = {}
    for file in files():
        by_folder.setdefault(file.folder, []).append(file)
    return by_folder


def parsed(text: str) -> ast.Module | None:
    """None for text that is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_code(text: str) -> bool:
    return parsed(text) is not None


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(text: str) -> Iterator[tuple[str, Function]]:
    """(its name with its classes', the function) for all that are not within others, in the file's
    order.
    """
    tree = parsed(text)
    yield from _functions(tree.body if tree else [], "")


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
