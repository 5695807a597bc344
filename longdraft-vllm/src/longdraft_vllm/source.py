"""Reads what a vLLM has from its source alone, so it need not be installed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Missing(LookupError):
    """The source has no such thing."""


@dataclass(frozen=True)
class Found:
    """A class or function, and the module that defines it."""

    module: str
    node: Definition


class Source:
    """The package vllm in a folder: its modules are parsed, and none of them is imported."""

    def __init__(self, folder: Path):
        if not (folder / "vllm" / "__init__.py").is_file():
            raise Missing(
                f"{folder} has no vllm/__init__.py: give the folder that contains the package vllm"
            )
        self.folder = folder
        self.trees: dict[str, ast.Module] = {}

    def version(self) -> str:
        try:
            found = re.search(
                r"^__version__ = .*?['\"](.+?)['\"]", self.text("vllm._version"), re.MULTILINE
            )
        except Missing:
            found = None
        return found[1] if found else "(unknown version)"

    def path(self, module: str) -> Path | None:
        base = self.folder.joinpath(*module.split("."))
        return next(
            (path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()),
            None,
        )

    def text(self, module: str) -> str:
        path = self.path(module)
        if path is None:
            raise Missing(f"no module {module}")
        return path.read_text()

    def get(self, where: str) -> Found:
        """The class or function at "module:path". Raises Missing."""
        module, _, path = where.partition(":")
        name, *members = path.split(".")
        found = self.find(module, name)
        for member in members:
            found = (
                next((m for m in self._members(found) if m.node.name == member), None)
                if found
                else None
            )
        if found is None:
            raise Missing(where)
        return found

    def find(self, module: str, name: str, seen: tuple[tuple[str, str], ...] = ()) -> Found | None:
        """What this module calls `name`, followed through imports inside vllm."""
        if (module, name) in seen or not module.startswith("vllm"):
            return None
        if module not in self.trees:
            self.trees[module] = ast.parse(self.text(module))
        seen = (*seen, (module, name))
        for node in _statements(self.trees[module].body):
            if isinstance(node, Definition) and node.name == name:
                return Found(module, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name) and self.path(
                        source := self._imported(module, node)
                    ):
                        return self.find(source, alias.name, seen)
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Name)
                and name in map(ast.unparse, node.targets)
            ):
                return self.find(module, node.value.id, seen)
        return None

    def _imported(self, module: str, node: ast.ImportFrom) -> str:
        path = self.path(module)
        parts = module.split(".")
        if node.level:
            up = node.level - (path is not None and path.name == "__init__.py")
            parts = [*parts[: len(parts) - up], *([node.module] if node.module else [])]
            return ".".join(parts)
        return node.module or ""

    def _members(self, found: Found) -> Iterator[Found]:
        for kind in self.lineage(found):
            yield from (
                Found(kind.module, n)
                for n in _statements(kind.node.body)
                if isinstance(n, Definition)
            )

    def lineage(self, found: Found) -> list[Found]:
        """A class and those that it inherits from inside vllm, nearest first."""
        kinds = [found]
        for base in found.node.bases if isinstance(found.node, ast.ClassDef) else ():
            base = base.value if isinstance(base, ast.Subscript) else base
            parent = self.find(found.module, base.id) if isinstance(base, ast.Name) else None
            kinds += self.lineage(parent) if parent else []
        return kinds

    def parameters(self, found: Found) -> list[str]:
        """The names of a function's parameters, or of those of a class's constructor."""
        if not isinstance(found.node, ast.ClassDef):
            given = found.node.args
            return [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        kinds = self.lineage(found)
        for kind in kinds:
            for node in kind.node.body:
                if isinstance(node, Definition) and node.name == "__init__":
                    return self.parameters(Found(kind.module, node))
            if any(
                "dataclass" in (text := ast.unparse(d)) or text == "config"
                for d in kind.node.decorator_list
            ):
                fields = [
                    n for k in reversed(kinds) for n in k.node.body if isinstance(n, ast.AnnAssign)
                ]
                return [n.target.id for n in fields if isinstance(n.target, ast.Name)]
        return []

    def attributes(self, found: Found) -> set[str]:
        """What a class defines, declares, or assigns to self somewhere."""
        names: set[str] = set()
        for kind in self.lineage(found):
            names |= {n.name for n in _statements(kind.node.body) if isinstance(n, Definition)}
            for node in _statements(kind.node.body):
                targets = (
                    node.targets
                    if isinstance(node, ast.Assign)
                    else [getattr(node, "target", None)]
                )
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            for node in ast.walk(kind.node):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    names |= (
                        {node.attr}
                        if isinstance(node.value, ast.Name) and node.value.id == "self"
                        else set()
                    )
        return names

    def code(self, found: Found) -> str:
        """A function's source with single spaces."""
        return " ".join((ast.get_source_segment(self.text(found.module), found.node) or "").split())


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module or class, also under `if`, `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


@cache
def installed() -> Source:
    """The vLLM that this process would import."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise Missing("vLLM is not installed")
    return Source(Path(next(iter(spec.submodule_search_locations))).parent)
