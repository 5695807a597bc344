"""Tasks `edit`: a source file with an instruction. The answer is the whole file, so most of it is
in the prompt.
"""

from __future__ import annotations

import ast
import random
import re
from dataclasses import replace
from itertools import pairwise
from math import inf

from longdraft.bench.tasks.code import File, files, functions, is_code, mixed, shuffled
from longdraft.bench.tasks.fitting import Fitting
from longdraft.bench.tasks.task import Task
from longdraft.errors import InputError

EDITS = ("rename", "parameter", "pathlib")
WHOLE = "Answer with the whole changed file in one code block, and with nothing else."
ROOM = 160  # tokens of instruction and template, about; the exact number is the fitting's
# of the room: how much longer files may be, of which the rest is cut; first of the first
SHARES = (
    1.25,
    2.0,
    inf,
)


def build(fitting: Fitting, context: int, instance: int, seed: int) -> Task:
    """An instruction on a file that makes a prompt of about `context` tokens. Raises InputError."""
    kind = EDITS[instance % len(EDITS)]
    rng = shuffled(seed, "edit", context, instance)
    for file in by_size(fitting, context - ROOM, rng):
        text = file.text or ""
        if not (asked := instruction(kind, text[: round(0.7 * len(text))], rng)):
            continue
        task = of_file(fitting, context, "edit", f"{instance} {kind}", (f"{asked} {WHOLE}",), file)
        if task and instruction(kind, task.document, None):
            return replace(task, new_tokens=round(1.15 * fitting.count(task.document)) + 64)
    raise InputError(
        f"no source file here makes an edit task of {context} tokens: give another --context"
    )


def of_file(
    fitting: Fitting, context: int, kind: str, instance: str, turns: tuple[str, ...], file: File
) -> Task | None:
    """A task about a file's beginning, in a prompt of at most `context` tokens; None if it fills
    less than 80%.
    """
    before = f"This is the file {file.name}:\n\n```python\n"
    task = Task(kind, instance, turns, file.text or "", before, "```\n\n", sources=(file.source,))
    try:
        task = fitting.fit(task, context, is_code)
    except InputError:
        return None
    return task if fitting.size(task) >= 0.8 * context else None


def by_size(fitting: Fitting, tokens: int, rng: random.Random) -> list[File]:
    """Files of about this many tokens or a few more, in random order; then longer ones, which lose
    more lines.
    """
    least = 0.9 * tokens * fitting.characters_per_token
    selected = list[File]()
    for low, high in pairwise((1.0, *SHARES)):
        there = {f.name: f for f in files() if low * least <= f.bytes < high * least}
        selected += [there[name] for name in mixed([*there], rng)]
    return selected


def instruction(kind: str, text: str, rng: random.Random | None) -> str:
    """An instruction for a file that begins with this text; "" if it has nothing to do it to. rng
    None: the first.
    """
    if kind == "pathlib":
        fits = len(re.findall(r"\bos\.path\.\w+\(", text)) >= 2
        return (
            "Port this file from os.path to pathlib, without changing what it does." if fits else ""
        )
    names = names_in(text, documented=kind == "parameter")
    if not names:
        return ""
    name = names[0] if rng is None else rng.choice(names)
    if kind == "rename":
        return (
            f"Rename the function `{name}` to `handle_{name.strip('_')}` everywhere in this file."
        )
    return (
        f"Add a keyword parameter `strict=False` to the function `{name}`: if it is true, "
        "invalid input raises"
        " ValueError. Describe it in the function's docstring."
    )


def names_in(text: str, documented: bool) -> list[str]:
    """Functions in the lines that are complete: those with a docstring, or those that are named
    more than once.
    """
    while text and not is_code(text):
        text = text.rstrip("\n").rpartition("\n")[0]
    names = []
    for _, node in functions(text + "\n"):
        used = len(re.findall(rf"\b{re.escape(node.name)}\b", text))
        if not node.name.startswith("__") and (ast.get_docstring(node) if documented else used > 1):
            names.append(node.name)
    return list(dict.fromkeys(names))
