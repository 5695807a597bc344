"""Measures how far attention over keys and values of 8 bits is from attention in full precision.

    python benchmarks/attention_divergence.py -m qwen2.5-coder-0.5b --contexts 1024,8192 a.txt b.py

Weights, activations and all else are float32, so that nothing but attention differs. Of each text
and context, the last tokens are predicted both ways: `nats` is the mean Kullback-Leibler divergence
of the second distribution from the first, `same` the share of tokens whose most likely successor is
the same. Then, in each context, a number of sentences are hidden, at equal distances, each with a
number of its own: `found` counts the numbers that the model gives when it is asked for them at the
end, `equal` whether both answers are the same. Texts whose name ends in .py hide functions that
return the numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import torch
from arguments import Arguments, at_least, status
from torch import Tensor

from longdraft import load
from longdraft.core import KVCache, Tree
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.loading import quiet
from longdraft.models.text import token_ids
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance

STEP = 64  # tokens of a pass whose logits are compared
ANSWER = 8  # tokens
NAMES = (
    "Lisbon", "Oslo", "Cairo", "Lima", "Quebec", "Delhi", "Kyoto", "Nairobi", "Vienna", "Dublin",
    "Havana", "Riga", "Tunis", "Boston", "Geneva", "Malta", "Porto", "Seoul", "Turin", "Zagreb",
)  # fmt: skip
Figures = dict[str, Any]


class Passage:
    """The first `count` tokens of a text, from a third of it on."""

    def __init__(self, path: Path, count: int, tokenizer: Any):
        text = path.read_text(encoding="utf-8", errors="replace")
        begin = text.find("\n", len(text) // 3) + 1
        self.tokens: list[int] = token_ids(tokenizer, text[begin : begin + 12 * count])[:count]
        if len(self.tokens) < count:
            raise InputError(f"{path} has fewer than {count} tokens after its first third")
        self.is_code = path.suffix == ".py"
        self.tokenizer = tokenizer

    def hidden(self, count: int, seed: int) -> tuple[list[int], list[tuple[list[int], str]]]:
        """The passage with `count` numbers at equal distances -> it, and questions with answers."""
        rng = Random(seed)
        each = len(self.tokens) // count
        tokens = list[int]()
        asked = list[tuple[list[int], str]]()
        for i in range(count):
            city, number = NAMES[i % len(NAMES)], str(rng.randrange(10_000, 100_000))
            told, question = self._hiding(city, number)
            tokens += token_ids(self.tokenizer, told)
            tokens += self.tokens[i * each : (i + 1) * each]
            asked.append((token_ids(self.tokenizer, question), number))
        return tokens, asked

    def _hiding(self, city: str, number: str) -> tuple[str, str]:
        if self.is_code:
            name = f"code_of_{city.lower()}"
            told = f"\n\ndef {name}() -> int:\n    return {number}\n\n\n"
            return told, f"\n\ndef test_{name}():\n    assert {name}() == "
        told = f"\nThe secret number of {city} is {number}.\n"
        return told, f"\nNow remember: the secret number of {city} is "


def predicted(lm: LM, tokens: list[int], last: int) -> Tensor:
    """Log-probabilities [last,V] after each of the last tokens."""
    cache = lm.new_cache(1, len(tokens))
    begin = len(tokens) - last
    lm.prefill(tokens[:begin], cache)
    parts = list[Tensor]()
    for i in range(begin, len(tokens), STEP):
        some = torch.tensor([tokens[i : i + STEP]])
        parts.append(lm(Tree.chain(some), cache)[0].float().log_softmax(-1))
        cache.length += some.shape[1]
    return torch.cat(parts)


def answered(lm: LM, question: list[int], cache: KVCache) -> list[int]:
    """The most likely tokens after a question about what the cache holds."""
    given = torch.tensor([question])
    found = list[int]()
    with cache.rollback():
        while len(found) < ANSWER:
            logits = lm(Tree.chain(given), cache, logits=1)
            cache.length += given.shape[1]
            found.append(int(logits[0, -1].argmax()))
            given = torch.tensor([[found[-1]]])
    return found


def divergence(models: list[LM], passage: Passage, last: int) -> Figures:
    full, rounded = (predicted(lm, passage.tokens, last) for lm in models)
    return {
        "tokens": last,
        "nats": float((full.exp() * (full - rounded)).sum(-1).mean()),
        "same": float((full.argmax(-1) == rounded.argmax(-1)).float().mean()),
    }


def retrieval(models: list[LM], passage: Passage, count: int, seed: int) -> Figures:
    tokens, asked = passage.hidden(count, seed)
    answers = list[list[list[int]]]()
    for lm in models:
        cache = lm.new_cache(1, len(tokens) + 128)
        lm.prefill(tokens, cache)
        answers.append([answered(lm, question, cache) for question, _ in asked])
    full, rounded = (
        [number in passage.tokenizer.decode(a) for a, (_, number) in zip(each, asked, strict=True)]
        for each in answers
    )
    equal = [a == b for a, b in zip(*answers, strict=True)]
    return {"hidden": count, "found": sum(full), "found_in_8": sum(rounded), "equal": sum(equal)}


def measured(given: Any) -> Iterator[Figures]:
    models = list[LM]()
    for kv in (None, "int8"):
        lm, tokenizer = load(given.model, "float32", kv=kv, activations="full")
        models.append(lm)
    for path in given.texts:
        for context in given.contexts:
            passage = Passage(path, context, tokenizer)
            figures = divergence(models, passage, min(given.last, context // 2))
            figures |= retrieval(models, passage, given.hidden, given.seed)
            origin = provenance(models[1], given.seed) | {"task": "attention_divergence"}
            yield origin | {"text": path.name, "context": context} | figures


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share("model", "threads", "seed", "out")
    parser.change("contexts", "1024,8192", "a long one takes minutes")
    parser.add_argument("texts", nargs="+", type=Path, metavar="TEXT", help="files of text or code")
    parser.add_argument(
        "--last", type=at_least(1), default=512, metavar="N", help="tokens that are predicted"
    )
    parser.add_argument(
        "--hidden", type=at_least(1), default=20, metavar="N", help="numbers that are hidden"
    )
    return parser


@torch.inference_mode()
def main(words: list[str] | None = None) -> int:
    given = options().parse(words)
    quiet(given.threads)
    log = RecordFile(given.out)
    print("text                   context    nats    same  hidden  found  in 8 bits  equal")
    for figures in measured(given):
        log.append(figures | {"command": given.command})
        print(
            f"{figures['text'][:22]:22} {figures['context']:7} {figures['nats']:7.5f} "
            f"{figures['same']:7.1%} {figures['hidden']:7} {figures['found']:6} "
            f"{figures['found_in_8']:10} {figures['equal']:6}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(status(main))
