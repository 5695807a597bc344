"""How models write calls and reasoning: templates in the shape of published ones, and answers with
what they say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from support.templates import byte_level

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
HERMES = (
    TOOLS
    + '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>\n'
    + TURNS
)
THINK = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>{% endif %}"
QWEN3 = HERMES.replace("{{ m.content }}", THINK + "{{ m.content }}")
R1 = QWEN3.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
LISTED = TOOLS + '<tool_call>[{"name": "func_name", "arguments": {}}, ...]</tool_call>\n' + TURNS
LLAMA = (
    TOOLS
    + 'Respond in the format {"name": function name, "parameters": dictionary of arguments}.\n'
    + TURNS
)
MISTRAL = TOOLS + "{{ '[TOOL_CALLS][' }}{{ ']' }}" + TURNS
NAMED = TOOLS + "{{ '[TOOL_CALLS]' }}{{ '[ARGS]' }}" + TURNS
CODER = (
    TOOLS
    + "<tool_call>\n<function=example>\n<parameter=p>\nvalue\n</parameter>\n</function>\n</tool_call>\n"  # noqa: E501
    + TURNS
)
HARMONY = (
    "<|start|>system<|message|># Valid channels: analysis, commentary, final.<|end|>"
    + TOOLS
    + "{% for m in messages %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking "
    "}}<|end|>{% endif %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}{% if "
    "add_generation_prompt %}<|start|>assistant"
    "{% endif %}"
)

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>")
OSS = (
    "<|startoftext|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|call|>",
    "<|return|>",
)
FORMATS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "coder": (CODER, CHATML, TAGS),
    "harmony": (HARMONY, OSS, ()),
    "hermes": (HERMES, CHATML, TAGS),
    "hermes special": (QWEN3, (*CHATML[:2], *TAGS, "<think>", "</think>", CHATML[2]), ()),
    "hermes text": (HERMES, CHATML, ()),
    "listed": (LISTED, CHATML, ()),
    "llama": (LLAMA, ("<|begin_of_text|>", "<|python_tag|>", "<|eom_id|>", "<|eot_id|>"), ()),
    "mistral": (MISTRAL, ("<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "</s>"), ()),
    "mistral named": (
        NAMED,
        ("<s>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "</s>"),
        (),
    ),
    "r1": (R1, CHATML, (*TAGS, "<think>", "</think>")),
    "think": (QWEN3, CHATML, (*TAGS, "<think>", "</think>")),
}


@cache
def tokenizer_of(name: str) -> Any:
    template, special, unmarked = FORMATS[name]
    made = byte_level(special, unmarked)
    made.chat_template = template
    return made


def tokens_of(name: str, text: str) -> list[int]:
    """An answer's tokens, control tokens too."""
    return tokenizer_of(name)(text, add_special_tokens=False)["input_ids"]


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
MANY = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "integer"}},
        "deep": {"type": "boolean"},
    },
    "required": ["path", "lines"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {"weather": CITY, "read_file": MANY, "now": {}}


@dataclass(frozen=True)
class Said:
    """An answer, and what is in it. calls: names and arguments."""

    format: str
    text: str
    content: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    reasoning: str = ""


BERN = ("weather", {"city": "Bern"})
ROME = ("weather", {"city": "Rome"})
FILE = ("read_file", {"path": 'a "b"\n', "lines": [1, 2], "deep": True})
B = '{"name": "weather", "arguments": {"city": "Bern"}}'
R = '{"name": "weather", "arguments": {"city": "Rome"}}'
F = '{"name": "read_file", "arguments": {"path": "a \\"b\\"\\n", "lines": [1, 2], "deep": true}}'
LB = B.replace("arguments", "parameters")
LR = R.replace("arguments", "parameters")
XB = "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>"  # noqa: E501
XF = (
    "<tool_call>\n<function=read_file>\n<parameter=path>\na "
    '"b"\n\n</parameter>\n<parameter=lines>\n[1, 2]\n'
    "</parameter>\n<parameter=deep>\nTrue\n</parameter>\n</function>\n</tool_call>"
)
O = "<|start|>assistant"
OB = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Bern"}'
ANSWERS = [
    *(
        said
        for tags in ("hermes", "hermes special", "hermes text")
        for said in (
            Said(tags, f"<tool_call>\n{B}\n</tool_call>", calls=(BERN,)),
            Said(
                tags,
                f"<tool_call>\n{B}\n</tool_call>\n<tool_call>\n{F}\n</tool_call>\n",
                calls=(BERN, FILE),
            ),
            Said(tags, f"I look.\n\n<tool_call>\n{B}\n</tool_call>", "I look.", (BERN,)),
            Said(tags, f"<tool_call>{B}</tool_call> Done.", " Done.", (BERN,)),
            Said(tags, f"<tool_call>[{B}, {R}]</tool_call>", calls=(BERN, ROME)),
            Said(tags, '<tool_call>\n{"name": "now"}\n</tool_call>', calls=(("now", {}),)),
            Said(
                tags,
                '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
                calls=(("now", {}),),
            ),
            Said(
                tags,
                '<tool_call>{"arguments": {"city": "Bern"}, "name": "weather"}</tool_call>',
                calls=(BERN,),
            ),
            Said(tags, f"<tool_call>{B[:-1]}, " + '"id": "1"}</tool_call>', calls=(BERN,)),
            Said(tags, f"<tool_call>\n{B[:-1]}\n</tool_call>", calls=(BERN,)),
            Said(
                tags,
                '<tool_call>{"name":"weather","arguments":{"city":"a\nb"}}',
                calls=(("weather", {"city": "a\nb"}),),
            ),
            Said(tags, "a <tool b < tool_call c", "a <tool b < tool_call c"),
        )
    ),
    Said("hermes", "<tool_call>\nno\n</tool_call> x", "<tool_call>\nno\n</tool_call> x"),
    Said("hermes", "a\n<tool_call>\n{'name': 'weather'}", "a\n<tool_call>\n{'name': 'weather'}"),
    Said(
        "hermes",
        f"<tool_call>{B.replace('weather', 'rain')}</tool_call>",
        f"<tool_call>{B.replace('weather', 'rain')}</tool_call>",
    ),
    Said("hermes", f"<tool_call>no<tool_call>{B}</tool_call>", "<tool_call>no", (BERN,)),
    Said("hermes special", "a <tool_call>no</tool_call> x", "a no x"),  # special tokens are no text
    Said("listed", f"<tool_call>[{B}, {F}]</tool_call>", calls=(BERN, FILE)),
    Said("listed", f"<tool_call>[{B}, no]</tool_call>", ", no]</tool_call>", (BERN,)),
    Said("think", "<think>\nWhy?\n\nSo.\n</think>\n\nYes. ", "Yes. ", reasoning="Why?\n\nSo."),
    Said(
        "think",
        f"<think>\na<tool_call>\n</think>\n<tool_call>\n{B}\n</tool_call>",
        "",
        (BERN,),
        "a<tool_call>",
    ),
    Said("think", "<think>\n\n</think>\n\nYes.", "Yes."),
    Said("think", "\n\nYes <think>no</think>", "\n\nYes <think>no</think>"),
    Said("think", "<think>\ncut", reasoning="cut"),
    Said("hermes special", "<think>\nWhy?\n</think>\n\nYes.", "Yes.", reasoning="Why?"),
    Said("r1", f"Why?\n</think>\n\nYes.\n<tool_call>{B}</tool_call>", "Yes.", (BERN,), "Why?"),
    Said("r1", "<think>\nWhy?\n</think>\n\nYes.", "Yes.", reasoning="Why?"),
    Said("llama", LB, calls=(BERN,)),
    Said("llama", f"\n{LB}; {LR}", calls=(BERN, ROME)),
    Said("llama", f"<|python_tag|>{LB};{LR}", calls=(BERN, ROME)),
    Said("llama", f"I look.<|python_tag|>{LB}", "I look.", (BERN,)),
    Said("llama", '{"name": "Bern", "people": 7}', '{"name": "Bern", "people": 7}'),
    Said("llama", '{"city": "Bern"} {', '{"city": "Bern"} {'),
    Said("llama", "<|python_tag|>print(1)", "print(1)"),
    Said("llama", f"The call is {LB}", f"The call is {LB}"),
    Said("mistral", f"[TOOL_CALLS][{B}, {F}]", calls=(BERN, FILE)),
    Said("mistral", f"[TOOL_CALLS] [{B[:-1]}, " + '"id": "abcdef123"}]', calls=(BERN,)),
    Said("mistral", "[TOOL_CALLS]none", "none"),
    Said(
        "mistral named",
        '[TOOL_CALLS]weather[ARGS]{"city": "Bern"}[TOOL_CALLS]now[ARGS]{}',
        calls=(BERN, ("now", {})),
    ),
    Said(
        "mistral named",
        '[THINK]Why?[/THINK]Look.[TOOL_CALLS]weather[CALL_ID]ab1[ARGS]{"city": "Bern"}',
        "Look.",
        (BERN,),
        "Why?",
    ),
    Said("mistral named", "[TOOL_CALLS]weather and more", "weather and more"),
    Said("coder", XB, calls=(BERN,)),
    Said("coder", f"I look.\n\n{XB}\n{XF}", "I look.", (BERN, FILE)),
    Said("coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", calls=(("now", {}),)),
    Said(
        "coder",
        "<tool_call>\n<function=rain>\n</function>",
        "<tool_call>\n<function=rain>\n</function>",
    ),
    Said("coder", "<tool_call>\n<func", "<tool_call>\n<func"),
    Said("harmony", "<|channel|>final<|message|>Yes.", "Yes."),
    Said(
        "harmony",
        f"<|channel|>analysis<|message|>Why?<|end|>{O}<|channel|>final<|message|>Yes.",
        "Yes.",
        reasoning="Why?",
    ),
    Said(
        "harmony", f"<|channel|>analysis<|message|>Why?<|end|>{O}{OB}<|call|>", "", (BERN,), "Why?"
    ),
    Said("harmony", f"<|channel|>commentary<|message|>I look.<|end|>{O}{OB}", "I look.", (BERN,)),
    Said(
        "harmony",
        ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Bern"}',
        calls=(BERN,),
    ),
    Said("harmony", f"{OB.replace('weather', 'rain')}", '{"city": "Bern"}'),
    Said("harmony", f"{OB[: OB.index('{')]}no<|call|>", "no"),
    Said("harmony", "Hello", "Hello"),
    Said("harmony", "<|channel|>anal"),
    Said("harmony", f"<|channel|>{300 * 'no '}.", f"{300 * 'no '}."),
    Said(
        "harmony",
        f"<|channel|>commentary<|message|>A.<|end|>{O}<|channel|>final<|message|>B.",
        "A.\n\nB.",
    ),
]
