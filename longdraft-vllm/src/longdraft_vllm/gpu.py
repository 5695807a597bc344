"""The worker for GPUs: written to the signatures of the one for CPUs, but never run."""

from __future__ import annotations

from torch import Tensor
from vllm.model_executor.layers.attention import Attention
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker as GPUWorker

from longdraft_vllm import contract
from longdraft_vllm.runner import SelfDrafting
from longdraft_vllm.runners import runner_for


class Runner(SelfDrafting, GPUModelRunner):
    """Reads keys as FlashAttention stores them, [2,blocks,page,K,D]; drafts run without CUDA
    graphs.
    """

    def keys_of(self, layer: Attention, blocks: Tensor) -> Tensor:
        cache = layer.kv_cache[0] if isinstance(layer.kv_cache, list) else layer.kv_cache
        return cache[0][blocks.long()].flatten(0, 1).transpose(0, 1)


class Worker(GPUWorker):
    def init_device(self) -> None:
        contract.check("gpu")
        super().init_device()
        self.model_runner = runner_for(self.vllm_config, Runner, GPUModelRunner)(
            self.vllm_config, self.device
        )
