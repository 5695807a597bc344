"""A drafter's own layers in one native call: EAGLE's, DFlash's and MTP's (ops/native/step.cpp,
grow.h).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longdraft.backends.native.step import NativeStep, Pins, sized
from longdraft.core import ChainDraws, Tree
from longdraft.core.draft_layers import CompiledLayers, DraftKeys, DraftLayer, DraftLayers
from longdraft.ops import native


class NativeLayers(CompiledLayers):
    """Computes DraftLayers with activations in float32, beside its target's step, whose working
    memory it uses.
    """

    def __init__(self, step: NativeStep, layers: DraftLayers):
        self.step = step
        self._pins = Pins()
        whole = step.model
        pins = self._pins
        self.width = whole.width
        self.known = whole.vocab if layers.tokens is None else len(layers.tokens)
        kind = native.LayerKind["DECODER"]
        if layers.keys_only:
            kind = native.LayerKind["KEYS"]
        elif layers.ring:
            kind = native.LayerKind["RING"]
        made = [self._layer(layer, kind) for layer in layers.layers]
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
            frequencies=len(layers.frequency),
            eps=layers.eps,
            scale=layers.dim**-0.5,
            rope_scale=layers.scaling,
            inv_freq=pins.float(layers.frequency),
            embed=whole.embed,
            head=whole.head if layers.head is None else self._linear(layers.head),
            head_tokens=None if layers.tokens is None else pins.raw(layers.tokens),
            norm=pins.norm(layers.norm),
            layer=(native.Layer * count)(*made),
            start=native.Start[layers.starts.upper()],
            fuse=self._linear(layers.fuse),
            token_norm=pins.norm(layers.token_norm),
            feature_norm=pins.norm(layers.feature_norm),
            feature_first=layers.feature_first,
            normed_residual=layers.normed_residual,
            continues=self.output,
        )
        self._sources = 0 if layers.fuse is None else layers.fuse.in_features
        # its logits are those of the tokens it can draft
        self.of_known = native.Model.from_buffer_copy(self.model)
        self.of_known.head_tokens = None

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
        features: Tensor,
        sources: bool = False,
        logits: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        B, W = position.shape
        tokens = tree.tokens[:, start:].contiguous()
        position = position.contiguous()
        depth = tree.depth.contiguous()
        mask = mask.contiguous()
        features = features.float().contiguous()
        length = self._length(keys, B)
        ints = [tokens, depth, position, mask]
        sized(ints, (B, W), (B, tree.size), (B, W), (B, W, keys.ring + tree.size))
        self._check(features, (B, W, self._sources if sources else self.width))
        outputs = torch.empty(B, W, self.width)
        states = torch.tensor([self.output])
        p = native.Pass(
            rows=B, nodes=W, start=start, tokens=tokens.data_ptr(), depth=depth.data_ptr(),
            length=length.data_ptr(),
            position=position.data_ptr(), state_layers=states.data_ptr(), state_count=1,
            states=outputs.data_ptr(),
            score_layer=-1, approximate=True,
        )  # fmt: skip
        kept = self._keys(p, keys)
        if keys.ring:
            p.ring_mask = mask.data_ptr()
        else:
            p.mask = mask.data_ptr()
        if sources:
            p.sources = features.data_ptr()
        else:
            p.features = features.data_ptr()
        scores = None
        if logits is not None:
            scores = torch.empty(B, logits or W, self.known)
            p.logits = scores.data_ptr()
            p.logit_nodes = logits
        with self.step.lock:
            self.step.lib.longdraft_step(self.of_known, p, self.step.work, self.step.half)
        del kept
        return outputs, scores

    def draft_chain(
        self,
        roots: Tensor,
        output: Tensor,
        position: Tensor,
        keys: DraftKeys,
        draws: ChainDraws,
        seen: Tensor | None,
    ) -> Tensor:
        p, kept = self._below(roots, output, position, keys)
        if seen is not None:
            seen = seen.contiguous()
            nodes = draws.count - 1
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
        self, roots: Tensor, output: Tensor, position: Tensor, keys: DraftKeys
    ) -> tuple[native.Pass, list[object]]:
        """A pass from which nodes below the roots are drafted, and what must be kept until it has
        run.
        """
        B = len(roots)
        roots = roots.contiguous()
        position = position.contiguous()
        output = output.float().contiguous()
        length = self._length(keys, B)
        sized([roots, position], (B,), (B,))
        self._check(output, (B, 1, self.width))
        p = native.Pass(
            rows=B, nodes=1, start=0, tokens=roots.data_ptr(), length=length.data_ptr(),
            position=position.data_ptr(),
            features=output.data_ptr(), score_layer=-1, approximate=True,
        )  # fmt: skip
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
        places = (native.LayerCache * L)(
            *[native.LayerCache(k=k, v=v, slots=n, bits=0) for k, v, n in keys.places]
        )
        p.cache = places
        p.ring = keys.ring
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


def layers_fit(step: NativeStep, layers: DraftLayers) -> bool:
    """Whether NativeLayers computes these layers: of the step's dtype, and of shapes that the
    kernels know.
    """
    linears = [
        x for layer in layers.layers for x in (layer.k, layer.q, layer.down) if x is not None
    ]
    same = all(x.weight.dtype == step.dtype and x.weight.device.type == "cpu" for x in linears)
    known = (
        bool(step.lib.longdraft_has_heads(layers.dim))
        and layers.mlp % 16 == 0 == step.model.width % 16
    )
    return known and same and layers.heads % layers.key_heads == 0
