"""Times are read once the device has done its work: a GPU goes on after the call that asked for it
has returned.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny

from longdraft import Stats, generate
from longdraft.drafters import Drafter
from longdraft.drafters.step import clock
from longdraft.engine.decode_session import DecodeSession


def test_a_gpu_is_waited_for_and_a_cpu_is_not(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert clock(torch.device("cpu")) <= clock(torch.device("cpu")) and not waited
    clock(torch.device("cuda", 1))
    assert waited == [torch.device("cuda", 1)]


class Slow(Drafter):
    """Each call leaves work on the device: 100 s at the start, 5 s a draft."""

    def __init__(self, device):
        self.left = device

    def start(self, seqs):
        self.left.append(100)

    def grow(self, tree, seqs, limits):
        self.left.append(5)
        return tree


@pytest.fixture
def device(monkeypatch) -> list[float]:
    """Work in seconds that a device still has to do; its clock moves only while someone waits for
    it.
    """
    left = []
    now = [0.0]

    def waiting(place):
        assert place == torch.device("cpu")  # the target's own device is asked
        now[0] += sum(left)
        left.clear()
        return now[0]

    for module in ("drafters.step", "engine.generate", "engine.decode_session"):
        monkeypatch.setattr(f"longdraft.{module}.clock", waiting)
    return left


def test_each_part_is_charged_with_the_work_it_asked_for(device, monkeypatch):
    lm = tiny.target("llama")
    stats = Stats()
    call = type(tiny.target("llama")).__call__

    def pass_of(self, *args, **options):
        device.append(7)
        return call(self, *args, **options)

    monkeypatch.setattr(type(lm), "__call__", pass_of)
    generate(lm, tiny.prompts(20), Slow(device), max_new_tokens=4, stats=stats)
    assert (stats.prefill_s, stats.start_s, stats.draft_s, stats.verify_s) == (7, 100, 3 * 5, 4 * 7)
    assert stats.decode_s == 3 * 5 + 4 * 7
    assert DecodeSession(lm, tiny.prompts(20), 4).prefill_s == 7
