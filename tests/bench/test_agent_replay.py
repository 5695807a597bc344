"""Each turn of an agent's conversation reads a few tokens of its earlier text again."""

from __future__ import annotations

import json

import agent_replay
import pytest

from longdraft.models.loading import load
from longdraft.prompts.prefix_cache import PrefixCache

SMALL = ["-m", "bundled", "--dtype", "float32", "--tokens", "2000", "--max-new-tokens", "16"]
FEW = 4  # tokens: the last one of an answer, and what the template puts after it
needs_kernels = pytest.mark.skipif(
    load("bundled", "float32")[0].prompt_block > 1, reason="torch reads prompts here, in blocks"
)


def replayed(tmp_path, turns: int) -> tuple[int, list[dict]]:
    """The status of the benchmark, and its records."""
    out = tmp_path / "agent.jsonl"
    status = agent_replay.main([*SMALL, "--turns", str(turns), "--out", str(out)])
    return status, [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.full
@needs_kernels
def test_a_conversation_is_not_read_again(tmp_path):
    status, records = replayed(tmp_path, 4)
    assert status == int(agent_replay.share(records) > agent_replay.GOAL)
    first, *later = records
    assert first["sent"] == 0 and all(r["sent"] > r["prompt"] / 2 for r in later)
    assert status == 0 and all(r["again"] <= FEW for r in records)


@pytest.mark.full
@needs_kernels
def test_a_server_that_keeps_no_tails_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(PrefixCache, "_tail", lambda *_: None)
    _, records = replayed(tmp_path, 3)
    assert any(r["again"] > FEW for r in records)


@pytest.mark.full
def test_a_server_that_keeps_nothing_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(PrefixCache, "store", lambda *_: None)
    status, records = replayed(tmp_path, 2)
    assert status == 1 and records[1]["again"] == records[1]["sent"] > 0
