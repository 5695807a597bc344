"""Chat templates with the traits of published ones, each beside a plain program that says who wrote
what; and tokenizers, each with another way for a text to become a control token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = [
    "<s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|system|>",
    "[INST]",
    "[/INST]",
]
# control tokens that are not marked special
UNMARKED = [
    "<think>",
    "</think>",
    "<tool_call>",
    "<｜end▁of▁turn｜>",
]
CONTROL = SPECIAL + UNMARKED
Piece = tuple[str, bool]  # a text, and whether the template itself wrote it
Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None


# Templates ----------------------------------------------------------------------------------------

FIELDS = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m.name %}{{ m.name }}{% endif %}{% if m.tool_call_id %}{{ m.tool_call_id }}{% endif %}"
    "{{ m['content'] + '<|im_end|>' }}{% endfor %}{% if tools %}{{ "
    "tools[0].function.description }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


def fields(messages: Messages, tools: Tools) -> Iterator[Piece]:
    """Fields side by side, as ChatML writes them: two halves can meet."""
    yield "<s>", True
    for m in messages:
        yield f"<|im_start|>{m['role']}\n", True
        yield m.get("name", "") + m.get("tool_call_id", "") + m["content"], False
        yield "<|im_end|>", True
    if tools:
        yield tools[0]["function"]["description"], False
    yield "<|im_start|>assistant", True


THINKING = (
    "{%- for m in messages %}{% set text = m.content %}{% set thought = '' %}"
    "{% if m.role == 'assistant' and '</think>' in text %}"
    "{% set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "<|{{ m.role }}|>{% if thought %}{{ '<think>' ~ thought ~ '</think>' }}{% endif %}{{ "
    "text }}<｜end▁of▁turn｜>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)


def thinking(messages: Messages, tools: Tools) -> Iterator[Piece]:
    """The thoughts of an answer are cut out and written anew; the tokens of roles are put together
    from parts.
    """
    for m in messages:
        text = m["content"]
        thought = ""
        if m["role"] == "assistant" and "</think>" in text:
            thought = text.split("</think>")[0].split("<think>")[-1].strip("\n")
            text = text.split("</think>")[-1].lstrip("\n")
        yield f"<|{m['role']}|>", True
        if thought:
            yield from (("<think>", True), (thought, False), ("</think>", True))
        yield text, False
        yield "<｜end▁of▁turn｜>", True
    yield "<|assistant|><think>", True


TOOLS = (
    "{{ bos_token }}{% if tools %}[INST]{{ tools | tojson }}"
    "{% for key, about in tools[0].function.parameters.items() %}<{{ key }}>{{ about "
    "}}</{{ key }}>{% endfor %}"
    "[/INST]{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]{% else %}{{ m.content "
    "| trim }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) }}{% endfor "
    "%}{% endfor %}"
)


def listed(messages: Messages, tools: Tools) -> Iterator[Piece]:
    """Contents are trimmed, tools are JSON, and the names of parameters become tags."""
    yield "<s>", True
    if tools:
        yield "[INST]", True
        yield json.dumps(tools, ensure_ascii=False), False
        for key, about in tools[0]["function"]["parameters"].items():
            yield from (
                ("<", True),
                (key, False),
                (">", True),
                (about, False),
                ("</", True),
                (key, False),
                (">", True),
            )
        yield "[/INST]", True
    for m in messages:
        around = ("[INST] ", " [/INST]") if m["role"] == "user" else ("", "")
        yield from ((around[0], True), (m["content"].strip(), False), (around[1], True))
        for call in m.get("tool_calls", ()):
            yield "<tool_call>", True
            yield json.dumps(call["function"], ensure_ascii=False), False


TWICE = (
    "{% macro turn(role, text) %}{% set ns = namespace(said='<|' + role + '|>') %}{{ "
    "ns.said }}{{ text }}{% endmacro %}"
    "{% for m in messages %}{% set written = turn(m.role, m.content) %}{{ written }}"
    "{% if written == '<|user|>again' or written.startswith('<|system|>') %}<|im_end|>{% endif %}"
    "{{ '[%s]' % m.content }}{{ '[{}]'.format(m.content) }}{{ turn(m.role, m.content) }}{% "
    "endfor %}"
)


def twice(messages: Messages, tools: Tools) -> Iterator[Piece]:
    """Contents are written four times, by a macro whose text the template compares with its own."""
    for m in messages:
        role = m["role"]
        text = m["content"]
        yield from ((f"<|{role}|>", True), (text, False))
        if role == "system" or (role, text) == ("user", "again"):
            yield "<|im_end|>", True
        yield from ((f"[{text}][{text}]", False), (f"<|{role}|>", True), (text, False))


TEMPLATES: dict[str, tuple[str, Callable[[Messages, Tools], Iterator[Piece]]]] = {
    "fields": (FIELDS, fields),
    "thinking": (THINKING, thinking),
    "tools": (TOOLS, listed),
    "twice": (TWICE, twice),
}


# Tokenizers ---------------------------------------------------------------------------------------


def _made(
    tokenizer: Tokenizer,
    special: Sequence[str] = SPECIAL,
    unmarked: Sequence[str] = UNMARKED,
    normalized: bool = False,
) -> PreTrainedTokenizerFast:
    """With control tokens, the first and the last special ones as those of the beginning and the
    end, and vocabulary that was added later.
    """
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=normalized) for token in unmarked])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ("  ", "naive")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[-1]
    )


def byte_level(
    special: Sequence[str] = SPECIAL, unmarked: Sequence[str] = UNMARKED
) -> PreTrainedTokenizerFast:
    """Bytes, some merges, and control tokens beside the vocabulary, as GPT-2, Llama 3 and Qwen have
    them.
    """
    pairs = [("i", "n"), ("<", "|"), ("|", ">"), ("Ġ", "t"), ("Ċ", "Ċ")]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in pairs)]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs))
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    return _made(made, special, unmarked)


def folding() -> PreTrainedTokenizerFast:
    """Control tokens that are looked for in a folded text: full-width signs and capitals become
    theirs.
    """
    made = Tokenizer(byte_level().backend_tokenizer.model)
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    return _made(made, normalized=True)


def merging() -> PreTrainedTokenizerFast:
    """Control tokens in the vocabulary, and merges that make two of them, as files of SentencePiece
    models have.
    """
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    words = [
        "<unk>",
        *CONTROL,
        *bytes_,
        "▁",
        *map(chr, range(33, 127)),
        "é",
        "<s",
        "k>",
        "think",
        "<think",
        "<thin",
    ]
    pairs = [("<", "s"), ("<s", ">"), ("k", ">"), ("<thin", "k>")]
    steps = [("t", "h"), ("th", "i"), ("thi", "n"), ("<", "thin")]
    words += [a + b for a, b in steps]
    model = models.BPE(
        {w: i for i, w in enumerate(dict.fromkeys(words))},
        steps + pairs,
        unk_token="<unk>",
        byte_fallback=True,
    )
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _made(made)


def unigram() -> PreTrainedTokenizerFast:
    """Control tokens that are pieces of the vocabulary, and likelier than their letters."""
    pieces = [
        ("<unk>", 0.0),
        *((t, 0.0) for t in CONTROL),
        *((c, -5.0) for c in ["▁", *map(chr, range(33, 127))]),
    ]
    made = Tokenizer(models.Unigram(pieces, 0))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _made(made)


TOKENIZERS = {f.__name__: cache(f) for f in (byte_level, folding, merging, unigram)}
