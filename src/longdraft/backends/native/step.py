"""A Llama-like model's forward pass in one native call (ops/native/step.cpp)."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import Array
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from longdraft.backends.decoder_layer import (
    Attention,
    Decoder,
    DecoderLayer,
    ExpertsMLP,
)
from longdraft.backends.describe import describe
from longdraft.backends.native.layers import ACTIVATIONS, all_mlps, gated_mlps, rotations
from longdraft.backends.native.model_numbers import (
    frequencies_of,
    limits,
    of_attention,
    of_latent,
    scale_of,
    turning,
)
from longdraft.backends.native.step_pins import StepPins
from longdraft.core import Captures, ChainDraws, IndexView, KVCache, Tree
from longdraft.ops import coded, native


def sized(tensors: list[Tensor], *shapes: tuple[int, ...]) -> None:
    """Raises ValueError unless the tensors have these shapes and dtypes: the kernels are given only
    their addresses.
    """
    for x, shape in zip(tensors, shapes, strict=True):
        if x.shape != shape or not x.is_cpu or x.dtype not in (torch.long, torch.bool):
            raise ValueError(
                f"a native pass needs {shape} of int64 or bool, not {tuple(x.shape)} of {x.dtype}"
            )


class NativeStep:
    """One model's weights and working memory, as the kernels see them; one pass at a time uses the
    memory.
    """

    def __init__(self, hf: Any, windows: dict[int, int]):
        self._pins = StepPins()
        decoder = describe(hf)
        attention = decoder.attentions[0]
        vocab, width = decoder.embedding.shape
        count = len(decoder.layers)
        self._rows = {id(r): row for row, r in enumerate(rotations(decoder))}
        rows = frequencies_of(decoder)
        mlp = next(mlp for layer in decoder.layers for mlp in all_mlps(layer))
        layers = (native.Layer * count)(
            *[self._layer(layer, i) for i, layer in enumerate(decoder.layers)]
        )
        lib = native.library()
        assert lib is not None
        self.lib = lib
        self.heads = attention.key_heads
        self.dim = attention.dim
        self.latent = attention.latent is not None  # whether the cache's keys are the values too
        self.vocab = vocab
        self.dtype = hf.dtype
        self.half = hf.dtype == torch.bfloat16
        self.windows = windows
        self.model = native.Model(
            layers=count,
            width=width,
            heads=attention.heads,
            key_heads=attention.key_heads,
            groups=attention.heads // attention.key_heads,
            head_dim=attention.dim,
            gated=attention.gated,
            mlp=max((m.up.shape[0] for f in decoder.layers for m in gated_mlps(f)), default=0),
            vocab=vocab,
            **turning(decoder),
            joint_norms=attention.joint_norms,
            late_norms=attention.late_norms,
            **of_attention(attention),
            **of_latent(attention.latent),
            more_rotations=len(rows) - 1,
            frequencies=rows.shape[1],
            activation=ACTIVATIONS[mlp.activation],
            **limits(decoder),
            embedding_scale=scale_of(decoder.embedding_scale),
            residual_scale=scale_of(decoder.layers[0].residual_scale),
            logit_divisor=scale_of(decoder.logit_divisor),
            logit_cap=decoder.logit_cap or 0.0,
            eps=decoder.norm.eps,
            scale=attention.scale,
            inv_freq=self._pins.float(rows),
            embed=self._pins.raw(decoder.embedding.module.weight),
            embedding_norm=self._pins.weights(decoder.embedding_norm),
            **self._positions(decoder),
            head=self._pins.linear(decoder.head.module),
            norm=self._pins.weights(decoder.norm),
            norm_bias=self._pins.bias(decoder.norm),
            layer_norms=decoder.norm.kind == "layer",
            parallel=decoder.layers[0].parallel,
            layer=layers,
        )
        # whether all layers rotate in the same way
        self.rotates_alike = all(a.rotation is decoder.rotation for a in decoder.attentions)
        self.without_keys = set[int]()  # layers
        self.work = self.lib.longdraft_new()
        self.lock = Lock()
        self._places: tuple[list[tuple[int, int, int]], Array[native.LayerCache]] | None = None

    def __del__(self) -> None:
        if getattr(self, "work", None):
            self.lib.longdraft_free(self.work)

    def _positions(self, decoder: Decoder) -> dict[str, Any]:
        """The fields of a table of positions."""
        table = decoder.positions
        if table is None:
            return {}
        return {
            "positions": self._pins.raw(table.module.weight),
            "position_count": table.shape[0],
            "first_position": decoder.first_position,
        }

    def _layer(self, layer: DecoderLayer, number: int) -> native.Layer:
        attention = layer.mixer
        assert isinstance(attention, Attention)
        pins = self._pins
        rotation = attention.rotation
        return native.Layer(
            **self._around(layer),
            **self._keys_and_values(attention),
            q=pins.linear(attention.q.module),
            k=pins.linear(attention.k.module),
            o=pins.linear(attention.o.module),
            window=attention.window or 0,
            sinks=pins.float(attention.sinks),
            cap=attention.cap or 0.0,
            rotation=-1 if rotation is None else self._rows[id(rotation)],
            frequencies=0 if rotation is None else len(rotation.frequencies),
            kind=native.LayerKind.DECODER,
        )

    def _keys_and_values(self, attention: Attention) -> dict[str, Any]:
        """A layer's fields that differ between attention to heads and to latents."""
        pins = self._pins
        if attention.latent is not None:
            return pins.latent(attention.latent)
        assert attention.v is not None
        gates = attention.gates
        return {
            "v": pins.linear(attention.v.module),
            "gates": native.Linear() if gates is None else pins.filled(gates.module),
            "q_norm": pins.weights(attention.q_norm),
            "k_norm": pins.weights(attention.k_norm),
            "q_norm_bias": pins.bias(attention.q_norm),
            "k_norm_bias": pins.bias(attention.k_norm),
        }

    def _around(self, layer: DecoderLayer) -> dict[str, Any]:
        """A layer's fields but those of its mixer."""
        pins = self._pins
        experts = layer.mlp if isinstance(layer.mlp, ExpertsMLP) else None
        mlp = next(iter(gated_mlps(layer)), None)
        gate = mlp and mlp.gate
        return {
            "input_norm": pins.weights(layer.input_norm),
            "input_norm_bias": pins.bias(layer.input_norm),
            "mlp_norm": pins.weights(layer.mlp_norm),
            "mlp_norm_bias": pins.bias(layer.mlp_norm),
            "mixer_output_norm": pins.weights(layer.mixer_output_norm),
            "mlp_output_norm": pins.weights(layer.mlp_output_norm),
            "slopes": pins.float(mlp and mlp.slopes and torch.tensor(mlp.slopes)),
            "experts": None if experts is None else pins.experts(experts),
            "gate": native.Linear() if gate is None else pins.linear(gate.module),
            "up": native.Linear() if mlp is None else pins.linear(mlp.up.module),
            "down": native.Linear() if mlp is None else pins.linear(mlp.down.module),
        }

    def __call__(
        self,
        tree: Tree,
        cache: KVCache,
        start: int,
        position: Tensor,
        view: IndexView | None,
        captured: Captures,
        last: int = 0,
    ) -> Tensor:
        """Nodes [start, size) of the tree at position [B,W] -> logits [B,W,V] float32 (of the
        `last` nodes, 0: all).
        """
        (B, W), spec = position.shape, captured.spec
        logits = torch.empty(B, last or W, self.vocab)
        tokens = tree.tokens[:, start:].contiguous()
        position = position.contiguous()
        depth = tree.depth.contiguous()
        length = cache.length.contiguous()
        mask = tree.mask[:, start:].contiguous()
        arrays = [tokens, depth, length, position, mask]
        sized(arrays, (B, W), (B, tree.size), (B,), (B, W), (B, W, tree.size))
        p = native.Pass(
            rows=B, nodes=W, start=start, tokens=tokens.data_ptr(), depth=depth.data_ptr(),
            length=length.data_ptr(),
            position=position.data_ptr(), mask=mask.data_ptr(),
        )  # fmt: skip
        p.logits = logits.data_ptr()
        p.logit_nodes = last
        longest = self._keys(p, cache, tree.size, view)
        L = self.model.layers
        if spec.rows is not None:
            keep = spec.kept(tree).contiguous()
            columns = self.heads if spec.split else 1
            pooled = spec.rows == "mean"
            scores = torch.empty(L, B, 1 if pooled else keep.shape[1], columns, longest + 1)
            for b, n in enumerate(cache.length.tolist()):
                scores[:, b, ..., n + 1 :] = float("-inf")
            p.score_nodes = keep.data_ptr()
            p.scored = keep.shape[1]
            p.as_weights = spec.of == "weights"
            p.per_key_head = spec.split
            p.mean_of_nodes = pooled
            p.scores = scores.data_ptr()
            p.score_slots = longest + 1
            p.score_layer = -1 if spec.only is None else spec.only
            layers = range(L) if spec.only is None else [spec.only]
            captured.scores = {
                layer: scores[layer] for layer in layers if layer not in self.unviewed
            }
            arrays += [keep, scores]
        if spec.hidden:
            which = torch.tensor(spec.hidden, dtype=torch.long)
            states = torch.empty(len(which), B, W, self.model.width)
            p.state_layers = which.data_ptr()
            p.state_count = len(which)
            p.states = states.data_ptr()
            captured.states = {i: states[n] for n, i in enumerate(spec.hidden)}
            arrays.append(which)
        self._compute(p, tree, cache, start)
        return logits

    def _compute(self, p: native.Pass, tree: Tree, cache: KVCache, start: int) -> None:
        with self.lock:
            self.lib.longdraft_step(self.model, p, self.work, self.half)

    def chain(
        self,
        cache: KVCache,
        view: IndexView | None,
        reach: int,
        first: Tensor,
        start: int,
        draws: ChainDraws,
    ) -> Tensor:
        """Run first [B] as node `start` of a chain and each token drawn after it but the last ->
        drawn [B,count].
        """
        first = first.contiguous()
        sized([first, cache.length], (len(first),), (len(first),))
        p = native.Pass(
            rows=len(first),
            nodes=1,
            start=start,
            tokens=first.data_ptr(),
            length=cache.length.data_ptr(),
        )
        self._keys(p, cache, start + draws.count, view)
        return self.draw_chain(self.model, p, draws, reach)

    def draw_chain(
        self, model: native.Model, p: native.Pass, draws: ChainDraws, reach: int = 1 << 40
    ) -> Tensor:
        """Draw with this model, from the pass that longdraft_chain in ops/native/interface.h
        describes -> [B,count].
        """
        drawn = torch.empty(p.rows, draws.count, dtype=torch.long)
        logits = torch.empty(p.rows, self.vocab)
        seed = draws.seed.contiguous()
        position = draws.position.contiguous()
        sized([seed, position], (p.rows,), (p.rows,))
        if len(draws.samplers) != p.rows:
            raise ValueError(f"{len(draws.samplers)} samplers for {p.rows} rows")
        warpers = (native.Warpers * p.rows)(*[native.Warpers(**vars(w)) for w in draws.warpers])
        penalty = torch.tensor([s.divisor for s in draws.samplers], dtype=torch.float64)
        window = torch.tensor([s.window for s in draws.samplers])
        how = native.Chain(
            count=draws.count, warpers=warpers, penalty=penalty.data_ptr(),
            window=window.data_ptr(),
            seed=seed.data_ptr(), position=position.data_ptr(), reach=reach, drawn=drawn.data_ptr(),
        )  # fmt: skip
        if draws.recent is not None:
            recent = draws.recent.contiguous()
            sized([recent], (p.rows, recent.shape[1]))
            how.recent = recent.data_ptr()
            how.recent_count = recent.shape[1]
        p.logits = logits.data_ptr()
        p.score_layer = -1
        p.approximate = True
        with self.lock:
            self.lib.longdraft_chain(model, p, self.work, self.half, how)
        return drawn

    def places(self, cache: KVCache, end: int) -> Array[native.LayerCache]:
        """Addresses of the keys and values of this model's layers: an array, made anew when a
        buffer moves.
        """
        count = self.model.layers
        with_keys = [layer for layer in range(count) if layer not in self.without_keys]
        value = 0 if self.latent else self.dim
        addresses = cache.pointers(end, with_keys, self.heads, self.dim, self.dtype, value)
        known = self._places
        if known is None or known[0] is not addresses:
            layers = (native.LayerCache * count)()
            for layer, (k, v, slots) in zip(with_keys, addresses, strict=True):
                offset = cache.key_offsets.get(layer)
                layers[layer] = native.LayerCache(
                    k=k,
                    v=k if self.latent else v,
                    slots=slots,
                    bits=cache.bits,
                    key_offset=None if offset is None else offset.data_ptr(),
                )
            known = (addresses, layers)
            self._places = known
        return known[1]

    @property
    def unviewed(self) -> set[int]:
        """Layers that no view concerns."""
        return self.without_keys | self.windows.keys()

    def _keys(self, p: native.Pass, cache: KVCache, nodes: int, view: IndexView | None) -> int:
        """Fill in where keys and values are, with room for `nodes` nodes -> the longest row's
        committed length.
        """
        B = p.rows
        L = self.model.layers
        longest = int(cache.length.max())
        p.cache = self.places(cache, longest + nodes)
        if view is not None:
            indices = self.selected(view, cache, range(L), B)
            sized([view.tail_start], (B,))
            p.tail_start = view.tail_start.data_ptr()
            p.selected = (native.Selected * (L * B))(*indices)
        return longest

    def selected(
        self, view: IndexView, cache: KVCache, layers: Iterable[int], rows: int
    ) -> list[native.Selected]:
        """Addresses of the selected keys of these layers and rows; those that are not copied yet
        are copied together.

        Raises ValueError for copies that do not have this model's shape and dtype, or a head's
        slots side by side.
        """
        where = [(layer, b) for layer in layers for b in range(rows)]
        missing = [
            (layer, b)
            for layer, b in where
            if layer not in self.unviewed and (layer, b) not in view.copied
        ]
        if missing:
            view.copy([(layer, b, cache.stored_row(layer, b)) for layer, b in missing])
        bits = view.bits or cache.bits
        width, dtype = (
            (coded.width(self.dim, bits), torch.uint8) if bits else (self.dim, self.dtype)
        )
        for k, v in filter(None, (view.copied[place] for place in missing)):
            v = k if self.latent else v
            same = k.shape == v.shape and k.stride() == v.stride() and k.dtype == v.dtype == dtype
            if not same or (len(k), k.shape[2], *k.stride()[1:]) != (self.heads, width, width, 1):
                raise ValueError(
                    f"a view copied keys as {tuple(k.shape)} of {k.dtype}: not this model's"
                )

        def of(pair: tuple[Tensor, Tensor] | None) -> native.Selected:
            if pair is None:
                return native.Selected()
            k, v = pair
            return native.Selected(
                k=k.data_ptr(),
                v=(k if self.latent else v).data_ptr(),
                count=k.shape[1],
                stride=k.stride(0) // width,
                bits=bits,
            )

        return [of(view.copied.get(place)) for place in where]
