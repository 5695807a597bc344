"""recycle: drafts from what the target said last after each token, also after tokens that it
refused.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

from torch import Tensor

from longdraft_vllm.options import options_of
from longdraft_vllm.paced_text import FromTexts


class Recycle(FromTexts):
    """A request's table holds, for each token, the target's likeliest next token where that token
    came last.

    Tokens that were never verified hold what followed them last in the prompt. A draft follows the
    table. vLLM shows a proposer tokens only, of which refused drafts are none, so the model runner
    fills the tables (see Recycling).
    """

    def __init__(self, vllm_config: Any):
        super().__init__(vllm_config)
        options_of(vllm_config, type(self).__name__)
        self.tables: dict[str, dict[int, int]] = {}

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM asks every drafter to load its model: there is none."""

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        raise RuntimeError(
            f"{type(self).__name__} needs the model runner of longdraft-vllm, which --worker-cls "
            "has replaced"
        )

    def read(self, request: str, text: list[int], seen: list[tuple[int, int]]) -> None:
        """seen: (token, the target's likeliest next one) of a verification, in the order of the
        text.
        """
        table = self.tables.get(request)
        if table is None:
            table = self.tables[request] = dict(pairwise(text))
        table.update(reversed(seen))  # of the same token, the place nearest to the text decides

    def keep(self, requests: list[str]) -> None:
        """Forget all but these."""
        self.tables = {id: self.tables[id] for id in requests if id in self.tables}

    def chains(self, texts: dict[str, Any]) -> dict[str, list[int]]:
        return {
            request: self.chain(request, int(text[-1]), len(text))
            for request, text in texts.items()
        }

    def chain(self, request: str, last: int, length: int) -> list[int]:
        """What probably follows the last token of a text of this length."""
        table = self.tables.get(request, {})
        found = []
        while len(found) < min(self.most, self.longest - length - 1) and last in table:
            last = table[last]
            found.append(last)
        return found


class Recycling:
    """A mixin over a model runner: every token that the target read, refused or not, updates its
    request's table.
    """

    def _sample(self, logits: Tensor | None, spec_decode_metadata: Any) -> Any:
        if logits is not None:
            self._read(logits.argmax(-1).tolist(), spec_decode_metadata)
        return super()._sample(logits, spec_decode_metadata)

    def _read(self, best: list[int], spec: Any) -> None:
        """best: the likeliest next token of each row of logits."""
        batch = self.input_batch
        if len(best) < len(batch.req_ids):  # vLLM tries its sampler out before it serves
            return
        drafts = iter(spec.draft_token_ids.tolist() if spec else [])
        counts = spec.num_draft_tokens if spec else [0] * len(batch.req_ids)
        says = iter(best)
        for b, (request, count) in enumerate(zip(batch.req_ids, counts, strict=True)):
            text = batch.token_ids_cpu[b, : batch.num_tokens_no_spec[b]]
            seen = list(
                zip([int(text[-1]), *islice(drafts, count)], islice(says, count + 1), strict=True)
            )
            if not self.discard_request_mask.np[b]:  # its prompt has been read
                known = request in self.drafter.tables
                self.drafter.read(request, [] if known else text.tolist(), seen)
        self.drafter.keep(batch.req_ids)

    def propose_draft_token_ids(
        self, scheduler_output: Any, sampled_token_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> list[list[int]]:
        batch = self.input_batch
        new = {
            batch.req_ids[b]: len(tokens) for b, tokens in enumerate(sampled_token_ids) if tokens
        }
        at = {request: batch.req_id_to_index[request] for request in new}
        texts = {
            request: batch.token_ids_cpu[b, : batch.num_tokens_no_spec[b]]
            for request, b in at.items()
        }
        chains = self.drafter.paced_chains(texts, new, len(new) == len(sampled_token_ids))
        return [chains.get(batch.req_ids[b], []) for b in range(len(sampled_token_ids))]
