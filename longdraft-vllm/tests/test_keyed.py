"""With keyed noise, a seeded request gives what longdraft's own engine gives, with every method and
any company.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from conftest import VOCAB
from engine import METHODS, Report, Request, mixed, run
from longdraft_vllm import keyed
from longdraft_vllm.options import keyed_noise
from pacing import at_random
from vllm.v1.sample import rejection_sampler

from longdraft import Sampler, generate
from longdraft.models.loading import load_lm

LONGEST = 256
SMALL = {"num_gpu_blocks_override": 11}  # too few pages for the requests that run at once
SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 0.4},
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 30, "top_p": 0.8},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 0.6},
]


def requests() -> list[Request]:
    """The mixed requests, sampled in different ways; the last one has no seed, so nothing is
    expected of it.
    """
    found = mixed(VOCAB, LONGEST)
    for i, (request, settings) in enumerate(zip(found, SETTINGS, strict=True)):
        request.sampling = dict(settings) | ({"seed": 1000 - 77 * i} if i < len(found) - 1 else {})
    return found


def by_longdraft(llama: str) -> list[list[int]]:
    """What longdraft's engine gives for all but the last."""
    target = load_lm(llama, dtype="float32")
    outputs = []
    for r in requests()[:-1]:
        given = dict(r.sampling)
        seed = given.pop("seed")
        count = min(r.tokens, LONGEST - len(r.prompt))
        outputs += generate(
            target, [r.prompt], max_new_tokens=count, sampler=Sampler(**given), seed=seed, eos=()
        )
    return outputs


@pytest.fixture(scope="module")
def expected(llama) -> list[list[int]]:
    return by_longdraft(llama)


def keyed_run(
    llama: str, method: str | None, given: list[Request] | None = None, pace="off", **settings
) -> Report:
    if method is None:
        settings |= {"additional_config": {"longdraft": {"keyed_noise": True}}}
    return run(
        llama,
        method,
        given or requests(),
        {"keyed_noise": True, "pace": pace} if method else None,
        **settings,
    )


@pytest.mark.parametrize("method", [None, *METHODS])
def test_outputs_equal_those_of_longdrafts_engine(llama, expected, method):
    found = keyed_run(llama, method)
    assert found.outputs[:-1] == expected
    assert found.accepted > 0 if method else found.drafted == 0


@pytest.mark.parametrize("method", ["lookup", "vegas"])
def test_outputs_survive_preemption(llama, expected, method):
    found = keyed_run(llama, method, **SMALL)
    assert found.preempted > 0
    assert found.outputs[:-1] == expected


@pytest.mark.parametrize("method", METHODS)
def test_outputs_are_the_same_whatever_the_pace_decides(llama, expected, method, monkeypatch):
    at_random(monkeypatch)
    found = keyed_run(llama, method, pace="on")
    assert found.outputs[:-1] == expected
    assert 0 < found.accepted < found.drafted


def test_drafts_by_the_same_noise_are_accepted(llama):
    """Drafted under a view of everything, they are what the verification draws."""
    given = [
        Request(r.prompt, r.tokens, sampling={"temperature": 1.0, "seed": 5})
        for r in mixed(VOCAB, LONGEST)[:3]
    ]
    found = run(llama, "vegas", given, {"keyed_noise": True, "keep_ratio": 1.0})
    assert found.accepted > 0.9 * found.drafted > 50


def test_noise_of_another_position_is_caught(llama, expected, monkeypatch):
    """The planted fault: the token after the drafts is drawn as if nothing had been drafted."""
    draw = keyed.Drawn.__call__

    def too_early(self, *args):
        self.noise.drafted = [0] * len(self.noise.drafted)
        return draw(self, *args)

    monkeypatch.setattr(keyed.Drawn, "__call__", too_early)
    assert keyed_run(llama, "lookup").outputs[:-1] != expected


def test_vllms_own_noise_differs(llama):
    """Without the option nothing changes: a seeded request is sampled by vLLM."""
    given = [Request([5, 6, 7] * 8, 30, sampling={"temperature": 1.0, "seed": 1})]  # read at once
    assert run(llama, "lookup", given).outputs != keyed_run(llama, "lookup", given).outputs


def test_another_engine_of_the_process_is_not_affected(llama):
    """Its functions are vLLM's, some of which the option has wrapped for the process."""
    given = [Request([5, 6, 7] * 8, 30)]
    before = run(llama, None, given)
    keyed_run(
        llama, "lookup", [Request([5, 6, 7] * 8, 30, sampling={"temperature": 1.0, "seed": 1})]
    )
    assert (
        isinstance(rejection_sampler.rejection_sample, keyed.Verified)
        and keyed.ACTIVE.get() is None
    )
    assert run(llama, "lookup", given).outputs == before.outputs


def test_the_option_is_checked():
    config = lambda value: SimpleNamespace(additional_config={"longdraft": {"keyed_noise": value}})  # noqa: E731
    assert keyed_noise(config(True)) and not keyed_noise(SimpleNamespace())
    with pytest.raises(ValueError, match="keyed_noise is 'yes': give true or false"):
        keyed_noise(config("yes"))
