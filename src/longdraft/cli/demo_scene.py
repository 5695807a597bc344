"""What the demo decodes: an answer about Python's documentation, or source code that goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longdraft.errors import InputError

# Long topics of `help()`, which every Python has, one after another until there are enough tokens.
TOPICS = ("with", "try", "exceptions", "for", "while", "function", "class", "assignment", "import", "numeric-types")
TOPICS += ("sequence-types", "callable-types", "strings", "naming", "attribute-access", "typesseq", "specialnames")
QUESTION = "What does the with statement do? Explain it to a beginner."


@dataclass(frozen=True)
class Scene:
    """A prompt of token ids, what it is in one line, and how it is decoded.

    methods: those shown after plain decoding, which is first. sampling: arguments of Sampler. ends: whether the output
    ends at the model's end tokens.
    """

    prompt: list[int]
    about: str
    methods: tuple[str, ...]
    sampling: dict[str, Any]
    ends: bool


def scene(tokenizer: Any, context: int | None) -> Scene:
    """A question if the model has a chat template, else source code. context: tokens of the text. Raises InputError."""
    from longdraft.models.chat import has_template

    if has_template(tokenizer):
        return question(tokenizer, context or 6500)
    return source_code(tokenizer, context or 16384)


def question(tokenizer: Any, context: int) -> Scene:
    """A question about the first `context` tokens of Python's documentation, in the model's chat template."""
    from pydoc_data.topics import topics

    from longdraft.models.chat import chat_tokens
    from longdraft.models.text import token_ids

    text = "\n\n".join(topics[name].strip() for name in TOPICS if name in topics)
    ids = token_ids(tokenizer, text, add_special_tokens=False)
    if len(ids) < context:
        raise InputError(f"the documentation has {len(ids)} tokens, not {context}: give a shorter --context")
    text = tokenizer.decode(ids[:context], clean_up_tokenization_spaces=False)
    prompt = chat_tokens(tokenizer, [{"role": "user", "content": f"{text}\n\n{QUESTION}"}])
    about = f"{context} tokens of this Python's documentation, then: {QUESTION}"
    sampling = {"temperature": 0.3, "top_p": 0.9, "penalty": 1.1}  # greedy, a small model goes in circles
    return Scene(prompt, about, ("vegas", "magicdec-stream"), sampling, ends=True)


def source_code(tokenizer: Any, context: int) -> Scene:
    """`context` tokens of the standard library, continued greedily."""
    from longdraft.bench.inputs import stdlib_prompt

    ids, files = stdlib_prompt(tokenizer, context)
    about = f"{context} tokens of source code of this Python's standard library: {', '.join(files)}"
    return Scene(ids, about, ("vegas", "lookup"), {"temperature": 0.0}, ends=False)
