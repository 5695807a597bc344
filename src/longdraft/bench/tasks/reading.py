"""Tasks `question`, `qa`, `summary` and `chat`: what is asked about documentation, a book, source
code or a user's text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from longdraft.bench.inputs import BOOK
from longdraft.bench.tasks.code import File, folders, functions, is_code, mixed, parsed, shuffled
from longdraft.bench.tasks.edit import by_size, of_file
from longdraft.bench.tasks.fitting import Fitting
from longdraft.bench.tasks.task import Task, sha256
from longdraft.errors import InputError

Given = tuple[str, str]  # a user's text: its name and what it says
CHAPTER = re.compile(r"^Chapter [IVXLC]+$", re.MULTILINE)
NEW = {"question": 256, "qa": 96, "summary": 320, "chat": 160}
SUMMARY = (
    "Summarize the text above in about 200 words: who does or says what, and what comes of it."
)
QUESTION = (
    "Which three statements in the text above matter most, and why? Quote the sentence for "
    "each of them."
)
ANSWER = "What is the text above about? Answer in two sentences, in your own words."
DOCUMENTED = (
    "According to this documentation, what does `{name}` do, and what does each of its parameters "
    "mean? Quote the sentences that say so."
)
DOCUMENTED_BRIEFLY = (
    "According to this documentation, what is `{name}` for? Answer in two sentences, in your own "
    "words."
)
ABOUT_TEXT = (
    "What is this text about? Answer in three sentences.",
    "List the people or things it names, each with one line on its part.",
    "Which passage is the most important one? Quote it word for word.",
    "Explain that passage in plain words.",
    "What does the text leave open? Give two examples.",
    "Write a title and a summary of five sentences for it.",
)
ABOUT_CODE = (
    "What does this file do? Answer in three sentences.",
    "List its functions and classes, each with one line on what it is for.",
    "Explain `{name}` step by step.",
    "Write `{name}` again with type hints, without changing what it does.",
    "Which inputs of `{name}` should a test cover? Write three tests.",
    "Write the docstring of the whole file.",
)
SHORTEST = 120  # characters of a docstring that a question is about


def question(fitting: Fitting, context: int, instance: int, seed: int, given: list[Given]) -> Task:
    """A question about the documentation of a package, or about a user's text, with quotes. Raises
    InputError.
    """
    if given:
        return _of_text(fitting, context, instance, given, "question", (QUESTION,))
    return _of_documentation(fitting, context, instance, seed, "question", DOCUMENTED)


def qa(fitting: Fitting, context: int, instance: int, seed: int, given: list[Given]) -> Task:
    """The same, with a short answer in the model's own words. Raises InputError."""
    if given:
        return _of_text(fitting, context, instance, given, "qa", (ANSWER,))
    return _of_documentation(fitting, context, instance, seed, "qa", DOCUMENTED_BRIEFLY)


def _of_documentation(
    fitting: Fitting, context: int, instance: int, seed: int, kind: str, asked: str
) -> Task:
    rng = shuffled(seed, kind, context, instance)
    packages = {
        n: members
        for n, members in folders().items()
        if sum(f.bytes for f in members) > 3 * context
    }
    for folder in mixed([*packages], rng):
        used = []
        entries = list[tuple[str, str]]()
        for file in packages[folder]:
            used.append(file)
            entries += documentation(file)
            if sum(len(text) for _, text in entries) > 1.3 * context * fitting.characters_per_token:
                break
        task = Task(
            kind,
            f"{instance} {folder}",
            (asked.format(name="x" * 40),),
            "\n".join(text for _, text in entries),
            f"This is documentation of {folder}:\n\n",
            new_tokens=NEW[kind],
            sources=tuple(f.source for f in used),
        )
        try:
            task = fitting.fit(task, context)
        except InputError:
            continue
        inside = [
            name
            for name, text in entries
            if len(text) > SHORTEST and text in task.document[: -len(text)]
        ]
        inside = [name for name in inside if len(name) <= 60]
        if inside and fitting.size(task) >= 0.8 * context:
            turn = asked.format(name=rng.choice(inside))
            return fitting.fit(replace(task, turns=(turn,)), context)
    raise InputError(
        f"no package here has {context} tokens of documentation: give --prompt-file, or "
        "less --context"
    )


def documentation(file: File) -> Iterator[tuple[str, str]]:
    """(name, what its docstring says) of a module and of each function in it that has one."""
    tree = parsed(file.text or "")
    if tree is None:
        return
    if about := ast.get_docstring(tree):
        yield file.module, f"{file.module}\n\n{about}\n"
    for name, node in functions(file.text or ""):
        if (about := ast.get_docstring(node)) and not name.rpartition(".")[2].startswith("_"):
            indented = about.replace("\n", "\n    ")
            yield (
                f"{file.module}.{name}",
                f"{file.module}.{name}({ast.unparse(node.args)})\n\n    {indented}\n",
            )


def summary(fitting: Fitting, context: int, instance: int, seed: int, given: list[Given]) -> Task:
    """A summary of a user's text, or of the bundled book from the beginning of a chapter. Raises
    InputError.
    """
    if given:
        return _of_text(fitting, context, instance, given, "summary", (SUMMARY,))
    book = BOOK.read_text(encoding="utf-8")
    starts = [match.start() for match in CHAPTER.finditer(book)]
    long_enough = [
        s for s in starts if len(book) - s > 1.1 * context * fitting.characters_per_token
    ] or starts[:1]
    # not of the instance: each begins at another chapter
    shuffled(seed, "summary", context).shuffle(long_enough)
    start = long_enough[instance % len(long_enough)]
    chapter = book[start:].partition("\n")[0]
    name = f"{instance} {BOOK.stem}, {chapter}"
    task = Task("summary", name, (SUMMARY,), book[start:], new_tokens=NEW["summary"])
    return fitting.fit(replace(task, sources=((BOOK.name, sha256(book)),)), context)


def chat(fitting: Fitting, context: int, instance: int, seed: int, given: list[Given]) -> Task:
    """Six turns over a source file, or over a user's text; the first prompt has `context` tokens.
    Raises InputError.
    """
    if given:
        return _of_text(fitting, context, instance, given, "chat", ABOUT_TEXT)
    rng = shuffled(seed, "chat", context, instance)
    for file in by_size(fitting, context - 80, rng):
        task = of_file(fitting, context, "chat", f"{instance} {file.name}", ABOUT_CODE, file)
        if task is None:
            continue
        names = [
            name
            for name, node in functions(task.document)
            if (node.end_lineno or 0) - node.lineno > 5
        ]
        if names:
            name = rng.choice(names)
            turns = tuple(turn.format(name=name) for turn in ABOUT_CODE)
            return fitting.fit(replace(task, turns=turns, new_tokens=NEW["chat"]), context, is_code)
    raise InputError(
        f"no source file here makes a chat of {context} tokens: give --prompt-file, or "
        "another --context"
    )


def _of_text(
    fitting: Fitting,
    context: int,
    instance: int,
    given: list[Given],
    kind: str,
    turns: tuple[str, ...],
) -> Task:
    """About the first lines of the text; with more instances than texts, each text is used from
    later lines on.
    """
    name, text = given[instance % len(given)]
    lines = text.splitlines(keepends=True)
    parts = 4  # where instances may begin
    start = len(lines) * (instance // len(given) % parts) // parts
    task = Task(kind, f"{instance} {name}", turns, "".join(lines[start:]), new_tokens=NEW[kind])
    return fitting.fit(replace(task, sources=((name, sha256(text)),)), context)
