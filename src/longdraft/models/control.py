"""Control tokens, such as <|im_end|>, and reading texts that contain exactly the intended ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from unicodedata import category
from weakref import WeakKeyDictionary

from tokenizers import AddedToken, Tokenizer, models

from longdraft.errors import InputError

# noncharacters, which Unicode keeps for the inside of programs: no text has them
OPEN = "\ufdd0"
CLOSE = "\ufdd1"
WORDS = "LMNZ"  # categories of letters, marks, numbers and spaces
KEPT: WeakKeyDictionary[Any, tuple[dict[int, str], Control]] = WeakKeyDictionary()


class Control:
    """A tokenizer's control tokens, and a copy of it that reads only respelled ones.

    In the copy each of them is spelled OPEN id CLOSE.
    The copy cannot make a control token of any other text: not as an added token, an entry of the
    vocabulary or the result of a merge. (The unknown token is the exception: it stands for
    characters that the vocabulary lacks.)
    Neither it nor the given tokenizer is changed later, so all threads may use it.
    """

    def __init__(self, tokenizer: Tokenizer):
        made = json.loads(tokenizer.to_str())
        ids = {token["content"]: token["id"] for token in made["added_tokens"] if is_control(token)}
        self.names = {f"{OPEN}{id}{CLOSE}": id for id in ids.values()}
        self.spelling = {text: f"{OPEN}{id}{CLOSE}" for text, id in ids.items()}
        self.characters = sorted(set("".join(ids)))
        self.unknown = tokenizer.token_to_id(made["model"].get("unk_token") or "")
        self.respell = lru_cache(1024)(self._respell)
        longest = sorted(ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        self._finder = Tokenizer(models.WordLevel({OPEN: 0}, unk_token=OPEN))
        self._finder.add_tokens([AddedToken(text, normalized=False) for text in longest])
        self._reader = _respelled(made, self.spelling)
        if any(self._reader.token_to_id(name) != id for name, id in self.names.items()):
            raise InputError(
                "this model's tokenizer changes the ids of special tokens when it is "
                "saved: save it again"
            )

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """The spans of a text that spell a control token: begin and end, in characters."""
        encoded = self._finder.encode_batch([text], add_special_tokens=False)[0]
        return (span for id, span in zip(encoded.ids, encoded.offsets, strict=True) if id)

    def _respell(self, text: str) -> str:
        """A text of the template itself, with its control tokens respelled."""
        return self._pattern.sub(lambda match: self.spelling[match[0]], text)

    def read(self, text: str) -> list[int]:
        """The ids of a text in which control tokens are respelled.

        Raises InputError if others would appear.
        """
        ids = self._reader.encode_batch([text], add_special_tokens=False)[0].ids
        wanted = [self.names[name] for name in re.findall(f"{OPEN}[0-9]+{CLOSE}", text)]
        control = set(self.names.values()) - {self.unknown}
        if [id for id in ids if id in control] != [id for id in wanted if id in control]:
            raise InputError(
                "this model's tokenizer cannot keep control tokens apart from text: use "
                "`longdraft generate`"
            )
        return ids


def is_control(token: dict[str, Any]) -> bool:
    """Whether an added token steers the model.

    It is marked special, or is not made of letters, digits and spaces. Tokens that are not marked
    can do so too (<think>, <｜User｜>); words and spaces that were added are vocabulary.
    """
    text = token["content"].replace("▁", " ")
    return token["special"] or not all(
        char.isspace() or category(char)[0] in WORDS for char in text
    )


def control_of(tokenizer: Any) -> Control:
    """The control tokens of a tokenizer; built once, and again after tokens were added.

    Raises InputError.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise InputError(
            "this model's tokenizer has no tokenizer.json, so messages could contain control "
            "tokens: use `longdraft generate`"
        )
    now = {id: token.content for id, token in backend.get_added_tokens_decoder().items()}
    known = KEPT.get(tokenizer)
    if known is None or known[0] != now:
        known = now, Control(backend)
        KEPT[tokenizer] = known
    return known[1]


def _respelled(made: dict[str, Any], spelling: dict[str, str]) -> Tokenizer:
    """A tokenizer from its JSON with other names for some tokens.

    The merges that make those tokens are left out.
    """
    model = made["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {spelling.get(text, text): id for text, id in vocab.items()}
    else:
        model["vocab"] = [[spelling.get(text, text), score] for text, score in vocab]
    if "merges" in model:
        model["merges"] = [
            [a, b] for a, b in model["merges"] if spelling.keys().isdisjoint((a, b, a + b))
        ]
    if model.get("unk_token") in spelling:
        model["unk_token"] = spelling[model["unk_token"]]
    for token in made["added_tokens"]:
        if token["content"] in spelling:
            token.update(content=spelling[token["content"]], single_word=False)
    return Tokenizer.from_str(json.dumps(made | {"truncation": None, "padding": None}))
