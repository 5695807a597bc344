"""The text that the demo decodes: an answer about a source file or Python's documentation, or
source code that goes on.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdraft.errors import InputError

# Long topics of `help()`, which every Python has, one after another until there are enough tokens.
TOPICS = (
    "with",
    "try",
    "exceptions",
    "for",
    "while",
    "function",
    "class",
    "assignment",
    "import",
    "numeric-types",
)
TOPICS += (
    "sequence-types",
    "callable-types",
    "strings",
    "naming",
    "attribute-access",
    "typesseq",
    "specialnames",
)
QUESTION = "What does the with statement do? Explain it to a beginner."
FILE = Path(textwrap.__file__)
METHOD = "_handle_long_word"
CHANGE = (
    f"Write the method `{METHOD}` again, with type hints and without its docstring. Then "
    "explain it in two sentences."
)


@dataclass(frozen=True)
class Scene:
    """A prompt of token ids, what it is in one line, and how it is decoded.

    methods: those shown after plain decoding, which is first. sampling: arguments of Sampler. ends:
    whether the output ends at the model's end tokens.
    """

    prompt: list[int]
    about: str
    methods: tuple[str, ...]
    sampling: dict[str, Any]
    ends: bool


def scene(tokenizer: Any, context: int | None, coder: bool) -> Scene:
    """A question if the model has a chat template (coder: about code), else source code. Raises
    InputError.

    context: tokens of the text.
    """
    from longdraft.models.chat import has_template

    if not has_template(tokenizer):
        return source_code(tokenizer, context or 16384)
    return change(tokenizer, context) if coder else question(tokenizer, context or 6500)


def change(tokenizer: Any, context: int | None) -> Scene:
    """A file of the standard library, of which one method is to be changed; its first `context`
    tokens, if given.
    """
    text, size = _beginning(tokenizer, FILE.read_text(encoding="utf-8"), context)
    about = f"{size} tokens of {FILE.name} of this Python's standard library, then: {CHANGE}"
    prompt = _asked(tokenizer, f"This is the file {FILE.name}:\n\n```python\n{text}\n```", CHANGE)
    return Scene(prompt, about, ("suffix", "vegas"), {"temperature": 0.0}, ends=True)


def question(tokenizer: Any, context: int) -> Scene:
    """A question about the first `context` tokens of Python's documentation, in the model's chat
    template.
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name].strip() for name in TOPICS if name in topics)
    text, size = _beginning(tokenizer, text, context)
    about = f"{size} tokens of this Python's documentation, then: {QUESTION}"
    # greedy, a small model repeats itself
    sampling = {
        "temperature": 0.3,
        "top_p": 0.9,
        "penalty": 1.1,
    }
    return Scene(
        _asked(tokenizer, text, QUESTION), about, ("vegas", "magicdec-stream"), sampling, ends=True
    )


def _beginning(tokenizer: Any, text: str, context: int | None) -> tuple[str, int]:
    """The text's first `context` tokens, and how many they are; all of it for None. Raises
    InputError.
    """
    from longdraft.models.text import token_ids

    ids = token_ids(tokenizer, text, add_special_tokens=False)
    if context is None:
        return text, len(ids)
    if len(ids) < context:
        raise InputError(f"the text has {len(ids)} tokens, not {context}: give a shorter --context")
    return tokenizer.decode(ids[:context], clean_up_tokenization_spaces=False), context


def _asked(tokenizer: Any, text: str, question: str) -> list[int]:
    """A prompt in the model's chat template."""
    from longdraft.models.chat import chat_tokens

    return chat_tokens(tokenizer, [{"role": "user", "content": f"{text}\n\n{question}"}])


def source_code(tokenizer: Any, context: int) -> Scene:
    """`context` tokens of the standard library, continued greedily."""
    from longdraft.bench.inputs import stdlib_prompt

    ids, files = stdlib_prompt(tokenizer, context)
    about = f"{context} tokens of source code of this Python's standard library: {', '.join(files)}"
    return Scene(ids, about, ("vegas", "lookup"), {"temperature": 0.0}, ends=False)
