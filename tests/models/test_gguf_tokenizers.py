"""Tokenizers of GGUF files: every rule that splits text, and what else a rule says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.gguf_vocabularies import ALPHABET, built, pieces

from longdraft.errors import InputError
from longdraft.models.gguf import splitting
from longdraft.models.gguf.splitting import SPLITTINGS

TEXT = (
    "I'M 0'Twas 12345 iOS's e\u0301=.\n/(x) $`\r\n\r\n 。か々中한 \u0e40  \u0661\u0662    IMGIMGAZ"
)
# The names of each rule, and TEXT's pieces. They are also llama.cpp's, except after tekken, gpt-4o,
# minimax-m2, tiny_aya, kimi-k2 and youtu, whose classes of letters llama.cpp simplifies.
RULES = [
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano "
        "smaug-bpe dbrx chatglm-bpe glm4 glm5",
        "I|'M| |0|'T|was| |123|45| iOS|'s| e|\u0301=.\n|/(|x|)| $`\r\n\r\n| 。|か々中한| \u0e40"
        "| | |\u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "minicpm5",
        "I|'M| |0|'T|was| |123|45| iOS|'s| e|\u0301=.\n|/(|x|)| $`\r\n\r\n| 。|か々中한| \u0e40"
        "|  |\u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "jais-2",
        "I|'M| |0|'T|was| |123|45| iOS|'s| e|\u0301=.\n|/(|x|)| $`\r\n\r\n| 。|か々中한| \u0e40"
        "| | |\u0661\u0662|  | | IMGIMGAZ",
    ),
    (
        "qwen2 deepseek-r1-qwen f2llmv2 megrez kormo stablelm2 solar-open grok-2 bailingmoe "
        "bailingmoe2 llada-moe hunyuan",
        "I|'M| |0|'T|was| |1|2|3|4|5| iOS|'s| e|\u0301=.\n|/(|x|)| $`\r\n\r\n| 。|か々中한| "
        "\u0e40| | |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "qwen35",
        "I|'M| |0|'T|was| |1|2|3|4|5| iOS|'s| e\u0301|=.\n|/(|x|)| $`\r\n\r\n| 。|か々中한| "
        "\u0e40| | |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "ufakzeka",
        "I|'M| |0|'Twas| |1|2|3|4|5| iOS|'s| e|\u0301=.\n|/(|x|)| $`\r\n\r\n| 。|か々中한| "
        "\u0e40| | |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "laguna",
        "I|'M| |0|'T|was| |1|2|3|4|5| iOS|'s| e|\u0301=.|\n|/(|x|)| $`\r|\n|\r|\n| 。|か々中한|"
        " \u0e40| | |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "seed-coder",
        "I|'M| |0|'T|was| |1|2|3|4|5| iOS|'s| e|\u0301=.|\n|/(|x|)| $`|\r\n\r\n| 。|か々中한| "
        "\u0e40| | |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "exaone-moe",
        "I|'M| |0|'T|was| |1|2|3|4|5| iOS|'s| e\u0301|=.\n|/(|x|)| $`\r|\n\r\n| 。|か々中한 "
        "\u0e40| | |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "tekken",
        "I|'M| |0|'Twas| |1|2|3|4|5| i|OS|'s| e\u0301|=.\n/|(x|)| $`\r\n\r\n| 。|か々中한| "
        "\u0e40| | |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "gpt-4o llama4 minimax-m2 kanana2 talkie",
        "I'M| |0|'Twas| |123|45| i|OS's| e\u0301|=.\n/|(x|)| $`\r\n\r\n| 。|か々中한| \u0e40| |"
        " |\u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "tiny_aya cohere2moe",
        "I'M| |0|'Twas| |12|345| i|OS's| e\u0301|=.\n/|(x|)| $`\r\n\r\n| 。|か々中한| \u0e40|  "
        "|\u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "kimi-k2",
        "I'M| |0|'Twas| |123|45| i|OS's| e\u0301|=.\n|/(|x|)| $`\r\n\r\n| 。|か|々中|한| \u0e40"
        "| | |\u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "youtu",
        "I'M| |0|'Twas| |1|2|3|4|5| i|OS's| e\u0301|=.\n/|(x|)| $`\r\n\r\n| |。|か|々|中|한| "
        "\u0e40| | |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "deepseek-llm",
        "I|'|M| |0|'|Twas| |1|2|3|4|5| iOS|'|s| e|\u0301|=.|\n|/(|x|)| $`|\r|\n|\r|\n| |。|か々"
        "中한| |\u0e40|  |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "deepseek-coder",
        "I|'|M| |0|'|Twas| |1|2|3|4|5| iOS|'|s| e|\u0301=|.|\n|/(|x|)| $`|\r|\n|\r|\n| |。|か々"
        "中한| |\u0e40|  |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        "I|'M| |0|'Twas| |123|45| iOS|'s| e\u0301|=.\n|/(|x|)| $`\r\n\r\n| 。|か|々|中|한| "
        "\u0e40|  |\u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "afmoe",
        "I|'M| |0|'Twas| |12|345| iOS|'s| e\u0301|=.\n|/(|x|)| $`\r\n\r\n| 。|か|々|中한| |"
        "\u0e40|  |\u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "spark2_5",
        "I|'M| |0|'Twas| |1|2|3|4|5| iOS|'s| e\u0301|=.|\n|/(|x|)| $`|\r|\n|\r|\n| 。|か|々|中|"
        "한| \u0e40|  |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum exaone4 "
        "jais trillion granite-docling olmo mpt",
        "I|'|M| 0|'|Twas| 12345| iOS|'s| e|\u0301=.|\n|/(|x|)| $`|\r\n\r\n| 。|か々中한| \u0e40"
        "| | \u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "starcoder refact smollm codeshell exaone minerva-7b mellum2 command-r",
        "I|'|M| |0|'|Twas| |1|2|3|4|5| iOS|'s| e|\u0301=.|\n|/(|x|)| $`|\r\n\r\n| 。|か々中한| "
        "\u0e40|  |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "falcon",
        "I|'|M| 0|'|Twas| |123|45| iOS|'|s| e|\u0301|=.|\n|/(|x|)| |$`|\r\n\r\n |。|か々中한| "
        "\u0e40| | \u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "default",
        "I|'|M| |0|'|Twas| |123|45| iOS|'|s| e|\u0301|=.|\n|/(|x|)| |$|`|\r\n\r\n |。|か々中한|"
        " \u0e40| | |\u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "bloom gpt3-finnish poro-chat",
        "I'M| 0'Twas| 12345| iOS's| e\u0301=|.\n|/|(|x|)| $`|\r\n\r\n 。|か々中한| \u0e40| | "
        "\u0661\u0662|   | IMGIMGAZ",
    ),
    (
        "viking",
        "I'M| |0|'Twas| |1|2|3|4|5| iOS's| e\u0301=|.\n|/|(|x|)| $`|\r\n\r\n 。|か々中한| "
        "\u0e40| | |\u0661|\u0662|   | IMGIMGAZ",
    ),
    (
        "superbpe",
        "I'M |0|'Twas |12|345| iOS's e\u0301=.\n/(x) $`\r\n\r\n 。か々中한 \u0e40  |\u0661"
        "\u0662|    IMGIMGAZ",
    ),
    (
        "chameleon",
        "I|'|M| |0|'|Twas| |1|2|3|4|5| iOS|'|s| e|\u0301|=|.|\n|/|(|x|)| |$|`|\r|\n|\r|\n| |。|"
        "か々中한| \u0e40|  |\u0661|\u0662|    |IMGIMGAZ",
    ),
]
NAMES = [name for names, _ in RULES for name in names.split()]


def names(text: str) -> set[str]:
    return set(text.split())


# What else the rules of these names say.
WHOLE = names(
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano chatglm-bpe "
    "glm4 glm5 minicpm5 hunyuan tekken gpt-4o llama4 kimi-k2 youtu"
)
BEGINNING = names(
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken "
    "chameleon"
)
COMPOSED = names("qwen2 deepseek-r1-qwen f2llmv2 hunyuan qwen35 olmo mpt command-r")


def byte_level(pre: str | None, **metadata: Any):
    """Bytes, a word that no merge makes, a letter with an accent, and two control tokens."""
    tokens = [*ALPHABET, "Ġabc", "Ã©", "<s>", "</s>"]
    types = np.array([1] * (len(tokens) - 2) + [3, 3], np.int32)
    named = {"bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 1}
    rule = {} if pre is None else {"pre": pre}
    return built(tokens, merges=["Ã ©"], token_type=types, **rule, **named, **metadata)


# Rules --------------------------------------------------------------------------------------------


def check_split(name: str, wanted: str) -> None:
    spans = byte_level(name).backend_tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)
    assert "|".join(TEXT[a:b] for _, (a, b) in spans) == wanted


@pytest.mark.parametrize(("names", "wanted"), RULES, ids=[names.split()[0] for names, _ in RULES])
def test_text_is_split_by_the_rule_of_each_name(names, wanted):
    for name in names.split():
        check_split(name, wanted)


def test_every_name_is_tested_and_no_rule_passes_for_another():
    assert sorted(NAMES) == sorted(SPLITTINGS)
    assert len({wanted for _, wanted in RULES}) == len(RULES)


def test_a_rule_that_is_another_one_is_found(monkeypatch):
    monkeypatch.setattr(splitting, "SPLITTINGS", {"qwen2": SPLITTINGS["llama-bpe"]})
    with pytest.raises(AssertionError):
        check_split("qwen2", dict(RULES)[next(n for n, _ in RULES if n.startswith("qwen2 "))])


def check_facts(name: str) -> None:
    """A word of the vocabulary, the begin of the text, and an accent in two characters."""
    made = byte_level(name)
    whole = pieces(made, " abc")[-1] == "Ġabc"
    assert whole == (name in WHOLE)
    assert (pieces(made, "x")[0] == "<s>") == (name in BEGINNING)
    assert ("Ã©" in pieces(made, "e\u0301")) == (name in COMPOSED)


@pytest.mark.parametrize("name", NAMES)
def test_words_beginnings_and_accents_follow_the_name(name):
    check_facts(name)


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "gpt-2"])
@pytest.mark.parametrize("fact", ["whole", "begins", "composed"])
def test_a_wrong_fact_about_a_rule_is_found(name, fact, monkeypatch):
    right = SPLITTINGS[name]
    wrong = replace(right, **{fact: not getattr(right, fact)})
    monkeypatch.setattr(splitting, "SPLITTINGS", {name: wrong})
    with pytest.raises(AssertionError):
        check_facts(name)


def test_the_file_says_whether_text_begins_and_ends_with_a_token():
    assert pieces(byte_level("qwen2", add_bos_token=True), "x") == ["<s>", "x"]
    assert pieces(byte_level("llama-bpe", add_bos_token=False), "x") == ["x"]
    assert pieces(byte_level("llama-bpe", add_eos_token=True), "x") == ["<s>", "x", "</s>"]


@pytest.mark.parametrize(
    ("architecture", "wanted"),
    [
        ("qwen2", QWEN := ["I", "'", "M", "Ġ", "1", "2"]),
        ("qwen2moe", QWEN),
        ("starcoder2", QWEN),
        ("command-r", QWEN),
        ("llama", ["I", "'", "M", "Ġ", "12"]),
    ],
)
def test_older_files_are_split_by_their_architecture(architecture, wanted):
    """They name no rule; "12" is a token."""
    tokens = [*ALPHABET, "12"]
    made = built(tokens, architecture=architecture, merges=["1 2"])
    assert pieces(made, "I'M 12") == wanted


def test_an_unknown_rule_is_one_line():
    with pytest.raises(InputError, match=r"unknown rule 'strange'.*'llama-bpe'") as found:
        byte_level("strange")
    assert "\n" not in str(found.value)


def test_merges_follow_from_the_order_of_tokens_where_a_file_has_none():
    """Kimi K2's vocabulary is such: the merge wins whose token comes first."""
    assert pieces(built([*ALPHABET, "bc", "ab"], pre="kimi-k2"), "abc") == ["a", "bc"]
    assert pieces(built([*ALPHABET, "ab", "bc"], pre="kimi-k2"), "abc") == ["ab", "c"]
    assert pieces(built([*ALPHABET, "ab", "bc"], pre="gpt-2"), "abc") == ["a", "b", "c"]
