"""What a drafter does before its first round counts against it."""

from __future__ import annotations

from time import sleep

import pytest
from support import tiny

from longdraft.cli.job import Job
from longdraft.core.sampling import Sampler
from longdraft.drafters import Drafter
from longdraft.engine.generate import Stats
from longdraft.methods.spec import MethodSpec
from longdraft.recording import decode_figures


class SlowStart(Drafter):
    """Drafts nothing, after a start of half a second: as a small model that reads a long prompt."""

    def start(self, seqs) -> None:
        sleep(0.5)


def test_a_slow_start_counts_against_a_method(monkeypatch):
    lm = tiny.target("llama")
    entry = MethodSpec("slow", "plain")
    monkeypatch.setattr(MethodSpec, "paced", lambda self, target: SlowStart())
    monkeypatch.setattr(MethodSpec, "build", lambda self, target: SlowStart())
    job = Job(lm, None, entry, Sampler(), 0)
    monkeypatch.setattr("longdraft.cli.job.text_of", lambda *_: "")
    found = job.run(tiny.prompts(40), 20, (), True, None)
    assert found["start_s"] >= 0.5 and found["equal"]
    assert found["speedup"] == pytest.approx(found["tokens_per_s"] / found["plain"]["tokens_per_s"])
    assert found["tokens_per_s"] == pytest.approx(20 / (found["start_s"] + found["decode_s"]))
    assert found["speedup"] < 0.3 * found["speedup_steady"], "the start was left out"
    whole = found["prefill_s"] + found["start_s"] + found["decode_s"]
    plain = found["plain"]["prefill_s"] + found["plain"]["start_s"] + found["plain"]["decode_s"]
    assert found["speedup_end_to_end"] == pytest.approx(plain / whole)


def test_the_three_speedups():
    plain = decode_figures.timings(Stats(prefill_s=4.0, decode_s=4.0, emitted=100))
    other = decode_figures.timings(Stats(prefill_s=4.0, start_s=1.0, decode_s=1.0, emitted=100))
    assert decode_figures.speedups(other, [plain]) == {
        "speedup": pytest.approx(2.0),
        "speedup_end_to_end": pytest.approx(8 / 6),
        "speedup_steady": pytest.approx(4.0),
    }
    assert decode_figures.speedups(other, []) == dict.fromkeys(decode_figures.SPEEDUPS)


def test_older_records_are_brought_to_the_same_definition():
    """They counted the drafter's start as prefill, and no rate but that of rounds alone."""
    shared = {
        "task": "speed",
        "run": "r",
        "text_name": "code",
        "context": 32,
        "temperature": 1.0,
        "new_tokens": 100,
    }
    plain = shared | {"method": "plain", "prefill_s": 4.0, "decode_s": 4.0, "tokens_per_s": 25.0}
    other = shared | {"method": "sd", "prefill_s": 5.0, "decode_s": 1.0, "tokens_per_s": 100.0}
    plain, other = decode_figures.completed([plain, other])
    assert (
        other["start_s"] == 1.0
        and other["tokens_per_s"] == 50.0
        and other["tokens_per_s_steady"] == 100.0
    )
    assert decode_figures.speedups(other, [plain])["speedup"] == 2.0
