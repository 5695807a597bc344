"""Constraints for one model: requests become grammars of its tokenizer's tokens."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark
from llguidance.hf import from_tokenizer

from longdraft.constraints.enforceable import enforceable, relaxed
from longdraft.constraints.grammar import Grammar, first_line
from longdraft.constraints.one_of import as_any_of
from longdraft.constraints.progress import RecentRows
from longdraft.errors import InputError

# JSON is written as Python's json.dumps writes it: where nothing but whitespace is free, nothing
# is, so keys and punctuation are forced, and no text can go on with whitespace forever.
EXACT: Any = {"whitespace_flexible": False, "lenient": False, "coerce_one_of": False}
SPACED: Any = EXACT | {"item_separator": ", ", "key_separator": ": "}
COMPACT: Any = EXACT | {"item_separator": ",", "key_separator": ":"}
FREE: Any = EXACT | {"whitespace_flexible": True, "whitespace_pattern": r"[ \n\t]{0,20}"}
OBJECT = {"type": "object"}
KEPT = 64  # compiled constraints
MAX_GRAMMAR = 1 << 20  # characters of a schema, an expression or a grammar
MOST_CHOICES = 10_000


class Constraints:
    """Makes constraints for texts of one tokenizer.

    The same request gives the same object while it is kept.

    Grammars are matched by llguidance. Building takes about a second for a large vocabulary. May be
    used from several threads. Raises InputError where the tokenizer is none of the `tokenizers`
    library.
    """

    def __init__(self, tokenizer: Any, vocab: int, ends: tuple[int, ...]):
        """vocab: the number of the model's logits. ends: its end tokens, the usual one first."""
        self.ends = _usual_first(ends, getattr(tokenizer, "eos_token_id", None))
        self._words = _words(tokenizer, vocab, self.ends)
        self._made = OrderedDict[str, Grammar]()
        self._lock = Lock()
        self._recent = RecentRows()

    @staticmethod
    def of(target: Any, tokenizer: Any) -> Constraints:
        """The constraints of a model that `load` has loaded, with its tokenizer."""
        return Constraints(tokenizer, target.vocab, target.end_tokens)

    def json_schema(self, schema: dict[str, Any] | bool | str, compact: bool = False) -> Grammar:
        """JSON that is valid by this schema (text: the schema's JSON), on one line.

        Spaces follow commas and colons, unless `compact`. Raises InputError for a schema that is
        none, or that has a keyword which cannot be enforced: nothing of it is ignored. Such a part
        of an `anyOf` is left out.
        """
        return self._make(
            "the JSON schema", _of_schema(read_schema(schema), COMPACT if compact else SPACED)
        )

    def json_object(self, compact: bool = False) -> Grammar:
        """Any JSON object, with line breaks and spaces where the model wants them.

        `compact`: without them. No key is forced here, and a model that wants a line break after
        the brace would otherwise write {}.
        """
        return self._make("the JSON object", _of_schema(OBJECT, COMPACT if compact else FREE))

    def regex(self, pattern: str) -> Grammar:
        """Text that an expression of Rust's `regex` matches from its beginning to its end.

        There is no look-around.
        """
        return self._make("the regular expression", LLMatcher.grammar_from_regex(pattern))

    def choice(self, choices: Sequence[str]) -> Grammar:
        """One of these texts."""
        if not choices or any(not isinstance(text, str) or not text for text in choices):
            raise InputError("the choices must be a list of texts, none of them empty")
        if len(choices) > MOST_CHOICES:
            raise InputError(f"{len(choices)} choices are too many: give at most {MOST_CHOICES}")
        rule = f"start: {' | '.join(map(literal, choices))}"
        return self._make("the choices", LLMatcher.grammar_from_lark(rule))

    def grammar(self, text: str) -> Grammar:
        """Text of a context-free grammar, in Lark's notation or in GBNF (llama.cpp's EBNF)."""
        try:
            lark = any_to_lark(text)
        except Exception as error:  # each parser has its own
            raise InputError(f"the grammar cannot be read: {first_line(str(error))}") from None
        return self._make("the grammar", LLMatcher.grammar_from_lark(lark))

    def lark(self, text: str, about: str = "the grammar") -> Grammar:
        """Text of a grammar in llguidance's variant of Lark.

        It can contain JSON schemas and special tokens.
        """
        return self._make(about, LLMatcher.grammar_from_lark(text))

    def forget(self) -> None:
        """Compile everything again.

        A kept matcher also keeps its results, which would distort measurements.
        """
        with self._lock:
            self._made.clear()

    def _make(self, about: str, text: str) -> Grammar:
        """The constraint for a grammar.

        text: a grammar in Lark's notation, or llguidance's JSON.
        """
        if len(text) > MAX_GRAMMAR:
            raise InputError(f"{about} has {len(text)} characters: give at most {MAX_GRAMMAR}")
        with self._lock:
            made = self._made.pop(text, None)
        if made is None:
            made = Grammar(
                LLMatcher(self._words, text, log_level=0), self.ends, about, self._recent
            )
        with self._lock:
            made = self._made.setdefault(text, made)
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return made


def _usual_first(ends: tuple[int, ...], usual: int | None) -> tuple[int, ...]:
    return tuple(sorted(ends, key=lambda token: token != usual))


def _words(tokenizer: Any, vocab: int, ends: tuple[int, ...]) -> Any:
    """The vocabulary in llguidance's form."""
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise InputError(
            "constraints need a tokenizer with a tokenizer.json, and this model has none"
        )
    try:
        return from_tokenizer(
            tokenizer, n_vocab=max(vocab, len(tokenizer)), eos_token=list(ends) or None
        )
    except Exception as error:  # the library raises several kinds, some of them bare
        raise InputError(
            f"constraints cannot be used with this model's tokenizer: {first_line(str(error))}"
        ) from None


def read_schema(schema: Any) -> dict[str, Any] | bool:
    """A JSON schema, which may be given as JSON.

    Raises InputError.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the JSON schema is not JSON: {first_line(str(error))}") from None
    if not isinstance(schema, dict | bool):
        raise InputError("the JSON schema is neither an object nor a boolean: give a JSON Schema")
    return schema


def json_rule(schema: dict[str, Any] | bool, compact: bool = False, lenient: bool = False) -> str:
    """JSON by this schema, in a grammar in Lark's notation.

    lenient: conditions that cannot be enforced are left out.
    """
    options = COMPACT if compact else SPACED
    if lenient:
        options = options | {"lenient": True}
    given: dict[str, Any] = {} if schema else {"enum": []}
    if isinstance(schema, dict):
        given = schema
    return f"%json {json.dumps(json.loads(_written(given, lenient)) | {'x-guidance': options})}"


def relaxed_schema(schema: dict[str, Any] | bool) -> tuple[dict[str, Any] | bool, list[str]]:
    """A schema without its keywords that cannot be enforced, and these keywords (see `relaxed`)."""
    return relaxed(schema, lambda part: _wrong(as_any_of(part)))


def object_rule(compact: bool = False) -> str:
    """Any JSON object (see Constraints.json_object), in a grammar in Lark's notation."""
    return f"%json {json.dumps(OBJECT | {'x-guidance': COMPACT if compact else FREE})}"


def literal(text: str) -> str:
    """This very text, in a grammar in Lark's notation."""
    return json.dumps(text)


def _of_schema(schema: dict[str, Any] | bool, options: Any) -> str:
    text: Any = _written(schema)
    return LLMatcher.grammar_from_json_schema(text, overrides=options)


def _written(schema: Any, lenient: bool = False) -> str:
    """The JSON of a schema that says the same, or less if only that can be enforced.

    See `enforceable`.
    """
    try:
        return _enforceable(json.dumps(as_any_of(schema)), lenient)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the JSON schema cannot be written as JSON: {first_line(str(error))}"
        ) from None


@lru_cache(KEPT)
def _enforceable(text: str, lenient: bool) -> str:
    return json.dumps(enforceable(json.loads(text), partial(_wrong, lenient=lenient)))


def _wrong(schema: Any, lenient: bool = False) -> str:
    """The reason why a schema cannot be enforced; empty: it can."""
    text: Any = json.dumps(schema)
    return LLMatcher.validate_grammar(
        LLMatcher.grammar_from_json_schema(text, overrides=EXACT | {"lenient": lenient})
    )
