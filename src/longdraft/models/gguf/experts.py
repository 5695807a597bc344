"""Reads what GGUF files of mixtures of experts have beside those of the Llama family.

The matrices of all experts of a layer lie in three tensors, for gates, up and down.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longdraft.backends.packed_experts import PackedExperts, without_matrices
from longdraft.backends.packed_linear import PackedLinear, replace
from longdraft.errors import InputError
from longdraft.models.gguf.file import AGAIN, GGUF
from longdraft.ops.packed import Packed

KINDS = ("qwen3moe",)
MATRICES = ("gate", "up", "down")
MODULES = {"ffn_gate_inp": "mlp.gate"} | {f"ffn_{n}_exps": f"mlp.experts.{n}" for n in MATRICES}
EXPERTS = ".mlp.experts"
# What would change how experts are chosen or weighed, with the values that do not.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_gating_func": (0, 1),  # softmax
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0.0, 1.0),
    "leading_dense_block_count": (0,),
    "interleave_moe_layer_step": (0, 1),
}


def options(file: GGUF, kind: str) -> dict[str, Any]:
    """Arguments of the config. Raises InputError for experts that are not read."""
    if kind not in KINDS:
        if file.get(f"{kind}.expert_count", int, 0):
            raise InputError(
                f"{file.path} contains a mixture of experts of architecture {kind}: use one of "
                f"{', '.join(KINDS)}, or the model's safetensors"
            )
        return {}
    for name, neutral in NEUTRAL.items():
        value = file.metadata.get(f"{kind}.{name}", neutral[0])
        if value not in neutral:
            raise InputError(
                f"{file.path} has {name} {str(value)[:20]}, which longdraft does not read from "
                "GGUF: use the model's safetensors"
            )
    count, chosen, inner = (
        file.required(f"{kind}.{name}", int)
        for name in ("expert_count", "expert_used_count", "expert_feed_forward_length")
    )
    if not 0 < chosen <= count:
        raise InputError(f"{file.path} claims that {chosen} of {count} experts are used: {AGAIN}")
    return {
        "num_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def is_matrix(name: str) -> bool:
    """Whether a file's tensor has the matrices of all experts."""
    return name.removesuffix(".weight").rpartition(".")[2] in MODULES and "_exps." in name


def separate(wanted: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """A model's parameters and their shapes, those of experts as a file has them."""
    found = dict[str, tuple[int, ...]]()
    for name, shape in wanted.items():
        holder, _, leaf = name.rpartition(".")
        if not holder.endswith(EXPERTS):
            found[name] = shape
        elif leaf == "gate_up_proj":
            count, rows, width = shape
            found |= {f"{holder}.{n}.weight": (count, rows // 2, width) for n in ("gate", "up")}
        else:
            found[f"{holder}.down.weight"] = shape
    return found


@torch.no_grad()
def put(hf: Any, packed: dict[str, Packed], plain: dict[str, Tensor]) -> None:
    """Move the matrices of experts from both into the model: packed if all three of a layer are."""
    for holder in [name for name, _ in hf.named_modules() if name.endswith(EXPERTS)]:
        own: Any = hf.get_submodule(holder)
        names = [f"{holder}.{n}" for n in MATRICES]
        if all(name in packed for name in names):
            layers = [PackedLinear(packed.pop(name)) for name in names]
            count = len(own.down_proj)
            replace(hf, holder, PackedExperts(without_matrices(own), count, *layers))
            continue
        gate, up, down = (_numbers(own, name, packed, plain) for name in names)
        own.gate_up_proj = nn.Parameter(torch.cat([gate, up], 1), requires_grad=False)
        own.down_proj = nn.Parameter(down, requires_grad=False)


def _numbers(own: Any, name: str, packed: dict[str, Packed], plain: dict[str, Tensor]) -> Tensor:
    if name not in packed:
        return plain.pop(f"{name}.weight")
    return packed.pop(name).dequantized(own.down_proj.dtype).unflatten(0, (len(own.down_proj), -1))
