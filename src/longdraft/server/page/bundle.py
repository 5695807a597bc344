"""Joins the page's ES modules into one script: its Content-Security-Policy lets it load no others.

All modules then share one scope. The promises of ES modules are checked before: an imported name
exists, and no two modules declare the same name. Only these forms are read, each at the start of a
line:

    import { a, b } from "./file.js";
    export const a = …        (or let, class, function, async function)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_IMPORT = re.compile(r'^import \{\s*([\w$]+(?:,\s+[\w$]+)*),?\s*\} from "\./([\w-]+\.js)";\n', re.M)
_DECLARATION = re.compile(r"^(export )?(?:async )?(?:const|let|class|function\*?) ([\w$]+)", re.M)
_OTHER = re.compile(r"^(?:import|export|(?:const|let) \W|var)\b.*", re.M)  # forms that are not read


@dataclass(frozen=True)
class Module:
    """A script whose code has neither `import` nor `export`; `exported` is a subset of `declared`.

    imports: (file name, the names imported from it) of each import
    declared: the names of its top level
    """

    imports: list[tuple[str, list[str]]]
    declared: list[str]
    exported: set[str]
    code: str


def parse(name: str, text: str) -> Module:
    """Raises ValueError if the module uses a form that is not read."""
    imports = [(file, re.findall(r"[\w$]+", names)) for names, file in _IMPORT.findall(text)]
    text = _IMPORT.sub("", text)
    declarations = _DECLARATION.findall(text)
    code = _DECLARATION.sub(lambda m: m[0].removeprefix("export "), text)
    if other := _OTHER.search(code):
        raise ValueError(f"{name}: this form cannot be joined: {other[0]}")
    declared = [declaration for _, declaration in declarations]
    exported = {declaration for export, declaration in declarations if export}
    return Module(imports, declared, exported, code)


def bundle(entry: str, read: Callable[[str], str]) -> str:
    """The entry and all modules that it needs as one script, each after those it imports.

    read: the text of a file by its name. Raises ValueError if modules import each other in a cycle,
    import what is not exported, or declare the same name.
    """
    modules = in_order(entry, read)
    declared: dict[str, str] = {}
    for name, module in modules.items():
        for file, names in module.imports:
            if missing := set(names) - modules[file].exported:
                raise ValueError(
                    f"{name} imports {', '.join(sorted(missing))}, which {file} does not export"
                )
        for declaration in module.declared:
            if declaration in declared:
                raise ValueError(f"{name} and {declared[declaration]} both declare {declaration}")
            declared[declaration] = name
    return "\n".join(module.code for module in modules.values())


def in_order(entry: str, read: Callable[[str], str]) -> dict[str, Module]:
    """{file name: module} in the order in which a browser runs them.

    Raises ValueError for cycles and missing files.
    """
    modules: dict[str, Module] = {}

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise ValueError(
                f"these modules import each other: {', '.join(importers[importers.index(name) :])}"
            )
        if name in modules:
            return
        try:
            module = parse(name, read(name))
        except FileNotFoundError:
            raise ValueError(
                f"{', '.join(importers[-1:])} imports {name}, which does not exist"
            ) from None
        for file, _ in module.imports:
            add(file, (*importers, name))
        modules[name] = module

    add(entry, ())
    return modules
