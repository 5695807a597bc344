"""Prompts of a given number of tokens: a task's document is cut at a line, and nothing else of it
is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from longdraft.bench.tasks.task import Message, Task
from longdraft.errors import InputError
from longdraft.models.chat import chat_tokens, has_template
from longdraft.models.text import token_ids

Valid = Callable[[str], bool]


class Fitting:
    """Counts and makes prompts as the target reads them.

    Messages go through the model's chat template; a model without one gets their text, a blank line
    between them.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.template = has_template(tokenizer)

    def tokens(self, messages: list[Message]) -> list[int]:
        """The prompt of a conversation."""
        if self.template:
            return chat_tokens(self.tokenizer, list(messages))
        return token_ids(self.tokenizer, "\n\n".join(m["content"] for m in messages))

    def size(self, task: Task) -> int:
        """Tokens of a task's first prompt."""
        return len(self.tokens(task.messages([])))

    def count(self, text: str) -> int:
        return len(token_ids(self.tokenizer, text, add_special_tokens=False))

    @cached_property
    def characters_per_token(self) -> float:
        """The ratio in this package's own code: an estimate, to choose files by their size."""
        text = Path(__file__).read_text(encoding="utf-8")
        return len(text) / self.count(text)

    def fit(self, task: Task, context: int, valid: Valid = lambda text: True) -> Task:
        """The task with as many of its document's first lines as a prompt of `context` tokens has
        room for.

        valid: what the rest of the document must be; more lines are left out until it is. Raises
        InputError if what may not be cut does not fit.
        """
        if self.size(task.with_document("")) > context:
            raise InputError(
                f"the question of {task.kind} task {task.instance} has more than {context} "
                "tokens: give a longer"
                " --context"
            )
        lines = task.document.splitlines(keepends=True)

        def first(n: int) -> Task:
            return task.with_document("".join(lines[:n]))

        fits = 0
        over = len(lines) + 1
        while over - fits > 1:
            middle = (fits + over) // 2
            fits, over = (middle, over) if self.size(first(middle)) <= context else (fits, middle)
        while fits and not (valid(first(fits).document) and self.size(first(fits)) <= context):
            fits -= 1
        if lines and not fits:
            raise InputError(
                f"{task.kind} task {task.instance} has no room for text in {context} "
                "tokens: give more"
            )
        return first(fits)
