"""Whether a model uses a long context: its loss on texts, and facts it must find.

    python benchmarks/long_context.py -m smollm2 --books 'books/*.txt' --ropes none,yarn:2

Loss: of the same last 512 tokens of a text, of which the model sees the last 1K, 4K, ... tokens
(those 512 among them, so that a context of 8K fits 8,192 positions). Facts: five unlike sentences
("The code of the lighthouse is 48213.") at five depths of a book, asked for one after another in
the model's chat template; an answer counts if it has the number. One record per measurement. The
same command again measures what the file does not have yet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from glob import glob
from hashlib import sha256
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import torch
from arguments import Arguments, at_least, several, status
from torch.nn.functional import cross_entropy

from longdraft.bench.inputs import held_out_files, read
from longdraft.bench.records import load as load_records
from longdraft.cli.common import reading
from longdraft.core import Sampler, Tree
from longdraft.engine.conversation import Conversation
from longdraft.errors import InputError
from longdraft.models.chat import chat_tokens
from longdraft.models.lm import LM
from longdraft.models.loading import load, quiet
from longdraft.models.text import token_ids
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance

LONGEST = 32768  # tokens of a text: every context is the end of one, whichever are measured
# tokens whose loss is measured, so many at a time
SCORED = 512
PART = 128
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
FACTS = (
    "secret number of Paris",
    "price of the golden horse",
    "weight of the great bell",
    "code of the lighthouse",
    "phone number of the baker",
)
QUESTION = "Question: What is the {}? Answer with the number only."
# tokens of a prompt that are not the book's, template, facts and answer; tokens of an answer
ROOM = 144
ANSWER = 20
# of one measurement
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
)

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
        return {
            "text": self.kind,
            "text_name": self.name,
            "number": self.number,
            "text_sha256": digest,
        }


def books(patterns: list[str], count: int, tokenizer: Any, seed: int) -> Iterator[Text]:
    """`count` stretches from random places of the books in turn. Raises InputError."""
    files = sorted({Path(f) for pattern in patterns for f in glob(pattern)})
    if not files:
        raise InputError(
            f"no file matches --books {' '.join(patterns)}: give a pattern of UTF-8 text files"
        )
    for i in range(count):
        file = files[i % len(files)]
        text = read(file)
        at = Random(f"{seed} {file.name} {i}").randrange(max(1, len(text) - 8 * LONGEST))
        tokens = token_ids(tokenizer, text[at : at + 8 * LONGEST], add_special_tokens=False)[
            :LONGEST
        ]
        if len(tokens) < LONGEST:
            raise InputError(
                f"{file} has {len(tokens)} tokens: give books of {LONGEST} tokens or more"
            )
        yield Text("book", file.name, i, tokens)


def code(count: int, tokenizer: Any, seed: int) -> Iterator[Text]:
    """`count` stretches of the standard library's held-out files, joined in random order. Raises
    InputError.
    """
    files = held_out_files()
    Random(seed).shuffle(files)
    tokens = token_ids(tokenizer, "\n\n".join(map(read, files)), add_special_tokens=False)
    if len(tokens) < count * LONGEST:
        raise InputError(
            f"the held-out code has {len(tokens)} tokens: give --texts "
            f"{len(tokens) // LONGEST} or fewer"
        )
    for i in range(count):
        yield Text("code", "standard library", i, tokens[i * LONGEST : (i + 1) * LONGEST])


@torch.inference_mode()
def loss(lm: LM, tokens: list[int], tick: Tick) -> float:
    """Nats per token of the last SCORED tokens, each given all tokens before it."""
    kv = lm.new_cache(1, len(tokens))
    total = 0.0
    lm.prefill(tokens[: -SCORED - 1], kv, report=tick)
    last = torch.tensor([tokens[-SCORED - 1 :]], device=lm.device)
    for at in range(0, SCORED, PART):
        given = last[:, at : at + PART]
        following = last[0, at + 1 : at + PART + 1]
        total += float(
            cross_entropy(lm(Tree.chain(given), kv)[0].float(), following, reduction="sum")
        )
        kv.length += given.shape[1]
    return total / SCORED


def hidden(text: str, facts: list[str]) -> str:
    """The text with fact i after the first sentence that ends beyond DEPTHS[i] of it. Raises
    InputError.
    """
    out = ""
    begin = 0
    for depth, fact in zip(DEPTHS, facts, strict=True):
        end = text.find(". ", max(begin, int(depth * len(text)))) + 2
        if end < 2:
            raise InputError(
                "a book has no sentence that ends with '. ' where a fact should stand: "
                "give other --books"
            )
        out = f"{out}{text[begin:end]}{fact} "
        begin = end
    return out + text[begin:]


def ask(lm: LM, tokenizer: Any, book: Text, context: int, seed: int) -> dict[str, Any]:
    """Which of five facts the model finds in the end of a book: found[i] at DEPTHS[i]. The book is
    read once.
    """
    rng = Random(f"{seed} {book.number} {context}")
    text = tokenizer.decode(book.tokens[ROOM - context :])
    # at another depth in each book
    subjects = [FACTS[(i + book.number) % len(FACTS)] for i in range(len(DEPTHS))]
    numbers = [str(n) for n in rng.sample(range(10000, 100000), len(DEPTHS))]
    text = hidden(text, [f"The {s} is {n}." for s, n in zip(subjects, numbers, strict=True)])
    talk = Conversation(lm, Sampler(), seed)
    answers = []
    longest = 0
    for subject in subjects:
        prompt = chat_tokens(
            tokenizer, [{"role": "user", "content": f"{text}\n\n{QUESTION.format(subject)}"}]
        )
        with reading([prompt[talk.known(prompt) :]]) as tick:
            said = [t for step in talk.answer(prompt, ANSWER, report=tick) for t in step.tokens[0]]
        answers.append(tokenizer.decode(said, skip_special_tokens=True).strip())
        longest = max(longest, len(prompt))
    found = [number in answer for number, answer in zip(numbers, answers, strict=True)]
    facts = {"facts": subjects, "numbers": numbers, "answers": answers}
    return {"depths": DEPTHS, "found": found, "prompt_tokens": longest, **facts}


def measured(
    task: str, lm: LM, tokenizer: Any, text: Text, context: int, seed: int
) -> dict[str, Any]:
    """What one record says beyond where it comes from."""
    begin = perf_counter()
    tokens = text.tokens[-context:]
    if task == "long-context-facts":
        result = ask(lm, tokenizer, text, context, seed)
    else:
        with reading([tokens]) as tick:
            result = {"scored": SCORED, "loss": loss(lm, tokens, tick)}
    return {**result, "seconds": perf_counter() - begin}


def line(record: dict[str, Any]) -> str:
    result = (
        f"loss {record['loss']:.4f}"
        if "loss" in record
        else f"found {sum(record['found'])} of {len(DEPTHS)}"
    )
    where = (
        f"{record['text']} {record['number']} ({record['text_name']}), {record['context']:,} tokens"
    )
    return f"{where}, rope {record['rope'] or 'none'}: {result}, {record['seconds']:.0f} s"


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[k] for k in KEY)


def checked(contexts: list[int]) -> list[int]:
    """The contexts, shortest first. Raises InputError."""
    contexts = sorted(set(contexts))
    if not 2 * SCORED <= contexts[0] <= contexts[-1] <= LONGEST:
        raise InputError(f"--contexts has {contexts}: give numbers from {2 * SCORED} to {LONGEST}")
    return contexts


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.change(
        "model", "smollm2", "the bundled model was trained on too little to answer questions"
    )
    parser.change("contexts", "1024,4096,8192,16384", "the loss is compared along them")
    parser.share("texts", "dtype", "weights", "seed", "threads", "out")
    parser.add_argument(
        "--books", action="append", metavar="GLOB", help="UTF-8 text files; may be repeated"
    )
    parser.add_argument(
        "--ropes", type=several(), default="none,yarn:2,yarn:4", help="scalings, as --rope has them"
    )
    parser.add_argument(
        "--haystacks", type=at_least(0), default=2, help="books that facts are hidden in"
    )
    return parser


def main(words: list[str] | None = None) -> None:
    """Short contexts come first. Facts are asked for only as far as the model has positions."""
    given = options().parse(words)
    seed = given.seed

    @cache
    def loaded(scaling: str) -> tuple[LM, Any, dict[str, Any]]:
        rope = None if scaling == "none" else scaling
        lm, tokenizer = load(given.model, given.dtype, rope=rope, weights=given.weights)
        return lm, tokenizer, provenance(lm, seed) | {"command": given.command, "method": "plain"}

    quiet(given.threads)
    contexts = checked(given.contexts)
    _, tokenizer, _ = loaded(given.ropes[0])
    stories = list(books(given.books or [], max(given.texts, given.haystacks), tokenizer, seed))
    programs = list(code(given.texts, tokenizer, seed))
    both = [t for pair in zip(stories, programs, strict=False) for t in pair]
    log = RecordFile(given.out)
    known = {key(r) for r in load_records([given.out])}
    plan = [
        (task, scaling, text, n)
        for n in contexts
        for task, some in (
            ("long-context-loss", both),
            ("long-context-facts", stories[: given.haystacks]),
        )
        for text in some
        for scaling in given.ropes
    ]
    for i, (task, scaling, text, n) in enumerate(plan, 1):
        lm, tokenizer, origin = loaded(scaling)
        record = origin | {"task": task, **text.fields(), "context": n}
        if key(record) in known or (task == "long-context-facts" and n > lm.positions):
            continue
        record |= measured(task, lm, tokenizer, text, n, seed)
        log.append(record)
        print(f"[{i}/{len(plan)}] {line(record)}", flush=True)


if __name__ == "__main__":
    sys.exit(status(main))
