"""Training on answers only: which tokens of a conversation the model wrote, and that nothing else
is learned.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny

from longdraft import InputError
from longdraft.models.loading import load
from longdraft.training.frozen import Frozen, matches
from longdraft.training.kept_states import KeptStates
from longdraft.training.rows import IGNORE
from longdraft.training.turns import Turns

TURNS = Turns((7, 8), 9)
#                      question   7  8   answer   9  next   7  8   answer
ROW = torch.tensor([[1, 8, 9, 3, 7, 8, 4, 5, 6, 9, 7, 5, 7, 8, 2, 3]])
# at t: token t+1; the last answer goes on beyond the row
WRITTEN = [
    0,
    0,
    0,
    0,
    0,
    1,
    1,
    1,
    1,
    0,
    0,
    0,
    0,
    1,
    1,
    1,
]


def test_answers_are_found():
    assert TURNS.answers(ROW).int().tolist() == [WRITTEN]
    # it is not known who wrote what comes before the first mark
    assert not TURNS.answers(ROW[:, 6:9]).any()
    assert not TURNS.answers(ROW[:, :1]).any()
    two = torch.cat([ROW, ROW.roll(1, 1)])
    assert TURNS.answers(two).int().tolist() == [WRITTEN, [0, *WRITTEN[:-1]]]


def test_other_predictions_are_not_learned(tmp_path):
    lm = tiny.target("llama")
    plain = Frozen(lm).read(ROW, predict=True).predicted
    for frozen in (
        Frozen(lm, TURNS),
        KeptStates(lm, tmp_path, TURNS),
        KeptStates(lm, tmp_path, TURNS),
    ):
        found = frozen.read(ROW, predict=True).predicted
        assert torch.equal(found, plain.where(torch.tensor([WRITTEN]).bool(), IGNORE))
    # files have all of them
    assert torch.equal(KeptStates(lm, tmp_path).read(ROW, predict=True).predicted, plain)
    assert matches(plain, found) == 1 and matches(plain + 1, found) == 0


def test_a_template_tells_its_marks(place):
    _, tokenizer = load("tiny", "float32", "cpu")
    with pytest.raises(InputError, match="no chat template"):
        Turns.of(tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}Q:{{ m.content }};{% else %}A:{{ "
        "m.content }}.{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    )
    turns = Turns.of(tokenizer)
    assert tokenizer.decode(turns.begin) == "A:" and tokenizer.decode([turns.end]) == "."
    tokenizer.chat_template = (  # Phi's ends a conversation that the model does not go on with
        "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% else %}.{% endif %}"
    )
    turns = Turns.of(tokenizer)
    assert tokenizer.decode(turns.begin) == "assistant:" and tokenizer.decode([turns.end]) == ";"
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '[I]' ~ m.content ~ '[/I]' if m.role == 'user' else "
        "m.content ~ '.' }}{% endfor %}"
    )
    turns = Turns.of(tokenizer)
    assert tokenizer.decode(turns.begin) == "[/I]" and tokenizer.decode([turns.end]) == "."
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(InputError, match="leave out --answers"):
        Turns.of(tokenizer)


def test_it_is_an_option_of_training(cli, place, tmp_path):
    line = [
        "glide",
        "-m",
        "tiny",
        "--text",
        "a.txt",
        "--length",
        "32",
        "--steps",
        "1",
        "--no-bf16",
        "--answers",
    ]
    status, _, err = cli("train", *line, "--out", str(tmp_path / "g"))
    assert status == 2 and "no chat template" in err and len(err.splitlines()) == 1
