"""Draws the architecture from the imports: `python docs/diagram.py` writes the block in
architecture.md.

With --check it writes nothing and exits with 1 if the block is out of date.
tests/project/test_imports.py checks the imports against ROOMS, with the functions below.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SRC = DOCS.parent / "src" / "longdraft"
PAGE = DOCS / "architecture.md"
BEGIN = "<!-- begin: written by docs/diagram.py -->"
END = "<!-- end: written by docs/diagram.py -->"

# packages, lowest first: a package may import itself and the packages above it in this table
ROOMS = {
    "errors": "the exceptions meant for users",
    "version": "the version number",
    "sampling_parameters": "ranges and defaults of sampling parameters",
    "families": "families of models, by the names of their classes in Transformers",
    "launch": "torchrun's settings for each process",
    "proposers": "names and labels of the sources of drafted nodes",
    "ops": "attention, noise and selection: the reference, torch, C++ and Triton",
    "host": "the machine and the installation, as the system describes them",
    "core": "draft trees, the KV cache, sequences, sampling, verification",
    "constraints": "JSON schemas, regular expressions, choices and grammars as masks for the nodes of a "
    "tree",
    "backends": "how a forward pass is computed: Transformers, C++, CUDA",
    "models": "the model (LM), and how it is loaded safely",
    "costs": "what a pass costs: counts of its work, and seconds per unit",
    "views": "which cached keys a pass may read: one policy per way to select them",
    "tuning": "costs measured on this machine, on loading or by longdraft tune",
    "training": "training data, the trainer, losses",
    "drafters": "one file or package per kind of drafter; the decoding step (step.py)",
    "prompts": "keys and values of prompts, kept in memory and in files for later requests",
    "engine": "the decoding loop: generate, stream, Session, serve",
    "recording": "recordings of decoding, step by step, and records of measurements",
    "methods": "named methods as compositions, with their options",
    "hf": "the decoding loop of Transformers' own generate",
    "audit": "comparison of a method with plain decoding over many texts",
    "bench": "measurements and reports",
    "server": "an OpenAI-compatible server over one session",
    "doctor": "longdraft doctor: checks of the installation, and reasons for low speed",
    "cli": "the command line",
}
DATA = {"assets"}  # folders without code
FACADE = (
    "longdraft"  # src/longdraft/__init__.py: the public names, imported by no module of the package
)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for file in sorted(SRC.rglob("*.py")):
        parts = file.relative_to(SRC.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def room(module: str) -> str:
    """The room of a module: "core" of "longdraft.core.tree"."""
    name = module.split(".")[1] if "." in module else module
    return "cli" if name == "__main__" else name


@cache
def imports(module: str) -> frozenset[str]:
    """The package's modules that a module imports: anywhere in it, for type checkers only, or by a
    name in a string.
    """
    tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
    named = {name for node in ast.walk(tree) for name in _named(node)} | set(_in_strings(tree))
    return frozenset(_module_of(name) for name in named if name.split(".")[0] == FACADE) - {module}


def _named(node: ast.AST) -> Iterator[str]:
    """The dotted names that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: a relative import"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _in_strings(tree: ast.AST) -> Iterator[str]:
    """Modules named in strings: whole ("longdraft.cli.audit"), or as the rest of an f-string that
    is imported.
    """
    strings = [
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    prefixes = {""}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _called(node) == "import_module":
            name = node.args[0]
            if isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
                prefixes.add(str(name.values[0].value))
    inside = modules().keys() - {FACADE}
    for text in strings:
        names = [prefix + text.split(":")[0] for prefix in prefixes]
        yield from (name for name in names if name in inside)


def _called(call: ast.Call) -> str:
    """The last part of the name of a function that is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _module_of(name: str) -> str:
    """The module that a dotted name belongs to: the name itself, or without the names of things in
    the module.
    """
    while name not in modules():
        name = name.rpartition(".")[0]
    return name


def arrows() -> dict[str, set[str]]:
    """For each room the other rooms that it imports."""
    found: dict[str, set[str]] = {name: set() for name in ROOMS}
    for module in modules().keys() - {FACADE}:
        found[room(module)] |= {room(other) for other in imports(module)} - {room(module)}
    return found


def reduced(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that no longer path implies."""
    reached: dict[str, set[str]] = {}
    kept = {}
    for name, below in found.items():  # lowest first
        further = {o for other in below for o in reached.get(other, ())}
        kept[name] = below - further
        reached[name] = below | further
    return kept


def block() -> str:
    """The generated part of the page: a Mermaid diagram and a table."""
    found = arrows()
    order = list(ROOMS)
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {name}["<b>{name}</b><br/>{what}"]' for name, what in reversed(ROOMS.items())]
    for name, below in reversed(reduced(found).items()):
        lines += [
            f"    {name} --> {other}" for other in sorted(below, key=order.index, reverse=True)
        ]
    lines += ["```", "", "| package | contents | modules | imports |", "| --- | --- | ---: | --- |"]
    for name in order:
        count = sum(room(module) == name for module in modules().keys() - {FACADE})
        below = ", ".join(f"`{other}`" for other in order if other in found[name])
        lines.append(f"| `{name}` | {ROOMS[name]} | {count} | {below or 'nothing'} |")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    head = page.split(BEGIN)[0]
    tail = page.split(END)[1]
    new = f"{head}{BEGIN}\n\n{block()}\n\n{END}{tail}"
    if words != ["--check"]:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        print(f"{PAGE} is out of date: run python docs/diagram.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
