"""Whether a model uses a long context: its loss after more and more of a text, and facts that it finds in one.

    python benchmarks/long_context.py -m smollm2 --books 'books/*.txt' --rope none,yarn:2 --out runs/long.jsonl

Loss: of the same last 512 tokens of a text, of which the model sees the last 1K, 4K, ... tokens (those 512 among them,
so that a context of 8K fits 8,192 positions). Facts: five unlike sentences ("The code of the lighthouse is 48213.") at
five depths of a book, asked for one after another in the model's chat template; an answer counts if it has the number.
One record per measurement. The same command again measures what the file does not have yet.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from glob import glob
from hashlib import sha256
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from torch.nn.functional import cross_entropy

from longdraft.bench.inputs import held_out_files, read
from longdraft.bench.records import load as load_records
from longdraft.cli import common
from longdraft.cli.option_groups import Dtype, Weights
from longdraft.core import Sampler, Tree
from longdraft.core.provenance import relative
from longdraft.engine.conversation import Conversation
from longdraft.engine.record_file import RecordFile
from longdraft.engine.records import provenance
from longdraft.errors import InputError
from longdraft.models.chat import chat_tokens
from longdraft.models.lm import LM
from longdraft.models.loading import load, quiet
from longdraft.models.text import token_ids

LONGEST = 32768  # tokens of a text: every context is the end of one, whichever are measured
SCORED, PART = 512, 128  # tokens whose loss is measured, so many at a time
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
FACTS = (
    "secret number of Paris",
    "price of the golden horse",
    "weight of the great bell",
    "code of the lighthouse",
    "phone number of the baker",
)
QUESTION = "Question: What is the {}? Answer with the number only."
ROOM, ANSWER = 144, 20  # tokens of a prompt that are not the book's, template, facts and answer; tokens of an answer
KEY = (
    "task",
    "model",
    "weights_sha256",
    "rope",
    "weights",
    "dtype",
    "text_sha256",
    "context",
    "seed",
)  # of one measurement

Tick = Callable[[int], None]


@dataclass(frozen=True)
class Text:
    """A stretch of LONGEST tokens. number: which one of its kind, `book` or `code`."""

    kind: str
    name: str
    number: int
    tokens: list[int]

    def fields(self) -> dict[str, Any]:
        digest = sha256(repr(self.tokens).encode()).hexdigest()
        return {"text": self.kind, "text_name": self.name, "number": self.number, "text_sha256": digest}


def books(patterns: list[str], count: int, tokenizer: Any, seed: int) -> Iterator[Text]:
    """`count` stretches from random places of the books in turn. Raises InputError."""
    files = sorted({Path(f) for pattern in patterns for f in glob(pattern)})
    if not files:
        raise InputError(f"no file matches --books {' '.join(patterns)}: give a pattern of UTF-8 text files")
    for i in range(count):
        file = files[i % len(files)]
        text = read(file)
        at = Random(f"{seed} {file.name} {i}").randrange(max(1, len(text) - 8 * LONGEST))
        tokens = token_ids(tokenizer, text[at : at + 8 * LONGEST], add_special_tokens=False)[:LONGEST]
        if len(tokens) < LONGEST:
            raise InputError(f"{file} has {len(tokens)} tokens: give books of {LONGEST} tokens or more")
        yield Text("book", file.name, i, tokens)


def code(count: int, tokenizer: Any, seed: int) -> Iterator[Text]:
    """`count` stretches of the standard library's held-out files, joined in random order. Raises InputError."""
    files = held_out_files()
    Random(seed).shuffle(files)
    tokens = token_ids(tokenizer, "\n\n".join(map(read, files)), add_special_tokens=False)
    if len(tokens) < count * LONGEST:
        raise InputError(f"the held-out code has {len(tokens)} tokens: give --texts {len(tokens) // LONGEST} or fewer")
    for i in range(count):
        yield Text("code", "standard library", i, tokens[i * LONGEST : (i + 1) * LONGEST])


@torch.inference_mode()
def loss(lm: LM, tokens: list[int], tick: Tick) -> float:
    """Nats per token of the last SCORED tokens, each given all tokens before it."""
    kv, total = lm.new_cache(1, len(tokens)), 0.0
    lm.prefill(tokens[: -SCORED - 1], kv, report=tick)
    last = torch.tensor([tokens[-SCORED - 1 :]], device=lm.device)
    for at in range(0, SCORED, PART):
        given, following = last[:, at : at + PART], last[0, at + 1 : at + PART + 1]
        total += float(cross_entropy(lm(Tree.chain(given), kv)[0].float(), following, reduction="sum"))
        kv.length += given.shape[1]
    return total / SCORED


def hidden(text: str, facts: list[str]) -> str:
    """The text with fact i after the first sentence that ends beyond DEPTHS[i] of it. Raises InputError."""
    out, begin = "", 0
    for depth, fact in zip(DEPTHS, facts, strict=True):
        end = text.find(". ", max(begin, int(depth * len(text)))) + 2
        if end < 2:
            raise InputError("a book has no sentence that ends with '. ' where a fact should stand: give other --books")
        out, begin = f"{out}{text[begin:end]}{fact} ", end
    return out + text[begin:]


def ask(lm: LM, tokenizer: Any, book: Text, context: int, seed: int) -> dict[str, Any]:
    """Which of five facts the model finds in the end of a book: found[i] at DEPTHS[i]. The book is read once."""
    rng, text = Random(f"{seed} {book.number} {context}"), tokenizer.decode(book.tokens[ROOM - context :])
    subjects = [FACTS[(i + book.number) % len(FACTS)] for i in range(len(DEPTHS))]  # at another depth in each book
    numbers = [str(n) for n in rng.sample(range(10000, 100000), len(DEPTHS))]
    text = hidden(text, [f"The {s} is {n}." for s, n in zip(subjects, numbers, strict=True)])
    talk, answers, longest = Conversation(lm, Sampler(), seed), [], 0
    for subject in subjects:
        prompt = chat_tokens(tokenizer, [{"role": "user", "content": f"{text}\n\n{QUESTION.format(subject)}"}])
        with common.reading([prompt[talk.known(prompt) :]]) as tick:
            said = [t for step in talk.answer(prompt, ANSWER, report=tick) for t in step.tokens[0]]
        answers.append(tokenizer.decode(said, skip_special_tokens=True).strip())
        longest = max(longest, len(prompt))
    found = [number in answer for number, answer in zip(numbers, answers, strict=True)]
    facts = {"facts": subjects, "numbers": numbers, "answers": answers}
    return {"depths": DEPTHS, "found": found, "prompt_tokens": longest, **facts}


def measured(task: str, lm: LM, tokenizer: Any, text: Text, context: int, seed: int) -> dict[str, Any]:
    """What one record says beyond where it comes from."""
    begin, tokens = perf_counter(), text.tokens[-context:]
    if task == "long-context-facts":
        result = ask(lm, tokenizer, text, context, seed)
    else:
        with common.reading([tokens]) as tick:
            result = {"scored": SCORED, "loss": loss(lm, tokens, tick)}
    return {**result, "seconds": perf_counter() - begin}


def line(record: dict[str, Any]) -> str:
    result = f"loss {record['loss']:.4f}" if "loss" in record else f"found {sum(record['found'])} of {len(DEPTHS)}"
    where = f"{record['text']} {record['number']} ({record['text_name']}), {record['context']:,} tokens"
    return f"{where}, rope {record['rope'] or 'none'}: {result}, {record['seconds']:.0f} s"


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[k] for k in KEY)


def comma(words: str) -> list[str]:
    return [w.strip() for w in words.split(",") if w.strip()]


def lengths(words: str) -> list[int]:
    """The contexts, shortest first. Raises InputError."""
    try:
        found = sorted({int(w) for w in comma(words)})
    except ValueError:
        found = []
    if not found or not 2 * SCORED <= found[0] <= found[-1] <= LONGEST:
        raise InputError(f"--context is {words!r}: give numbers from {2 * SCORED} to {LONGEST}, with commas between")
    return found


def long_context(
    model: common.Model = "smollm2",
    book_files: Annotated[
        list[str], typer.Option("--books", metavar="GLOB", help="Books as UTF-8 text files; may be repeated.")
    ] = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="The records; what they have is not measured again.")] = Path(
        "runs/long-context.jsonl"
    ),
    context: Annotated[str, typer.Option(help="Numbers of tokens, with commas between.")] = "1024,4096,8192,16384",
    rope: Annotated[
        str, typer.Option(help="Scalings of rotary positions, KIND:FACTOR or none.")
    ] = "none,yarn:2,yarn:4",
    texts: Annotated[int, typer.Option(min=1, help="Books, and as many stretches of code, to measure losses on.")] = 3,
    haystacks: Annotated[int, typer.Option(min=0, help="Books that facts are hidden in.")] = 2,
    dtype: Dtype = "bfloat16",
    weights: Weights = None,
    seed: common.Seed = 0,
    threads: common.Threads = None,
) -> None:
    """Measure a model's loss at the end of ever longer contexts, and which facts it finds in them.

    Short contexts come first. Facts are asked for only as far as the model has positions.
    """
    command = shlex.join(["python", "benchmarks/long_context.py", *map(relative, sys.argv[1:])])

    @cache
    def loaded(scaling: str) -> tuple[LM, Any, dict[str, Any]]:
        lm, tokenizer = load(model, dtype, rope=None if scaling == "none" else scaling, weights=weights)
        return lm, tokenizer, provenance(lm, seed) | {"command": command, "method": "plain"}

    quiet(threads)
    try:
        contexts, ropes = lengths(context), comma(rope)
        _, tokenizer, _ = loaded(ropes[0])
        stories = list(books(book_files, max(texts, haystacks), tokenizer, seed))
        programs = list(code(texts, tokenizer, seed))
        both = [t for pair in zip(stories, programs, strict=False) for t in pair]
        log, known = RecordFile(out), {key(r) for r in load_records([out])}
        plan = [
            (task, scaling, text, n)
            for n in contexts
            for task, some in (("long-context-loss", both), ("long-context-facts", stories[:haystacks]))
            for text in some
            for scaling in ropes
        ]
        for i, (task, scaling, text, n) in enumerate(plan, 1):
            lm, tokenizer, origin = loaded(scaling)
            record = origin | {"task": task, **text.fields(), "context": n}
            if key(record) in known or (task == "long-context-facts" and n > lm.positions):
                continue
            record |= measured(task, lm, tokenizer, text, n, seed)
            log.append(record)
            print(f"[{i}/{len(plan)}] {line(record)}", flush=True)
    except InputError as error:
        print(f"long_context.py: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(long_context)
