"""Which of vLLM's model runners a method gets, and what the plugin sets for each."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from longdraft_vllm import contract, options, plugin, v2
from vllm.config import VllmConfig
from vllm.config import vllm as config_module

CPU = "vllm.v1.worker.cpu_worker.CPUWorker"
MODELS = [offered.model for offered in options.METHODS.values()]


class Config(SimpleNamespace):
    """As much of vLLM's configuration as its choice of a runner reads."""

    _get_v2_model_runner_unsupported_features = VllmConfig._get_v2_model_runner_unsupported_features
    use_v2_model_runner = VllmConfig.use_v2_model_runner


@pytest.fixture(autouse=True)
def choosing(monkeypatch):
    """vLLM with the plugin, where Triton runs and the user chose no runner."""
    features = v2.accepting(VllmConfig._get_v2_model_runner_unsupported_features)
    monkeypatch.setattr(Config, "_get_v2_model_runner_unsupported_features", features)
    monkeypatch.setattr(config_module, "HAS_TRITON", True)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    for cached in (contract.check, contract.fits):
        cached.cache_clear()
    yield
    for cached in (contract.check, contract.fits):
        cached.cache_clear()


def config(model: str | None, keyed: bool = False) -> Config:
    spec = (
        SimpleNamespace(method="custom_class", model=model, parallel_drafting=False)
        if model
        else None
    )
    return Config(
        speculative_config=spec,
        additional_config={"longdraft": {"keyed_noise": True}} if keyed else {},
        parallel_config=SimpleNamespace(
            distributed_executor_backend=None,
            pipeline_parallel_size=1,
            use_ubatching=False,
            worker_cls=CPU,
        ),
        scheduler_config=SimpleNamespace(scheduler_cls=None, async_scheduling=True),
        attention_config=SimpleNamespace(hisparse_config=None),
    )


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("model", [None, *MODELS])
def test_every_method_gets_the_runner_of_plain_decoding(model, keyed):
    assert config(None).use_v2_model_runner
    assert config(model, keyed).use_v2_model_runner


def test_the_older_runner_can_be_chosen_and_is_taken_where_triton_is_missing(monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert not config(MODELS[0]).use_v2_model_runner
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    monkeypatch.setattr(config_module, "HAS_TRITON", False)
    assert not config(MODELS[0]).use_v2_model_runner


def test_another_proposer_stays_on_the_older_runner():
    assert not config("another.Drafter").use_v2_model_runner
    assert not config("another.Drafter", keyed=True).use_v2_model_runner


@pytest.mark.parametrize(
    ("part", "model", "keyed"),
    [
        ("v2", "longdraft_vllm.Suffix", False),
        ("v2 recycle", "longdraft_vllm.Recycle", False),
        ("v2 self-draft", "longdraft_vllm.Vegas", False),
        ("v2 keyed", "longdraft_vllm.Suffix", True),
        ("v2 keyed", None, True),
    ],
)
def test_a_newer_runner_that_differs_is_not_taken(monkeypatch, part, model, keyed):
    monkeypatch.setitem(contract.CONTRACT, part, [contract.Takes("vllm.platforms:nothing", "x")])
    assert not config(model, keyed).use_v2_model_runner
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(contract.Mismatch, match=r"vLLM has no vllm\.platforms:nothing"):
        plugin.choose(config(model, keyed))


@pytest.mark.parametrize("model", MODELS)
def test_the_newer_runner_keeps_vllms_worker(model):
    given = config(model, keyed=True)
    plugin.choose(given)
    assert given.parallel_config.worker_cls == CPU
    assert not given.scheduler_config.async_scheduling
    drafts_itself = model in ("longdraft_vllm.Vegas", "longdraft_vllm.MagicdecStream")
    assert given.scheduler_config.scheduler_cls == (plugin.SCHEDULER if drafts_itself else None)


def test_the_older_runner_needs_a_worker(monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    for model, keyed in (
        ("longdraft_vllm.Recycle", False),
        ("longdraft_vllm.Suffix", True),
        (None, True),
    ):
        given = config(model, keyed)
        plugin.choose(given)
        assert given.parallel_config.worker_cls == "longdraft_vllm.cpu.Worker"
    given = config("longdraft_vllm.Suffix")
    plugin.choose(given)
    assert given.parallel_config.worker_cls == CPU


def test_keyed_noise_alone_keeps_asynchronous_scheduling():
    given = config(None, keyed=True)
    plugin.choose(given)
    assert given.scheduler_config.async_scheduling
