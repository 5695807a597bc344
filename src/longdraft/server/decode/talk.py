"""The functions that a chat offers the model, and the way in which the model's answer is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from longdraft.errors import InputError
from longdraft.models.chat import Message, Tools, template_of
from longdraft.server.calls.answer_reader import AnswerReader
from longdraft.server.calls.described import described, needs_description
from longdraft.server.calls.dialect import Dialect
from longdraft.server.http.problems import Problem
from longdraft.server.http.server_log import note
from longdraft.server.openai.structured import Structure
from longdraft.server.openai.tools import Function

UNKNOWN = (
    "how this model's chat template writes calls is not known here: it must be auto or none, "
    "and no function strict"
)
ALONE = (
    "beside tools or a model's reasoning, only JSON and choices can be enforced: leave the "
    "others out"
)


@dataclass(frozen=True)
class Offer:
    """The functions that an answer may call.

    choice: auto, none, required, or the name of the one it must call. parallel: whether it may have
    more than one call, where no function is named; None: unless a call is required, because a model
    with little training on calls repeats them when a grammar lets it.
    """

    functions: Sequence[Function] = ()
    choice: str = "auto"
    parallel: bool | None = None

    @property
    def open(self) -> Sequence[Function]:
        """The functions of which the model is told."""
        return () if self.choice == "none" else self.functions

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """The functions as chat templates read them; None for none."""
        functions = [function.model_dump(exclude={"strict"}) for function in self.open]
        return [{"type": "function", "function": function} for function in functions] or None

    @property
    def asked(self) -> list[Function]:
        """The functions that a grammar allows: the one that must be called, or all."""
        return [f for f in self.open if self.choice in ("auto", "required", f.name)]

    @property
    def many(self) -> bool:
        """Tells whether an answer may have several calls.

        A function that is named by `choice` is called exactly once.
        """
        if self.choice == "required":
            return self.parallel is True
        return self.parallel is not False and self.choice in ("auto", "none")

    @property
    def needs_grammar(self) -> bool:
        return bool(self.open) and (self.choice != "auto" or any(f.strict for f in self.open))


NO_TOOLS = Offer()


@dataclass(frozen=True)
class Dialogue:
    """The way in which the answers to a conversation are read.

    opened: the prompt has the beginning of the model's reasoning.
    """

    dialect: Dialect
    offer: Offer
    opened: bool

    def reader(self) -> AnswerReader:
        """A reader for one choice's answer."""
        schemas = {function.name: function.parameters for function in self.offer.open}
        most = None if self.offer.many else 1
        return self.dialect.reader(schemas, self.opened, most, bound=self.offer.needs_grammar)

    def grammar(self, structure: Structure | None = None) -> str | None:
        """Lark (llguidance's) for the whole answer.

        None: `structure` alone binds it, or nothing does. structure: the structure of an answer
        without calls. Raises Problem for an unknown format of calls, and where a structure cannot
        be a part of a grammar. Raises InputError.
        """
        offer = self.offer
        dialect = self.dialect
        if offer.needs_grammar and dialect.format is None:
            raise Problem(400, f"tool_choice: {UNKNOWN}", "tool_choice")
        content = None
        if structure is not None and offer.choice in ("auto", "none"):
            if not (dialect.writes or (offer.open and dialect.format is not None)):
                return None
            if (content := structure.rule()) is None:
                raise Problem(400, f"structured_outputs: {ALONE}", "structured_outputs")
        elif not offer.needs_grammar:
            return None
        return dialect.grammar(
            offer.asked, int(offer.choice not in ("auto", "none")), offer.many, self.opened, content
        )


DESCRIBED = (
    "the chat template does not support tools: they are described in a system message, and calls "
    "are read as"
)
# by template, and whether tools are described in a system message; a model has one or two
DIALECTS: WeakKeyDictionary[Any, dict[tuple[str, bool], Dialect]] = WeakKeyDictionary()


def prompted(
    tokenizer: Any, messages: list[Message], tools: Tools
) -> tuple[Dialect, list[Message], Tools]:
    """The dialect of a model's answers, and the messages and tools as its template reads them.

    Tools that the template does not write are described in a system message. Raises Problem for a
    model without a template.
    """
    try:
        template = template_of(tokenizer, tools)
    except InputError as error:
        raise Problem(400, str(error), getattr(error, "field", None)) from None
    describes = needs_description(template, messages, tools)
    known = DIALECTS.setdefault(tokenizer, {})
    if (template, describes) not in known:
        dialect = Dialect(tokenizer, template, describes)
        known[template, describes] = dialect
        if describes and dialect.kind is not None:
            note(f"{DESCRIBED} {dialect.kind.__name__}")
    dialect = known[template, describes]
    if describes and dialect.kind is not None:
        messages = described(messages, tools, dialect.kind)
        tools = None
    return dialect, with_reasoning(messages, dialect.field), tools


def with_reasoning(messages: list[Message], field: str | None) -> list[Message]:
    """Messages with earlier reasoning under the name that the template reads.

    The reasoning is left out if the template reads none.
    """

    def renamed(message: Message) -> Message:
        if "reasoning_content" not in message:
            return message
        others = {key: value for key, value in message.items() if key != "reasoning_content"}
        return others if field is None else others | {field: message["reasoning_content"]}

    return [renamed(message) for message in messages]
