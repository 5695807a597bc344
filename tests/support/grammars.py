"""Constraints on the text of the tiny models, whose 96 tokens get names here."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from support import tiny
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longdraft import Sampler, generate
from longdraft.constraints import Constraints, Grammar
from longdraft.core import Rows, Tree

END = 2
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["red", "green", "gray"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3},
    },
    "required": ["name", "kind", "size", "tags"],
    "additionalProperties": False,
}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Three special tokens, visible ASCII but a few signs, and pairs that JSON has."""
    pairs = [('"', ":"), ('"', ","), ("r", "e"), ("Ġ", '"'), ("{", '"'), ("a", "m")]
    signs = [c for c in map(chr, range(33, 127)) if c not in "`~^@#$%&"]
    words = ["<s>", "<pad>", "</s>", "Ġ", *signs, *(a + b for a, b in pairs)][:96]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs))
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    made.add_special_tokens([AddedToken(word, special=True) for word in ("<s>", "<pad>", "</s>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


@cache
def constraints() -> Constraints:
    return Constraints(tokenizer(), 96, (END,))


@cache
def grammar(kind: str = "schema") -> Grammar:
    made = constraints()
    if kind == "schema":
        return made.json_schema(SCHEMA)
    if kind == "regex":
        return made.regex("([a-m]{2,5}-)+end")
    if kind == "choice":
        return made.choice(["red", "green", "gray"])
    return made.grammar('start: "(" start ")" | /[ab]+/')


def said(tokens: list[int]) -> str:
    return tokenizer().decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def by_hand(constraint: Grammar, prompt: list[int], new: int, model: str = "llama") -> list[int]:
    """Greedy decoding under a constraint, written anew: each token is tried on a matcher that reads
    the whole text.
    """
    lm = tiny.target(model)
    text = list[int]()
    while len(text) < new:
        best = logits_after(lm, prompt + text).argsort(descending=True).tolist()
        allowed = after(constraint, text)
        text.append(next(token for token in best if token in allowed))
        if text[-1] == END:
            break
    return text


def after(constraint: Grammar, text: list[int]) -> set[int] | None:
    """The tokens that may follow a text: asked of a matcher that has read nothing else; None: the
    text is outside.
    """
    if END in text:
        return {END}
    matcher: Any = constraint._fresh.deep_copy()
    if matcher.try_consume_tokens(text) < len(text):
        return None
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return set(bits.nonzero()[0].tolist())


def logits_after(lm: Any, tokens: list[int]) -> Any:
    """Of the next token."""
    with torch.inference_mode():
        cache_ = lm.new_cache(1, len(tokens) + 1)
        lm.prefill(tokens[:-1], cache_.row(0))
        return lm(Tree.root(torch.tensor([tokens[-1]])), cache_)[0, 0].float()


def constrained(sampler: Sampler, kind: str = "schema") -> Sampler:
    return replace(sampler, constraint=grammar(kind))


def plain(
    sampler: Sampler, lengths: tuple[int, ...], new: int, kind: str, model: str = "llama"
) -> list[list[int]]:
    return generate(
        tiny.target(model),
        tiny.prompts(*lengths),
        max_new_tokens=new,
        sampler=constrained(sampler, kind),
        seed=11,
        eos=(END,),
    )


def rows_of(prompt: list[int], text: list[int]) -> Rows:
    """One row that has generated this text."""
    tokens = torch.zeros(1, len(prompt) + len(text) + 64, dtype=torch.long)
    tokens[0, : len(prompt) + len(text)] = torch.tensor(prompt + text)
    length = torch.tensor([len(prompt)])
    rows = Rows(tokens, length, torch.tensor([len(text) + 64]), torch.tensor([5]), [(END,)])
    rows.length = torch.tensor([len(prompt) + len(text)])
    return rows
