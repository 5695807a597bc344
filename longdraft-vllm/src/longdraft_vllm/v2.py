"""The methods on vLLM's newer model runner ("V2"), which users choose with VLLM_USE_V2_MODEL_RUNNER=1."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from longdraft_vllm import contract
from longdraft_vllm.options import chosen

RUNNER = "vllm.v1.worker.gpu.model_runner"


def install() -> None:
    """Make V2 accept longdraft's methods. If this vLLM's V2 differs, it refuses them, as without the plugin."""
    try:
        contract.check("v2 registration")
    except contract.Mismatch as problem:
        logging.getLogger("vllm.longdraft").warning("%s", problem)
        return
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu import spec_decode

    if getattr(spec_decode.init_speculator, "by_longdraft", False):
        return
    VllmConfig._get_v2_model_runner_unsupported_features = accepting(
        VllmConfig._get_v2_model_runner_unsupported_features
    )
    spec_decode.init_speculator = adding(spec_decode.init_speculator)
    if RUNNER in sys.modules:  # it has imported the function by its name
        vars(sys.modules[RUNNER])["init_speculator"] = spec_decode.init_speculator


def accepting(unsupported: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    """vLLM's list of what V2 does not support, without our methods if the user has chosen V2.

    Unless V2 was chosen, custom_class stays in the list, by which vLLM chooses its older runner.
    """

    @wraps(unsupported)
    def features(self: Any) -> list[str]:
        from vllm import envs

        offered, found = chosen(self), unsupported(self)
        ours = offered is not None and offered.in_v2
        return [x for x in found if "'custom_class'" not in x] if ours and envs.VLLM_USE_V2_MODEL_RUNNER else found

    return features


def adding(others: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's function that makes speculators, with ours added."""

    @wraps(others)
    def init_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
        offered = chosen(vllm_config)
        if offered is None or not offered.in_v2:
            return others(vllm_config, device, req_states)
        contract.check("v2")
        rest()
        method = offered.load()(vllm_config)
        if offered.drafts_from == "text":
            from longdraft_vllm.speculator import TextSpeculator

            return TextSpeculator(method, req_states)
        from longdraft_vllm.target_speculator import kind

        return kind()(vllm_config, device, method, req_states)

    init_speculator.by_longdraft = True  # type: ignore[attr-defined]
    return init_speculator


def rest() -> None:
    """Let steps in which nothing was drafted verify nothing."""
    from longdraft_vllm.speculator import without_rests

    runner = vars(sys.modules[RUNNER])["GPUModelRunner"]
    if not getattr(runner.take_draft_token_ids, "by_longdraft", False):
        runner.take_draft_token_ids = without_rests(runner.take_draft_token_ids)
