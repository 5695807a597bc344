"""Builds a tokenizer from the metadata of a GGUF file.

Byte-level BPE ("gpt2"), SentencePiece BPE ("llama") or SentencePiece unigrams ("t5").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from longdraft.errors import InputError
from longdraft.models.gguf.file import AGAIN, GGUF
from longdraft.models.gguf.marks import CONTROL, KEY, USER_DEFINED, retyped
from longdraft.models.gguf.splitting import splitting_of

MAX_TOKEN = 1 << 10  # characters; the pairs of a longer token are not searched
SPACE = "▁"  # how SentencePiece writes it
UNKNOWN = 2  # a type of tokens
TEMPLATE = "tokenizer.chat_template"
OWN_TOOLS = "parameter_definitions"
SPACED = ("<unk>", "<s>", "<|endoftext|>")  # those of Phi-3 that keep the spaces after them


def build(file: GGUF) -> PreTrainedTokenizerFast:
    """The file's tokenizer with its special tokens and chat template. Raises InputError."""
    tokens = _texts(file, "tokens")
    if tokens is None:
        raise InputError(f"{file.path} has no tokenizer ({KEY}tokens): use a file with a tokenizer")
    if len(set(tokens)) != len(tokens):
        raise InputError(f"{file.path}: its tokenizer has the same token twice: {AGAIN}")
    kind = file.required(f"{KEY}model", str)
    makers = {"gpt2": _byte_level, "llama": _sentencepiece, "t5": _unigrams}
    if kind not in makers:
        known = ", ".join(makers)
        raise InputError(
            f"{file.path} has a tokenizer of the kind {kind[:40]!r}: use a model with one "
            f"of {known}"
        )
    made, begins = makers[kind](file, tokens)
    _add_special(file, made, tokens)
    named = {name: _named(file, tokens, name) for name in ("bos", "eos", "unknown", "padding")}
    ends = _ends(file, named, begins, ends=kind == "t5")
    if ends is not None:
        made.post_processor = ends
    words = {"unknown": "unk_token", "padding": "pad_token", "bos": "bos_token", "eos": "eos_token"}
    options: dict[str, Any] = {
        words[name]: token for name, token in named.items() if token is not None
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=Uncopied(made),
        chat_template=chat_template(file),
        clean_up_tokenization_spaces=False,
        **options,
    )


def chat_template(file: GGUF) -> str | dict[str, str] | None:
    """The file's chat template, or its templates by name if there are several.

    Of these, Transformers chooses `tool_use` for requests with tools, and else `default`. Raises
    InputError.
    """
    names = {"default", "tool_use", *file.get("tokenizer.chat_templates", list, [])}
    named = {name: file.get(f"{TEMPLATE}.{name}", str) for name in sorted(names, key=str)}
    named["default"] = file.get(TEMPLATE, str, named["default"])
    # an early one for tools in a form of its own, which no client sends
    if OWN_TOOLS in (tools := named["tool_use"] or "") and "function" not in tools:
        named["tool_use"] = None
    known = {str(name): text for name, text in named.items() if text}
    if known.keys() <= {"default"}:
        return known.get("default")
    return known if "default" in known or "tool_use" in known else None


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


def _byte_level(file: GGUF, tokens: list[str]) -> tuple[Tokenizer, bool]:
    splitting = splitting_of(file)
    merges = _merges(file)
    if splitting.ranked and not merges:
        merges = merges_of(tokens, [-i for i in range(len(tokens))])
    made = _model(file, tokens, merges, ignore_merges=splitting.whole)
    made.normalizer = splitting.normalizer()
    made.pre_tokenizer = splitting.pre_tokenizer()
    made.decoder = decoders.ByteLevel()
    return made, splitting.begins


def _sentencepiece(file: GGUF, tokens: list[str]) -> tuple[Tokenizer, bool]:
    merges = _merges(file) or merges_of(tokens, _scores(file, tokens, f"{KEY}merges nor "))
    unknown = _unknown(file, tokens)
    made = _model(file, tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    space = file.get(f"{KEY}add_space_prefix", bool, True)
    made.normalizer = normalizers.Replace(" ", SPACE)
    # Metaspace adds no space to a text that begins with one, but this one sees marks in its place.
    first = [pre_tokenizers.Metaspace(" ", "first", split=False)] if space else []
    last = pre_tokenizers.Metaspace(SPACE, "never", split=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*first, last])
    made.decoder = _spaced(space)
    return made, True


def _unigrams(file: GGUF, tokens: list[str]) -> tuple[Tokenizer, bool]:
    scores = _scores(file, tokens)
    unknown = _unknown(file, tokens)
    if unknown is None:
        raise InputError(f"{file.path} has no unknown token, which its tokenizer needs: {AGAIN}")
    pieces = list(zip(tokens, scores, strict=True))
    made = Tokenizer(models.Unigram(pieces, tokens.index(unknown), byte_fallback=False))
    steps: list[Any] = []
    charsmap = file.get(f"{KEY}precompiled_charsmap", np.ndarray)
    if charsmap is not None:
        steps.append(_charsmap(file, charsmap))
    if file.get(f"{KEY}remove_extra_whitespaces", bool, False):
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    space = file.get(f"{KEY}add_space_prefix", bool, True)
    steps += [normalizers.Prepend(SPACE)] if space else []
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    made.decoder = _spaced(space)
    return made, False


def _charsmap(file: GGUF, charsmap: np.ndarray) -> normalizers.Normalizer:
    try:
        return normalizers.Precompiled(charsmap.astype(np.uint8).tobytes())
    except Exception as error:
        raise InputError(
            f"{file.path}: {KEY}precompiled_charsmap is damaged ({str(error)[:80]}): {AGAIN}"
        ) from None


def _spaced(space: bool) -> Any:
    """Decodes pieces whose spaces are marks; space: without the one that encoding adds."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if space else steps)


def _scores(file: GGUF, tokens: list[str], other: str = "") -> list[float]:
    scores = _numbers(file, "scores", len(tokens))
    if scores is None:
        lacks = f"neither {other}" if other else "no "
        raise InputError(f"{file.path} has {lacks}{KEY}scores: {AGAIN}")
    return scores


def _unknown(file: GGUF, tokens: list[str]) -> str | None:
    """The token for what no other can spell: the named one, or the first of that type."""
    named = _named(file, tokens, "unknown")
    kinds = _numbers(file, "token_type", len(tokens)) or []
    return tokens[kinds.index(UNKNOWN)] if named is None and UNKNOWN in kinds else named


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
    stripping = _stripping(file)
    made.add_special_tokens([_added(t, True, stripping) for t in tokens if t in control])
    made.add_tokens([_added(t, False, stripping) for t in tokens if t in own])


def _stripping(file: GGUF) -> bool:
    """Whether control tokens take the spaces and line breaks after them, as Phi-3 was trained."""
    of_phi = file.get("general.architecture", str) == "phi3"
    return of_phi and file.get(f"{KEY}model", str) == "llama"


def _added(token: str, special: bool, stripping: bool) -> AddedToken:
    rstrip = stripping and token not in SPACED
    return AddedToken(token, normalized=False, special=special, rstrip=rstrip)


def _ends(file: GGUF, named: dict[str, str | None], begins: bool, ends: bool) -> Any | None:
    """A processor that adds the begin- and end-of-text tokens that the file asks for.

    begins, ends: whether it adds them where the file does not say.
    """
    first = named["bos"] if file.get(f"{KEY}add_bos_token", bool, begins) else None
    last = named["eos"] if file.get(f"{KEY}add_eos_token", bool, ends) else None
    if first is None and last is None:
        return None
    parts = [*([first] if first else []), "$A", *([last] if last else [])]
    ids = [
        (word, file.metadata[f"{KEY}{name}_token_id"])
        for name, word in (("bos", first), ("eos", last))
        if word
    ]
    return processors.TemplateProcessing(single=parts, pair=[*parts, "$B:1"], special_tokens=ids)
