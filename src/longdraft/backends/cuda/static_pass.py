"""A forward pass in fixed buffers, whose launches do not depend on lengths: it can be recorded as a
CUDA graph.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longdraft.backends.architecture import Architecture
from longdraft.backends.decoder_layer import Norm
from longdraft.backends.describe import Finder
from longdraft.backends.known_modules import Unknown
from longdraft.core import Captures, CaptureSpec, Tree
from longdraft.errors import InputError
from longdraft.families import family_of_class


def head_dim(config: Any) -> int:
    """The width of a head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


@dataclass(frozen=True)
class Fusible:
    """Parts that take many launches in Transformers' layers and one in ours; they make up much
    of a small pass's time. norms, gated: modules. rotating: modules of the functions that
    rotate.
    """

    norms: list[Norm]
    gated: list[Any]
    rotating: set[Any]

    @staticmethod
    def of(hf: Any) -> Fusible:
        norms = list[Norm]()
        gated = list[Any]()
        rotating = set[Any]()
        for module in hf.modules():
            family = family_of_class(type(module))
            if family is None or not family.fused:
                continue
            kind = type(module).__name__
            finder = Finder(family, getattr(module, "config", None))
            with suppress(Unknown):
                if kind == family.norm:
                    norms.append(finder.norm(module, "norm", len(module.weight)))
                elif kind == family.mlp and finder.activation(module) == "silu":
                    gated.append(module)
                elif kind == family.attention:
                    rotating.add(family.modeling)
        return Fusible(norms, gated, rotating)

    @contextmanager
    def fused(self) -> Generator[None]:
        """Run each norm, rotation and gate of the model in one launch."""
        from longdraft.ops.triton import functions as gpu

        def rotate(
            q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            return gpu.rotate(q, cos, sin), gpu.rotate(k, cos, sin)

        with ExitStack() as restored:
            for norm in self.norms:
                m = norm.module
                m.forward = lambda x, m=m, eps=norm.eps: gpu.rms_norm(x, m.weight, eps)
                restored.callback(delattr, m, "forward")
            for m in self.gated:
                m.forward = lambda x, m=m: m.down_proj(gpu.gated(m.gate_proj(x), m.up_proj(x)))
                restored.callback(delattr, m, "forward")
            for module in self.rotating:
                restored.callback(
                    setattr, module, "apply_rotary_pos_emb", module.apply_rotary_pos_emb
                )
                module.apply_rotary_pos_emb = rotate
            yield


def bucket(n: int, least: int) -> int:
    """The next power of two, so that a new graph is needed only when what it reads has doubled; 0
    stays 0.
    """
    return max(least, 1 << (n - 1).bit_length()) if n else 0


def padded(nodes: int) -> int:
    """The number of nodes that a pass over `nodes` nodes is padded to: few sizes serve trees of
    many sizes.
    """
    step = 16
    if nodes <= 8:
        step = 1
    elif nodes <= 64:
        step = 8
    return -(-nodes // step) * step


class Shape(NamedTuple):
    """The shape that a graph is recorded for; a pass of another shape needs another graph.

    tree, keys, selected: maxima: nodes of a tree, slots and selected slots of a row. kept: rows of
    scores. spec: its rows are "all", unless a mean or nothing is kept. normal: the tensors are no
    inference tensors.
    """

    rows: int
    nodes: int
    tree: int
    keys: int
    selected: int
    kept: int
    spec: CaptureSpec
    normal: bool

    @staticmethod
    def of_pass(
        tree: Tree, nodes: int, tail: int, selected: int, spec: CaptureSpec, keep: Tensor | None
    ) -> Shape:
        """For a pass over `nodes` of the tree's nodes that reads at most `tail` slots and
        `selected` keys of a row.
        """
        nodes = padded(nodes)
        rows = "mean" if spec.rows == "mean" else "all"
        kept = 0
        if keep is not None:
            kept = nodes if spec.rows in ("all", "mean") else keep.shape[1]
        known = CaptureSpec(hidden=spec.hidden)
        if kept:
            known = CaptureSpec(rows, spec.of, spec.split, spec.only, spec.hidden)
        sizes = (
            len(tree.tokens),
            nodes,
            bucket(tree.size, 16),
            bucket(tail, 1024),
            bucket(selected, 64),
        )
        return Shape(*sizes, kept, known, not torch.empty(0).is_inference())


class StaticPass:
    """A forward pass in fixed buffers: their contents change its results, never its launches."""

    def __init__(self, model: Architecture, shape: Shape):
        self.model = model
        self.fusible = Fusible.of(model.hf)
        self.shape = shape
        self.calls = 0
        B = shape.rows
        W = shape.nodes
        M = shape.tree
        L = model.config.num_hidden_layers
        device = model.hf.device

        def zeros(*sizes: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*sizes, dtype=dtype, device=device)

        self.tokens = zeros(B, W)
        self.position = zeros(B, W)
        self.own_depth = zeros(B, W)
        self.depth = zeros(B, M)
        self.visible = zeros(B, W, M, dtype=torch.uint8)
        self.bounds = zeros(B, 4)
        self.cache = zeros(L, 4)
        self.indices = zeros(L, B, 4)
        self.keep = zeros(B, shape.kept)
        self.graph: Any = None
        self.used = False
        self.forget()

    def forget(self) -> None:
        """Release a run's outputs. A graph's outputs must stay, since replays write to them."""
        self.logits: Tensor | None = None
        self.scores: Tensor | None = None
        self.states: dict[int, Tensor] = {}

    def load(self, tree: Tree, start: int, position: Tensor, length: Tensor) -> None:
        """Copy one call's inputs, except its view, to the buffers. Padding nodes keep old values:
        they are not read.
        """
        W = position.shape[1]
        T = tree.size
        self.tokens[:, :W] = tree.tokens[:, start:]
        self.position[:, :W] = position
        self.own_depth[:, :W] = tree.depth[:, start:]
        self.depth[:, :T] = tree.depth
        self.visible[:, :W, :T] = tree.mask[:, start:]
        self.bounds[:, 0] = length
        self.bounds[:, 1].fill_(start)
        self.bounds[:, 2].fill_(T)

    def capture(self, pool: Any) -> None:
        """Record the launches of a run as a graph. One run must come before, which builds every
        kernel.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self.run()
        self.graph = graph

    @torch.no_grad()
    def run(self) -> None:
        """From the buffers to logits [B,W,V], scores [L,B,R,columns,keys] and states {n:
        [B,W,d]}.
        """
        s = self.shape
        spec = self.shape.spec
        model = self.model
        self.calls = 0
        apart = self.own_depth[:, :, None] - self.depth[:, None]
        self.near = {w: self.visible * (apart < w) for w in set(model.windows.values())}
        if s.kept:
            columns = model.config.num_key_value_heads if spec.split else 1
            layers = range(model.config.num_hidden_layers) if spec.only is None else [spec.only]
            self.scored = {
                layer: i for i, layer in enumerate(n for n in layers if n not in model.windows)
            }
            rows = 1 if spec.rows == "mean" else s.kept
            self.scores = torch.empty(
                len(self.scored), s.rows, rows, columns, s.keys, device=self.keep.device
            )
            # a node may be kept twice
            same = self.keep[:, :, None] == torch.arange(s.nodes, device=self.keep.device)
            self.place = same.int().argmax(1).where(same.any(1), -1).int()
        captured = Captures(spec)
        with self.fusible.fused():
            logits = model.run(self, self.tokens, self.position, captured)
        self.logits = logits
        self.states = captured.states

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        softcap: float | None,
        sink: Tensor | None,
    ) -> Tensor:
        """q [B,H,W,D], k, v [B,K,W,D] of the new nodes -> [B,W,H,D]."""
        from longdraft.ops.triton import slots

        dtype = self.model.hf.dtype
        if {q.dtype, k.dtype, v.dtype} != {dtype}:
            raise InputError(
                f"attention runs in {q.dtype}, the model in {dtype}: set LONGDRAFT_GRAPHS=0"
            )
        s = self.shape
        window = self.model.windows.get(layer, 0)
        keys = min(s.keys, bucket(window + s.tree, 1)) if window else s.keys
        visible = self.near[window] if window else self.visible
        reach = slots.SlotKeys(
            self.cache[layer], self.indices[layer], self.bounds, visible, self.own_depth, keys,
            0 if window else s.selected, window,
        )  # fmt: skip
        slots.write(k, v, reach.cache, self.bounds)
        index = self.scored.get(layer) if s.kept else None
        if index is None:
            return slots.attend(q, k.shape[1], reach, scale, softcap, sink)[0]
        assert self.scores is not None
        out, total, logits = slots.attend(
            q, k.shape[1], reach, scale, softcap, sink, self.place, s.kept
        )
        assert logits is not None
        weights = s.spec.of == "weights"
        pooled = s.spec.rows == "mean"
        slots.average(
            logits, total, self.keep, self.place, self.bounds, weights, pooled, self.scores[index]
        )
        return out
