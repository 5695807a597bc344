"""How tokenizers of byte-level BPE split text before they merge, by a file's tokenizer.ggml.pre.

The rules are those of the tokenizers that the models were published with. llama.cpp replaces some
expressions with similar ones, and applies no normalization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from longdraft.errors import InputError
from longdraft.models.gguf.file import GGUF

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{BREAKS}"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
DIGITS3 = r"\p{N}{1,3}"
LLAMA3 = rf"{CONTRACTIONS}|{WORD}|{DIGITS3}|{REST}"
QWEN2 = rf"{CONTRACTIONS}|{WORD}|{DIGIT}|{REST}"
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{DIGIT}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{BREAKS}"
)
# words that end where small letters are followed by capital ones
LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
CASED = rf"{LOWER}{CONTRACTIONS}?|{UPPER}{CONTRACTIONS}?"
SIGNS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BREAKS}"
TEKKEN = rf"{LOWER}|{UPPER}|{DIGIT}|{SIGNS}"
GPT4O = rf"{CASED}|{DIGITS3}|{SIGNS}"
KIMI = rf"\p{{Han}}+|{CASED}|{DIGITS3}|{REST}".replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
MARKED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
DEEPSEEK3 = (DIGITS3, CJK, rf"{MARKED}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BREAKS}")
SPARK = rf"{MARKED}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
HANS = "[一-龥ࠀ-一가-\ud7ff]+"
# letters of scripts with two cases, as DeepSeek LLM's tokenizer lists them
LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗ"
    "ὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{LETTERS}]+",
    "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    HANS,
    DIGIT,
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HANS, DIGIT)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
# digits in threes, counted from the end of the number
THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
ASIAN = (
    "[一-鿿㐀-䶿\u8c48-\ufaff\u3040-ゟ゠-ヿ\uff65-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ff"
    "က-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+"
)
YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u3001-\u303f︰-﹏]+|[ㄅ-ㄯ]+|" + CJK
EXAONE_MOE = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|{DIGIT}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
SPACES = "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"
CHAMELEON = (
    r"<sentinel:[0-9]+>",
    r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2,
)


@dataclass(frozen=True)
class Splitting:
    """No text is lost: a pattern's pieces are its matches and what lies between them.

    patterns: each splits the pieces of the one before it. whole: a piece that is a token is never
    split, whatever the merges say. begins: begin-of-text is added unless the file states otherwise.
    composed: text is normalized to NFC first. ranked: tokens are in the order of their merges,
    which a file may lack.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    begins: bool = False
    composed: bool = False
    ranked: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        split = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*split, level])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.composed else None


def _named(names: str, *patterns: str, **facts: bool) -> dict[str, Splitting]:
    return dict.fromkeys(names.split(), Splitting(patterns, **facts))


SPLITTINGS: Mapping[str, Splitting] = {
    **_named(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        LLAMA3,
        whole=True,
        begins=True,
    ),
    **_named("smaug-bpe dbrx", LLAMA3),
    **_named("chatglm-bpe glm4 glm5", LLAMA3, whole=True),
    **_named("minicpm5", DIGITS3, LLAMA3.replace(DIGITS3, r"\p{N}+"), whole=True),
    **_named("jais-2", LLAMA3.replace(BREAKS, rf"\s*[\r\n]+|{SPACES}")),
    **_named("qwen2 deepseek-r1-qwen f2llmv2", QWEN2, composed=True),
    **_named("megrez kormo stablelm2 solar-open grok-2 bailingmoe bailingmoe2 llada-moe", QWEN2),
    **_named("hunyuan", QWEN2, whole=True, composed=True),
    **_named("qwen35", QWEN35, composed=True),
    **_named("ufakzeka", QWEN2.removeprefix(f"{CONTRACTIONS}|")),
    **_named("laguna", r"[^\n]+|[\n]+", QWEN2),
    **_named("seed-coder", QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+")),
    **_named("exaone-moe", EXAONE_MOE),
    **_named("tekken", TEKKEN, whole=True, begins=True),
    **_named("gpt-4o llama4", GPT4O, whole=True),
    **_named("minimax-m2 kanana2 talkie", GPT4O),
    **_named("tiny_aya cohere2moe", r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O),
    **_named("kimi-k2", KIMI, whole=True, ranked=True),
    **_named("youtu", YOUTU, GPT4O.replace(DIGITS3, DIGIT), whole=True),
    **_named("deepseek-llm", *DEEPSEEK),
    **_named("deepseek-coder", *DEEPSEEK_CODER),
    **_named("deepseek-v3 hunyuan-dense joyai-llm hy_v4", *DEEPSEEK3),
    **_named("afmoe", THREES, ASIAN, DEEPSEEK3[-1]),
    **_named("spark2_5", DIGITS3, CJK, SPARK, DIGIT),
    **_named("gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum", GPT2),
    **_named("exaone4 jais trillion granite-docling", GPT2),
    **_named("olmo mpt", GPT2, composed=True),
    **_named("starcoder refact smollm codeshell exaone minerva-7b mellum2", DIGIT, GPT2),
    **_named("command-r", DIGIT, GPT2, composed=True),
    **_named("falcon", r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
    **_named("default", r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **_named("bloom gpt3-finnish poro-chat", BLOOM),
    **_named("viking", BLOOM, DIGIT),
    **_named("superbpe", r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    **_named("chameleon", *CHAMELEON, begins=True),
}
# Architectures whose files had byte-level tokenizers before they had tokenizer.ggml.pre.
BEFORE = {
    "qwen2": "qwen2",
    "qwen2moe": "qwen2",
    "starcoder2": "starcoder",
    "command-r": "command-r",
}


def splitting_of(file: GGUF) -> Splitting:
    """The rule that a file names. Raises InputError for one that is not known."""
    architecture = file.get("general.architecture", str, "")
    pre = file.get("tokenizer.ggml.pre", str, BEFORE.get(architecture, "default"))
    if pre not in SPLITTINGS:
        raise InputError(
            f"{file.path} splits text by the unknown rule {pre[:40]!r}: use a model with one of "
            "those in docs/models.md (GGUF files), such as 'llama-bpe' or 'qwen2'"
        )
    return SPLITTINGS[pre]
