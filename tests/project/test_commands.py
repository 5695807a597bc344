"""Command lines that the documents show: `longdraft` parses them, scripts and targets of make that
they name exist.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from longdraft.cli import app, explain

ROOT = Path(__file__).parents[2]
PAST = ("docs/log/", "docs/results")  # these show the commands of older revisions
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "longdraft-vllm/README.md",
    "tests/README.md",
    "benchmarks/README.md",
]
PAGES += [
    str(p.relative_to(ROOT))
    for folder in ("docs", "src")
    for p in sorted((ROOT / folder).rglob("*.md"))
]
PAGES = [page for page in PAGES if not page.startswith(PAST)]
SCRIPTS = [
    str(p.relative_to(ROOT))
    for p in sorted((ROOT / "benchmarks").glob("*.*"))
    if p.suffix in (".py", ".sh")
]
# what a page leaves to its reader
STANDS_FOR = {
    "N": "3",
    "K": "3",
    "KIND": "glide",
    "NAME": "vegas",
    "M": "vegas",
}
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def text_of(path: str) -> str:
    """A page, the docstring of a module, or the comment that a shell script begins with."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".py"):
        return ast.get_docstring(ast.parse(text)) or ""
    if path.endswith(".sh"):
        return "\n".join(
            line.removeprefix("# ")
            for line in text.split("\n\n")[0].splitlines()
            if line.startswith("# ")
        )
    return text


def lines_of(path: str) -> Iterator[tuple[str, bool]]:
    """The commands in a text, and whether each is complete: those in running text need not be."""
    text = text_of(path)
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
    blocks = [
        code for language, code in fence.findall(text) if language in ("", "sh", "bash", "console")
    ]
    if path.endswith(".py"):
        blocks = re.findall(r"^    (.*)$", text, re.M)
    for block in blocks:
        known: dict[str, str] = {}
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            line = re.sub(
                r"\$(\w+)",
                lambda m, known=known: known.get(m[1], m[0]),
                line.strip().removeprefix("$ "),
            )
            if assigned := re.fullmatch(r'(\w+)="(.*)"', line):
                known[assigned[1]] = assigned[2]
            else:
                yield line, True
    for span in re.findall(r"`([^`\n]+)`", fence.sub("", text)):
        yield span, False


def commands_of(line: str) -> Iterator[list[str]]:
    """Each command of a line as words, without comments, prompts, variables before it, and what
    `...` leaves out.
    """
    line = re.sub(r"\s\.\.\.( |$).*", "", re.sub(r"(^|\s)#.*", "", line))
    for part in re.split(r"&&|;| \| ", line):
        try:
            words = shlex.split(part)
        except ValueError:
            continue  # an apostrophe: not a command
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words = words[1:]
        several = [i for i, word in enumerate(words) if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word)]
        for choice in words[several[0]].split("|") if several else [None]:
            yield [choice if choice and i == several[0] else word for i, word in enumerate(words)]


def fault(words: list[str], complete: bool, folder: Path) -> str | None:
    """What is wrong with a command; None: nothing, or it is none of ours. folder: where scripts may
    lie, too.
    """
    name, *rest = words or [""]
    if name in ("python", "python3", "torchrun", "sh", "bash") or name.endswith("/python"):
        if "-m" in rest:
            module, *after = rest[rest.index("-m") + 1 :]
            if module != "longdraft":
                return (
                    f"there is no {module}"
                    if module.startswith("longdraft.") and not is_module(module)
                    else None
                )
            return parse_fault(after, complete)
        file = next((w for w in rest if w.endswith((".py", ".sh"))), "")
        missing = "/" in file and not any((place / file).is_file() for place in (ROOT, folder))
        return f"there is no {file}" if missing else None
    if name == "make":
        wrong = [w for w in rest if "=" not in w and w not in TARGETS]
        return f"make has no {wrong[0]}" if wrong else None
    return parse_fault(rest, complete) if name == "longdraft" else None


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def parse_fault(words: list[str], complete: bool) -> str | None:
    """What the command line says of these words; nothing runs."""
    command = typer.main.get_command(app)
    args = [STANDS_FOR.get(w, w) for w in words]
    if not args:
        return None
    try:
        while isinstance(command, TyperGroup):
            if args[0] in ("-h", "--help", "--version"):
                return None
            with command.make_context("longdraft", list(args)) as context:
                _, command, args = command.resolve_command(context, args)
            if isinstance(command, TyperGroup) and not args:
                return None  # it shows its help
        with command.make_context("longdraft", args):
            return None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        incomplete = type(error).__name__ in ("MissingParameter", "BadOptionUsage") and not complete
        return None if incomplete else explain(error)


def faults(path: str) -> list[str]:
    found = []
    for line, complete in lines_of(path):
        for words in commands_of(line):
            if why := fault(words, complete, (ROOT / path).parent):
                found.append(f"{' '.join(words)}: {why}")
    return found


@pytest.mark.parametrize("path", PAGES + SCRIPTS)
def test_commands_that_are_shown_parse(path):
    assert faults(path) == []


def test_commands_are_found():
    """Or nothing would be tested."""
    counts = {
        p: sum(words[:1] == ["longdraft"] for line, _ in lines_of(p) for words in commands_of(line))
        for p in PAGES
    }
    assert (
        counts["docs/getting-started.md"] >= 15
        and counts["docs/drafters.md"] >= 10
        and sum(counts.values()) >= 60
    )
    shown = [
        words
        for p in PAGES + SCRIPTS
        for line, _ in lines_of(p)
        for words in commands_of(line)
        if words
    ]
    assert (
        sum(words[0] == "make" for words in shown) >= 10
        and sum(words[0] == "torchrun" for words in shown) >= 6
    )
    assert sum(words[0].startswith("python") for words in shown) >= 15


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("longdraft generate --prompt-fil F", "No such option"),
        ("longdraft generat --prompt-file F", "choose a command"),
        ("longdraft generate --max-new-tokens many --prompt-file F", "many"),
        ("longdraft train glid --out my/glide", "glid"),
        ("longdraft bench steps --accept 3", "No such option"),
        ("longdraft bench --task steps", "--task"),
        ("longdraft train glide|hats --out my/glide", "hats"),
        ("longdraft import DIR --out DRAFTER --modle TARGET  # a comment", "modle"),
        (
            "LONGDRAFT_NATIVE=avx2 longdraft bench steps && longdraft report",
            "Missing argument",
        ),
        ("torchrun --nproc-per-node 8 -m longdraft train glide -m TARGET", "--out"),
        (
            "torchrun --nproc-per-node 8 -m longdraft.train glide -m TARGET --out g",
            "there is no longdraft.train",
        ),
        ("$run --method", "--method"),
        ("python benchmarks/nothing.py --out F", "benchmarks/nothing.py"),
        ("sh benchmarks/nothing.sh", "benchmarks/nothing.sh"),
        ("make demmo", "demmo"),
    ],
)
def test_a_wrong_command_is_seen(tmp_path, monkeypatch, line, says):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        f'Text.\n\n```\nrun="longdraft generate"\n{line}\n```\n\nMore `make test` text.\n',
        encoding="utf-8",
    )
    (found,) = faults("page.md")
    assert says in found


def test_a_command_in_a_sentence_may_leave_out_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "See `longdraft import` and `longdraft report --out FOLDER`, don't use `longdraft bensh`.\n"
    )
    (found,) = faults("page.md")
    assert "bensh" in found
