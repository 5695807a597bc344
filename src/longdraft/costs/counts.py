"""Counts of a pass over a model, and costs by arithmetic for a model that was never measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn

from longdraft.backends.describe import described
from longdraft.backends.features.span import Span
from longdraft.core import CaptureSpec
from longdraft.costs.machines import Machine, machine_of
from longdraft.costs.passes import Pass, PassCosts
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import InCodes, Seen, Weights, weights_of
from longdraft.ops import coded

# nodes whose scores are kept; of "all" and "mean", every node's are computed
KEPT = {
    "first": 1,
    "last": 1,
    "ends": 2,
}


@dataclass(frozen=True)
class Keys:
    """The keys that layers of one kind cache for a slot; a layer that shares another's keys reads
    them as if they were its own.

    layers: how many are of this kind. slot: bytes of a key and a value. in_codes {bits: bytes} of
    them as codes. products: multiply-adds of one node with one slot, over all query heads. span:
    what its nodes see; None: every slot.
    """

    layers: int
    slot: int
    in_codes: tuple[tuple[int, int], ...]
    products: int
    span: Span | None = None


@dataclass(frozen=True)
class ModelCounts:
    """All that `pass_over` needs of a model: constants of its shape, data types and backend.

    products: multiply-adds of the linear layers for one node. states: bytes of recurrent states
    that a row's pass reads and writes, 0 where they are not counted. depth: decoder layers.
    one_call: whether its backend computes a pass, or a whole chain, in one call.
    """

    weights: Weights
    products: int
    keys: tuple[Keys, ...]
    vocab: int
    depth: int
    states: int = 0
    one_call: bool = False
    device: str = "cpu"


_COUNTS: WeakKeyDictionary[LM, ModelCounts] = WeakKeyDictionary()


def counts_of(model: LM) -> ModelCounts:
    """Computed once per model, from its configuration and modules; they may be on the device
    "meta".
    """
    if model not in _COUNTS:
        a = model.architecture
        weights = weights_of(model)
        kinds = Counter(_keys(model, layer) for layer in a.with_keys)
        _COUNTS[model] = ModelCounts(
            weights=weights,
            products=_products(model.hf, weights),
            keys=tuple(Keys(n, *kind) for kind, n in kinds.items()),
            vocab=model.vocab,
            depth=model.depth,
            states=_states(model),
            one_call=model.backend.name in ("native", "cuda"),
            device=model.device.type,
        )
    return _COUNTS[model]


def pass_over(
    model: LM | ModelCounts,
    lengths: list[int],
    nodes: int,
    *,
    seen: Seen | None = None,
    codes: InCodes | None = None,
    scored: CaptureSpec | None = None,
    chained: bool = False,
    chosen: bool = False,
) -> Pass:
    """Counts of a pass over `nodes` nodes in each row; lengths: the committed slots of the rows.

    seen, codes: what a view shows of them, and how many of these as codes (None: all, none).
    scored: what is captured. chosen: whether a view is chosen anew by it. Microseconds, whatever
    the context.
    """
    c = model if isinstance(model, ModelCounts) else counts_of(model)
    rows = len(lengths)
    total = sum(lengths)
    shown = total if seen is None else sum(seen(lengths))
    in_codes = sum(codes.slots(lengths)) if codes is not None and codes.bits else 0
    keys = float(c.states * rows)
    pairs = 0.0
    full = 0
    for kind in c.keys:
        span = kind.span
        if span is None:
            slots = shown
            full = full + kind.layers
            keys += kind.layers * (slots - in_codes) * kind.slot
            if in_codes and codes is not None:
                keys += kind.layers * in_codes * dict(kind.in_codes)[codes.bits]
        else:
            slots = sum(n - max(0, span.low(n - 1)) for n in lengths)
            keys += kind.layers * slots * kind.slot
        pairs += kind.layers * slots * kind.products
    kept = 0
    if scored is not None and scored.rows is not None:
        kept = (full if scored.only is None else 1) * KEPT.get(scored.rows, nodes)
    every = rows * nodes
    return Pass(
        rows=rows,
        nodes=every,
        weights=c.weights.read(every),
        products=float(c.products * every),
        keys=keys,
        pairs=nodes * pairs,
        scored=float(total * kept),
        chosen=float(total * full) if chosen else 0.0,
        drawn=float(every * c.vocab),
        chained=chained,
    )


def counted(model: LM | ModelCounts, machine: Machine | str | None = None) -> PassCosts:
    """Costs from a machine's bandwidth and rates (None: the nearest one in `machines`), for a model
    never measured.

    The same on every machine and in every run; a real machine may be off by a factor of two and
    more.
    """
    c = model if isinstance(model, ModelCounts) else counts_of(model)
    if machine is None and isinstance(model, LM):
        machine = machine_of(model.device)
    m = machine if isinstance(machine, Machine) else machine_of(machine or c.device)
    call = c.depth * (m.layer if c.one_call else m.module)
    return PassCosts(
        call=m.call + call,
        chained=call,
        read=1 / m.reads,
        multiply=1 / m.multiplies,
        key=1 / m.reads,
        attend=1 / m.attends,
        row=m.row,
        node=m.node,
        score=m.score,
        choose=m.choose,
        draw=m.draw,
        step=m.step,
        tree=m.tree,
        block=m.block,
        module=m.slower / m.reads,
        choice=m.choice,
    )


def _keys(model: LM, layer: int) -> tuple[int, tuple[tuple[int, int], ...], int, Span | None]:
    """The fields of Keys after `layers`."""
    slot = model.architecture.slot(layer)
    in_codes = tuple(
        (bits, slot.heads * (coded.width(slot.key, bits) + coded.width(slot.value, bits)))
        for bits in (8, 4)
    )
    size = slot.heads * (slot.key + slot.value) * model.dtype.itemsize
    if model.kv_bits:
        size = dict(in_codes)[model.kv_bits]
    return size, in_codes, slot.products, model.architecture.spans.get(layer)


def _states(model: LM) -> int:
    """Bytes of the states of gated delta nets, in float32, read and written once in a pass; 0 for
    other recurrences.
    """
    names = (
        "linear_num_value_heads",
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
    )
    values, keys, key, value = (int(getattr(model.config, name, 0) or 0) for name in names)
    kernel = int(getattr(model.config, "linear_conv_kernel_dim", 0) or 1)
    layers = (getattr(model.config, "layer_types", None) or []).count("linear_attention")
    return (
        2 * 4 * layers * (values * key * value + (kernel - 1) * (2 * keys * key + values * value))
    )


def _products(hf: nn.Module, weights: Weights) -> int:
    """Multiply-adds of one node, without attention to keys."""
    decoder = described(hf)
    if decoder is None:
        return _products_of_modules(hf, weights)
    return decoder.head.numbers + sum(layer.products for layer in decoder.layers)


def _products_of_modules(hf: nn.Module, weights: Weights) -> int:
    """Multiply-adds of one node: of each matrix its numbers, of experts those that the node is
    routed to.
    """
    total = 0.0
    for name, module in hf.named_modules():
        if isinstance(module, nn.Embedding):
            continue
        inputs = getattr(module, "in_features", None)
        outputs = getattr(module, "out_features", None)
        if isinstance(inputs, int) and isinstance(outputs, int):
            size = inputs * outputs
        else:
            own = module.parameters(recurse=False)
            size = sum(p.numel() for p in own if p.dim() >= 2 and len(p) > 1)
        total += size * (weights.each if weights.experts and ".experts" in name else 1.0)
    return round(total)
