"""Drafting by the target itself, inside vLLM's model runner."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.config import get_layers_from_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec

from longdraft_vllm import contract
from longdraft_vllm.options import METHODS, paced
from longdraft_vllm.pace import Row as Paced
from longdraft_vllm.paced_views import USUAL, PacedViews
from longdraft_vllm.paced_views import Plan as Step
from longdraft_vllm.pages import Table, scores_of
from longdraft_vllm.queries import Queries
from longdraft_vllm.views import SelfDraft


@dataclass(frozen=True)
class Row:
    """Row `at` of vLLM's batch has `length` committed tokens, the last of which, `root`, is not in
    the cache yet.

    request: whose row it is. `queries`: how many tokens its verification read; the first of them
    saw `covered` slots.
    """

    at: int
    request: str
    length: int
    root: int
    covered: int
    queries: int


@dataclass(frozen=True)
class Plan:
    """The layers of a group have their pages in `paged` and read what `table` shows."""

    paged: Any
    group: Any
    table: Table


@dataclass(frozen=True)
class Chosen:
    """The pages [L|1,P] of a request that a draft reads, and the first of those that it reads
    because they are new.
    """

    selected: Tensor
    tail: int
    uses: int = 1


class SelfDrafting:
    """A mixin over a model runner: no committed slot is written, and no draft outlives the step
    that made it.

    The target drafts token by token. Each layer reads its own rewritten block table: selected
    pages, then the row's tail. The drafts' keys and values go to slots after the committed ones,
    which the scheduler has reserved; the verification writes them again before it reads them. A
    view is chosen from the pass that has just ended, and used for some steps. It names pages by
    their place in the text, so rows may move, pause and get other blocks meanwhile. Whether it
    drafts, and how much, is decided by its pace (paced_views.py).
    """

    def __init__(self, vllm_config: Any, device: torch.device):
        contract.check("self-draft")
        contract.check("pace")
        super().__init__(vllm_config, device)
        refuse(vllm_config)
        self.count = vllm_config.speculative_config.num_speculative_tokens
        self.queries = Queries(self.count + 1)
        self.chosen: dict[tuple[str, int], Chosen] = {}  # by request and group of layers
        self.anew = 0  # views that were chosen for the draft that is being made
        self.pace: PacedViews | None = None
        if isinstance(self.drafter, SelfDraft):
            self.step = Step(self.count, self.drafter.every or USUAL, watch=True)
            if paced(vllm_config):
                usual = METHODS[type(self.drafter).__name__].usual
                view = self.drafter
                self.pace = PacedViews(usual, self.count, view.every, view.guided)
                self.step = self.pace.plan
                self.queries.on = self.step.watch

    def keys_of(self, layer: Attention, blocks: Tensor) -> Tensor:
        """[K,S,D] the keys in these blocks of a layer's cache, in the order of their slots."""
        raise NotImplementedError

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self.layers = get_layers_from_vllm_config(self.vllm_config, Attention)
        if isinstance(self.drafter, SelfDraft) and self.drafter.guided:
            for layer in self.layers.values():
                self.queries.watch(layer)

    def propose_draft_token_ids(
        self, scheduler_output: Any, sampled_token_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> list[list[int]]:
        if not isinstance(self.drafter, SelfDraft):
            return super().propose_draft_token_ids(
                scheduler_output, sampled_token_ids, *args, **kwargs
            )
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        rows = self._rows(scheduler_output, sampled_token_ids)
        for row, chain in zip(rows, self.paced_drafts(rows, len(rows) == len(drafts)), strict=True):
            drafts[row.at] = chain
        return drafts

    def paced_drafts(self, rows: list[Row], alone: bool) -> list[list[int]]:
        """The drafts of these rows, empty where plain decoding is expected to be faster. alone: no
        others run.
        """
        if self.pace is not None:
            lengths = {row.request: Paced(row.length, row.length - row.covered) for row in rows}
            self.step = self.pace.begin(lengths, alone)
            if not self.step.depth:
                self.chosen = {}
        drafts = self._draft(rows) if rows and self.step.depth else [[] for _ in rows]
        if self.pace is not None:
            self.pace.end()
        self.queries.on = self.step.watch
        return drafts

    def _draft(self, rows: list[Row]) -> list[list[int]]:
        """The drafts of these rows, each under the view that its latest pass suggests."""
        plans: list[Plan] = []

        def select() -> int:
            self.anew = 0
            for i, groups in enumerate(self.attn_groups):
                for group in groups:
                    plans.append(
                        Plan(self.input_batch.block_table[i], group, self._table(i, group, rows))
                    )
            return self.anew

        self.queries.on = False
        if self.pace is not None:
            return self.pace.timed(select, lambda: self._chains(rows, plans).tolist())
        select()
        return self._chains(rows, plans).tolist()

    def _rows(self, scheduler_output: Any, sampled: list[list[int]]) -> list[Row]:
        """The rows that draft: those that got tokens, and whose drafts fit into the context and the
        reserved slots.
        """
        tables = self.input_batch.block_table.block_tables
        verified = scheduler_output.scheduled_spec_decode_tokens
        rows = []
        for b, new in enumerate(sampled):
            length = int(self.input_batch.num_tokens_no_spec[b])
            reserved = min(int(table.num_blocks_per_row[b]) * table.block_size for table in tables)
            if new and length + self.count <= min(self.max_model_len, reserved + 1):
                request = self.input_batch.req_ids[b]
                drafts = verified.get(request, ())
                rows.append(Row(b, request, length, new[-1], length - len(new), 1 + len(drafts)))
        return rows

    def _table(self, number: int, group: Any, rows: list[Row]) -> Table:
        """What the layers of a group read of these rows."""
        paged = self.input_batch.block_table[number]
        blocks = paged.get_device_tensor(rows[-1].at + 1)
        drafting = {row.request for row in rows}
        entries = []
        self.chosen = {key: view for key, view in self.chosen.items() if key[0] in drafting}
        for row in rows:
            view = Chosen(torch.zeros(1, 0, dtype=torch.long), 0)
            if reducible(group.kv_cache_spec):
                key = (row.request, number)
                view = self.chosen[key] = self._view(
                    self.chosen.get(key), group.layer_names, row, paged, blocks
                )
            entries.append(
                (
                    blocks[row.at],
                    view.selected.to(blocks.device),
                    view.tail,
                    row.length + self.count - 1,
                )
            )
        return Table(entries, paged.block_size)

    def _view(
        self, last: Chosen | None, names: list[str], row: Row, paged: Any, blocks: Tensor
    ) -> Chosen:
        """The pages that a row's draft reads: as in its last step, or chosen anew."""
        page = paged.block_size
        if last is not None and last.uses < self.step.every and last.tail <= row.covered // page:
            return replace(last, uses=last.uses + 1)
        self.anew += 1
        used = blocks[row.at, : -(-row.covered // page)]
        return Chosen(
            self.drafter.select(row.covered, page, partial(self._scores, names, row, used)),
            row.covered // page,
        )

    def _scores(self, names: list[str], row: Row, blocks: Tensor) -> Tensor:
        """[L,covered] how much the row's verification attended to each slot that all of its queries
        saw.
        """
        found = []
        for name in names:
            keys = self.keys_of(self.layers[name], blocks)[:, : row.covered]
            found.append(
                scores_of(
                    self.queries.last(name, row.at, row.queries), keys, self.layers[name].impl.scale
                )
            )
        return torch.stack(found)

    def _chains(self, rows: list[Row], plans: list[Plan]) -> Tensor:
        """[B,depth] the target's greedy continuations of the rows under their views."""
        tokens = torch.tensor([row.root for row in rows], dtype=torch.int32, device=self.device)
        chains = []
        for j in range(self.step.depth):
            positions = torch.tensor([row.length - 1 + j for row in rows], device=self.device)
            metadata: dict[str, Any] = {}
            slots: dict[str, Tensor] = {}
            for plan in plans:
                at = self.slots(plan.paged, rows, positions)
                metadata |= per_layer(
                    plan.group, plan.table, plan.table.lengths([row.length + j for row in rows]), at
                )
                slots |= dict.fromkeys(plan.group.layer_names, at)
            with set_forward_context(
                metadata, self.vllm_config, num_tokens=len(rows), slot_mapping=slots
            ):
                hidden = self.model(input_ids=tokens, positions=positions, inputs_embeds=None)
            tokens = self.next_tokens(self.model.compute_logits(hidden), rows, positions)
            chains.append(tokens)
        return torch.stack(chains, 1)

    def next_tokens(self, logits: Tensor, rows: list[Row], positions: Tensor) -> Tensor:
        """[B] the tokens that are drafted after these positions, from the target's logits [B,V]."""
        return logits.argmax(-1).int()

    def slots(self, paged: Any, rows: list[Row], positions: Tensor) -> Tensor:
        """[B] where the keys of these positions lie in the cache."""
        page = paged.block_size
        blocks = paged.get_device_tensor(rows[-1].at + 1)[[row.at for row in rows]]
        return blocks.gather(1, (positions // page)[:, None])[:, 0].long() * page + positions % page


def per_layer(group: Any, table: Table, filled: list[int], slots: Tensor) -> dict[str, Any]:
    """The attention metadata of one draft step: the layers of a group differ only in their block
    tables.
    """
    starts = torch.arange(len(filled) + 1, dtype=torch.int32)
    blocks = table.blocks
    common = CommonAttentionMetadata(
        query_start_loc=starts.to(blocks.device),
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(filled, dtype=torch.int32, device=blocks.device),
        num_reqs=len(filled),
        num_actual_tokens=len(filled),
        max_query_len=1,
        max_seq_len=max(filled),
        block_table_tensor=blocks[0],
        slot_mapping=slots,
        causal=True,
    )
    first = group.get_metadata_builder().build(0, common)
    found = {}
    for i, name in enumerate(group.layer_names):
        found[name] = first
        if len(blocks) > 1:
            found[name] = copy(first)
            found[name].block_table = blocks[i]
    return found


def reducible(spec: Any) -> bool:
    """Whether layers of this kind may skip pages: one with a window needs to know how far back each
    page is.
    """
    return (
        type(spec) is FullAttentionSpec
        and not spec.sliding_window
        and not spec.attention_chunk_size
    )


def refuse(vllm_config: Any) -> None:
    """Raise ValueError for what drafting by the target itself does not support."""
    parallel = vllm_config.parallel_config
    model = vllm_config.model_config
    reasons = {
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "LoRA": vllm_config.lora_config is not None,
        "positions of more than one dimension": model.uses_mrope,
        "models without plain attention caches": model.use_mla or model.is_hybrid,
    }
    for what, is_used in reasons.items():
        if is_used:
            raise ValueError(
                f"vegas and magicdec-stream do not support {what}; suffix and lookup do"
            )
