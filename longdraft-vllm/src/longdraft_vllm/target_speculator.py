"""Drafting by the target itself, inside vLLM's newer model runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.platforms import current_platform
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

from longdraft_vllm import contract
from longdraft_vllm.runner import Row, SelfDrafting
from longdraft_vllm.samplers import Drawn, Draws
from longdraft_vllm.speculator import Proposing


@dataclass(frozen=True)
class Paged:
    """One group's block tables, a row for each row of the batch."""

    block_size: int
    blocks: Tensor

    def get_device_tensor(self, count: int) -> Tensor:
        return self.blocks[:count]


@dataclass(frozen=True)
class Batch:
    block_table: list[Paged]


class TargetSpeculator(Proposing, SelfDrafting, DraftModelSpeculator):
    """SelfDrafting with the target that vLLM hands to a speculator as if it were to share a draft
    model's weights.
    """

    def __init__(self, vllm_config: Any, device: torch.device, method: Any, req_states: Any):
        contract.check("v2 self-draft")
        self.drafter = method
        self.states = req_states
        self.draws: Draws | None = None
        super().__init__(vllm_config, device)
        self.draft_logits = None  # drafts are tokens without probabilities
        parallel = vllm_config.parallel_config
        if (
            parallel.enable_eplb
            or parallel.decode_context_parallel_size > 1
            or parallel.prefill_context_parallel_size > 1
        ):
            raise ValueError(
                "vegas and magicdec-stream do not support expert balancing and context parallelism"
            )

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> Any:
        return target_model

    def set_attn(
        self,
        model_state: Any,
        kv_cache_config: Any,
        block_tables: Any,
        buffers: Any,
        target_attn_groups: Any,
    ) -> None:
        self.block_tables = block_tables
        self.attn_groups = target_attn_groups

    def meet(self, sampler: Any) -> None:
        self.draws = sampler.sample.draws if isinstance(sampler.sample, Drawn) else None

    def next_tokens(self, logits: Tensor, rows: list[Row], positions: Tensor) -> Tensor:
        """[B] drafts of requests with a seed are drawn by the noise that their verification
        uses.
        """
        tokens = super().next_tokens(logits, rows, positions)
        if self.draws is not None:
            numbers = np.array([self.states.req_id_to_index[row.request] for row in rows])
            self.draws.redraft(tokens, logits, numbers, positions + 1)
        return tokens

    def chains(self, input_batch: Any, num_sampled: Tensor, roots: Tensor) -> dict[int, list[int]]:
        rows = self._drafting(input_batch, num_sampled.tolist(), roots.tolist())
        tables = self.block_tables
        self.input_batch = Batch(
            [Paged(*x) for x in zip(tables.block_sizes, tables.input_block_tables, strict=True)]
        )
        drafts = self.paced_drafts(rows, len(rows) == len(roots))
        return {row.at: chain for row, chain in zip(rows, drafts, strict=True) if chain}

    def _drafting(self, batch: Any, sampled: list[int], roots: list[int]) -> list[Row]:
        """The rows that draft: those that got tokens, and whose drafts fit into the context and the
        reserved slots.
        """
        tables = self.block_tables
        numbers = batch.idx_mapping_np
        reserved = (tables.num_blocks.np[:, numbers] * [[size] for size in tables.block_sizes]).min(
            0
        )
        lengths = self.states.total_len.gpu[batch.idx_mapping].tolist()
        verified = batch.num_draft_tokens_per_req
        rows = []
        for b, (new, length, root) in enumerate(zip(sampled, lengths, roots, strict=True)):
            if new and length + self.count <= min(self.states.max_model_len, reserved[b] + 1):
                drafts = 0 if verified is None else int(verified[b])
                rows.append(Row(b, batch.req_ids[b], length, root, length - new, 1 + drafts))
        return rows


def kind() -> type[TargetSpeculator]:
    """The speculator that reads keys as this platform's kernels store them."""
    if current_platform.is_cpu():
        contract.check("cpu")
        from longdraft_vllm.cpu import Runner
    else:
        contract.check("gpu")
        from longdraft_vllm.gpu import Runner

    return type("TargetSpeculator", (TargetSpeculator,), {"keys_of": Runner.keys_of})
