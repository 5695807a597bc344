"""Whether llama.cpp and longdraft read the same tokens from texts, by a GGUF file's tokenizer.

    python benchmarks/gguf_tokens.py FILE --url http://127.0.0.1:8080

At this address `llama-server -m FILE --port 8080` runs. Texts are random mixtures of words, digits,
signs, spaces and scripts. Those with other tokens are printed with the first difference. The exit
status is 1 if there are any: docs/models.md says which rules differ from llama.cpp's on purpose.
"""

from __future__ import annotations

import json
import random
import sys
import urllib.request
from itertools import zip_longest
from pathlib import Path
from typing import Any

from arguments import Arguments, at_least, status

from longdraft.errors import InputError
from longdraft.models.gguf import file as gguf
from longdraft.models.gguf import tokenizer as gguf_tokenizer

WORDS = ["a", "Z", "The", "hello", "WORLD", "iOS", "camelCase", "école", "É", "шШ"]
CONTRACTIONS = ["'s", "'T", "'ll"]
DIGITS = ["1", "23", "456", "7890", "٣", "½", "²"]
SIGNS = [*'.,!/_-(){}[]#$+=<|`~^%&@\\":;*', "?!", "。", "，", "“", "€", "🎉", "👍🏽"]
SPACES = [" ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000"]
SCRIPTS = ["日本", "中", "か", "カ", "한", "ก", "ا", "م", "े", "e\u0301", "ǅ", "ª", "ʰ", "々"]
ATOMS = [*WORDS, *CONTRACTIONS, *DIGITS, *SIGNS, *SPACES, *SCRIPTS]


def texts(count: int, seed: int) -> list[str]:
    g = random.Random(seed)
    return ["".join(g.choices(ATOMS, k=g.randint(1, 14))) for _ in range(count)]


def theirs(url: str, text: str) -> list[int]:
    """llama.cpp's tokens, without those that it adds at the ends."""
    body = {"content": text, "add_special": False, "parse_special": False}
    request = urllib.request.Request(
        f"{url.rstrip('/')}/tokenize",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["tokens"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"no server of llama.cpp answers at {url}: {error}") from None


def first_difference(tokenizer: Any, text: str, other: list[int]) -> str:
    """The tokens where both differ, as texts; empty: they are equal."""
    own = tokenizer.encode(text, add_special_tokens=False)
    pairs = zip_longest(own, other)
    differing = next(((a, b) for a, b in pairs if a != b), None)
    if differing is None:
        return ""
    a, b = ("nothing" if i is None else repr(tokenizer.decode([i])) for i in differing)
    return f"{a} here, {b} in llama.cpp"


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="the model, GGUF")
    parser.add_argument(
        "--url", required=True, metavar="URL", help="a server of llama.cpp with the same file"
    )
    parser.add_argument(
        "--mixtures", type=at_least(1), default=400, metavar="N", help="how many texts are compared"
    )
    parser.share("seed")
    return parser


def main(words: list[str] | None = None) -> int:
    given = options().parse(words)
    tokenizer = gguf_tokenizer.build(gguf.read(given.file))
    differing = 0
    for text in texts(given.mixtures, given.seed):
        found = first_difference(tokenizer, text, theirs(given.url, text))
        if found:
            differing += 1
            print(f"{text!r}: {found}")
    print(f"{differing} of {given.mixtures} texts have other tokens")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(status(main))
