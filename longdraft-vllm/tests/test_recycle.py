"""recycle's tables hold what the target said after each token, and drafts follow them."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from conftest import VOCAB
from engine import mixed, run
from longdraft_vllm.recycle import Recycle, Recycling


def drafter(**options) -> Recycle:
    return Recycle(
        SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=4),
            model_config=SimpleNamespace(max_model_len=50),
            additional_config={"longdraft": options} if options else {},
        )
    )


def test_a_draft_follows_the_table():
    d = drafter()
    d.read("a", [1, 2, 3, 1, 4, 5], [(5, 6)])
    d.read("b", [5, 7], [(7, 5)])
    assert d.chain("a", 6, 7) == []
    assert d.chain("a", 3, 7) == [1, 4, 5, 6]  # 1 was followed by 4 last
    assert d.chain("a", 3, 47) == [1, 4]  # the last one leaves room for the token after it
    assert d.chain("b", 5, 7) == [7, 5, 7, 5]
    d.read("a", [], [(6, 8), (4, 9), (6, 1)])  # 4 was refused, or its place would be the last
    assert d.chain("a", 6, 7) == [8]
    assert d.chain("a", 1, 7) == [4, 9]
    d.keep(["b"])
    assert d.chain("a", 3, 7) == []


def test_options_are_refused():
    with pytest.raises(
        ValueError, match="Recycle has no option nodes; its options are keyed_noise"
    ):
        drafter(nodes=3)


def bigrams_read(model, monkeypatch) -> tuple[set, set]:
    """Of each verification of each request, the first pair that was read; and all pairs of
    neighbors in the texts.
    """
    pairs: set = set()
    read = Recycle.read

    def recording(self, request, text, seen):
        pairs.add((request.split("-")[0], *seen[0]))
        read(self, request, text, seen)

    monkeypatch.setattr(Recycle, "read", recording)
    requests = mixed(VOCAB, 256)
    found = run(model, "recycle", requests)
    assert found.accepted > 0
    texts = [r.prompt + output for r, output in zip(requests, found.outputs, strict=True)]
    return pairs, {(str(i), a, b) for i, text in enumerate(texts) for a, b in pairwise(text)}


def test_what_is_read_is_what_the_target_says(llama, monkeypatch):
    pairs, neighbors = bigrams_read(llama, monkeypatch)
    assert len(pairs) > 50 and pairs <= neighbors


def test_a_row_that_reads_another_rows_logits_is_caught(llama, monkeypatch):
    """The planted fault: each row's logits are taken one row too late."""
    own = Recycling._read
    monkeypatch.setattr(
        Recycling, "_read", lambda self, best, spec: own(self, [best[-1], *best[:-1]], spec)
    )
    pairs, neighbors = bigrams_read(llama, monkeypatch)
    assert not pairs <= neighbors
