"""The page's modules: joined into one script in their order, and each declares or imports all names
that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from longdraft.server.page import ENTRY
from longdraft.server.page.bundle import Module, bundle, in_order

FOLDER = Path(__file__).parents[2] / "src" / "longdraft" / "server" / "page"
SOURCES = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.js")}
MODULES = in_order(ENTRY, SOURCES.__getitem__)

# The tokens that hide others, then single characters and words. A slash after an operator begins a
# regular expression.
CODE = re.compile(
    r"""//.*|/\*[\s\S]*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(?<=[=(,:?&|!])\s*/(?:\\.|\[(?:\\.|[^]\\])*\]|[^/\\[])+/[a-z]*"""
    r"""|(?:(?<!\.)|(?<=\.\.\.))(?P<name>[A-Za-z_$][\w$]*)(?![\w$:])|[\w$]+|[\s\S]""",
)
# a part of a template, up to code or to its end
TEMPLATE = re.compile(r"(?:\\[\s\S]|\$(?!\{)|[^`$\\])*(?:`|\$\{)")


def reader(sources: dict[str, str]) -> Callable[[str], str]:
    def read(name: str) -> str:
        if name not in sources:
            raise FileNotFoundError(name)
        return sources[name]

    return read


def names(code: str) -> Iterator[str]:
    """All names in JavaScript's code but those after a dot and the keys of objects. Texts and
    comments have none.
    """
    braces: list[str] = []  # the open ones, which end code inside a template or other code
    position = 0
    while match := CODE.match(code, position):
        position = match.end()
        token = match[0]
        if match["name"]:
            yield match["name"]
        if token in ("{", "}"):
            braces.append("{") if token == "{" else None
        begins_text = token == "`" or (token == "}" and braces.pop() == "${")
        if begins_text:
            part = TEMPLATE.match(code, position)
            assert part, f"a template without an end: {code[position : position + 40]}"
            position = part.end()
            if part[0].endswith("${"):
                braces.append("${")


def undeclared(modules: dict[str, Module]) -> list[str]:
    """Uses of another module's names without an import: joined they would work, and as modules they
    would not.
    """
    owner = {x: file for file, module in modules.items() for x in module.declared}
    return [
        f"{file} uses {x} of {owner[x]}"
        for file, module in modules.items()
        for x in sorted(set(names(module.code)) & owner.keys())
        if owner[x] != file and x not in imported(module)
    ]


def unused(modules: dict[str, Module]) -> list[str]:
    """Imports that their module does not use, and exports that no module imports."""
    everywhere = set().union(*map(imported, modules.values()))
    return [
        f"{file}: {x}"
        for file, module in modules.items()
        for x in sorted(
            (imported(module) - set(names(module.code))) | (module.exported - everywhere)
        )
    ]


def imported(module: Module) -> set[str]:
    return {x for _, listed in module.imports for x in listed}


def test_every_module_imports_the_names_that_it_uses_and_no_others():
    # import it, or call a local name differently: the joined modules share a scope
    assert undeclared(MODULES) == []
    assert unused(MODULES) == []


def test_every_file_is_a_module_of_the_page():
    assert MODULES.keys() == SOURCES.keys()


USES = [(file, x) for file, module in MODULES.items() for x in sorted(imported(module))]


@pytest.mark.parametrize(("file", "x"), USES)
def test_a_forgotten_import_is_noticed(file, x):
    forgetful = replace(
        MODULES[file], imports=[(f, [y for y in ys if y != x]) for f, ys in MODULES[file].imports]
    )
    [use] = undeclared(MODULES | {file: forgetful})
    assert use.startswith(f"{file} uses {x} of ")


def test_an_import_and_an_export_without_use_are_noticed():
    module = MODULES["tree.js"]
    assert unused(
        MODULES | {"tree.js": replace(module, imports=[*module.imports, ("dom.js", ["element"])])}
    ) == ["tree.js: element"]
    assert unused(MODULES | {"tree.js": replace(module, exported={"drawTree", "labelOf"})}) == [
        "tree.js: labelOf"
    ]


NAMES = """
// comment one; /* two */
const a = "three 'four' \\" five", b = 'six "seven"';
/* eight
nine */
c.d?.e(...f, { g: h, i });
const j = `k l's ${m ? `n ${o({ p: q })} "r` : ""} s ${"t"} u`;
v = w / x / y;
z = /[/"]aa\\/bb'`/.test(cc), dd(/ee/u);
ff ? gg : hh;
"""


def test_names_are_told_from_texts_comments_properties_and_keys():
    words = set(names(NAMES)) - {"const"}
    assert words == set("abcfhijmoqvwxyz") | {"cc", "dd", "ff", "gg", "hh"}


def test_modules_come_after_those_that_they_import():
    sources = {
        "main.js": '// Main.\nimport { a } from "./a.js";\nimport {\n  b,\n  $c,\n} from '
        '"./b.js";\n\na(b, $c);\n',
        "a.js": 'import { b } from "./b.js";\n\nexport async function a() {\n  return b;\n}\n',
        "b.js": "export let b = 1;\nexport class $c {}\n",
    }
    assert bundle("main.js", reader(sources)) == (
        "let b = 1;\nclass $c {}\n\n\nasync function a() {\n  return b;\n}\n\n// "
        "Main.\n\na(b, $c);\n"
    )


WRONG = {
    "a cycle": (
        {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'},
        "a.js, b.js",
    ),
    "a missing file": (
        {"a.js": 'import { b } from "./b.js";\n'},
        "a.js imports b.js, which does not exist",
    ),
    "a missing entry": ({}, "a.js, which does not exist"),
    "a missing export": (
        {"a.js": 'import { b } from "./b.js";\n', "b.js": "const b = 1;\n"},
        "b, which b.js does not",
    ),
    "a name declared twice": (
        {
            "a.js": 'import { b } from "./b.js";\nfunction c() {}\n',
            "b.js": "export const b = 1;\nclass c {}\n",
        },
        "a.js and b.js both declare c",
    ),
    "its own import declared": (
        {"a.js": 'import { b } from "./b.js";\nfunction b() {}\n', "b.js": "export const b = 1;\n"},
        "a.js and b.js both declare b",
    ),
    "a renamed import": (
        {"a.js": 'import { b as c } from "./b.js";\n', "b.js": "export const b = 1;\n"},
        "joined",
    ),
    "a default import": (
        {"a.js": 'import b from "./b.js";\n', "b.js": "export const b = 1;\n"},
        "joined",
    ),
    "a default export": ({"a.js": "export default 1;\n"}, "cannot be joined: export default 1;"),
    "a list of exports": (
        {"a.js": "const b = 1;\nexport { b };\n"},
        "cannot be joined: export { b };",
    ),
    "names taken apart": ({"a.js": "const [b, c] = [1, 2];\n"}, "cannot be joined"),
    "a var": ({"a.js": "var b = 1;\n"}, "cannot be joined"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_joined_is_refused(name):
    sources, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        bundle("a.js", reader(sources))
