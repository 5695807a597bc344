"""A model's chat template: messages to tokens, where no message can write a control token."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from longdraft.errors import FieldError, InputError, TemplateRefusal
from longdraft.models.control import OPEN, Control, control_of
from longdraft.models.template_process import rendered

# {"role": "system" | "user" | "assistant" | "tool", "content": its text}, and tool calls
Message = dict[str, Any]
Tools = list[dict[str, Any]] | None
Asked = dict[str, Any]  # what template_process.rendered reads
Render = Callable[[Asked], dict[str, str]]
# characters to which Unicode gives no meaning
PRIVATE = (*range(0x100000, 0x10FFFE), *range(0xF0000, 0xFFFFE))

RESERVED = {
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "conversations",
}
RESERVED |= {
    "chat_template",
    "return_assistant_tokens_mask",
    "raise_exception",
    "strftime_now",
    "loop",
    "self",
}
RESERVED |= {
    "range",
    "dict",
    "lipsum",
    "cycler",
    "joiner",
    "namespace",
    "longdraft_own",
    "longdraft_read",
}


@dataclass(frozen=True)
class Turn:
    """The end of a conversation: an answer begins, or the last message is continued.

    variables: more for the template. The names of variables are identifiers and none of RESERVED;
    their strings are a client's, like messages.
    """

    begins: bool = True
    continues: bool = False
    variables: dict[str, Any] = field(default_factory=dict)


ANSWER = Turn()


def has_template(tokenizer: Any) -> bool:
    """Whether a model can be talked to."""
    return bool(getattr(tokenizer, "chat_template", None))


def chat_tokens(
    tokenizer: Any,
    messages: list[Message],
    tools: Tools = None,
    render: Render = rendered,
    turn: Turn = ANSWER,
) -> list[int]:
    """The tokens of a conversation up to where the model's answer begins.

    tools: what the model may call. The text is that of Transformers' `apply_chat_template`. A
    control token (see `is_control`) is read only where the template itself wrote each of its
    characters; what messages, tools and variables say, in any field, is plain text. render: renders
    the template; `Templates.render` does so with limits. Raises InputError for a model without a
    chat template, and for a conversation that the template refuses.
    """
    control = control_of(tokenizer)
    asked = asked_of(tokenizer, messages, tools, turn)
    check_tools(asked["template"], messages, tools)
    _check_variables(asked, turn.variables)
    marks = _marks(control, asked)
    asked["marks"] = marks
    chat = render(asked)
    if "error" in chat:
        raise TemplateRefusal(
            f"the model's chat template refuses this conversation: {chat['error']}"
        )
    marked = chat["marked"]
    unmarked = str.maketrans({mark: char for char, mark in marks.items()})
    if OPEN in marked:
        raise InputError(
            f"the conversation contains U+{ord(OPEN):X}, which is not a character: leave it out"
        )
    _check_origin(control, marked, unmarked, (messages, tools, turn.variables))
    runs = f"[{''.join(marks.values())}]+" if marks else "(?!)"
    spelled = re.sub(runs, lambda run: control.respell(run[0].translate(unmarked)), marked)
    return control.read(spelled)


def template_of(tokenizer: Any, tools: Tools) -> str:
    """The chat template for these tools.

    Raises InputError for a model that has none, or none to choose.
    """
    if not has_template(tokenizer):
        raise InputError(
            "this model has no chat template: give an instruction-tuned model, or use "
            "`longdraft generate`"
        )
    try:
        return tokenizer.get_chat_template(None, tools)
    except ValueError as error:  # several templates, none of which is the default
        raise InputError(
            f"the model's chat template cannot be chosen: {str(error).splitlines()[0][:200]}"
        ) from None


def asked_of(tokenizer: Any, messages: list[Message], tools: Tools, turn: Turn = ANSWER) -> Asked:
    """The input of a template, like that of `apply_chat_template`.

    Fields of messages that are None are left out.
    """
    return {
        "template": template_of(tokenizer, tools),
        "messages": [
            {key: value for key, value in message.items() if value is not None}
            for message in messages
        ],
        "tools": tools,
        "given": {**tokenizer.special_tokens_map, "add_generation_prompt": turn.begins},
        "chosen": turn.variables,
        "continues": turn.continues,
    }


def _marks(control: Control, asked: Asked) -> dict[str, str]:
    """A mark for each character of control tokens.

    The marks are the first private characters that the conversation does not use.
    """
    used = set(json.dumps(asked, ensure_ascii=False))
    free = (char for char in map(chr, PRIVATE) if char not in used)
    try:
        return {char: next(free) for char in control.characters}
    except StopIteration:
        raise InputError(
            "the conversation contains all of Unicode's private characters: leave some out"
        ) from None


def _check_origin(
    control: Control, marked: str, unmarked: dict[int, str], conversation: Any
) -> None:
    """Raises InputError for a control token that the template builds from parts.

    That is one which neither the template nor a string of the conversation contains. A template can
    build one in a way that loses the marks. Read as text it would lose its meaning without notice.
    """
    if not unmarked:  # the tokenizer has no control tokens
        return
    text = marked.translate(unmarked)
    others = re.compile("[^" + "".join(map(chr, unmarked)) + "]+")
    made = set[tuple[str, str]]()
    for a, b in control.spans(text):
        made |= {(part, text[a:b]) for part in others.findall(marked[a:b])}
    for part, token in sorted(made):
        if not any(part in said for said in _texts(conversation)):
            raise InputError(
                f"the model's chat template builds {token!r} from text that may be a message's: "
                "change the message, or use another template"
            )


def _texts(value: Any) -> Iterator[str]:
    """All texts of a conversation, names of fields too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def check_tools(template: str, messages: list[Message], tools: Tools) -> None:
    """Raises InputError for tools that the template does not write."""
    if not tools and all("tool_calls" not in m and m["role"] != "tool" for m in messages):
        return
    if "tools" not in template:
        raise FieldError(
            "the model's chat template does not support tools: leave them out", "tools"
        )


def _check_variables(asked: Asked, variables: dict[str, Any]) -> None:
    """Raises FieldError for a variable that the template does not read, or the tokenizer sets."""
    for name in variables:
        effort = name == "reasoning_effort"
        place = name if effort else f"chat_template_kwargs.{name}"
        if name in asked["given"]:
            raise FieldError(
                f"{place}: the tokenizer sets this variable of the template: leave it out", place
            )
        if not re.search(rf"\b{name}\b", asked["template"]):
            raise FieldError(
                f"{place}: the model's chat template does not read it: leave it out", place
            )
