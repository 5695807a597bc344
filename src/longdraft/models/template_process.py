"""Renders a chat template and marks the text that the template itself writes.

As a script it reads and writes a line of JSON each way. models/templates.py starts and ends the
script. It imports neither longdraft nor torch, so that it starts quickly and has little to lose.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from functools import lru_cache
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.visitor import NodeTransformer
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

# bytes of address space: a template that builds a huge text fails here, and nothing else does
MEMORY = 1 << 30
ROLES = {"system", "developer", "user", "assistant", "tool"}
# filters, which no template has
OWN = "longdraft_own"
READ = "longdraft_read"
TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # what Transformers writes where it will cut a text
INSPECTING = {
    "split",
    "rsplit",
    "partition",
    "rpartition",
    "startswith",
    "endswith",
    "find",
    "rfind",
    "index",
    "count",
}
INSPECTING |= {"rindex", "replace"}


class Own(str):
    """Text that the template itself wrote, which its logic reads like any string.

    `marks` replaces the characters where it is written or joined with other text. Only `own` makes
    such text. Any other operation on it (most methods of str, JSON) gives an unmarked string, which
    counts as a client's.
    """

    marks: dict[int, int]  # from a character to the one that stands for it

    # Jinja's str.format calls the type of the format string
    def __new__(cls, text: str = "") -> str:
        return str.__str__(text)

    def __str__(self) -> str:
        return self.translate(self.marks)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Own):
            return own(str.__add__(self, other), self.marks)
        return str(self) + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return other + str(self) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: Any) -> Any:
        return own(str.__getitem__(self, key), self.marks)

    def strip(self, chars: str | None = None) -> Any:
        return own(str.strip(self, chars), self.marks)


def own(value: Any, marks: dict[int, int]) -> Any:
    """A value with its strings as the template's own."""
    if isinstance(value, dict):
        return {key: own(inner, marks) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [own(inner, marks) for inner in value]
    if not isinstance(value, str):
        return value
    made = str.__new__(Own, value)
    made.marks = marks
    return made


class Literals(NodeTransformer):
    """Makes a template's literals `Own`, and removes marks from text it compares and inspects."""

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return _filter(nodes.Const(node.data), OWN)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        return _filter(node, OWN) if isinstance(node.value, str) else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        node.node = self.visit(node.node)
        # a name stays unchanged
        node.arg = node.arg if isinstance(node.arg, nodes.Const) else self.visit(node.arg)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filter(node.expr, READ)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, READ)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.name in INSPECTING and node.node is not None:
            node.node = _filter(node.node, READ)
            node.args = [_filter(each, READ) for each in node.args]
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.node, nodes.Getattr) and node.node.attr in INSPECTING:
            node.node.node = _filter(node.node.node, READ)
        return node


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context
def _own(context: Any, text: str) -> Any:
    return own(text, context.parent[OWN])


@pass_context
def _read(context: Any, value: Any) -> Any:
    if isinstance(value, Own):
        return str.__str__(value)
    return context.parent[READ](value) if isinstance(value, str) else value


@lru_cache(16)
def marking(template: str) -> Any:
    """The compiled template with marks."""
    environment = _compile_jinja_template(template).environment.overlay()
    environment.filters = {**environment.filters, OWN: _own, READ: _read}
    return environment.from_string(Literals().visit(environment.parse(template)))


def rendered(asked: dict[str, Any]) -> dict[str, str]:
    """Render a conversation with marks.

    asked: template; messages; tools; given, its other variables (special tokens); chosen, a
    client's variables; continues, whether the last message is left open; marks, from each character
    of control tokens to a character that occurs nowhere in the conversation.
    -> marked: the text that Transformers renders, with marks for those characters where the
    template itself wrote them, as literals, roles or variables; or error: why there is none.
    """
    template = asked["template"]
    given = asked["given"]
    chosen = asked.get("chosen", {})
    messages = asked["messages"]
    tools = asked["tools"]
    continues = asked.get("continues", False)
    marks = {ord(char): ord(mark) for char, mark in asked["marks"].items()}
    unmarked = {mark: char for char, mark in marks.items()}
    # far faster than translate
    any_mark = re.compile("[" + "".join(map(chr, unmarked)) + "]" if unmarked else "(?!)")

    def read(text: str) -> str:
        return text.translate(unmarked) if any_mark.search(text) else text

    owned = list[dict[str, Any]]()
    for message in messages:
        if message.get("role") in ROLES:
            message = message | {"role": own(message["role"], marks)}
        owned.append(message)
    if continues:
        owned[-1] = owned[-1] | {"content": owned[-1]["content"] + TAG}
    try:
        for _ in range(2):  # a template that writes the time can differ once
            chats = render_jinja_template(
                [messages], tools, None, template, False, continues, **given, **chosen
            )
            text = chats[0][0] if isinstance(chats, tuple) else chats[0]
            variables = own(given, marks) | chosen | {OWN: marks, READ: read}
            marked = marking(template).render(
                messages=owned, tools=tools, documents=None, **variables
            )
            marked = marked[: len(text)] if continues else marked
            if read(marked) == text:
                return {"marked": marked}
        return {"error": "its own text cannot be told from the messages' text"}
    except MemoryError:
        return {"error": "it writes too much text"}
    except Exception as error:  # jinja's errors, and those that templates raise
        return {"error": next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]}


def main() -> None:
    said = sys.stdout
    sys.stdout = sys.stderr
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    print("ready", file=said, flush=True)
    for line in sys.stdin:
        print(json.dumps(rendered(json.loads(line))), file=said, flush=True)


if __name__ == "__main__":
    main()
