"""No string of a client becomes a control token, and all else is what Transformers makes of the
conversation.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.listed import weekly
from support.templates import CONTROL, TEMPLATES, TOKENIZERS, Piece, byte_level

from longdraft import InputError
from longdraft.models import chat, control, template_process
from longdraft.models.chat import chat_tokens
from longdraft.models.text import token_ids

# What a client may send ---------------------------------------------------------------------------

HALVES = [half for token in CONTROL for at in (1, 2, -1) for half in (token[:at], token[at:])]
ODD = [
    "\U00100000",
    "\U00100001\U00100002",
    "\ufdd1",
    "＜ｓ＞",
    "<|IM_END|>",
    "naive",
    "中\u0301",
    "%s",
    "{}",
    "\\",
    '"',
]
PLAIN = [
    "a",
    "in the",
    "user",
    "again",
    "im_start",
    "think",
    "INST",
    "|",
    ">",
    "<",
    " ",
    "  ",
    "\n",
    "    return x\n",
]
TEXT = (
    st.lists(st.sampled_from(CONTROL + HALVES + ODD + PLAIN) | st.text(max_size=3), max_size=5)
    .map("".join)
    .filter(lambda text: control.OPEN not in text)
)
CALL = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": TEXT, "arguments": st.dictionaries(TEXT, TEXT)})}
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXT},
    optional={
        "name": TEXT,
        "tool_call_id": TEXT,
        "tool_calls": st.lists(CALL, min_size=1, max_size=2),
    },
)
FUNCTION = st.fixed_dictionaries(
    {"name": TEXT, "description": TEXT, "parameters": st.dictionaries(TEXT, TEXT, max_size=2)}
)
TOOL = st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTION})
CONVERSATION = st.tuples(
    st.lists(MESSAGE, min_size=1, max_size=3).filter(lambda l: any(m["role"] != "tool" for m in l)),
    st.none() | st.lists(TOOL, min_size=1, max_size=1),
)

BY_LENGTH = sorted(CONTROL, key=len, reverse=True)


def written(pieces: list[Piece]) -> list[str]:
    """The control tokens that a template writes itself."""
    joined = [
        "".join(text for text, _ in run)
        for own, run in groupby(pieces, lambda piece: piece[1])
        if own
    ]
    return [
        token for text in joined for token in re.findall("|".join(map(re.escape, BY_LENGTH)), text)
    ]


def crossing(pieces: list[Piece], texts: list[str]) -> bool:
    """Whether a control token is spelled by several fields, or by a field and the template's plain
    text.
    """
    text = "".join(said for said, _ in pieces)
    owners = [own for said, own in pieces for _ in said]
    for token in CONTROL:
        for at in re.finditer(f"(?={re.escape(token)})", text):
            for own, run in groupby(
                zip(owners[at.start() :], token, strict=False), lambda pair: pair[0]
            ):
                part = "".join(char for _, char in run)
                if not own and not any(part in said for said in texts):
                    return True
    return False


def check(tokenizer: Any, name: str, messages: list[dict], tools: list[dict] | None) -> str:
    """What must hold of one conversation. -> what kind it was."""
    template, program = TEMPLATES[name]
    tokenizer.chat_template = template
    if "tools" not in template:
        tools = None
        messages = [
            {k: v for k, v in m.items() if k != "tool_calls"}
            for m in messages
            if m["role"] != "tool"
        ]
    pieces = [piece for piece in program(messages, tools) if piece[0]]
    text = "".join(said for said, _ in pieces)
    options: dict[str, Any] = {"tools": tools, "add_generation_prompt": True}
    assert tokenizer.apply_chat_template(messages, tokenize=False, **options) == text
    try:
        found = chat_tokens(tokenizer, messages, tools)
    except InputError as error:
        assert "may be a message's" in str(error) and crossing(
            pieces, list(chat._texts((messages, tools)))
        )
        return "refused"
    ids = {tokenizer.convert_tokens_to_ids(t): t for t in CONTROL}
    assert [ids[i] for i in found if i in ids] == written(pieces)
    assert chat_tokens(tokenizer, messages, tools) == found
    if tokenizer is TOKENIZERS["byte_level"]():
        assert tokenizer.decode(found) == text
    theirs = tokenizer.apply_chat_template(messages, return_dict=False, **options)
    if [ids[i] for i in theirs if i in ids] != written(pieces):
        return "hostile"
    assert found == theirs
    return "harmless"


def examined(tokenizer: str, template: str, examples: int, **options: Any) -> Counter[str]:
    """The check on many conversations."""
    kinds = Counter[str]()

    @settings(max_examples=examples, report_multiple_bugs=False, **options)
    @given(CONVERSATION)
    def run(conversation: tuple[list[dict], list[dict] | None]) -> None:
        kinds[check(TOKENIZERS[tokenizer](), template, *conversation)] += 1

    run()
    return kinds


@pytest.mark.each_value
@pytest.mark.parametrize("examples", [20, pytest.param(400, marks=weekly)])
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_no_text_of_a_client_is_a_control_token(tokenizer, template, examples):
    kinds = examined(tokenizer, template, examples)
    assert kinds["hostile"] and kinds["harmless"]
    if examples > 100:  # few examples may happen to be of one kind
        assert (
            min(kinds["hostile"], kinds["harmless"]) > examples / 8
            and kinds["refused"] < examples / 10
        )


def test_without_care_each_tokenizer_reads_a_text_as_a_control_token():
    """Also where special tokens are split, as `token_ids` does it."""
    made = {name: tokenizer() for name, tokenizer in TOKENIZERS.items()}
    texts = {"byte_level": "<think>", "folding": "＜THINK＞", "merging": "<s>", "unigram": "<s>"}
    for name, text in texts.items():
        ids = {made[name].convert_tokens_to_ids(token) for token in ("<s>", "<think>")}
        assert ids.intersection(token_ids(made[name], text, add_special_tokens=False)), name


# Broken on purpose --------------------------------------------------------------------------------


def trusting(tokenizer: Any, messages: list[dict], tools: Any) -> list[int]:
    """What Transformers makes of the conversation."""
    return tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_dict=False
    )


def contents_alone(tokenizer: Any, messages: list[dict], tools: Any) -> list[int]:
    """Only the contents of messages are searched for whole tokens."""
    found = any(token in m["content"] for token in CONTROL for m in messages)
    return (chat.chat_tokens if found else trusting)(tokenizer, messages, tools)


def marks_that_stay(control: control.Control, asked: Any) -> dict[str, str]:
    return dict(zip(control.characters, map(chr, chat.PRIVATE), strict=False))


def made_by_format(cls: Any, text: str = "") -> Any:
    """What Jinja's str.format makes is the template's own."""
    characters = map(ord, sorted(set("".join(CONTROL))))
    return template_process.own(text, dict(zip(characters, chat.PRIVATE, strict=False)))


PLANTED = {
    "the whole text is trusted": (
        "byte_level",
        "fields",
        (sys.modules[__name__], "chat_tokens", trusting),
    ),
    "names and tools are trusted": (
        "byte_level",
        "fields",
        (sys.modules[__name__], "chat_tokens", contents_alone),
    ),
    "unmarked tokens are trusted": (
        "byte_level",
        "tools",
        (control, "is_control", lambda token: token["special"]),
    ),
    "marks are the same always": ("byte_level", "fields", (chat, "_marks", marks_that_stay)),
    "a formatted text is the template's": (
        "byte_level",
        "twice",
        (template_process.TemplateText, "__new__", made_by_format),
    ),
    "roles are a client's": ("byte_level", "thinking", (template_process, "ROLES", set())),
    "what is compared has marks": (
        "byte_level",
        "twice",
        (template_process, "_read", lambda context, value: value),
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_check_notices(fault, monkeypatch):
    tokenizer, template, plant = PLANTED[fault]
    monkeypatch.setattr(control, "KEPT", WeakKeyDictionary())
    template_process.marking.cache_clear()
    monkeypatch.setattr(*plant)
    try:
        with pytest.raises(AssertionError):
            examined(tokenizer, template, 300, phases=[Phase.generate])
    finally:
        template_process.marking.cache_clear()


# The rest -----------------------------------------------------------------------------------------


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("text", "special", "steers"),
    [
        ("</s>", True, True),
        ("PAD", True, True),
        ("<｜User｜>", False, True),
        ("<h1>", False, True),
        ("naïve", False, False),
        ("हिन्दी", False, False),
        ("\n\n\t", False, False),
        ("▁▁", False, False),
        ("2024", False, False),
    ],
)
def test_added_words_and_spaces_are_no_control_tokens(text, special, steers):
    assert control.is_control({"content": text, "special": special}) is steers


def test_tokens_that_were_added_later_are_seen():
    tokenizer = byte_level()
    tokenizer.chat_template = "{{ messages[0].content }}<|new|>"
    assert len(chat_tokens(tokenizer, user("a"))) == len("a<|new|>") - 2  # two merges
    tokenizer.add_tokens(["<|new|>"])
    new = tokenizer.convert_tokens_to_ids("<|new|>")
    assert chat_tokens(tokenizer, user("<|new|>")).count(new) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (control.OPEN, "U\\+FDD0, which is not a character"),
        ("".join(map(chr, chat.PRIVATE)), "private characters"),
    ],
)
def test_what_stands_for_control_tokens_cannot_be_sent(text, said):
    tokenizer = TOKENIZERS["byte_level"]()
    tokenizer.chat_template = TEMPLATES["fields"][0]
    with pytest.raises(InputError, match=said):
        chat_tokens(tokenizer, user(text))


def test_a_template_whose_tokens_cannot_be_followed_is_refused():
    """As text, its control tokens would mean nothing, and nobody would notice."""
    tokenizer = TOKENIZERS["byte_level"]()
    tokenizer.chat_template = "{{ '<|%s|>' % 'user' }}{{ messages[0].content }}"
    with pytest.raises(InputError, match=r"builds '<\|user\|>' from text that may be a message's"):
        chat_tokens(tokenizer, user("hi"))


def test_a_tokenizer_that_cannot_be_respelled_is_refused():
    class Slow:
        chat_template = "{{ messages[0].content }}"

    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        chat_tokens(Slow(), user("hi"))
