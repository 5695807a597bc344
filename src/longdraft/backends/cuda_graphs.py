"""A model's decode step on a GPU: fixed buffers, launches that no length changes, replayed as CUDA graphs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from longdraft.backends.architecture import experts_of
from longdraft.core.cache import KVCache
from longdraft.core.capture import CaptureSpec
from longdraft.core.tree import Tree
from longdraft.errors import InputError
from longdraft.ops.triton import self_check as trial

if TYPE_CHECKING:
    from longdraft.models.lm import LM

NORMS = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}  # whose eight launches one kernel replaces
KEPT = 64  # graphs at a time; the one not used for longest goes first


def fits(lm: LM) -> bool:
    """Whether a step at fixed places computes this model: one GPU, Triton's kernels, plain heads, no experts."""
    places = {p.device for p in lm.hf.parameters()}
    if os.environ.get("LONGDRAFT_GRAPHS") == "0" or len(places) != 1 or next(iter(places)).type != "cuda":
        return False
    return plain(lm) and trial.kernels() is not None


def plain(lm: LM) -> bool:
    """Heads of one width in all layers, positions that are rotations, and no experts."""
    c, dim = lm.config, head_dim(lm.config)
    modules = [getattr(layer, "self_attn", None) for layer in lm.hf.get_decoder().layers]
    return (
        not experts_of(c)  # what reaches an expert is known on the host alone
        and getattr(c, "v_head_dim", None) in (None, dim)
        and all(getattr(m, "head_dim", None) == dim for m in modules)
        and lm.reach > lm.positions
    )


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


@contextmanager
def fused(hf: Any) -> Iterator[None]:
    """The model's norms run in one launch each; many of a small pass's launches are theirs."""
    from longdraft.ops.triton import functions as gpu

    norms = [m for m in hf.modules() if type(m).__name__ in NORMS]
    for m in norms:
        m.forward = lambda x, m=m: gpu.rms_norm(x, m.weight, m.variance_epsilon)
    try:
        yield
    finally:
        for m in norms:
            del m.forward


def bucket(n: int, least: int) -> int:
    """The next power of two, so that a graph is made anew when what it reads has doubled."""
    return max(least, 1 << (n - 1).bit_length()) if n else 0


def padded(nodes: int) -> int:
    """How many nodes a pass of so many is made for: few sizes for trees that never are of one size."""
    step = 1 if nodes <= 8 else 8 if nodes <= 64 else 16
    return -(-nodes // step) * step


class Shape(NamedTuple):
    """What a graph is made for. of, split, only: as in Captures. normal: not of the engine's inference tensors."""

    rows: int
    nodes: int
    tree: int
    keys: int
    selected: int
    kept: int
    pooled: bool
    of: str
    split: bool
    only: int | None
    hidden: tuple[int, ...]
    normal: bool


class StaticPass:
    """A forward pass at fixed places: what its buffers hold changes its numbers, never its launches."""

    def __init__(self, lm: LM, shape: Shape):
        self.lm, self.shape, self.calls = lm, shape, 0
        B, W, M, L, device = shape.rows, shape.nodes, shape.tree, lm.config.num_hidden_layers, lm.device

        def zeros(*sizes: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*sizes, dtype=dtype, device=device)

        self.tokens, self.position, self.own_depth = zeros(B, W), zeros(B, W), zeros(B, W)
        self.depth, self.visible = zeros(B, M), zeros(B, W, M, dtype=torch.uint8)
        self.bounds, self.cache, self.indices = zeros(B, 4), zeros(L, 4), zeros(L, B, 4)
        self.keep, self.spec = zeros(B, shape.kept), CaptureSpec(hidden=shape.hidden)
        self.graph: Any = None
        self.used = False
        self.forget()

    def forget(self) -> None:
        """Let go of a run's outputs; those of a graph stay where they are."""
        self.logits: Tensor | None = None
        self.scores: Tensor | None = None
        self.states: dict[int, Tensor] = {}

    def load(self, tree: Tree, start: int, position: Tensor, length: Tensor) -> None:
        """What is of one call and of no view. Nodes beyond the tree keep old values: nobody reads what they give."""
        W, T = position.shape[1], tree.size
        self.tokens[:, :W] = tree.tokens[:, start:]
        self.position[:, :W] = position
        self.own_depth[:, :W] = tree.depth[:, start:]
        self.depth[:, :T] = tree.depth
        self.visible[:, :W, :T] = tree.mask[:, start:]
        self.bounds[:, 0] = length
        self.bounds[:, 1].fill_(start)
        self.bounds[:, 2].fill_(T)

    def capture(self, pool: Any) -> None:
        """Record the launches of a run. Ran before, so that every kernel is built."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self.run()
        self.graph = graph

    @torch.no_grad()
    def run(self) -> None:
        """From the buffers to logits [B,W,V], scores [L,B,R,columns,keys] and states {n: [B,W,d]}."""
        s, lm, self.calls, self.states = self.shape, self.lm, 0, {}
        apart = self.own_depth[:, :, None] - self.depth[:, None]
        self.near = {w: self.visible * (apart < w) for w in set(lm.windows.values())}
        if s.kept:
            columns = lm.config.num_key_value_heads if s.split else 1
            tapped = [i for i in range(lm.config.num_hidden_layers) if i not in lm.windows and s.only in (None, i)]
            self.tapped = {layer: i for i, layer in enumerate(tapped)}
            rows = 1 if s.pooled else s.kept
            self.scores = torch.empty(len(tapped), s.rows, rows, columns, s.keys, device=self.keep.device)
            same = self.keep[:, :, None] == torch.arange(s.nodes, device=self.keep.device)  # a node may be kept twice
            self.place = same.int().argmax(1).where(same.any(1), -1).int()
        captured: Any = self  # it has the two fields of Captures that are used
        with lm.residuals(captured), fused(lm.hf):
            out = lm.hf(input_ids=self.tokens, position_ids=self.position, use_cache=False, longdraft=self)
        if self.calls != lm.config.num_hidden_layers:
            raise InputError(
                f"{type(lm.hf).__name__}: not all layers use the attention interface; longdraft needs them"
            )
        self.logits = out.logits

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, sink: Tensor | None
    ) -> Tensor:
        """q [B,H,W,D], k, v [B,K,W,D] of the new nodes -> [B,W,H,D]."""
        from longdraft.ops.triton import slots

        self.calls += 1
        if {q.dtype, k.dtype, v.dtype} != {self.lm.dtype}:
            raise InputError(f"attention runs in {q.dtype}, the model in {self.lm.dtype}: set LONGDRAFT_GRAPHS=0")
        s, window = self.shape, self.lm.windows.get(layer, 0)
        keys = min(s.keys, bucket(window + s.tree, 1)) if window else s.keys
        visible = self.near[window] if window else self.visible
        reach = slots.SlotKeys(
            self.cache[layer], self.indices[layer], self.bounds, visible, self.own_depth, keys,
            0 if window else s.selected, window,
        )  # fmt: skip
        slots.write(k, v, reach.cache, self.bounds)
        at = self.tapped.get(layer) if s.kept else None
        if at is None:
            return slots.attend(q, k.shape[1], reach, scale, softcap, sink)[0]
        assert self.scores is not None
        out, total, logits = slots.attend(q, k.shape[1], reach, scale, softcap, sink, self.place, s.kept)
        assert logits is not None
        slots.average(
            logits, total, self.keep, self.place, self.bounds, s.of == "weights", s.pooled,
            self.scores[at],
        )  # fmt: skip
        return out


class GraphStep:
    """Computes what LM's pass by torch computes, and writes the same slots of the cache.

    It reads the lengths once, to know how many keys a launch must reach; from there to the logits the host waits for
    nothing. What it returns is a copy, so the next step may overwrite its buffers.
    """

    def __init__(self, lm: LM):
        self.lm, self.passes = lm, dict[Shape, StaticPass]()
        self.pool = torch.cuda.graph_pool_handle() if lm.device.type == "cuda" else None
        self._picked: tuple[Any, Tensor, int, list[int]] | None = None

    def __call__(self, tree: Tree, cache: KVCache, start: int, position: Tensor, view: Any, captured: Any) -> Tensor:
        """Nodes [start, size) of the tree at position [B,W] -> logits [B,W,V], tapped scores and states in `taps`."""
        lengths, W = cache.length.tolist(), position.shape[1]
        c, end = self.lm.config, max(lengths) + tree.size
        table = cache.table(end, c.num_hidden_layers, c.num_key_value_heads, head_dim(c), self.lm.dtype)
        indices, most, tail_start = (None, 0, [0] * len(lengths)) if view is None else self._indices(view, cache)
        keep = None if captured.spec.rows is None else captured.spec.kept(tree)
        tail = max(n - s for n, s in zip(lengths, tail_start, strict=True)) + tree.size
        p = self._pass(_shape(tree, W, tail, most, captured, keep))
        p.load(tree, start, position, cache.length)
        p.cache.copy_(table)
        p.bounds[:, 3] = 0 if view is None else view.tail_start
        if indices is not None:
            p.indices.copy_(indices)
        if keep is not None:
            p.keep.zero_()
            p.keep[:, : keep.shape[1]] = keep
        self._play(p)
        if p.scores is not None and keep is not None:
            scores = p.scores[:, :, : keep.shape[1], :, : max(lengths) + 1].clone()
            captured.scores = {layer: scores[i] for layer, i in p.tapped.items()}
        captured.states = {n: x[:, :W].clone() for n, x in p.states.items()}
        assert p.logits is not None
        logits = p.logits[:, :W].clone()
        if p.graph is None:
            p.forget()
        return logits

    def _pass(self, shape: Shape) -> StaticPass:
        self.passes[shape] = self.passes.pop(shape, None) or StaticPass(self.lm, shape)
        if len(self.passes) > KEPT:
            del self.passes[next(iter(self.passes))]
        return self.passes[shape]

    def _play(self, p: StaticPass) -> None:
        """Once as it is, which also builds the kernels; from the second time on as a graph, where there are any."""
        if p.graph is None and p.used and self.pool is not None:
            try:
                p.capture(self.pool)
            except RuntimeError as error:  # something in this model waits for the host
                why = next(iter(str(error).strip().splitlines()), type(error).__name__)
                warnings.warn(f"no CUDA graphs for {self.lm.name or 'this model'}: {why[:200]}", stacklevel=4)
                self.pool = None
        if p.graph is None:
            p.run()
        else:
            p.graph.replay()
        p.used = True

    def _indices(self, view: Any, cache: KVCache) -> tuple[Tensor, int, list[int]]:
        """Where the picked keys of each layer and row lie [L,B,4], the most of them, and since. Once for a view."""
        if self._picked is None or self._picked[0] is not view:
            layers, rows = range(self.lm.config.num_hidden_layers), range(len(cache.length))
            found = [[self._pick(view, cache, layer, b) for b in rows] for layer in layers]
            most = max(row[2] for layer in found for row in layer)
            self._picked = view, torch.tensor(found, device=self.lm.device), most, view.tail_start.tolist()
        return self._picked[1:]

    def _pick(self, view: Any, cache: KVCache, layer: int, b: int) -> tuple[int, int, int, int]:
        pair = None if layer in self.lm.windows else view.compact(layer, b, *cache.read(layer, b))
        if pair is None:
            return 0, 0, 0, 0
        k, v = pair
        return k.data_ptr(), v.data_ptr(), k.shape[1], k.stride(0) // k.stride(1)


def _shape(tree: Tree, nodes: int, tail: int, selected: int, captured: Any, keep: Tensor | None) -> Shape:
    """The graph for a pass over so many of the tree's nodes that reads at most `tail` slots and `picked` keys a row."""
    pooled, nodes, tap = captured.spec.rows == "mean", padded(nodes), (False, "", False, None)
    kept = 0 if keep is None else nodes if captured.spec.rows in ("all", "mean") else keep.shape[1]
    if kept:
        tap = (pooled, captured.spec.of, captured.spec.split, captured.spec.only)
    sizes = (len(tree.tokens), nodes, bucket(tree.size, 16), bucket(tail, 1024), bucket(selected, 64))
    return Shape(*sizes, kept, *tap, tuple(captured.spec.hidden), not torch.empty(0).is_inference())


def step(lm: LM) -> GraphStep | None:
    """The step for a model on a GPU, or None where it does not fit."""
    return GraphStep(lm) if fits(lm) else None
