"""Builds a tokenizer from the metadata of a GGUF file.

Byte-level BPE ("gpt2") or SentencePiece BPE ("llama").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from longdraft.errors import InputError
from longdraft.models.gguf.file import AGAIN, GGUF
from longdraft.models.gguf.marks import CONTROL, KEY, USER_DEFINED, retyped

MAX_TOKEN = 1 << 10  # characters; the pairs of a longer token are not searched

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
# words that end where small letters are followed by capital ones
LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{LOWER}|{UPPER}|\p{{N}}|{SIGNS}"
GPT4O = rf"{LOWER}{CONTRACTIONS}?|{UPPER}{CONTRACTIONS}?|\p{{N}}{{1,3}}|{SIGNS}"
# How text is split before merges are applied, by the file's tokenizer.ggml.pre.
WORDS = ("default", "gpt-2", "jina-es", "jina-de", "olmo", "phi-2")  # GPT-2's rule
# the same, after each digit is split off
DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell")
PATTERNS = {
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "smaug-bpe", "dbrx"), LLAMA3
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), QWEN2),
    "tekken": TEKKEN,
    "gpt-4o": GPT4O,
}
# Here a word that is a token is never split, and begin-of-text is added unless the file states
# otherwise.
WHOLE = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"}


def build(file: GGUF) -> PreTrainedTokenizerFast:
    """The file's tokenizer with its special tokens and chat template. Raises InputError."""
    tokens = _texts(file, "tokens")
    if tokens is None:
        raise InputError(f"{file.path} has no tokenizer ({KEY}tokens): use a file with a tokenizer")
    if len(set(tokens)) != len(tokens):
        raise InputError(f"{file.path}: its tokenizer has the same token twice: {AGAIN}")
    kind = file.required(f"{KEY}model", str)
    pre = file.get(f"{KEY}pre", str, "default")
    makers = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in makers:
        known = " or ".join(makers)
        raise InputError(
            f"{file.path} has a tokenizer of the kind {kind[:40]!r}: use a model with one "
            f"of {known}"
        )
    made = makers[kind](file, tokens, pre)
    _add_special(file, made, tokens)
    named = {name: _named(file, tokens, name) for name in ("bos", "eos", "unknown", "padding")}
    ends = _ends(file, named, begins=kind == "llama" or pre in WHOLE)
    if ends is not None:
        made.post_processor = ends
    words = {"unknown": "unk_token", "padding": "pad_token", "bos": "bos_token", "eos": "eos_token"}
    options: dict[str, Any] = {
        words[name]: token for name, token in named.items() if token is not None
    }
    template = file.get("tokenizer.chat_template", str)
    return PreTrainedTokenizerFast(
        tokenizer_object=Uncopied(made),
        chat_template=template,
        clean_up_tokenization_spaces=False,
        **options,
    )


class Uncopied:
    """Gives a new tokenizer to Transformers, which would make a deep copy of it: by way of JSON,
    which takes about as long as building it.
    """

    def __init__(self, made: Tokenizer):
        self._made = made

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokenizer:
        return self._made


def _texts(file: GGUF, name: str) -> list[str] | None:
    texts = file.get(KEY + name, list)
    if texts is not None and not all(isinstance(text, str) for text in texts):
        raise InputError(f"{file.path}: {KEY}{name} is not a list of texts: {AGAIN}")
    return texts


def _numbers(file: GGUF, name: str, count: int) -> list[Any] | None:
    """One number per token."""
    numbers = file.get(KEY + name, np.ndarray)
    if numbers is not None and len(numbers) != count:
        raise InputError(
            f"{file.path}: {KEY}{name} has {len(numbers)} entries for {count} tokens: {AGAIN}"
        )
    return None if numbers is None else numbers.tolist()


def _named(file: GGUF, tokens: list[str], name: str) -> str | None:
    number = file.get(f"{KEY}{name}_token_id", int)
    if number is not None and not 0 <= number < len(tokens):
        raise InputError(
            f"{file.path}: its {name}_token_id is {number}, but it has {len(tokens)} "
            f"tokens: {AGAIN}"
        )
    return None if number is None else tokens[number]


def _model(
    file: GGUF, tokens: list[str], merges: list[tuple[str, str]], **options: Any
) -> Tokenizer:
    try:
        return Tokenizer(
            models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, **options)
        )
    except Exception as error:  # it checks that merges make tokens of tokens
        raise InputError(
            f"{file.path}: its merges do not fit its tokens ({str(error)[:80]}): {AGAIN}"
        ) from None


def _merges(file: GGUF) -> list[tuple[str, str]]:
    pairs = [merge.partition(" ") for merge in _texts(file, "merges") or []]
    if not all(a and b and " " not in b for a, _, b in pairs):
        raise InputError(f"{file.path}: {KEY}merges has entries that are not two tokens: {AGAIN}")
    return [(a, b) for a, _, b in pairs]


def _byte_level(file: GGUF, tokens: list[str], pre: str) -> Tokenizer:
    if pre not in WORDS + DIGITS and pre not in PATTERNS:
        known = ", ".join([*WORDS, *DIGITS, *PATTERNS])
        raise InputError(
            f"{file.path} splits text by the unknown rule {pre[:40]!r}: use a model with "
            f"one of {known}"
        )
    merges = _merges(file)
    made = _model(file, tokens, merges, ignore_merges=pre in WHOLE)
    pattern = PATTERNS.get(pre)
    split: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    split += [pre_tokenizers.Digits(individual_digits=True)] if pre in DIGITS else []
    split.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    made.pre_tokenizer = pre_tokenizers.Sequence(split)
    made.decoder = decoders.ByteLevel()
    return made


def _sentencepiece(file: GGUF, tokens: list[str], pre: str) -> Tokenizer:
    merges = _merges(file)
    if not merges:
        scores = _numbers(file, "scores", len(tokens))
        if scores is None:
            raise InputError(f"{file.path} has neither {KEY}merges nor {KEY}scores: {AGAIN}")
        merges = merges_of(tokens, scores)
    unknown = _named(file, tokens, "unknown")
    made = _model(file, tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    space = file.get(f"{KEY}add_space_prefix", bool, True)
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first" if space else "never", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if space else steps)
    return made


def merges_of(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """The pairs that make each token out of two others, the best token first.

    SentencePiece merges them in this order.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    ranked = []
    for token, score in zip(tokens, scores, strict=True):
        if len(token) > MAX_TOKEN:
            continue
        pairs = ((token[:i], token[i:]) for i in range(1, len(token)))
        known = sorted((ids[a], ids[b], a, b) for a, b in pairs if a in ids and b in ids)
        ranked += [(score, len(a), len(b), a, b) for _, _, a, b in known]
    ranked.sort(key=lambda pair: pair[:3], reverse=True)
    return [(a, b) for *_, a, b in ranked]


def _add_special(file: GGUF, made: Tokenizer, tokens: list[str]) -> None:
    kinds = _numbers(file, "token_type", len(tokens)) or []
    control = set(retyped(file))
    own = set[str]()
    for token, kind in zip(tokens, kinds, strict=False):
        if kind == CONTROL:
            control.add(token)
        elif kind == USER_DEFINED:
            own.add(token)
    own -= control
    made.add_special_tokens([_added(token, True) for token in tokens if token in control])
    made.add_tokens([_added(token, False) for token in tokens if token in own])


def _added(token: str, special: bool) -> AddedToken:
    return AddedToken(token, normalized=False, special=special)


def _ends(file: GGUF, named: dict[str, str | None], begins: bool) -> Any | None:
    """A processor that adds the begin- and end-of-text tokens that the file asks for."""
    first = named["bos"] if file.get(f"{KEY}add_bos_token", bool, begins) else None
    last = named["eos"] if file.get(f"{KEY}add_eos_token", bool, False) else None
    if first is None and last is None:
        return None
    parts = [*([first] if first else []), "$A", *([last] if last else [])]
    ids = [
        (word, file.metadata[f"{KEY}{name}_token_id"])
        for name, word in (("bos", first), ("eos", last))
        if word
    ]
    return processors.TemplateProcessing(single=parts, pair=[*parts, "$B:1"], special_tokens=ids)
