"""Tasks about one passage: `copy` and `code` ask for a function again or for its tests, `quote` for
a paragraph.
"""

from __future__ import annotations

from dataclasses import replace

from longdraft.bench.inputs import BOOK
from longdraft.bench.tasks.code import functions, is_code, shuffled
from longdraft.bench.tasks.edit import by_size, of_file
from longdraft.bench.tasks.fitting import Fitting
from longdraft.bench.tasks.reading import CHAPTER, Given
from longdraft.bench.tasks.task import Task, sha256
from longdraft.errors import InputError

ROOM = 100  # tokens of question and template, about
LINES = range(8, 61)  # of a function that is asked for
WORDS = range(30, 201)  # of a paragraph that is quoted
BEGINNING = 6  # words by which a paragraph is named
LONGEST = 60  # characters of these words
NEW = {"copy": 640, "code": 320, "quote": 320}
COPY = (
    "Write the function `{name}` again, exactly as it stands in the file. Answer with one code "
    "block, and with nothing else."
)
CODE = (
    "Write tests of the function `{name}` with pytest: of what it usually does, of limits, and of "
    "invalid input. Answer with one code block, and with nothing else."
)
QUOTE = (
    'One paragraph of the text above begins with the words "{words}". Quote the whole paragraph, '
    "word for word, and write nothing else."
)


def copy(fitting: Fitting, context: int, instance: int, seed: int) -> Task:
    """A function of a source file, to be written again. Raises InputError."""
    return _of_function(fitting, context, instance, seed, "copy", COPY)


def code(fitting: Fitting, context: int, instance: int, seed: int) -> Task:
    """Tests of a function of a source file. Raises InputError."""
    return _of_function(fitting, context, instance, seed, "code", CODE)


def _of_function(
    fitting: Fitting, context: int, instance: int, seed: int, kind: str, asked: str
) -> Task:
    rng = shuffled(seed, kind, context, instance)
    for file in by_size(fitting, context - ROOM, rng):
        longest = asked.format(name="x" * 40)
        task = of_file(fitting, context, kind, f"{instance} {file.name}", (longest,), file)
        if task is None:
            continue
        names = [
            name
            for name, node in functions(task.document)
            if (node.end_lineno or 0) - node.lineno + 1 in LINES and len(name) <= 40
        ]
        if names:
            turn = asked.format(name=rng.choice(names))
            return fitting.fit(replace(task, turns=(turn,), new_tokens=NEW[kind]), context, is_code)
    raise InputError(
        f"no source file here makes a {kind} task of {context} tokens: give another --context"
    )


def quote(fitting: Fitting, context: int, instance: int, seed: int, given: list[Given]) -> Task:
    """A paragraph of the bundled book or of a user's text, to be quoted. Raises InputError."""
    rng = shuffled(seed, "quote", context, instance)
    name, text = given[instance % len(given)] if given else (BOOK.name, BOOK.read_text("utf-8"))
    starts = [0, *(match.start() for match in CHAPTER.finditer(text))]
    enough = 1.1 * context * fitting.characters_per_token
    starts = [s for s in starts if len(text) - s > enough] or starts[:1]
    rng.shuffle(starts)
    longest = QUOTE.format(words="x" * LONGEST)
    task = Task("quote", f"{instance} {name}", (longest,), new_tokens=NEW["quote"])
    task = replace(task, sources=((name, sha256(text)),))
    for start in starts:
        fitted = fitting.fit(task.with_document(text[start:]), context)
        if words := _beginnings(fitted.document):
            asked = QUOTE.format(words=rng.choice(words))
            return fitting.fit(replace(fitted, turns=(asked,)), context)
    raise InputError(
        f"{name} has no paragraph of {WORDS[0]} to {WORDS[-1]} words within {context} tokens: give "
        "a longer --context, or another --prompt-file"
    )


def _beginnings(text: str) -> list[str]:
    """The first words of the paragraphs that can be asked for: they name one paragraph only."""
    paragraphs = [p.split() for p in text.split("\n\n")[1:-1]]  # the others may be cut
    found = [" ".join(words[:BEGINNING]) for words in paragraphs if len(words) in WORDS]
    whole = " ".join(text.split())
    return [words for words in found if len(words) <= LONGEST and whole.count(words) == 1]
