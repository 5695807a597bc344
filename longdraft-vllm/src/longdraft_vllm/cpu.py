"""The worker for CPUs."""

from __future__ import annotations

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.model_executor.layers.attention import Attention
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from longdraft_vllm import contract
from longdraft_vllm.runner import SelfDrafting
from longdraft_vllm.runners import runner_for


class Runner(SelfDrafting, CPUModelRunner):
    """Reads keys in the layout that vLLM's CPU kernels store, which is found out by storing known
    keys.
    """

    def keys_of(self, layer: Attention, blocks: Tensor) -> Tensor:
        keys = key_pages(layer.kv_cache)
        page, size = keys.shape[2:]
        if not hasattr(self, "order"):
            isa = self.attn_groups[0][0].get_metadata_builder().isa
            self.order = order_of(page, size, keys.dtype, isa)
        found = keys[blocks.long()]  # [P,K,page,D], but in the kernels' order within a page
        if self.order is None:
            found = found.reshape(*found.shape[:2], size, page).transpose(2, 3)
        else:
            found = found.flatten(2)[..., self.order].view_as(found)
        return found.transpose(0, 1).flatten(1, 2)


def key_pages(cache: Tensor) -> Tensor:
    """[blocks,K,page,D]: of a layer's cache [blocks,K,page,2*D], the memory of the keys, which come
    first in a page.
    """
    blocks, heads, page, both = cache.shape
    return cache.view(blocks, heads, 2 * page, both // 2)[:, :, :page]


def order_of(page: int, size: int, dtype: torch.dtype, isa: str) -> Tensor | None:
    """Where the kernels put the numbers of a page of keys: [page*D] indices; None if they transpose
    it.

    Two pages are stored that hold the slot and the dimension of each number; dtypes of few bits
    represent both exactly if they are small. Raises RuntimeError if the kernels do more than
    reorder.
    """
    found = []
    for high in (False, True):
        parts = []
        for what in (
            torch.arange(page)[:, None].expand(page, size),
            torch.arange(size).expand(page, size),
        ):
            digits = what // 16 if high else what % 16
            key = digits.to(dtype)[:, None].contiguous()
            cache = torch.zeros(2, 1, 1, page, size, dtype=dtype)
            ops.cpu_attn_reshape_and_cache(key, key, cache[0], cache[1], torch.arange(page), isa)
            parts.append(cache[0].float().long().flatten())
        found.append(parts)
    (slot, dim), (slot16, dim16) = found
    holds = (slot + 16 * slot16) * size + dim + 16 * dim16  # memory position -> which number
    if not torch.equal(holds.sort().values, torch.arange(page * size)):
        raise RuntimeError(f"vegas cannot read keys as the {isa} kernels of this vLLM store them")
    order = holds.argsort()
    transposed = torch.arange(page * size).view(size, page).T.flatten()
    return None if torch.equal(order, transposed) else order


class Worker(CPUWorker):
    def init_device(self) -> None:
        contract.check("cpu")
        super().init_device()
        kind = runner_for(self.vllm_config, Runner, CPUModelRunner)
        self.model_runner = kind(self.vllm_config, torch.device("cpu"))
