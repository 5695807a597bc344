"""Tasks `repo`: files of one package, then one whose function has lost its body (the form of
RepoBench).
"""

from __future__ import annotations

import ast
import random

from longdraft.bench.tasks.code import File, Function, folders, functions, mixed, shuffled
from longdraft.bench.tasks.fitting import Fitting
from longdraft.bench.tasks.task import Task
from longdraft.errors import InputError

BODY = range(6, 41)  # lines of the body that was removed
SHARE = 0.4  # of the prompt: the most that the file itself takes, up to the body
TRIES = 400  # folders that are looked at
NEW = 320


def build(fitting: Fitting, context: int, instance: int, seed: int) -> Task:
    """A function to complete after `context` tokens of its package. Raises InputError."""
    rng = shuffled(seed, "repo", context, instance)
    enough = context * fitting.characters_per_token
    packages = {
        n: members for n, members in folders().items() if sum(f.bytes for f in members) > enough
    }
    for name in mixed([n for n, members in packages.items() if len(members) > 2], rng)[:TRIES]:
        members = packages[name]
        rng.shuffle(members)
        for file in members[:4]:
            task = _complete(fitting, context, instance, file, members, rng)
            if task is not None:
                return task
    raise InputError(
        f"no package here makes a repo task of {context} tokens: give another --context"
    )


def _complete(
    fitting: Fitting,
    context: int,
    instance: int,
    file: File,
    members: list[File],
    rng: random.Random,
) -> Task | None:
    text = file.text
    if text is None:
        return None
    most = SHARE * context * fitting.characters_per_token
    lines = text.splitlines(keepends=True)
    places = [(name, begin) for name, node in functions(text) if (begin := _body(node)) is not None]
    places = [
        (name, begin) for name, begin in places if begin > 4 and len("".join(lines[:begin])) <= most
    ]
    if not places:
        return None
    name, begin = rng.choice(places)
    others = sorted(
        (f for f in members if f is not file and f.text),
        key=lambda f: (
            f.module.rpartition(".")[2] not in text,
            f.name,
        ),  # those that the file names come first
    )
    used = []
    document = ""
    for other in others:
        used.append(other)
        document += f"# {other.name}\n{other.text}\n\n"
        if len(document) > 1.2 * context * fitting.characters_per_token:
            break
    task = Task(
        "repo",
        f"{instance} {file.module}.{name}",
        (
            f"Write the function `{name}` in full, with its body. Answer with one code "
            "block, and with nothing else.",
        ),
        document,
        f"These are files of the package {file.folder}:\n\n```python\n",
        f"```\n\nThis is {file.name} up to where the body of `{name}` was removed:\n\n```python\n"
        f"{''.join(lines[:begin])}```\n\n",
        NEW,
        tuple(f.source for f in (file, *used)),
    )
    try:
        task = fitting.fit(task, context)
    except InputError:
        return None
    return task if fitting.size(task) >= 0.8 * context else None


def _body(node: Function) -> int | None:
    """The number of lines up to the body of a function with a docstring; None for one that is not
    asked for.
    """
    if ast.get_docstring(node) is None or len(node.body) < 2 or node.end_lineno is None:
        return None
    begin = node.body[0].end_lineno or 0
    return begin if node.end_lineno - begin in BODY else None
