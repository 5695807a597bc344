"""States of the target that are kept in files are the ones that it computes, and rows come
again.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import tiny
from support.structure import close

from longdraft.drafters import random_glide
from longdraft.drafters.glide.objective import GlideObjective
from longdraft.training import rows
from longdraft.training.data import Corpus
from longdraft.training.frozen import Frozen, TargetStates
from longdraft.training.kept_states import KeptStates
from longdraft.training.run import acceptance


def tokens(seed: int) -> torch.Tensor:
    return torch.tensor(tiny.prompts(40, 40, seed=seed))


def equal(one: TargetStates, other: TargetStates) -> None:
    assert one.states.keys() == other.states.keys()
    for n in one.states:
        close(one.states[n], other.states[n])
    for name in ("keys", "values", "predicted"):
        mine = getattr(one, name)
        theirs = getattr(other, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            close(mine.float(), theirs.float())


@pytest.mark.parametrize(
    "wanted", [{"states": [1, 3]}, {"layer": 2, "predict": True}, {"states": [3], "layer": 0}]
)
def test_kept_states_are_those_of_the_target(tmp_path, wanted):
    lm = tiny.target("llama")
    kept = KeptStates(lm, tmp_path)
    plain = Frozen(lm)
    for _ in range(2):
        equal(kept.read(tokens(1), **wanted), plain.read(tokens(1), **wanted))
        assert len(list(tmp_path.iterdir())) == 2  # a file per row, none left half written
    equal(kept.read(tokens(2), **wanted), plain.read(tokens(2), **wanted))
    moved = torch.arange(40).expand(2, -1) + torch.arange(40).ge(4) * 9
    equal(kept.read(tokens(1), moved, **wanted), plain.read(tokens(1), moved, **wanted))
    assert len(list(tmp_path.iterdir())) == 6


def test_a_second_read_does_not_run_the_target(tmp_path, monkeypatch):
    kept = KeptStates(tiny.target("llama"), tmp_path)
    first = kept.read(tokens(1), states=[2])
    monkeypatch.setattr(Frozen, "compute", None)
    equal(kept.read(tokens(1), states=[2]), first)
    monkeypatch.undo()
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-9])  # damaged: computed again
    equal(kept.read(tokens(1), states=[2]), first)
    other = KeptStates(tiny.target("qwen3"), tmp_path)  # another target does not read them
    assert not torch.equal(other.read(tokens(1), states=[2]).states[2], first.states[2])


def test_training_with_kept_states_has_the_same_loss(tmp_path):
    lm = tiny.target("llama")
    block = random_glide(lm)
    found = []
    for frozen in (Frozen(lm), KeptStates(lm, tmp_path), KeptStates(lm, tmp_path)):
        learns = GlideObjective(frozen, block, anchors=0, lags=2)
        found.append(
            (
                float(learns.loss(tokens(1), np.random.default_rng(0))),
                acceptance(learns, {"book": tokens(2)}, False),
            )
        )
    assert found[0] == found[1] == found[2]


def test_rows_on_a_grid_come_again():
    groups = np.asarray([0, 100, 250])
    corpus = Corpus(np.arange(250), groups, groups, ["a", "b"], ["a", "b"], ["book", "book"])
    starts = {
        int(rows.cut(corpus, 17, np.random.default_rng(i), 0.0, grid=True)[0]) for i in range(400)
    }
    assert starts == {*range(0, 84, 16), *range(100, 234, 16)}
