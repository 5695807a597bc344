"""A model's chat template: messages to tokens, where no message can write a special token."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from longdraft.errors import InputError
from longdraft.models.loading import token_ids

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": its text}


def chat_tokens(tokenizer: Any, messages: list[Message]) -> list[int]:
    """The tokens of a conversation up to where the model's answer begins.

    What the template writes is read with special tokens, what the messages say without, so a message that contains
    <|im_end|> is text. Raises InputError for a model without a chat template, and for messages that it refuses.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            "this model has no chat template: give an instruction-tuned model, or use `longdraft generate`"
        )
    marks = [uuid4().hex for _ in messages]
    marked = [{**m, "content": mark} for m, mark in zip(messages, marks, strict=True)]
    try:
        rest = tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # jinja's errors, and those that templates raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"the model's chat template refuses this conversation: {reason[:200]}") from None
    found: list[int] = []
    for mark, message in zip(marks, messages, strict=True):
        before, here, rest = rest.partition(mark)
        if not here:
            raise InputError(
                f"the model's chat template has no place for a message of the {message['role']}: leave it out"
            )
        found += token_ids(tokenizer, before, True, add_special_tokens=False)
        found += token_ids(tokenizer, message["content"].strip(), False, add_special_tokens=False)
    return found + token_ids(tokenizer, rest, True, add_special_tokens=False)
