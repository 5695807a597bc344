"""Matrices of a model whose rows a file keeps in several tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longdraft.ops.interleaved import Interleaved
from longdraft.ops.packed import Packed

Matrix = Packed | Tensor
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class InParts:
    """A matrix of a layer, and its parts in a file.

    shapes(config, rows, inputs): the parts of a matrix of this shape, by name. join(config, parts):
    the matrix, of all parts in this order.
    """

    shapes: Callable[[Any, int, int], Shapes]
    join: Callable[[Any, list[Matrix]], Matrix]


def parts_of(name: str, joined: Mapping[str, InParts]) -> InParts | None:
    """How a file has the weights of this name; None: as one tensor."""
    module = name.removesuffix(".weight")
    return next((each for end, each in joined.items() if module.endswith(f".{end}")), None)


def names(hf: Any, joined: Mapping[str, InParts]) -> set[str]:
    """The parameters that a file has in place of those that are put together."""
    found = set[str]()
    for name, p in hf.named_parameters():
        if rule := parts_of(name, joined):
            module = name.removesuffix(".weight")
            found |= {f"{module}.{part}.weight" for part in rule.shapes(hf.config, *p.shape)}
    return found


def put_together(
    hf: Any,
    joined: Mapping[str, InParts],
    packed: dict[str, Packed | Interleaved],
    plain: dict[str, Tensor],
) -> None:
    """Replace the parts in both by the matrices of these modules."""
    for name, p in hf.named_parameters():
        rule = parts_of(name, joined)
        if rule is None:
            continue
        module = name.removesuffix(".weight")
        names = [f"{module}.{part}" for part in rule.shapes(hf.config, *p.shape)]
        parts = list[Matrix]()
        for n in names:
            part = packed.pop(n) if n in packed else plain.pop(f"{n}.weight")
            assert not isinstance(part, Interleaved)  # rows may get another order here
            parts.append(part)
        made = rule.join(hf.config, parts)
        if isinstance(made, Packed):
            packed[module] = made
        else:
            plain[name] = made


def stacked(parts: list[Matrix]) -> Matrix:
    """All rows of these matrices, one after the other; packed if they are packed alike."""
    alike = {
        (p.bits, p.group, p.levels, type(p.scales), *_types(p))
        for p in parts
        if isinstance(p, Packed)
    }
    if len(alike) == 1 and all(isinstance(p, Packed) for p in parts):
        each = [p for p in parts if isinstance(p, Packed)]
        return each[0].of({n: torch.cat([p.parts[n] for p in each]) for n in each[0].parts})
    dtype = next((p.dtype for p in parts if isinstance(p, Tensor)), torch.float32)
    return torch.cat([p.dequantized(dtype) if isinstance(p, Packed) else p for p in parts])


def _types(p: Packed) -> tuple[torch.dtype, ...]:
    return tuple(x.dtype for x in p.parts.values())


def _halves(config: Any, rows: int, inputs: int) -> Shapes:
    return {"gate": (rows // 2, inputs), "up": (rows // 2, inputs)}


def _delta_sizes(config: Any) -> tuple[int, int]:
    """Rows of all keys, and of all values, of a gated delta net."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    return keys, config.linear_num_value_heads * config.linear_value_head_dim


def _delta_parts(config: Any, rows: int, inputs: int) -> Shapes:
    keys, values = _delta_sizes(config)
    return {"qkv": (2 * keys + values, inputs), "z": (values, inputs)}


def _delta_join(config: Any, parts: list[Matrix]) -> Matrix:
    """Rows of each key head together: its query, its key, its values and their gates."""
    keys, values = _delta_sizes(config)
    heads = config.linear_num_key_heads
    begins = ((0, keys), (keys, keys), (2 * keys, values), (2 * keys + values, values))
    rows = [torch.arange(begin, begin + n).view(heads, -1) for begin, n in begins]
    order = torch.cat(rows, 1).flatten()
    whole = stacked(parts)
    return whole.rows(order) if isinstance(whole, Packed) else whole[order]


def _latent_parts(config: Any, rows: int, inputs: int) -> Shapes:
    heads = config.num_attention_heads
    return {
        "k": (heads, inputs, config.qk_nope_head_dim),
        "v": (heads, config.v_head_dim, inputs),
    }


def _latent_join(config: Any, parts: list[Matrix]) -> Matrix:
    """Rows of each head together, its key's and its value's."""
    keys, values = parts
    assert isinstance(keys, Tensor)
    assert isinstance(values, Tensor)
    return torch.cat([keys.mT, values], 1).flatten(0, 1)


HALVES = InParts(_halves, lambda config, parts: stacked(parts))
DELTA_NET = InParts(_delta_parts, _delta_join)
LATENTS = InParts(_latent_parts, _latent_join)
