"""The methods and keyed noise on vLLM's newer model runner ("V2"), which vLLM takes where Triton
runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from longdraft_vllm import contract
from longdraft_vllm.options import Offered, chosen, keyed_noise

if TYPE_CHECKING:  # processes that draft nothing import no torch
    import torch

RUNNER = "vllm.v1.worker.gpu.model_runner"
# of the contract, by `drafts_from`
PARTS = {
    "text": (),
    "logits": ("v2 recycle",),
    "target": ("v2 self-draft",),
}


def parts_of(offered: Offered | None, keyed: bool) -> tuple[str, ...]:
    """The parts of the contract that a method and keyed noise need on V2."""
    return (
        "v2",
        *(PARTS[offered.drafts_from] if offered else ()),
        *(("v2 keyed",) if keyed else ()),
    )


def install() -> None:
    """Make V2 accept longdraft's methods, and its workers make them. If this vLLM's V2 differs,
    nothing changes.
    """
    if not contract.fits("v2 registration"):
        return
    from vllm.config import VllmConfig
    from vllm.v1.worker.worker_base import WorkerBase

    if getattr(WorkerBase.__init__, "by_longdraft", False):
        return
    VllmConfig._get_v2_model_runner_unsupported_features = accepting(
        VllmConfig._get_v2_model_runner_unsupported_features
    )
    WorkerBase.__init__ = preparing(WorkerBase.__init__)


def accepting(unsupported: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    """vLLM's list of what V2 does not support, by which it chooses a runner, without our methods.

    They stay in the list if this vLLM's V2 differs from what they need; vLLM then takes its older
    runner.
    """

    @wraps(unsupported)
    def features(self: Any) -> list[str]:
        found = unsupported(self)
        offered = chosen(self)
        keyed = keyed_noise(self)
        if offered is None and not keyed:
            return found
        if not contract.fits(*parts_of(offered, keyed)):
            return found if offered else [*found, "keyed_noise"]
        return [x for x in found if "'custom_class'" not in x] if offered else found

    return features


def preparing(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor of vLLM's workers, which first wraps what a worker calls if its engine uses
    longdraft.
    """

    @wraps(init)
    def __init__(self: Any, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        config = self.vllm_config
        if (chosen(config) or keyed_noise(config)) and config.use_v2_model_runner:
            prepare()

    __init__.by_longdraft = True  # type: ignore[attr-defined]
    return __init__


def prepare() -> None:
    """Wrap the functions by which V2 makes speculators and samplers. Other engines of the process
    get vLLM's own.
    """
    contract.check("v2")
    from vllm.v1.worker.gpu import model_states, spec_decode

    if getattr(spec_decode.init_speculator, "by_longdraft", False):
        return
    spec_decode.init_speculator = adding(spec_decode.init_speculator)
    model_states.init_model_state = sampling(model_states.init_model_state)
    if RUNNER in sys.modules:  # it has imported these functions by their names
        runner = vars(sys.modules[RUNNER])
        runner["init_speculator"] = spec_decode.init_speculator
        runner["init_model_state"] = model_states.init_model_state


def adding(others: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's function that makes speculators, with ours added."""

    @wraps(others)
    def init_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
        offered = chosen(vllm_config)
        if offered is None:
            return others(vllm_config, device, req_states)
        found = speculator(offered, vllm_config, device, req_states)
        found.lengths = {}
        req_states.longdraft = found  # by which `sampling` finds it
        return found

    init_speculator.by_longdraft = True  # type: ignore[attr-defined]
    return init_speculator


def speculator(offered: Offered, vllm_config: Any, device: torch.device, req_states: Any) -> Any:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from longdraft_vllm.speculator import TextSpeculator, shortened

    if not hasattr(GPUModelRunner.take_draft_token_ids, "by_longdraft"):
        GPUModelRunner.take_draft_token_ids = shortened(GPUModelRunner.take_draft_token_ids)
    method = offered.load()(vllm_config)
    if offered.drafts_from == "text":
        return TextSpeculator(method, req_states)
    if offered.drafts_from == "logits":
        from longdraft_vllm.recycle_speculator import RecycleSpeculator

        return RecycleSpeculator(vllm_config, method, req_states)
    from longdraft_vllm.target_speculator import kind

    return kind()(vllm_config, device, method, req_states)


def sampling(make: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's function that makes the state of a model, which is asked whether the model has
    samplers of its own.
    """

    @wraps(make)
    def init_model_state(
        vllm_config: Any, model: Any, encoder_cache: Any, device: torch.device
    ) -> Any:
        state = make(vllm_config, model, encoder_cache, device)
        own = state.custom_sampler

        def custom_sampler(sampler: Any) -> tuple[Any, Any] | None:
            found = own(sampler)
            keyed = keyed_noise(vllm_config)
            if keyed and found:
                raise ValueError(
                    "keyed_noise does not support models that have samplers of their own"
                )
            if keyed:
                from longdraft_vllm.samplers import keyed_samplers

                found = keyed_samplers(sampler, vllm_config.speculative_config, device)
            if hasattr(sampler.req_states, "longdraft"):
                sampler.req_states.longdraft.meet(sampler)
            return found

        state.custom_sampler = custom_sampler
        return state

    return init_model_state
