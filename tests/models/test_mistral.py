"""Mistral's Tekken vocabulary is split by Tekken's rule, whatever a folder says; other warnings of
it are shown.
"""

from __future__ import annotations

import json
import logging

import pytest
from support import tiny
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from longdraft import load
from longdraft.models import loading, mistral
from longdraft.models.gguf.splitting import LLAMA3, TEKKEN
from longdraft.models.text import CHARACTERS, token_ids

LARGE = 100_001  # tokens from which Transformers looks at a vocabulary
MERGES = [("h", "e"), ("T", "he"), ("'", "T")]
SPECIAL = ["<unk>", "<s>", "</s>", *(f"<SPECIAL_{i}>" for i in range(3, 1000))]


def tokenizer(rule: str = LLAMA3, first: str = "<unk>", size: int = 0) -> Tokenizer:
    """Of Tekken's layout: 1,000 control tokens, 256 bytes, and merges. first: its first token."""
    names = [first, *SPECIAL[1:], *CHARACTERS, *(a + b for a, b in MERGES)]
    names[1000:1256] = sorted(CHARACTERS, key=CHARACTERS.__getitem__)
    names += [f"<more {i}>" for i in range(len(names), size)]
    made = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, MERGES))
    split = pre_tokenizers.Split(Regex(rule), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    return made


def folder(path, made: Tokenizer, kind: str = "mistral"):
    config, cls = (
        (MistralConfig, MistralForCausalLM)
        if kind == "mistral"
        else (LlamaConfig, LlamaForCausalLM)
    )
    sizes = tiny.BASE | {
        "vocab_size": made.get_vocab_size(),
        "hidden_size": 16,
        "num_hidden_layers": 1,
    }
    sizes |= {
        "intermediate_size": 16,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    cls(config(**sizes)).save_pretrained(path)
    written = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(written | {"transformers_version": "4.50.0"}))
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return path


def pieces(tokenizer) -> list[str]:
    return tokenizer.convert_ids_to_tokens(token_ids(tokenizer, "'The"))


def test_tekkens_vocabulary_is_split_by_its_rule(tmp_path):
    lm, read = load(str(folder(tmp_path, tokenizer())), "float32")
    assert pieces(read) == ["'", "The"] and read.decode(token_ids(read, "'The é\n")) == "'The é\n"
    assert str(lm.note) == mistral.NOTE.format(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert pieces(theirs) == ["'T", "he"]  # which is the fault


@pytest.mark.full
def test_the_command_line_says_so(tmp_path, cli):
    _, _, err = cli(
        "generate", "a", "-m", str(folder(tmp_path, tokenizer())), "--max-new-tokens", "2", "--json"
    )
    assert "note: the tokenizer of" in err and "uses Tekken's" in err


@pytest.mark.parametrize(
    ("made", "kind"),
    [(tokenizer(TEKKEN), "mistral"), (tokenizer(first="<pad>"), "mistral"), (tokenizer(), "llama")],
    ids=["the right rule", "another vocabulary", "another model type"],
)
def test_other_tokenizers_are_left_alone(tmp_path, made, kind):
    lm, read = load(str(folder(tmp_path, made, kind)), "float32")
    assert (
        lm.note is None
        and json.loads(read.backend_tokenizer.to_str())["pre_tokenizer"]
        == json.loads(made.to_str())["pre_tokenizer"]
    )


@pytest.mark.parametrize("kind", ["mistral3", "ministral3", "pixtral", "voxtral_text"])
def test_all_of_mistrals_types(kind):
    assert mistral.mend(_Wrapped(tokenizer()), kind) is True


class _Wrapped:
    def __init__(self, backend: Tokenizer):
        self.backend_tokenizer = backend


@pytest.mark.full
@pytest.mark.parametrize(("first", "shown"), [("<pad>", True), ("<unk>", False)])
def test_the_warning_of_transformers_is_shown_where_nothing_is_mended(tmp_path, cli, first, shown):
    path = folder(tmp_path, tokenizer(first=first, size=LARGE))
    _, _, err = cli("generate", "a", "-m", str(path), "--max-new-tokens", "2", "--json")
    assert ("Transformers warns: The tokenizer you are loading" in err) == shown
    assert ("uses Tekken's" in err) == (not shown)


@pytest.mark.parametrize(("first", "shown"), [("<pad>", True), ("<unk>", False)])
def test_a_warning_is_shown_where_nothing_is_mended(tmp_path, monkeypatch, capsys, first, shown):
    class Warns(AutoTokenizer):
        @classmethod
        def from_pretrained(cls, *args, **options):
            logging.getLogger(mistral.LOGGER).warning(f"{first} has an {mistral.WARNING}")
            return AutoTokenizer.from_pretrained(*args, **options)

    monkeypatch.setattr(loading, "AutoTokenizer", Warns)
    loading.quiet(None)
    load(str(folder(tmp_path, tokenizer(first=first))), "float32")
    assert (f"note: Transformers warns: {first} has an" in capsys.readouterr().err) == shown


def test_held_warnings_are_of_the_rule_alone():
    logger = logging.getLogger(mistral.LOGGER)
    seen = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    logger.addHandler(handler)
    try:
        with mistral.warnings_held() as held:
            logger.error("another fault")
            logger.error(f"an {mistral.WARNING}")
        assert seen == ["another fault"]
        mistral.say(held)
        assert seen == ["another fault", f"an {mistral.WARNING}"]
    finally:
        logger.removeHandler(handler)
