"""llguidance and xgrammar behind one interface, llguidance's, for grammars.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np

from longdraft.constraints import Constraints
from longdraft.errors import InputError


class Engine(Protocol):
    """`compiled` compiles anew each time, and raises InputError for a schema that the engine
    refuses.
    """

    name: str
    version: str

    def compiled(self, schema: Any) -> Callable[[], Any]:
        """Makes matchers that have consumed nothing, as `Progress` needs them, and know nothing
        from one another.
        """
        ...


class LLGuidance:
    """As longdraft uses it."""

    name = "llguidance"

    def __init__(self, tokenizer: Any, vocab: int, ends: tuple[int, ...]):
        self.version = version("llguidance")
        self._constraints = Constraints(tokenizer, vocab, ends)

    def compiled(self, schema: Any) -> Callable[[], Any]:
        def new() -> Any:
            # a matcher's lexer keeps what it has computed, and copies share it
            self._constraints.forget()
            return self._constraints.json_schema(schema).matcher()

        new()
        return new


class XGrammar:
    """With the same spaces as longdraft's, and otherwise its own defaults."""

    name = "xgrammar"

    def __init__(self, tokenizer: Any, vocab: int, ends: tuple[int, ...]):
        try:
            import xgrammar  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise InputError(
                "--engines has xgrammar, which is not installed: pip install xgrammar"
            ) from None
        self.version = version("xgrammar")
        self._library = xgrammar
        self._vocab = vocab
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocab, stop_token_ids=list(ends)
        )
        self._compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)

    def compiled(self, schema: Any) -> Callable[[], Any]:
        try:
            grammar = self._compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)
        except (RuntimeError, ValueError) as error:
            raise InputError(" ".join(str(error).split())[:200]) from None
        return lambda: XMatcher(self._library, grammar, self._vocab)


class XMatcher:
    """xgrammar's matcher with the methods of llguidance's that masks need."""

    def __init__(self, library: Any, grammar: Any, vocab: int):
        self._matcher = library.GrammarMatcher(grammar)
        self._bits = np.zeros((1, -(-vocab // 32)), np.int32)
        self._every = np.full_like(self._bits, -1)

    def compute_bitmask(self) -> bytes:
        needed = self._matcher.fill_next_token_bitmask(self._bits)
        return (self._bits if needed else self._every).tobytes()

    def try_consume_tokens(self, tokens: list[int]) -> int:
        return next(
            (i for i, token in enumerate(tokens) if not self._matcher.accept_token(token)),
            len(tokens),
        )

    def rollback(self, count: int) -> bool:
        self._matcher.rollback(count)
        return True

    def is_error(self) -> bool:
        return False

    def get_error(self) -> str:
        return ""


ENGINES: dict[str, Callable[[Any, int, tuple[int, ...]], Engine]] = {
    "llguidance": LLGuidance,
    "xgrammar": XGrammar,
}
