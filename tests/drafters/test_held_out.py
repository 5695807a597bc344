"""What training measured on held-out text is what a drafter expects at first."""

from __future__ import annotations

import pytest
from support import tiny

from longdraft.drafters import held_out
from longdraft.drafters.kinds import KINDS
from longdraft.methods import build
from longdraft.methods.drafter_weights import DrafterWeights


@pytest.fixture
def trained(tmp_path):
    """A saved drafter whose training has measured 0.8 and 0.4 at its end."""
    lm = tiny.target("llama")
    probes = [
        {"step": 1, "book": {"by_depth": [0.1]}},
        {"step": 2, "book": {"by_depth": [0.8, 0.4]}, "acceptance": 2.1},
    ]
    KINDS["medusa"].save(KINDS["medusa"].random(lm, 0), tmp_path / "heads", lm, {"probes": probes})
    return lm, tmp_path / "heads"


def test_a_drafter_expects_what_was_measured(trained):
    lm, folder = trained
    usual = build("medusa", lm, folder).price().usual
    assert (
        usual
        == pytest.approx((0.6, 0.6 * held_out.SAMPLED))
        != build("medusa", lm, KINDS["medusa"].random(lm, 0)).price().usual
    )
    weights = DrafterWeights(str(folder)).of("medusa", lm)  # as the commands load it
    assert build("medusa", lm, weights).price().usual == usual


def test_the_first_measurement_is_not_the_last(trained, monkeypatch):
    """A planted fault."""
    read = held_out.read_json
    monkeypatch.setattr(held_out, "read_json", lambda file: {"probes": read(file)["probes"][::-1]})
    with pytest.raises(AssertionError):
        test_a_drafter_expects_what_was_measured(trained)


@pytest.mark.parametrize(
    "facts", ["{", "[]", "{}", '{"probes": [{"book": {"by_depth": ["x"]}}]}', '{"probes": []}']
)
def test_facts_of_another_form_say_nothing(trained, facts):
    lm, folder = trained
    (folder / held_out.FACTS).write_text(facts)
    assert held_out.rate_in(folder / held_out.FACTS) is None
    assert (
        build("medusa", lm, folder).price().usual
        == build("medusa", lm, KINDS["medusa"].random(lm, 0)).price().usual
    )
