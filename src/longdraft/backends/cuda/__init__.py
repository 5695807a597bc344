"""The GPU backend: Triton's kernels in fixed buffers, replayed as CUDA graphs."""

from __future__ import annotations

import os
import warnings

import torch
from torch import Tensor

from longdraft.backends.architecture import Architecture
from longdraft.backends.base import Backend
from longdraft.backends.cuda.static_pass import Shape, StaticPass, head_dim
from longdraft.backends.features.windows import Windows
from longdraft.core import Captures, IndexView, KVCache, KVView, Tree, is_indexable
from longdraft.ops.triton import self_check


def fits(model: Architecture) -> bool:
    """Whether the model is on one GPU, its heads have one width, and Triton's kernels run here."""
    devices = {p.device for p in model.hf.parameters()}
    if (
        os.environ.get("LONGDRAFT_GRAPHS") == "0"
        or len(devices) != 1
        or next(iter(devices)).type != "cuda"
    ):
        return False
    return has_even_heads(model) and self_check.kernels() is not None


def has_even_heads(model: Architecture) -> bool:
    """Whether the keys and values of all layers have the width of the config."""
    dim = head_dim(model.config)
    modules = [getattr(layer, "self_attn", None) for layer in model.layout.layers]
    return getattr(model.config, "v_head_dim", None) in (None, dim) and all(
        getattr(m, "head_dim", None) == dim for m in modules
    )


class CudaBackend(Backend):
    """Runs the model with Triton's attention in fixed buffers, and from the second pass of a shape
    on as a CUDA graph.

    A pass reads the lengths once, to know how many keys a launch must reach; after that the host
    never waits for the GPU. Results are copies, so that the next pass may overwrite the buffers.
    """

    SUPPORTED = frozenset({Windows})
    name = "cuda"
    max_graphs = 64  # held at a time; the least recently used is dropped first

    def __init__(self, architecture: Architecture):
        self.architecture = architecture
        self.passes = dict[Shape, StaticPass]()
        self.pool = (
            torch.cuda.graph_pool_handle() if architecture.hf.device.type == "cuda" else None
        )
        self._selected: tuple[IndexView, Tensor, int, list[int]] | None = None

    def supports(self, view: KVView | None, logits: int = 0) -> bool:
        """Not views of codes: there are no kernels for them."""
        return not logits and is_indexable(view) and (view is None or not view.bits)

    def forward(
        self,
        tree: Tree,
        cache: KVCache,
        start: int,
        view: KVView | None,
        captured: Captures,
        logits: int = 0,
    ) -> Tensor:
        assert is_indexable(view), f"{type(view).__name__} selects by the queries"
        model = self.architecture
        lengths = cache.length.tolist()
        position = model.position(tree, start, cache)
        c = model.config
        W = position.shape[1]
        end = max(lengths) + tree.size
        table = cache.table(
            end, c.num_hidden_layers, c.num_key_value_heads, head_dim(c), model.hf.dtype
        )
        indices, most, tail_start = (
            (None, 0, [0] * len(lengths)) if view is None else self._indices(view, cache)
        )
        keep = None if captured.spec.rows is None else captured.spec.kept(tree)
        tail = max(n - s for n, s in zip(lengths, tail_start, strict=True)) + tree.size
        p = self._pass(Shape.of_pass(tree, W, tail, most, captured.spec, keep))
        p.load(tree, start, position, cache.length)
        p.cache.copy_(table)
        p.bounds[:, 3] = 0 if view is None else view.tail_start
        if indices is not None:
            p.indices.copy_(indices)
        if keep is not None:
            p.keep.zero_()
            p.keep[:, : keep.shape[1]] = keep
        self._run(p)
        if p.scores is not None and keep is not None:
            scores = p.scores[:, :, : keep.shape[1], :, : max(lengths) + 1].clone()
            captured.scores = {layer: scores[i] for layer, i in p.scored.items()}
        captured.states = {n: x[:, :W].clone() for n, x in p.states.items()}
        assert p.logits is not None
        node_logits = p.logits[:, :W].clone()
        if p.graph is None:
            p.forget()
        return node_logits

    def _pass(self, shape: Shape) -> StaticPass:
        self.passes[shape] = self.passes.pop(shape, None) or StaticPass(self.architecture, shape)
        if len(self.passes) > self.max_graphs:
            del self.passes[next(iter(self.passes))]
        return self.passes[shape]

    def _run(self, p: StaticPass) -> None:
        """Run directly the first time, which builds the kernels; from the second time on as a
        graph, if possible.
        """
        if p.graph is None and p.used and self.pool is not None:
            if all(other.graph is None for other in self.passes.values()):
                self.pool = torch.cuda.graph_pool_handle()  # a pool ends with the last graph in it
            try:
                p.capture(self.pool)
            except RuntimeError as error:  # the model does something that a graph cannot record
                why = next(iter(str(error).strip().splitlines()), type(error).__name__)
                warnings.warn(
                    f"no CUDA graphs for {self.architecture.config.model_type}: {why[:200]}",
                    stacklevel=4,
                )
                self.pool = None
        if p.graph is None:
            p.run()
        else:
            p.graph.replay()
        p.used = True

    def _indices(self, view: IndexView, cache: KVCache) -> tuple[Tensor, int, list[int]]:
        """Addresses of the selected keys [L,B,4], the longest row's count, and tail_start. Computed
        once per view.
        """
        if self._selected is None or self._selected[0] is not view:
            layers = range(self.architecture.config.num_hidden_layers)
            rows = range(len(cache.length))
            places = [[self._place(view, cache, layer, b) for b in rows] for layer in layers]
            most = max(row[2] for layer in places for row in layer)
            table = torch.tensor(places, device=self.architecture.hf.device)
            self._selected = view, table, most, view.tail_start.tolist()
        return self._selected[1:]

    def _place(
        self, view: IndexView, cache: KVCache, layer: int, b: int
    ) -> tuple[int, int, int, int]:
        if layer in self.architecture.windows or not (
            pair := view.compact(layer, b, cache.stored_row(layer, b))
        ):
            return 0, 0, 0, 0
        k, v = pair
        return k.data_ptr(), v.data_ptr(), k.shape[1], k.stride(0) // k.stride(1)
