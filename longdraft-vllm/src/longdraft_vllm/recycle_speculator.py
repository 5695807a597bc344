"""recycle on vLLM's newer model runner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longdraft_vllm import contract
from longdraft_vllm.speculator import TextSpeculator


class RecycleSpeculator(TextSpeculator):
    """Every token that the target read, refused or not, updates its request's table before it
    drafts.
    """

    def __init__(self, vllm_config: Any, method: Any, req_states: Any):
        contract.check("v2 recycle")
        if vllm_config.parallel_config.enable_batch_sharded_sampling:
            raise ValueError(
                "recycle and fill do not support batch-sharded sampling, where no process sees all "
                "logits"
            )
        super().__init__(method, req_states)

    def meet(self, sampler: Any) -> None:
        sampler.apply_sampling_params = self.reading(sampler.apply_sampling_params)

    def reading(self, apply: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The sampler's first step, with the likeliest next tokens read from the logits that it is
        given.
        """

        def apply_sampling_params(
            logits: Tensor,
            expanded_idx_mapping: Tensor,
            idx_mapping: Tensor,
            idx_mapping_np: Any,
            pos: Tensor,
            input_ids: Tensor,
            *others: Any,
            **named: Any,
        ) -> Tensor:
            self.read(expanded_idx_mapping, pos, input_ids, logits.argmax(-1))
            return apply(
                logits,
                expanded_idx_mapping,
                idx_mapping,
                idx_mapping_np,
                pos,
                input_ids,
                *others,
                **named,
            )

        return apply_sampling_params

    def read(self, numbers: Tensor, positions: Tensor, tokens: Tensor, best: Tensor) -> None:
        """Of each row of logits: its request's number, its token and the token's position, and the
        likeliest next.
        """
        states = self.states
        seen = defaultdict(list)
        rows = torch.stack([x.long() for x in (numbers, positions, tokens, best)], 1)
        for number, position, token, says in rows.tolist():
            request = states.index_to_req_id.get(number)
            read_whole = position + 1 >= states.prefill_len.np[number]
            if request is not None and read_whole and token >= 0:  # vLLM also tries its sampler out
                seen[number, request].append((token, says))
        for (number, request), pairs in seen.items():
            text = [] if request in self.method.tables else self._text(number)
            self.method.read(request, text, pairs)
        self.method.keep(list(states.req_id_to_index))

    def _text(self, number: int) -> list[int]:
        return self.states.all_token_ids.gpu[
            number, : int(self.states.total_len.gpu[number])
        ].tolist()
