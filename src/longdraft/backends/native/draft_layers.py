"""A drafter's own layers in one native call: EAGLE's, DFlash's, MTP's and GLIDE's
(ops/native/step.cpp, grow.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longdraft.backends.native.step import NativeStep, StepPins, sized
from longdraft.core import ChainDraws, IndexView, KVCache, Tree
from longdraft.core.draft_layers import CompiledLayers, DraftKeys, DraftLayer, DraftLayers
from longdraft.ops import native


class NativeLayers(CompiledLayers):
    """Computes DraftLayers with activations in float32, beside its target's step, whose working
    memory it uses.
    """

    def __init__(self, step: NativeStep, layers: DraftLayers):
        self.step = step
        self._pins = StepPins()
        whole = step.model
        pins = self._pins
        self.width = whole.width
        self.host = layers.host
        self.from_embeddings = layers.starts == "embedding"
        self.known = whole.vocab
        if layers.tokens is not None and not self.from_embeddings:
            self.known = len(layers.tokens)
        made = [self._layer(layer, _kind(layers, layer)) for layer in layers.layers]
        count = len(made)
        self.output = count + layers.normed_feature
        self.model = native.Model(
            layers=count,
            width=whole.width,
            heads=layers.heads,
            key_heads=layers.key_heads,
            groups=layers.heads // layers.key_heads,
            head_dim=layers.dim,
            mlp=layers.mlp,
            vocab=whole.vocab,
            eps=layers.eps,
            scale=layers.dim**-0.5,
            embed=whole.embed,
            head=whole.head if layers.head is None else self._linear(layers.head),
            head_tokens=None if layers.tokens is None else pins.raw(layers.tokens),
            norm=whole.norm if layers.target_norm else pins.norm(layers.norm),
            layer=(native.Layer * count)(*made),
            start=native.Start[layers.starts.upper()],
            fuse=self._linear(layers.fuse),
            token_norm=pins.norm(layers.token_norm),
            feature_norm=pins.norm(layers.feature_norm),
            feature_first=layers.feature_first,
            normed_residual=layers.normed_residual,
            continues=self.output,
            **self._rotation(layers),
        )
        self._sources = 0 if layers.fuse is None else layers.fuse.in_features
        # its logits are those of the `known` tokens
        self.of_known = native.Model.from_buffer_copy(self.model)
        if not self.from_embeddings:
            self.of_known.head_tokens = None

    def _rotation(self, layers: DraftLayers) -> dict[str, Any]:
        if layers.frequency is None:
            whole = self.step.model
            return {
                "frequencies": whole.frequencies,
                "inv_freq": whole.inv_freq,
                "rope_scale": whole.rope_scale,
            }
        return {
            "frequencies": len(layers.frequency),
            "inv_freq": self._pins.float(layers.frequency),
            "rope_scale": layers.scaling,
        }

    def _linear(self, module: nn.Linear | None) -> native.Linear:
        return native.Linear() if module is None else self._pins.drafting(module)

    def _layer(self, layer: DraftLayer, kind: int) -> native.Layer:
        norms = {
            name: self._pins.norm(getattr(layer, name))
            for name in ("input_norm", "mlp_norm", "q_norm", "k_norm")
        }
        linears = {
            name: self._linear(getattr(layer, name))
            for name in ("q", "k", "v", "o", "gate", "up", "down")
        }
        return native.Layer(**norms, **linears, kind=kind)

    def forward(
        self,
        tree: Tree,
        start: int,
        position: Tensor,
        mask: Tensor,
        keys: DraftKeys,
        features: Tensor | None,
        sources: bool = False,
        logits: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        B, W = position.shape
        tokens = tree.tokens[:, start:].contiguous()
        position = position.contiguous()
        depth = tree.depth.contiguous()
        mask = mask.contiguous()
        length = self._length(keys, B)
        ints = [tokens, depth, position, mask]
        sized(ints, (B, W), (B, tree.size), (B, W), (B, W, keys.ring + tree.size))
        p = native.Pass(
            rows=B, nodes=W, start=start, tokens=tokens.data_ptr(), depth=depth.data_ptr(),
            length=length.data_ptr(),
            position=position.data_ptr(), score_layer=-1,
        )  # fmt: skip
        kept = self._keys(p, keys)
        outputs = torch.empty(B, W, 0 if features is None else self.width)
        if features is not None:
            kept += self._after(p, features, sources, outputs)
        if keys.ring:
            p.ring_mask = mask.data_ptr()
        else:
            p.mask = mask.data_ptr()
        scores = None
        if logits is not None:
            scores = torch.empty(B, logits or W, self.known)
            p.logits = scores.data_ptr()
            p.logit_nodes = logits
        with self.step.lock:
            self.step.lib.longdraft_step(self.of_known, p, self.step.work, self.step.half)
        del kept
        return outputs, scores

    def _after(
        self, p: native.Pass, features: Tensor, sources: bool, outputs: Tensor
    ) -> list[object]:
        """Fill in the features of a pass, and where its outputs go -> what must be kept until it
        has run.

        They may be approximate. Passes without features are not, except in chains.
        """
        features = features.float().contiguous()
        self._check(features, (p.rows, p.nodes, self._sources if sources else self.width))
        if sources:
            p.sources = features.data_ptr()
        else:
            p.features = features.data_ptr()
        states = torch.tensor([self.output])
        p.state_layers = states.data_ptr()
        p.state_count = 1
        p.states = outputs.data_ptr()
        p.approximate = True
        return [features, states]

    def draft_chain(
        self,
        roots: Tensor,
        output: Tensor | None,
        position: Tensor,
        keys: DraftKeys,
        draws: ChainDraws,
        seen: Tensor | None,
    ) -> Tensor:
        p, kept = self._below(roots, output, position, keys)
        if seen is not None:
            seen = seen.contiguous()
            nodes = draws.count - (output is not None)
            sized([seen], (p.rows, nodes, keys.ring + nodes))
            p.ring_mask = seen.data_ptr()
        drawn = self.step.draw_chain(self.model, p, draws)
        del kept
        return drawn

    def grow(
        self,
        roots: Tensor,
        output: Tensor,
        position: Tensor,
        keys: DraftKeys,
        draws: ChainDraws,
        topk: int,
        depth: int,
        nodes: int,
        narrow: bool,
    ) -> Tree:
        p, kept = self._below(roots, output, position, keys)
        B = p.rows
        count = torch.zeros(1, dtype=torch.long)
        tokens, parent = (torch.empty(B * (nodes - 1), dtype=torch.long) for _ in range(2))
        seed = draws.seed.contiguous()
        first = draws.position.contiguous()
        sized([seed, first], (B,), (B,))
        if len(draws.samplers) != B:
            raise ValueError(f"a native pass needs {B} samplers, not {len(draws.samplers)}")
        warpers = (native.Warpers * B)(*[native.Warpers(**vars(w)) for w in draws.warpers])
        g = native.Growth(
            topk=topk, depth=depth, nodes=nodes, narrow=narrow, warpers=warpers,
            seed=seed.data_ptr(),
            position=first.data_ptr(), count=count.data_ptr(), tokens=tokens.data_ptr(),
            parent=parent.data_ptr(),
        )  # fmt: skip
        with self.step.lock:
            self.step.lib.longdraft_grow(self.model, p, self.step.work, self.step.half, g)
        del kept
        N = int(count)
        pairs = (x[: B * N].view(B, N).tolist() for x in (parent, tokens))
        return Tree.root(roots).plant(
            [list(zip(*row, strict=True)) for row in zip(*pairs, strict=True)]
        )

    def _below(
        self, roots: Tensor, output: Tensor | None, position: Tensor, keys: DraftKeys
    ) -> tuple[native.Pass, list[object]]:
        """A pass from which nodes below the roots are drafted, and what must be kept until it has
        run.
        """
        B = len(roots)
        roots = roots.contiguous()
        position = position.contiguous()
        length = self._length(keys, B)
        sized([roots, position], (B,), (B,))
        p = native.Pass(
            rows=B, nodes=1, start=0, tokens=roots.data_ptr(), length=length.data_ptr(),
            position=position.data_ptr(), score_layer=-1, approximate=True,
        )  # fmt: skip
        if output is not None:
            output = output.float().contiguous()
            self._check(output, (B, 1, self.width))
            p.features = output.data_ptr()
        return p, [roots, position, output, length, self._keys(p, keys)]

    def _length(self, keys: DraftKeys, rows: int) -> Tensor:
        length = (
            torch.zeros(rows, dtype=torch.long) if keys.length is None else keys.length.contiguous()
        )
        sized([length], (rows,))
        return length

    def _check(self, x: Tensor, shape: tuple[int, ...]) -> None:
        if x.shape != shape or not x.is_cpu:
            raise ValueError(
                f"a native pass needs features of {shape}, not {tuple(x.shape)} on {x.device}"
            )

    def _keys(self, p: native.Pass, keys: DraftKeys) -> list[object]:
        """Fill in where keys are -> what must be kept until the pass has run."""
        B = p.rows
        L = self.model.layers
        p.ring = keys.ring
        own = [native.LayerCache(k=k, v=v, slots=n, bits=0) for k, v, n in keys.places]
        if keys.target is not None:
            return self._target_keys(p, own, keys.target, keys.view)
        places = (native.LayerCache * L)(*own)
        p.cache = places
        if keys.tail is None:
            return [places]
        tail = keys.tail.contiguous()
        sized([tail], (B,))
        row = self.model.key_heads * self.model.head_dim * self.step.dtype.itemsize
        sinks = tail.clamp(max=keys.sink).tolist()
        first = [
            native.Selected(k=k + b * row * n, v=v + b * row * n, count=count, stride=n)
            for k, v, n in keys.places
            for b, count in enumerate(sinks)
        ]
        p.tail_start = tail.data_ptr()
        p.selected = (native.Selected * (L * B))(*first)
        return [places, tail, p.selected]

    def _target_keys(
        self,
        p: native.Pass,
        own: Sequence[native.LayerCache],
        cache: KVCache,
        view: IndexView | None,
    ) -> list[object]:
        """Like `_keys`, for layers without keys, which come after those with keys."""
        B = p.rows
        L = self.model.layers
        others = L - len(own)
        host = self.host
        if host is None or len(cache.length) != B:
            raise ValueError(f"a target's cache of {len(cache.length)} rows is not one of {B} rows")
        places = (native.LayerCache * L)(*own, *[self.step.places(cache, 0)[host]] * others)
        p.cache = places
        if view is None:
            return [places]
        sized([view.tail_start], (B,))
        seen = self.step.selected(view, cache, [host], B)
        p.tail_start = view.tail_start.data_ptr()
        p.selected = (native.Selected * (L * B))(
            *[native.Selected()] * (len(own) * B), *seen * others
        )
        return [places, view.tail_start, p.selected]


def _kind(layers: DraftLayers, layer: DraftLayer) -> int:
    if layers.keys_only:
        return native.LayerKind["KEYS"]
    if layer.k is None:
        return native.LayerKind["CROSS"]
    return native.LayerKind["RING" if layers.ring else "DECODER"]


def layers_fit(step: NativeStep, layers: DraftLayers) -> bool:
    """Whether NativeLayers computes these layers: of the step's dtype, and of shapes that the
    kernels know.
    """
    whole = step.model
    if whole.embedding_scale or whole.logit_divisor or whole.logit_cap:
        return False  # a drafter's embeddings and logits are those of the target's modules
    if layers.target_norm and whole.layer_norms:
        return False
    other = whole.interleaved or not step.rotates_alike or step.latent
    if layers.frequency is None and other:
        return False
    shape = (layers.key_heads, layers.dim)
    if layers.host is not None and shape != (step.heads, step.dim):
        return False
    linears = [
        x for layer in layers.layers for x in (layer.k, layer.q, layer.down) if x is not None
    ]
    same = all(x.weight.dtype == step.dtype and x.weight.device.type == "cpu" for x in linears)
    known = (
        bool(step.lib.longdraft_has_heads(layers.dim))
        and layers.mlp % 16 == 0 == step.model.width % 16
    )
    return known and same and layers.heads % layers.key_heads == 0
