"""A check of a build of the native kernels: a small model, computed by it and by the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longdraft.ops import interleaved, native, reference
from longdraft.ops.native.pins import Pins
from longdraft.ops.packed import quantized
from longdraft.ops.reference import Segment

WIDTH = 128
HEADS = 4
KEY_HEADS = 2
DIM = 64
MLP = 96
VOCAB = 64
LENGTHS = (37, 290)
NODES = 3
SLOTS = 320
SIZES = {
    "q": (HEADS * DIM, WIDTH), "k": (KEY_HEADS * DIM, WIDTH), "v": (KEY_HEADS * DIM, WIDTH),
    "o": (WIDTH, HEADS * DIM),
    "gate": (MLP, WIDTH), "up": (MLP, WIDTH), "down": (WIDTH, MLP), "head": (VOCAB, WIDTH),
}  # fmt: skip
SEES = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()  # a root and two children
EPS = 1e-6
SCALE = DIM**-0.5
# Largest norm of a difference, relative to the norm of the reference. Where inputs have 8 bits, a
# number between two of them may be rounded either way.
ERROR = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Form:
    """The form of weights.

    bits: 0 for numbers. rounded: whether inputs have 8 bits.
    """

    dtype: torch.dtype
    bits: int = 0
    rounded: bool = False

    @property
    def name(self) -> str:
        packed = f" with weights of {self.bits} bits" if self.bits else ""
        inputs = " and inputs of 8 bits" if self.rounded else ""
        return f"{str(self.dtype).removeprefix('torch.')}{packed}{inputs}"


FORMS = [Form(torch.float32), Form(torch.bfloat16)]
FORMS += [Form(torch.bfloat16, 8), Form(torch.bfloat16, 4)]
FORMS += [Form(torch.bfloat16, 8, rounded=True), Form(torch.bfloat16, 4, rounded=True)]


def fault(lib: Any) -> str:
    """The difference between a build's results and the reference, in words; "" if there is none."""
    for form in FORMS:
        if form.rounded and native.name_of(lib) in native.WITHOUT_INT8:
            continue
        try:
            computed, wanted = _Model(form, lib).both()
        except (RuntimeError, ValueError) as error:
            return f"{form.name}: {error}"
        for part, correct in wanted.items():
            apart = float((computed[part] - correct).norm() / correct.norm())
            if not apart <= ERROR[form.dtype]:  # NaN is not
                return (
                    f"{part} of {form.name} differ by {apart:.1e} of their norm (at most "
                    f"{ERROR[form.dtype]:.0e})"
                )
    return ""


class _Model:
    """Two layers with the same random weights, the first without an MLP.

    A pass runs a tree after each of two rows.
    """

    def __init__(self, form: Form, lib: Any):
        self.form = form
        self.lib = lib
        self.pins = Pins()
        g = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=g)

        self.weights = dict[str, Tensor]()
        self.linears = dict[str, Any]()
        for name, (outputs, inputs) in SIZES.items():
            self._add(name, draw(outputs, inputs) / inputs**0.5)
        self.embedding = draw(VOCAB, WIDTH).to(form.dtype)
        self.norm = 1 + draw(WIDTH) / 8
        self.frequencies = 1e4 ** -(torch.arange(0, DIM, 2) / DIM)
        rows = len(LENGTHS)
        self.tokens = torch.randint(0, VOCAB, (rows, NODES), generator=g)
        self.depth = torch.tensor([[0, 1, 1]] * rows)
        self.length = torch.tensor(LENGTHS)
        self.position = self.length[:, None] + self.depth
        # the keys and values of each layer
        self.cached = draw(2, 2, rows, KEY_HEADS, SLOTS, DIM).to(form.dtype)

    def _add(self, name: str, weight: Tensor) -> None:
        if not self.form.bits:
            weight = weight.to(self.form.dtype)
            self.weights[name] = weight.float()
            self.linears[name] = self.pins.numbers(weight)
            return
        packed = quantized(weight, self.form.bits)
        self.weights[name] = packed.dequantized()
        held = interleaved.together(packed) if self.form.rounded else packed
        self.linears[name] = self.pins.packed(held, None, self.form.rounded)

    def both(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The results of the kernels, and those of the reference."""
        wanted: dict[str, list[Tensor]] = {}
        for row in range(len(LENGTHS)):
            for part, numbers in self._reference(row):
                wanted.setdefault(part, []).append(numbers.flatten())
        return self._computed(), {part: torch.cat(rows) for part, rows in wanted.items()}

    def _reference(self, row: int) -> Iterator[tuple[str, Tensor]]:
        n = LENGTHS[row]
        stream = self.embedding[self.tokens[row]].float()
        angles = torch.cat([self.position[row][:, None] * self.frequencies] * 2, -1)
        for layer in range(2):
            before = stream
            inputs = self._normed(stream)
            q, k, v = (self._heads(self._product(name, inputs)) for name in "qkv")
            q, k = (part * angles.cos() + self._turned(part) * angles.sin() for part in (q, k))
            k, v = (part.to(self.form.dtype).float() for part in (k, v))
            held_k, held_v = (part[row, :, :n].float() for part in self.cached[layer])
            segments = [Segment(held_k, held_v), Segment(k, v, SEES)]
            attended = reference.attend(q, segments, SCALE, keep=list(range(NODES)))
            assert attended.weights is not None
            stream = stream + self._product("o", attended.out.flatten(1))
            if not layer:
                yield "products", v
                yield "rotated products", k
                yield "attention weights", attended.weights.mean(0)[:, : n + 1]
                yield "attended values", stream - before
        inputs = self._normed(stream)
        gated = F.silu(self._product("gate", inputs)) * self._product("up", inputs)
        stream = stream + self._product("down", gated)
        yield "states", stream
        yield "logits", self._product("head", self._normed(stream))

    def _normed(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (WIDTH,), self.norm, EPS)

    def _product(self, name: str, x: Tensor) -> Tensor:
        return (interleaved.rounded(x) if self.form.rounded else x) @ self.weights[name].T

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, DIM)).transpose(0, 1)

    def _turned(self, x: Tensor) -> Tensor:
        return torch.cat([-x[..., DIM // 2 :], x[..., : DIM // 2]], -1)

    def _computed(self) -> dict[str, Tensor]:
        rows = len(LENGTHS)
        pins = self.pins
        norm = pins.float(self.norm)
        parts = self.linears
        attends = {name: parts[name] for name in "qkvo"} | {"input_norm": norm}
        mlp = {name: parts[name] for name in ("gate", "up", "down")} | {"mlp_norm": norm}
        kind = native.LayerKind.DECODER
        layers = (native.Layer * 2)(
            native.Layer(**attends, kind=kind), native.Layer(**attends, **mlp, kind=kind)
        )
        model = native.Model(
            layers=2, width=WIDTH, heads=HEADS, key_heads=KEY_HEADS, groups=HEADS // KEY_HEADS,
            head_dim=DIM, mlp=MLP,
            vocab=VOCAB, frequencies=DIM // 2, eps=EPS, scale=SCALE, rope_scale=1.0,
            inv_freq=pins.float(self.frequencies), embed=pins.raw(self.embedding),
            head=parts["head"], norm=norm,
            layer=layers,
        )  # fmt: skip
        caches = self.cached.clone()
        places = [native.LayerCache(k=k.data_ptr(), v=v.data_ptr(), slots=SLOTS) for k, v in caches]
        scores = torch.zeros(2, rows, NODES, SLOTS)
        states = torch.zeros(3, rows, NODES, WIDTH)
        logits = torch.zeros(rows, NODES, VOCAB)
        kept = torch.arange(3)
        p = native.Pass(
            rows=rows, nodes=NODES, tokens=self.tokens.data_ptr(), depth=self.depth.data_ptr(),
            length=self.length.data_ptr(), position=self.position.data_ptr(),
            mask=pins.raw(SEES.repeat(rows, 1, 1)), cache=(native.LayerCache * 2)(*places),
            score_nodes=pins.raw(torch.arange(NODES).repeat(rows, 1)), scored=NODES, as_weights=1,
            scores=scores.data_ptr(), score_slots=SLOTS, score_layer=-1,
            state_layers=kept.data_ptr(), state_count=3,
            states=states.data_ptr(), logits=logits.data_ptr(),
        )  # fmt: skip
        work = self.lib.longdraft_new()
        try:
            self.lib.longdraft_step(model, p, work, self.form.dtype == torch.bfloat16)
        finally:
            self.lib.longdraft_free(work)
        k, v = (_written(buffer) for buffer in caches[0])
        weights = torch.cat([scores[0, row, :, : n + 1].flatten() for row, n in enumerate(LENGTHS)])
        parts = {"products": v, "rotated products": k, "attention weights": weights}
        parts |= {"attended values": states[1] - states[0], "states": states[2], "logits": logits}
        return {part: numbers.flatten() for part, numbers in parts.items()}


def _written(buffer: Tensor) -> Tensor:
    """The slots of a cache buffer that a pass has written, as float32."""
    rows = [buffer[row, :, n : n + NODES] for row, n in enumerate(LENGTHS)]
    return torch.cat([row.float().flatten() for row in rows])
