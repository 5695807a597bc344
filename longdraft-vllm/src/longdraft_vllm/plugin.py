"""Chooses vLLM's worker and scheduler classes where a method needs its own, so that users need not
name them.
"""

from __future__ import annotations

from typing import Any

from longdraft_vllm import contract
from longdraft_vllm.options import chosen, keyed_noise
from longdraft_vllm.v2 import parts_of
from longdraft_vllm.window_options import window_of

SCHEDULER = "longdraft_vllm.scheduler.LookaheadScheduler"
WORKERS = {  # vLLM's own choice -> what takes its place
    "vllm.v1.worker.cpu_worker.CPUWorker": "longdraft_vllm.cpu.Worker",
    "vllm.v1.worker.gpu_worker.Worker": "longdraft_vllm.gpu.Worker",
}


def install() -> None:
    """Let `choose` complete every configuration after vLLM's platform has completed it.

    The platform's check_and_update_config is where vLLM itself fills in its worker class. If this
    vLLM has no such function, vLLM works as without the plugin, and --worker-cls and
    --scheduler-cls remain.
    """
    if not contract.fits("registration"):
        return
    from vllm.platforms import current_platform

    platform = type(current_platform)
    complete = platform.check_and_update_config
    if getattr(complete, "by_longdraft", False):
        return

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        complete(vllm_config)
        choose(vllm_config)

    check_and_update_config.by_longdraft = True  # type: ignore[attr-defined]
    platform.check_and_update_config = classmethod(check_and_update_config)


def choose(vllm_config: Any) -> None:
    """Set the classes that methods and keyed noise need, unless the user has named others.

    Raises Mismatch, and ValueError for options that are wrong.
    """
    offered = chosen(vllm_config)
    keyed = keyed_noise(vllm_config)
    window = window_of(vllm_config)
    if offered is None and not keyed and window is None:
        return
    drafts_from = offered.drafts_from if offered else "text"
    if window is not None and vllm_config.use_v2_model_runner:
        raise ValueError(
            "drafter_window needs vLLM's older model runner: set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    parallel = vllm_config.parallel_config
    scheduler = vllm_config.scheduler_config
    if vllm_config.use_v2_model_runner:  # vLLM's own worker makes our parts (v2.py)
        for part in parts_of(offered, keyed):
            contract.check(part)
        # the scheduler waits for drafts, which then differ in length; 0.32 does so for custom_class
        if offered:
            scheduler.async_scheduling = False
    elif drafts_from != "text" or keyed or window is not None:
        parallel.worker_cls = WORKERS.get(parallel.worker_cls, parallel.worker_cls)
    if drafts_from == "target":
        contract.check("self-draft")
        if scheduler.scheduler_cls is None:
            scheduler.scheduler_cls = SCHEDULER
