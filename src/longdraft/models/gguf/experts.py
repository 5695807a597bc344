"""Reads what GGUF files of mixtures of experts have beside those of the Llama family.

The matrices of all experts of a layer lie in three tensors, for gates, up and down.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
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
MATRICES = ("gate", "up", "down")
OF_EXPERTS = {f"ffn_{n}_exps": f"mlp.experts.{n}" for n in MATRICES}
HOLDER = ".experts"
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
SOFTMAX, SIGMOID = 1, 2  # of expert_gating_func


class FileExperts(NamedTuple):
    """The metadata of a file's experts.

    count: of a layer. inner: the numbers inside one. dense: the first layers, which have none.
    options: arguments of the config.
    """

    count: int
    inner: int
    dense: int
    options: dict[str, Any]


def metadata(file: GGUF, kind: str) -> FileExperts | None:
    """None: it has none. Raises InputError for experts that are not read."""
    mixture = MIXTURES.get(kind)
    if mixture is None:
        if file.get(f"{kind}.expert_count", int, 0):
            raise InputError(
                f"{file.path} contains a mixture of experts of architecture {kind}: use one of "
                f"{', '.join(MIXTURES)}, or the model's safetensors"
            )
        return None
    for name, neutral in NEUTRAL.items():
        value = file.metadata.get(f"{kind}.{name}", neutral[0])
        if value not in mixture.reads.get(name, neutral):
            raise InputError(
                f"{file.path} has {name} {str(value)[:20]}, which longdraft does not read from "
                "GGUF: use the model's safetensors"
            )
    count, chosen = (
        file.required(f"{kind}.{name}", int) for name in ("expert_count", "expert_used_count")
    )
    mlp = file.required(f"{kind}.feed_forward_length", int)
    inner = file.get(f"{kind}.expert_feed_forward_length", int, mlp)
    if not 0 < chosen <= count:
        raise InputError(f"{file.path} claims that {chosen} of {count} experts are used: {AGAIN}")
    dense = file.get(f"{kind}.leading_dense_block_count", int, 0)
    return FileExperts(count, inner, dense, mixture.options(file, count, chosen, inner))


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


def _of_qwen2(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of Qwen2MoeConfig."""
    shared = file.required("qwen2moe.expert_shared_feed_forward_length", int)
    return _of_qwen(file, count, chosen, inner) | {
        "shared_expert_intermediate_size": shared,
        "norm_topk_prob": file.get("qwen2moe.expert_weights_norm", bool, False),
    }


def _of_olmo(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of OlmoeConfig."""
    return {"num_experts": count, "num_experts_per_tok": chosen, "norm_topk_prob": False}


def _of_glm(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of Glm4MoeConfig."""
    kind = "glm4moe"
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner,
        "n_shared_experts": file.get(f"{kind}.expert_shared_count", int, 0),
        "first_k_dense_replace": file.get(f"{kind}.leading_dense_block_count", int, 0),
        "norm_topk_prob": file.get(f"{kind}.expert_weights_norm", bool, True),
        "routed_scaling_factor": file.get(f"{kind}.expert_weights_scale", float, 1.0),
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
    }


def _of_lfm(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of Lfm2MoeConfig."""
    return {
        "num_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner,
        "num_dense_layers": file.get("lfm2moe.leading_dense_block_count", int, 0),
        "use_expert_bias": True,
        "norm_topk_prob": True,
    }


class Mixture(NamedTuple):
    """options(file, count, chosen, inner): arguments of a config. reads: names of NEUTRAL that they
    read, or whose values are those of the model, and the values that they may have.
    """

    options: Callable[[GGUF, int, int, int], dict[str, Any]]
    reads: Mapping[str, Container[Any]] = {}


class _Any:
    """Contains everything."""

    def __contains__(self, value: object) -> bool:
        return True


ANY = _Any()
MIXTURES: Mapping[str, Mixture] = {
    QWEN: Mixture(_of_qwen),
    OSS: Mixture(_of_oss),
    "qwen2moe": Mixture(
        _of_qwen2,
        {"expert_shared_feed_forward_length": ANY, "expert_weights_norm": ANY},
    ),
    "olmoe": Mixture(_of_olmo, {"expert_weights_norm": (True, False)}),
    "glm4moe": Mixture(
        _of_glm,
        {
            "expert_shared_count": ANY,
            "expert_weights_norm": ANY,
            "expert_weights_scale": ANY,
            "leading_dense_block_count": ANY,
            "expert_gating_func": (SIGMOID,),
        },
    ),
    "lfm2moe": Mixture(
        _of_lfm, {"leading_dense_block_count": ANY, "expert_gating_func": (SIGMOID,)}
    ),
}


def is_matrix(name: str) -> bool:
    """Whether a file's tensor has the matrices of all experts."""
    part, _, leaf = name.rpartition(".")
    return leaf == "weight" and part.rpartition(".")[2] in OF_EXPERTS


def separate(hf: Any) -> dict[str, tuple[int, ...]]:
    """A model's parameters, its buffers that files have and their shapes, those of experts as a
    file has them.
    """
    found = dict[str, tuple[int, ...]]()
    for name, p in hf.state_dict(keep_vars=True).items():
        holder, _, leaf = name.rpartition(".")
        if not holder.endswith(HOLDER):
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
    for holder in [name for name, _ in hf.named_modules() if name.endswith(HOLDER)]:
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
