"""Rewrites what clients send beyond the schema: values without an effect here, and other spellings.

Each function takes the fields of an object that are not null, and returns those that the schema
checks. What is lost is reported, unless it changes no answer.
"""

from __future__ import annotations

import json
from typing import Any

from longdraft.server.http.entry import current

Fields = dict[str, Any]
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
OTHER_TEXT = {"refusal": "refusal", "input_text": "text", "output_text": "text"}
HIDDEN = ("thinking", "redacted_thinking", "reasoning", "reasoning_text")
ANSWERED = "_output"  # ends the types of items that answer a call


def without(given: Fields, name: str, reported: bool = True) -> Fields:
    """The fields without one of them."""
    if name in given and reported:
        current().ignore(name)
    return {key: value for key, value in given.items() if key != name}


def sampled(given: Fields) -> Fields:
    """Any request for text: options of a stream without one, and of a store and a queue."""
    if not given.get("stream"):
        given = without(given, "stream_options", reported=False)
    if given.get("store") is True:
        given = without(given, "store")
    if given.get("service_tier") in ("flex", "priority", "scale"):
        given = without(given, "service_tier")
    return given


def chat(given: Fields) -> Fields:
    """A chat: reasoning as other APIs ask for it, and a choice among some of the tools."""
    if given.get("top_logprobs") == 0 and not given.get("logprobs"):
        given = without(given, "top_logprobs", reported=False)
    given = _effort(given)
    thinking = given.get("thinking")
    if isinstance(thinking, dict) and "type" in thinking:
        thinking = thinking["type"] != "disabled"
    for name, value in (("enable_thinking", given.get("enable_thinking")), ("thinking", thinking)):
        variables = given.get("chat_template_kwargs", {})
        if isinstance(value, bool) and isinstance(variables, dict):
            variables = {"enable_thinking": value} | variables
            given = without(given, name, False) | {"chat_template_kwargs": variables}
    return some_tools(given)


def _effort(given: Fields) -> Fields:
    reasoning = given.get("reasoning")
    if isinstance(reasoning, dict):
        given = without(given, "reasoning", reported=False)
        if isinstance(effort := reasoning.get("effort"), str):
            given = {"reasoning_effort": effort} | given
    effort = given.get("reasoning_effort")
    if isinstance(effort, str) and effort not in EFFORTS:
        given = without(given, "reasoning_effort")
    return given


def some_tools(given: Fields) -> Fields:
    """A choice of allowed_tools offers these alone."""
    choice = given.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return given
    asked = choice.get("allowed_tools", choice)
    tools = given.get("tools", [])
    if not isinstance(asked, dict) or not isinstance(asked.get("tools"), list):
        return given
    if not isinstance(tools, list):
        return given
    names = [_name(tool) for tool in asked["tools"]]
    kept = [tool for tool in tools if _name(tool) in names]
    return given | {"tool_choice": asked.get("mode", "auto"), "tools": kept}


def _name(tool: Any) -> Any:
    inner = tool.get("function", tool) if isinstance(tool, dict) else None
    return inner.get("name") if isinstance(inner, dict) else None


def message(given: Fields) -> Fields:
    """A message: empty fields, and parts that repeat a refusal or reasoning."""
    role = given.get("role")
    if given.get("tool_calls") == []:
        given = without(given, "tool_calls", reported=False)
    if "content" in given:
        given = given | {"content": parts(given["content"])}
    elif role == "assistant":
        given = given | {"content": given.get("refusal") or ""}
    return given


def parts(content: Any) -> Any:
    """The parts of a content, as texts; a list without any is an empty text."""
    if not isinstance(content, list):
        return content
    return [_part(part) for part in content if not _is_hidden(part)] or ""


def _is_hidden(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in HIDDEN


def _part(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") not in OTHER_TEXT:
        return part
    return {"type": "text", "text": part.get(OTHER_TEXT[part["type"]])}


def text_options(given: Fields) -> Fields:
    """The options of a response's text: how many words it has is the model's choice."""
    return given if given.get("verbosity") == "medium" else without(given, "verbosity")


def response(given: Fields) -> Fields:
    """A request for a response: truncation, included parts, other tools and their items."""
    given = given if given.get("truncation") == "disabled" else without(given, "truncation")
    if isinstance(include := given.get("include"), list):
        kept = [name for name in include if name == "reasoning.encrypted_content"]
        if len(kept) < len(include):
            current().ignore("include")
        given = given | {"include": kept[:1]}
    reasoning = given.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") not in (None, *EFFORTS):
        given = given | {"reasoning": without(reasoning, "effort")}
    given = some_tools(given)
    choice = given.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") not in ("function", "allowed_tools"):
        given = without(given, "tool_choice")
    if isinstance(items := given.get("input"), list) and items:
        given = given | {"input": [found for item in items for found in _items(item)]}
        if not given["input"]:
            raise ValueError("no item of `input` is known here: give a message")
    return given


def _items(item: Any) -> list[Any]:
    """The items in place of one: calls that other tools made are calls of functions."""
    kind = item.get("type") if isinstance(item, dict) else None
    if not isinstance(kind, str) or kind in ("function_call", "function_call_output"):
        return [item]
    if kind.endswith("_call" + ANSWERED):
        output = item.get("output")
        output = output if isinstance(output, str | list) else json.dumps(output)
        return [{"type": "function_call_output", "call_id": item.get("call_id"), "output": output}]
    if not kind.endswith("_call"):
        return [item]
    if item.get("call_id") is None:  # its result is not among the items
        current().ignore(f"input.{kind}")
        return []
    name = item.get("name") or kind.removesuffix("_call")
    asked = {key: item[key] for key in ("input", "action", "operation") if key in item}
    return [
        {
            "type": "function_call",
            "call_id": item["call_id"],
            "name": name,
            "arguments": json.dumps(asked, ensure_ascii=False),
        }
    ]


def item_content(given: Fields) -> Fields:
    """A message of a response: an assistant's empty content, and parts of other names."""
    if "content" not in given:
        return given | {"content": ""} if given.get("role") == "assistant" else given
    return given | {"content": item_parts(given["content"])}


def item_output(given: Fields) -> Fields:
    """The result of a call, which may be empty."""
    return given | {"output": item_parts(given.get("output", ""))}


def item_parts(content: Any) -> Any:
    """The parts as a response's items have them."""
    eased = parts(content)
    if not isinstance(eased, list):
        return eased
    return [
        part | {"type": "input_text"}
        if isinstance(part, dict) and part.get("type") == "text"
        else part
        for part in eased
    ]
