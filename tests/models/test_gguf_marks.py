"""Control tokens of GGUF files that are known by their texts: which end a sequence, and which have
the wrong type.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gguf_files import ARRAY, I32, STRING, U32, saved

from longdraft import Sampler, generate, load
from longdraft.models.chat import chat_tokens
from longdraft.models.gguf import marks
from longdraft.models.text import token_ids

KEY = "tokenizer.ggml."
# where texts are put, and the end token of the metadata
FIRST = 256
EOS = 260
# types of tokens
WORD = 1
CONTROL = 3
OWN = 4
ENDS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
)
ENDS += ("<EOT>", "<|file_sep|>", "<|repo_name|>", "<|fim_pad|>")


def having(*texts: str, kind: int = CONTROL, **named: int):
    """For `saved`: the vocabulary has these texts, and the metadata these ids."""

    def change(metadata, tensors):
        _, (_, tokens) = metadata[f"{KEY}tokens"]
        kinds = [WORD] * 259 + [CONTROL, CONTROL, OWN]
        tokens[EOS] = "<|stop|>"  # which is none of the known texts
        tokens[FIRST : FIRST + len(texts)] = texts
        kinds[FIRST : FIRST + len(texts)] = [kind] * len(texts)
        metadata[f"{KEY}tokens"] = ARRAY, (STRING, tokens)
        metadata[f"{KEY}token_type"] = ARRAY, (I32, kinds)
        metadata[f"{KEY}merges"] = ARRAY, (STRING, [])
        metadata |= {f"{KEY}{name}_token_id": (U32, token) for name, token in named.items()}

    return change


def loaded(folder: Path, *texts: str, kind: int = CONTROL, **named: int):
    return load(str(saved(folder, change=having(*texts, kind=kind, **named))), "float32")


# End tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ENDS)
def test_a_known_text_ends_a_sequence(tmp_path, text):
    lm, tokenizer = loaded(tmp_path, text)
    assert lm.end_tokens == (FIRST, EOS) and tokenizer.convert_tokens_to_ids(text) == FIRST
    said = generate(lm, [[5, 6]], max_new_tokens=4, sampler=Sampler(bias=((FIRST, 100.0),)))
    assert said == [[FIRST]]


def test_the_ends_of_the_metadata_alone_miss_it(tmp_path, monkeypatch):
    monkeypatch.setattr(marks, "ENDS", ())
    lm, _ = loaded(tmp_path, "<|endoftext|>")
    said = generate(lm, [[5, 6]], max_new_tokens=4, sampler=Sampler(bias=((FIRST, 100.0),)))
    assert lm.end_tokens == (EOS,) and said == [[FIRST] * 4]


@pytest.mark.parametrize("name", marks.NAMED)
def test_a_token_that_the_metadata_names_as_an_end_is_one(tmp_path, name):
    lm, _ = loaded(tmp_path, "a word", kind=WORD, **{name: FIRST})
    assert FIRST in lm.end_tokens


def test_other_texts_are_no_ends(tmp_path):
    lm, _ = loaded(tmp_path, "<|im_start|>", "<|fim_middle|>", "</s>")
    assert lm.end_tokens == (EOS,)


def test_an_end_of_a_part_of_a_turn_is_no_end_of_the_turn(tmp_path):
    lm, _ = loaded(tmp_path, "<|end|>", "<|return|>")
    assert lm.end_tokens == (FIRST + 1, EOS)


# Types of tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [WORD, OWN])
@pytest.mark.parametrize("text", ["<|im_end|>", "<|fim_middle|>", "<|im_start|>"])
def test_a_control_token_with_another_type_is_control(tmp_path, text, kind):
    lm, tokenizer = loaded(tmp_path, text, kind=kind)
    assert token_ids(tokenizer, f"a{text}b", True)[1] == FIRST
    assert FIRST not in token_ids(tokenizer, f"a{text}b")  # what a user writes is text
    assert tokenizer.decode([FIRST], skip_special_tokens=True) == ""
    assert (
        lm.note
        == f"model.gguf does not mark {text} as control: longdraft reads such tokens as control"
    )


def test_a_chat_has_it_in_one_piece(tmp_path):
    template = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"

    def change(metadata, tensors):
        having("<|im_end|>", kind=WORD)(metadata, tensors)
        metadata["tokenizer.chat_template"] = STRING, template

    _, tokenizer = load(str(saved(tmp_path, change=change)), "float32")
    ids = chat_tokens(tokenizer, [{"role": "user", "content": "a<|im_end|>"}])
    assert ids.count(FIRST) == 1 and ids[-1] == FIRST


def test_a_file_without_types_has_them_too(tmp_path):
    def change(metadata, tensors):
        having("<|im_end|>")(metadata, tensors)
        del metadata[f"{KEY}token_type"]

    _, tokenizer = load(str(saved(tmp_path, change=change)), "float32")
    assert token_ids(tokenizer, "<|im_end|>", True) == [FIRST]


@pytest.mark.full
def test_the_command_line_says_so(tmp_path, cli):
    path = saved(tmp_path, change=having("<|im_end|>", "<|fim_pad|>", kind=OWN))
    status, _, err = cli("generate", "a", "-m", str(path), "--max-new-tokens", "2", "--json")
    assert status == 0 and "note: model.gguf does not mark <|im_end|> and 1 more as control" in err


def test_files_with_right_types_say_nothing(tmp_path):
    lm, tokenizer = loaded(tmp_path, "<|im_end|>", "<|fim_pad|>")
    assert lm.note is None and token_ids(tokenizer, "<think>") == [261]
