"""Published chat templates: what they write for an assistant's calls and reasoning is read as
these.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from support.formats_of_calls import CITY
from support.templates import byte_level
from support.templates_published import AT, PUBLISHED, QWEN, QWEN_UNMARKED, THINK, Published

from longdraft.engine.session import Event
from longdraft.server.calls.dialect import Dialect
from longdraft.server.decode.chat_reply import ChatReply
from longdraft.server.decode.reply import Delta
from longdraft.server.openai.messages import message_of

pytestmark = pytest.mark.full
UNMARKED = (*QWEN_UNMARKED, "<tool_response>", "</tool_response>", *THINK)
MODELS = {
    name: PUBLISHED[name] for name in ("Llama 3.1", "Mistral v0.3", "Qwen 2.5", "Qwen 3", "gpt-oss")
}
MODELS |= {
    name: Published("trl", f"{AT}{file}.jinja", QWEN, UNMARKED)
    for name, file in (
        ("Qwen 3.5", "qwen3_5_think"),
        ("Qwen 3.6", "qwen3_6"),
        ("Nemotron 3", "nemotron_3_nano"),
    )
}
ALONE = {"Llama 3.1", "gpt-oss"}  # templates that write one call of a message
CONTENT = {"Qwen 2.5", "Qwen 3", "Qwen 3.5", "Qwen 3.6", "Nemotron 3"}
REASONING = {"Qwen 3", "Qwen 3.5", "Qwen 3.6"}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather", "parameters": CITY},
}
USER = {"role": "user", "content": "How is it?"}
END = {"Llama 3.1": "<|eot_id|>", "Mistral v0.3": "</s>", "gpt-oss": "<|call|>"}  # and <|im_end|>


def tokenizer_of(model: str) -> Any:
    published = MODELS[model]
    made = byte_level(published.special, published.unmarked)
    try:
        made.chat_template = published.text
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"the published templates cannot be had: {error}")
    return made


def answer_to(tokenizer: Any, answer: dict[str, Any], end: str) -> tuple[str, str]:
    """A prompt, and what the template writes after it for an answer."""
    prompt, whole = (
        tokenizer.apply_chat_template(
            messages, tools=[TOOL], tokenize=False, add_generation_prompt=more
        )
        for messages, more in (([USER], True), ([USER, answer], False))
    )
    same = next(
        (i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt)
    )
    begun = prompt[same:]  # reasoning that the prompt begins and an earlier answer does not have
    assert not begun.strip() or "think" in begun
    return prompt, whole[same : whole.rindex(end)]


@pytest.mark.parametrize("said", ["call", "calls", "content and call"])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_what_a_template_writes_is_read(model, said):
    if (said == "calls" and model in ALONE) or (
        said.startswith("content") and model not in CONTENT
    ):
        pytest.skip("the template does not write that")
    tokenizer = tokenizer_of(model)
    calls = [
        {"name": "weather", "arguments": {"city": city}}
        for city in (["Bern", 'R"\nö'] if said == "calls" else ["Bern"])
    ]
    listed = [
        {"id": "abcdef12" + str(i), "type": "function", "function": call}
        for i, call in enumerate(calls)
    ]
    answer: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": listed}
    if said.startswith("content"):
        answer["content"] = "I look."
    if model in REASONING:
        answer["reasoning_content"] = "Why?"
    prompt, text = answer_to(tokenizer, answer, END.get(model, "<|im_end|>"))
    dialect = Dialect(tokenizer, tokenizer.chat_template)
    opened = dialect.opened(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    assert opened == (model in ("Qwen 3.5", "Qwen 3.6", "Nemotron 3"))
    if opened:
        text = text.removeprefix("<think>")
    reply = ChatReply(
        tokenizer, [], dialect.reader({"weather": CITY}, opened, None), dialect.marks.shown
    )
    deltas = [
        reply.take(Event(1, [token], None))
        for token in tokenizer(text, add_special_tokens=False)["input_ids"]
    ]
    message = message_of(
        sum([*deltas, reply.take(Event(1, [0], "eos"))], Delta()).parts, dialect.call_id
    )
    found = [
        call["function"] | {"arguments": json.loads(call["function"]["arguments"])}
        for call in message["tool_calls"]
    ]
    assert found == calls and (message["content"] or "") == answer["content"]
    assert message.get("reasoning_content") == answer.get("reasoning_content")
