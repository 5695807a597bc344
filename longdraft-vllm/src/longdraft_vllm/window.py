"""Trained drafters of vLLM (EAGLE-3, MTP, DFlash) that read the first and the latest keys of a text
only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from longdraft_vllm.window_options import window_of


@dataclass(frozen=True)
class Window:
    """A drafter reads at least the first `sink` tokens, the `size` latest before its queries, and
    these themselves.

    Both are rounded up to whole pages. Keys keep their positions, which are in the keys; only pages
    between are left out of the block table, so what is written, and where, does not change.
    """

    size: int
    sink: int

    def shown(self, common: Any, page: int) -> Any:
        """The attention metadata of a pass of the drafter, with shorter block tables and
        lengths.
        """
        table = common.block_table_tensor
        lengths = common.seq_lens
        # the position of each request's first query
        first = lengths - common.query_start_loc.diff()
        sinks = -(-self.sink // page)
        left_out = ((first - self.size).clamp(min=0) // page - sinks).clamp(min=0)  # pages
        at = torch.arange(table.shape[1], device=table.device)
        at = at + torch.where(at >= sinks, left_out[:, None], 0)
        most = (sinks + 1) * page + self.size + common.max_query_len
        upper = common.seq_lens_cpu_upper_bound
        return replace(
            common,
            block_table_tensor=table.gather(1, at.clamp(max=table.shape[1] - 1).long()),
            seq_lens=(lengths - left_out * page).to(lengths.dtype),
            max_seq_len=min(common.max_seq_len, most),
            seq_lens_cpu_upper_bound=None if upper is None else upper.clamp(max=most),
        )


class Windowed:
    """A mixin over a model runner: every pass of its drafter reads what the window shows. Drafts
    may differ from those of the whole text; outputs do not, because the target verifies them over
    all keys.
    """

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(*args, **kwargs)
        options = window_of(self.vllm_config)
        drafter = self.drafter
        assert options is not None
        for group in drafter.draft_attn_groups:
            if not plain_cache(group.kv_cache_spec):
                raise ValueError(
                    f"drafter_window: layers of {type(group.kv_cache_spec).__name__} read "
                    "a part already"
                )
        drafter.build_per_group_and_layer_attn_metadata = shortened(
            type(drafter).build_per_group_and_layer_attn_metadata.__get__(drafter),
            Window(*options),
            drafter,
        )


def shortened(build: Callable[..., Any], window: Window, drafter: Any) -> Callable[..., Any]:
    def build_per_group_and_layer_attn_metadata(common: Any, draft_index: int = 0) -> Any:
        return build(window.shown(common, drafter.block_size), draft_index)

    return build_per_group_and_layer_attn_metadata


def plain_cache(spec: Any) -> bool:
    """Whether layers of this kind keep and read the keys of the whole text."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return (
        type(spec) is FullAttentionSpec
        and not spec.sliding_window
        and not spec.attention_chunk_size
    )
