"""A drafter that changes what is not its own is found out by every comparison: --compare, the demo
and bench.
"""

from __future__ import annotations

import json

import pytest
import torch
from support import broken, tiny
from support.place import SHORT

from longdraft import Sampler
from longdraft.drafters import AdaptiveDraft, PlainDecoding, SelfDrafter
from longdraft.engine.decode_session import DecodeSession
from longdraft.views import Full

KEYS = "the prompt's keys and values"
FAULTS = {  # fault: (plant, what is said to have changed)
    "zeroes slots": (broken.zeroed_prompt, KEYS),
    "turns keys": (broken.turned_prompt, KEYS),
    "zeroes slots once, while warming up": (broken.zeroed_once, KEYS),
    "seeds": (broken.other_seeds, "the rows' seeds"),
    "sampler": (broken.other_sampler, "the sampler"),
    "end tokens": (broken.other_ends, "the end tokens"),
    "tokens": (broken.other_tokens, "the rows' tokens"),
}
each_fault = pytest.mark.parametrize("fault", FAULTS)
COMPARED = (
    "generate",
    "-m",
    "tiny",
    *SHORT,
    "--prompt-file",
    "a.txt",
    "--compare",
    "--method",
    "vegas",
    "-o",
    "min_budget=8",
)


@pytest.mark.full
@pytest.mark.parametrize("pace", [pytest.param("on", marks=pytest.mark.weekly), "off"])
@each_fault
def test_compare(cli, fault, pace, monkeypatch):
    plant, words = FAULTS[fault]
    good = cli(*COMPARED, "--json")
    assert (
        good[0] == 0
        and json.loads(good[1])["equal"] is True
        and "damage" not in json.loads(good[1])
    )
    plant(monkeypatch)
    status, out, _ = cli(*COMPARED, "-o", f"pace={pace}", "--json")
    found = json.loads(out)
    assert (status, found["equal"], found["damage"]) == (1, False, words)
    assert found["plain"]["new_tokens"] == 24


@pytest.mark.full
@pytest.mark.parametrize("native", [True, False])
def test_a_difference_is_a_failure_where_passes_are_exact(cli, native, monkeypatch):
    """Elsewhere it may be a tie: the record says how close."""
    if not native:
        monkeypatch.setattr("longdraft.backends.native.fits", lambda *_: False)
    decode = DecodeSession.decode

    def unverified(self, drafter=None, *args, **options):
        plain = drafter is None or drafter.never_drafts
        return decode(
            self, drafter, *args, **options, **({} if plain else {"verify": broken.unverified})
        )

    monkeypatch.setattr(DecodeSession, "decode", unverified)
    status, out, _ = cli(*COMPARED, "-o", "pace=off", "--json")
    found = json.loads(out)
    assert found["equal"] is False and found["exact"] is native and status == (1 if native else 0)


@pytest.mark.full
def test_compare_says_so_in_words(cli, monkeypatch):
    broken.zeroed_once(monkeypatch)
    status, _, err = cli(*COMPARED)
    assert status == 1 and err.endswith(f"equal: NO: the method changed {KEYS}\n")


@pytest.mark.full
def test_plain_decoding_is_over_before_the_method_runs(cli, monkeypatch):
    """Its text is that of a sound cache, though the fault comes with the very first thing that the
    method does.
    """
    good = json.loads(cli(*COMPARED, "--json")[1])
    taken = []
    decode = DecodeSession.decode

    def watched(self, drafter=None, *args, **options):
        taken.append(drafter is None or drafter.never_drafts)
        yield from decode(self, drafter, *args, **options)

    monkeypatch.setattr(DecodeSession, "decode", watched)
    broken.zeroed_prompt(monkeypatch)
    found = json.loads(cli(*COMPARED, "--json")[1])
    assert taken == [True, True, False, False]  # each is warmed up before it is timed
    assert found["token_ids"] != good["token_ids"] and found["first_difference"]["top2_gap"] is None


@pytest.mark.full
@each_fault
def test_the_demo(cli, fault, monkeypatch):
    words = (
        "demo",
        "-m",
        "tiny",
        "--context",
        "64",
        "--max-new-tokens",
        "16",
        "--dtype",
        "float32",
    )
    FAULTS[fault][0](monkeypatch)
    status, out, _ = cli(*words)
    rows = [line for line in out.splitlines() if line.startswith("│")]
    assert status == 1 and [row.split()[1] for row in rows if row.split()[1] != "│"] == [
        "plain",
        "vegas",
    ]
    assert "NO: the method" in out


@pytest.mark.full
@each_fault
def test_bench(cli, place, fault, monkeypatch, tmp_path):
    """The others' records stay sound: the prompts are read anew."""
    out = tmp_path / "records.jsonl"
    words = (
        "bench",
        "speed",
        "-m",
        "tiny",
        "--dtype",
        "float32",
        "--prompt-file",
        "long.txt",
        "--context",
        "64",
    )
    words += (
        "--methods",
        "vegas,lookup",
        "--max-new-tokens",
        "20",
        "--repeat",
        "2",
        "--out",
        str(out),
    )
    FAULTS[fault][0](monkeypatch)
    status, shown, _ = cli(*words)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert status == 1 and "NO: it changed" in shown
    for r in records:
        assert r["equal"] is (r["method"] != "vegas")
        assert r.get("damage") == (FAULTS[fault][1] if r["method"] == "vegas" else None)
        assert r["method"] == "vegas" or r["first_difference"] is None


@torch.inference_mode()
def test_what_was_not_changed_is_not_named():
    lm = tiny.target("llama")
    runs = DecodeSession(lm, tiny.prompts(40, 25), 16, Sampler(1.0), 3)
    runs.seal()
    for drafter in (
        PlainDecoding(),
        SelfDrafter(lm, Full(), [2, 2]),
        AdaptiveDraft(SelfDrafter(lm, Full(), [1] * 3)),
    ):
        runs.rows(drafter)
        assert runs.altered() is None
    runs.cache.read(1, 1)[1][0, 23, 5] += 1e-6  # the second row's last slot
    assert runs.altered() == KEYS


@torch.inference_mode()
def test_scratch_is_the_drafters_own():
    lm = tiny.target("llama")
    runs = DecodeSession(lm, tiny.prompts(40), 16)
    runs.seal()
    runs.cache.read(1, 0)[1][:, 39:] = (
        7  # slots 0..38 are the prompt's; the root is not committed yet
    )
    assert runs.altered() is None
