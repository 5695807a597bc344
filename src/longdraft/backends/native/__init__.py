"""The CPU backend: a decoding step of a Llama-like model in one C++ call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from longdraft.backends.architecture import Architecture
from longdraft.backends.base import Backend, ChainDrafter
from longdraft.backends.describe import describe
from longdraft.backends.features.bounded_positions import BoundedPositions
from longdraft.backends.features.experts import Experts
from longdraft.backends.features.latent import Latents
from longdraft.backends.features.scans.recurrent_layers import Scans
from longdraft.backends.features.windows import Windows
from longdraft.backends.native.draft_layers import NativeLayers, layers_fit
from longdraft.backends.native.hybrid import HybridStep
from longdraft.backends.native.layers import computes, routers
from longdraft.backends.native.step import NativeStep
from longdraft.backends.packed_linear import EightBitInputs, PackedLinear
from longdraft.core import Captures, KVCache, KVView, Tree, is_indexable
from longdraft.core.draft_layers import DraftLayers
from longdraft.ops import native


def fits(hf: Any, windows: Mapping[int, object]) -> bool:
    """Whether the native step computes these modules: their family, shape, dtype and device.

    windows: as in its config. Whether it computes the model's features is another question.
    """
    c = hf.config.get_text_config()
    lib = native.library()
    if not computes(hf, windows) or lib is None:
        return False
    if native.name_of(lib) in native.WITHOUT_INT8 and any(
        isinstance(m, EightBitInputs) for m in hf.modules()
    ):
        return False
    others = {p for m in hf.modules() if isinstance(m, PackedLinear) for p in m.parameters()}
    others |= routers(hf)
    same = {(p.dtype, p.device.type) for p in hf.parameters() if p not in others}
    return (
        same in ({(torch.float32, "cpu")}, {(torch.bfloat16, "cpu")})
        and bool(lib.longdraft_has_heads(describe(hf).attentions[0].dim))
        and c.vocab_size >= 16
        and c.hidden_size >= 16
        and c.hidden_size % 16 == 0
        and all(isinstance(w, int) for w in windows.values())
    )


# builds whose attention to keys in 8 bits was measured beside that to bfloat16 (docs/log)
CODES_MEASURED = ("avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2")


# Queries of a key head in one pass, whose results are held at once: 128 nodes of 16 heads.
MOST_QUERIES, FEWEST_NODES = 2048, 16


class NativeBackend(Backend):
    """Computes what the Transformers forward computes, with activations in float32.

    A node's numbers do not depend on the nodes and rows computed beside it: a verify pass along a
    chain is bit for bit plain decoding. The kernels read the model's own weights, which must not be
    moved or changed.
    """

    SUPPORTED = frozenset({Windows, Scans, Experts, BoundedPositions, Latents})
    name = "native"
    exact = True

    def __init__(self, architecture: Architecture):
        self.architecture = architecture
        self.recurrent = bool(architecture.scans)
        self.step = (HybridStep if self.recurrent else NativeStep)(
            architecture.hf, architecture.windows
        )
        self.kernels = native.name_of(self.step.lib)
        # Whether prompts are computed here too: these kernels read them faster than torch does
        # (docs/log), except
        # that the build with matrix tiles has not been measured.
        # Those of recurrent layers must be computed here, so that states are in one order.
        self.prefills = self.recurrent or self.kernels != "amx"
        self.reads_codes = not self.step.latent
        self.prefers_codes = self.reads_codes and self.kernels in CODES_MEASURED
        heads = self.step.model.groups
        self.max_nodes = min(self.max_nodes, max(FEWEST_NODES, MOST_QUERIES // heads))

    def supports(self, view: KVView | None, logits: int = 0) -> bool:
        if logits and not self.prefills:
            return False
        return is_indexable(view) and (self.reads_codes or view is None or not view.bits)

    def forward(
        self,
        tree: Tree,
        cache: KVCache,
        start: int,
        view: KVView | None,
        captured: Captures,
        logits: int = 0,
    ) -> Tensor:
        """Logits are float32."""
        assert is_indexable(view), f"{type(view).__name__} selects by the queries"
        return self.step(
            tree,
            cache,
            start,
            self.architecture.position(tree, start, cache),
            view,
            captured,
            logits,
        )

    def chain_drafter(self, cache: KVCache, view: KVView | None) -> ChainDrafter | None:
        if self.recurrent or not is_indexable(view):
            return None
        return partial(self.step.chain, cache, view, self.architecture.reach)

    def compile_layers(self, layers: DraftLayers) -> NativeLayers | None:
        return (
            NativeLayers(self.step, layers)
            if not self.recurrent and layers_fit(self.step, layers)
            else None
        )
