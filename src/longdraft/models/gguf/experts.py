"""Reads what GGUF files of mixtures of experts have beside those of the Llama family.

The matrices of all experts of a layer lie in three tensors, for gates, up and down.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longdraft.backends.packed_experts import PackedExperts, joined, without_matrices
from longdraft.backends.packed_linear import PackedLinear, replace
from longdraft.errors import InputError
from longdraft.models.gguf.file import AGAIN, GGUF
from longdraft.ops.packed import Packed

QWEN = "qwen3moe"
OSS = "gpt-oss"
KINDS = (QWEN, OSS)
MATRICES = ("gate", "up", "down")
OF_EXPERTS = {f"ffn_{n}_exps": f"mlp.experts.{n}" for n in MATRICES}
MODULES = {
    QWEN: OF_EXPERTS | {"ffn_gate_inp": "mlp.gate"},
    OSS: OF_EXPERTS
    | {"ffn_gate_inp": "mlp.router", "post_attention_norm": "post_attention_layernorm"},
}
SINKS = "attn_sinks.weight"
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


class FileExperts(NamedTuple):
    """The metadata of a file's experts.

    count: of a layer. inner: the numbers inside one. options: arguments of the config.
    """

    count: int
    inner: int
    options: dict[str, Any]


def metadata(file: GGUF, kind: str) -> FileExperts | None:
    """None: it has none. Raises InputError for experts that are not read."""
    if kind not in KINDS:
        if file.get(f"{kind}.expert_count", int, 0):
            raise InputError(
                f"{file.path} contains a mixture of experts of architecture {kind}: use one of "
                f"{', '.join(KINDS)}, or the model's safetensors"
            )
        return None
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
    options = _of_oss if kind == OSS else _of_qwen
    return FileExperts(count, inner, options(file, count, chosen, inner))


def _of_qwen(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of Qwen3MoeConfig."""
    return {
        "num_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _of_oss(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of GptOssConfig, whose every other layer has a window."""
    mlp = file.required(f"{OSS}.feed_forward_length", int)
    if mlp != inner:
        raise InputError(f"{file.path} claims {mlp} and {inner} numbers inside an expert: {AGAIN}")
    window = file.get(f"{OSS}.attention.sliding_window", int)
    if not window or window < 1:
        raise InputError(f"{file.path} has no sliding window, which every gpt-oss has: {AGAIN}")
    return {
        "num_local_experts": count,
        "num_experts_per_tok": chosen,
        "sliding_window": window,
        "attention_bias": True,
    }


def is_matrix(name: str) -> bool:
    """Whether a file's tensor has the matrices of all experts."""
    part, _, leaf = name.rpartition(".")
    return leaf == "weight" and part.rpartition(".")[2] in OF_EXPERTS


def separate(hf: Any) -> dict[str, tuple[int, ...]]:
    """A model's parameters and their shapes, those of experts as a file has them."""
    found = dict[str, tuple[int, ...]]()
    for name, p in hf.named_parameters(remove_duplicate=False):
        holder, _, leaf = name.rpartition(".")
        if not holder.endswith(EXPERTS):
            found[name] = tuple(p.shape)
            continue
        of_bias = leaf.endswith("_bias")
        turned = hf.get_submodule(holder).is_transposed and not of_bias
        count, rows, *inputs = p.mT.shape if turned else p.shape
        parts = ("down",) if leaf.startswith("down") else ("gate", "up")
        for part in parts:
            full = f"{holder}.{part}.{'bias' if of_bias else 'weight'}"
            found[full] = (count, rows // len(parts), *inputs)
    return found


@torch.no_grad()
def put(hf: Any, packed: dict[str, Packed], plain: dict[str, Tensor]) -> None:
    """Move the matrices of experts from both into the model: packed if all three of a layer are."""
    for holder in [name for name, _ in hf.named_modules() if name.endswith(EXPERTS)]:
        own: Any = hf.get_submodule(holder)
        count = len(own.down_proj)
        names = [f"{holder}.{n}" for n in MATRICES]
        biases = [plain.pop(f"{name}.bias", None) for name in names]
        if all(name in packed for name in names):
            layers = [
                PackedLinear(packed.pop(name), None if bias is None else bias.flatten())
                for name, bias in zip(names, biases, strict=True)
            ]
            replace(hf, holder, PackedExperts(without_matrices(own), count, *layers))
            continue
        gate, up, down = (_numbers(own, name, packed, plain) for name in names)
        matrices = {"gate_up_proj": joined(own, [gate, up], 1), "down_proj": down}
        for name, matrix in matrices.items():
            turned = matrix.mT.contiguous() if own.is_transposed else matrix
            setattr(own, name, nn.Parameter(turned, requires_grad=False))
        gate, up, down = biases
        if gate is not None and up is not None and down is not None:
            both = joined(own, [gate, up], 1)
            own.gate_up_proj_bias = nn.Parameter(both, requires_grad=False)
            own.down_proj_bias = nn.Parameter(down, requires_grad=False)


def _numbers(own: Any, name: str, packed: dict[str, Packed], plain: dict[str, Tensor]) -> Tensor:
    """[count,outputs,inputs]."""
    if name not in packed:
        return plain.pop(f"{name}.weight")
    return packed.pop(name).dequantized(own.down_proj.dtype).unflatten(0, (len(own.down_proj), -1))
