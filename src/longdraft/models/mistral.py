"""Repairs Mistral's Tekken tokenizers in folders that split text by another model's rule.

Many folders have such a tokenizer.json. Such a folder reads `'The` as `'T` and `he`. Transformers
warns of every large vocabulary in a folder of Mistral's that an older version wrote, right or
wrong, and of no other.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

from longdraft.models.gguf.splitting import TEKKEN
from longdraft.models.text import CHARACTERS

KINDS = ("mistral", "ministral", "pixtral", "voxtral")  # how the model types begin
FIRST = ("<unk>", "<s>", "</s>")  # Tekken's first tokens
BYTES = 1000  # where its 256 bytes begin, in order
LOGGER = "transformers.tokenization_utils_tokenizers"
NOTE = (
    "the tokenizer of {} splits text by another rule than Mistral's Tekken: longdraft uses Tekken's"
)
WARNING = "incorrect regex pattern"


def mend(tokenizer: Any, kind: str) -> bool | None:
    """Let a tokenizer of this model type split text as Tekken does.

    True: it did not; None: it is not Tekken's.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not kind.startswith(KINDS) or not isinstance(backend, Tokenizer) or not _is_tekken(backend):
        return None
    split = pre_tokenizers.Split(Regex(TEKKEN), "isolated")
    right = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if backend.pre_tokenizer is not None and _splits(backend.pre_tokenizer) == _splits(right):
        return False
    backend.pre_tokenizer = right
    backend.decoder = decoders.ByteLevel()
    return True


@contextmanager
def warnings_held() -> Iterator[list[logging.LogRecord]]:
    """Keeps Transformers' warnings of the rule, which `say` gives out."""
    held: list[logging.LogRecord] = []

    def keep(record: logging.LogRecord) -> bool:
        concerned = WARNING in record.getMessage()
        if concerned:
            held.append(record)
        return not concerned

    logger = logging.getLogger(LOGGER)
    logger.addFilter(keep)
    try:
        yield held
    finally:
        logger.removeFilter(keep)


def say(held: list[logging.LogRecord]) -> None:
    for record in held:
        logging.getLogger(LOGGER).handle(record)


def _is_tekken(backend: Tokenizer) -> bool:
    names = {**dict(enumerate(FIRST)), **{BYTES + byte: name for name, byte in CHARACTERS.items()}}
    return all(backend.id_to_token(i) == name for i, name in names.items())


def _splits(pre_tokenizer: Any) -> list[tuple[str, Any]]:
    """Its parts, with the rule by which each of them splits."""
    made = json.loads(pre_tokenizer.__getstate__())
    parts = made.get("pretokenizers", [made])
    return [(part["type"], part.get("pattern", part.get("use_regex"))) for part in parts]
