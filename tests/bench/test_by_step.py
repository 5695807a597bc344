"""Methods that take turns at each step decode as they do alone, each over a cache of its own."""

from __future__ import annotations

from copy import copy

import pytest
from support import broken, tiny

from longdraft import Sampler
from longdraft.bench.inputs import Text
from longdraft.bench.speed import Cell, Speed
from longdraft.engine.decode_session import DecodeSession
from longdraft.methods.spec import MethodSpec

NEW = 40
METHODS = ("plain", "suffix", "vegas")


def job(name: str, **options) -> Speed:
    entries = [MethodSpec(each, each) for each in METHODS]
    lm = tiny.target(name)
    return Speed(lm, None, entries, [], [70], NEW, 1, 2, Sampler(), 0, None, **options)


def cell(job: Speed) -> Cell:
    return Cell(job, Text("text", tiny.prompts(70)[0], "sum"), 70)


def taken(job: Speed) -> dict[str, list[list[list[int]]]]:
    """Each method's outputs, one for each repeat."""
    mine = cell(job)
    outputs: dict[str, list[list[list[int]]]] = {}
    for _, entry in mine.turns():
        output = mine.run(entry, NEW)
        assert output is not None
        outputs.setdefault(entry.label, []).append(output.rows)
    return outputs


@pytest.mark.parametrize("name", ["llama", "llama-kv8", "qwen3.5", "deepseek-v2"])
def test_outputs_are_those_of_decoding_alone(name):
    found = taken(job(name, by_step=True))
    assert found == taken(job(name))
    assert all(len(rows[0]) == NEW for repeats in found.values() for rows in repeats)


def check_copies(session: DecodeSession, other: DecodeSession) -> None:
    """Two decodes that take turns say what each says alone."""
    alone = session.rows()
    suffix = MethodSpec("suffix", "suffix").build(session.target)
    first, second = [], []
    runs = [(session.decode(suffix), first), (other.decode(), second)]
    while runs:
        for run in list(runs):
            step = next(run[0], None)
            if step is None:
                runs.remove(run)
            else:
                run[1].extend(step.tokens[0])
    assert [first] == alone and [second] == alone
    assert session.altered() is None and other.altered() is None


@pytest.mark.parametrize("name", ["llama", "llama-kv8", "qwen3.5", "deepseek-v2"])
def test_a_copy_has_a_cache_of_its_own(name):
    session = DecodeSession(tiny.target(name), tiny.prompts(70, 33), NEW)
    session.seal()
    other = session.copy()
    assert session.rows() == other.rows() and other.altered() is None
    one = DecodeSession(tiny.target(name), tiny.prompts(70), NEW)
    one.seal()
    check_copies(one, one.copy())


def test_a_copy_that_shares_its_cache_is_caught():
    session = DecodeSession(tiny.target("llama"), tiny.prompts(70), NEW)
    session.seal()
    with pytest.raises(AssertionError):
        check_copies(session, copy(session))


def test_the_method_with_the_fewest_tokens_is_next(monkeypatch):
    """So all are equally far at any time, and meet the machine at the same speed."""
    counts: dict[int, int] = {}
    widest = []
    decode = DecodeSession.decode

    def counted(self, *args, **options):
        counts[id(self)] = 0
        for step in decode(self, *args, **options):
            counts[id(self)] += len(step.tokens[0])
            if len(counts) == len(METHODS):
                widest.append(max(counts.values()) - min(counts.values()))
            yield step

    mine = cell(job("llama-loops", by_step=True))
    monkeypatch.setattr(DecodeSession, "decode", counted)
    mine._decode_by_step(mine.job.entries)
    assert sum(counts.values()) == len(METHODS) * NEW
    assert max(widest) <= 17  # the tokens of one step


def test_damage_is_that_of_the_method_that_did_it(monkeypatch):
    """The others' caches are whole."""
    broken.zeroed_prompt(monkeypatch)
    measured = job("llama", by_step=True)
    mine = cell(measured)
    mine._decode_by_step(measured.entries)
    assert list(mine.damage) == ["vegas"]
    assert mine.by_step["suffix"].rows == mine.by_step["plain"].rows == mine.plain
