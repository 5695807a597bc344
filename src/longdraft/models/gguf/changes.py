"""Undoes the changes that converters to GGUF make to a model's tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdraft.errors import InputError
from longdraft.models.gguf.architectures import FileArchitecture
from longdraft.models.gguf.blocks import Make, outside
from longdraft.models.gguf.file import AGAIN
from longdraft.ops.packed import BLOCK, Packed
from longdraft.ops.scales import PlainScales

# modules whose rows are those of value heads
TILED = ("in_proj_z", "in_proj_b", "in_proj_a", "dt_bias", "A_log")
ULPS = 4  # at most, between the logarithm that is computed and the one whose power is in the file


def turned(rows: int, heads: int) -> Tensor:
    """The places of Transformers' rows of queries or keys in a file that puts rotated pairs beside
    each other.
    """
    return torch.arange(rows).view(heads, rows // heads // 2, 2).transpose(1, 2).reshape(-1)


def permuted(weights: Packed | Tensor, order: Tensor, make: Make = outside) -> Packed | Tensor:
    """The rows in this order."""
    if isinstance(weights, Tensor):
        return weights[order]
    parts = dict[str, Tensor]()
    for name, x in weights.parts.items():
        parts[name] = torch.index_select(x, 0, order, out=make(tuple(x.shape), x.dtype))
    return weights.of(parts)


def value_heads(config: Any, size: int) -> Tensor:
    """The places of Transformers' value heads, of `size` rows each, in a file that puts the first
    of every key head before the second of any (Qwen 3.5).
    """
    keys = config.linear_num_key_heads
    heads = torch.arange(config.linear_num_value_heads).view(-1, keys).T.reshape(-1)
    return (heads[:, None] * size + torch.arange(size)).flatten()


def channels(config: Any) -> Tensor:
    """The same for rows of queries and keys, which stay where they are, and then values."""
    first = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    rest = value_heads(config, config.linear_value_head_dim)
    return torch.cat([torch.arange(first), first + rest])


def with_inputs(weights: Packed | Tensor, order: Tensor) -> Packed | Tensor:
    """The inputs in this order; packed if whole blocks are moved, else float32.

    Scales that blocks share get a copy for each group, which is exact and takes more memory.
    """
    if isinstance(weights, Tensor):
        return weights[:, order]
    blocks = order.view(-1, BLOCK) if not len(order) % BLOCK else None
    if blocks is None or not bool((blocks == blocks[:, :1] + torch.arange(BLOCK)).all()):
        return weights.dequantized()[:, order]
    scale, offset = weights.scales.numbers()
    plain = PlainScales(scale, offset).shortest()
    parts = {name: x for name, x in weights.parts.items() if name in ("low", "high")} | plain.parts
    moved = blocks[:, 0] // BLOCK
    if bool((blocks[:, 0] % BLOCK).any()):
        return weights.dequantized()[:, order]
    ordered = {name: _blocks(x, moved) for name, x in parts.items()}
    rest = {name: x for name, x in ordered.items() if name not in ("low", "high")}
    return Packed(
        weights.bits,
        weights.inputs,
        ordered["low"],
        ordered.get("high"),
        plain.of(rest),
        weights.group,
        weights.levels,
    )


def _blocks(part: Tensor, order: Tensor) -> Tensor:
    return part.unflatten(1, (len(order), -1))[:, order].flatten(1).contiguous()


def rows_of(architecture: FileArchitecture, config: Any, name: str, rows: int) -> Tensor | None:
    """The places in a file of the rows of a model's parameter; None: in order."""
    part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    if architecture.turned and part in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if part == "q_proj" else config.num_key_value_heads
        return turned(rows, heads)
    if architecture.tiled and ".linear_attn." in name:
        if part in ("in_proj_qkv", "conv1d"):
            return channels(config)
        if part in TILED:
            return value_heads(config, rows // config.linear_num_value_heads)
    return None


def inputs_of(architecture: FileArchitecture, config: Any, name: str) -> Tensor | None:
    """The same of a matrix's inputs."""
    if not architecture.tiled or not name.endswith("linear_attn.out_proj.weight"):
        return None
    return value_heads(config, config.linear_value_head_dim)


def numbers_of(
    architecture: FileArchitecture, name: str, weights: Packed | Tensor
) -> Packed | Tensor:
    """The numbers of a model's parameter. Raises InputError."""
    if name.endswith("A_log"):
        return logarithm_of(_plain(weights))
    is_norm = name.endswith("norm.weight") and not name.endswith(architecture.own_norm)
    return _plain(weights) - 1 if architecture.minus_one and is_norm else weights


def _plain(weights: Packed | Tensor) -> Tensor:
    """float32."""
    return weights.dequantized() if isinstance(weights, Packed) else weights.float()


def logarithm_of(decay: Tensor) -> Tensor:
    """x of decay = -exp(x), float32: the one whose power is exactly this number, if there is one.

    Raises InputError for numbers that are no such power.
    """
    power = -decay
    if not bool((power > 0).all()):
        raise InputError(
            f"the GGUF file's states grow by {float(decay.max()):g}, and must decay: {AGAIN}"
        )
    nearest = power.log()
    best = nearest.clone()
    for step in range(-ULPS, ULPS + 1):
        near = _stepped(nearest, step)
        best = torch.where(near.exp() == power, near, best)
    return best


def _stepped(x: Tensor, steps: int) -> Tensor:
    """So many numbers further."""
    to = torch.full_like(x, torch.inf if steps > 0 else -torch.inf)
    for _ in range(abs(steps)):
        x = torch.nextafter(x, to)
    return x
