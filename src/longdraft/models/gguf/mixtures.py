"""Experts in the metadata of GGUF files: how many there are, and how they are chosen and weighed.

All functions raise InputError.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

from longdraft.errors import InputError
from longdraft.models.gguf.file import AGAIN, GGUF

QWEN = "qwen3moe"
OSS = "gpt-oss"
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


Arguments = Callable[[GGUF, int, int, int], dict[str, Any]]


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
    some = has_experts(file, kind)
    if mixture is not None and mixture.optional and not some:
        return None
    if mixture is None:
        if some:
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
    inner = file.get(f"{kind}.expert_feed_forward_length", int)
    if inner is None:
        inner = file.required(f"{kind}.feed_forward_length", int)
    if not 0 < chosen <= count:
        raise InputError(f"{file.path} claims that {chosen} of {count} experts are used: {AGAIN}")
    dense = file.get(f"{kind}.leading_dense_block_count", int, 0)
    return FileExperts(count, inner, dense, mixture.options(file, count, chosen, inner))


def has_experts(file: GGUF, kind: str) -> bool:
    return bool(file.get(f"{kind}.expert_count", int, 0))


def mixtral_or_llama(file: GGUF, kind: str) -> str:
    """The model_type of a `llama` file: with experts it is a Mixtral."""
    return "mixtral" if has_experts(file, kind) else "llama"


def granite_family(file: GGUF, kind: str) -> str:
    shared = file.get(f"{kind}.expert_shared_feed_forward_length", int, 0)
    return "granitemoeshared" if shared else "granitemoe"


def latent_family(file: GGUF, kind: str) -> str:
    """Scores of experts tell DeepSeek-V2 from V3; a model without experts can be either."""
    by_share = file.get(f"{kind}.expert_gating_func", int, SOFTMAX) != SIGMOID
    return "deepseek_v2" if has_experts(file, kind) and by_share else "deepseek_v3"


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


def _of_hybrid(kind: str) -> Arguments:
    """Arguments of Qwen3NextConfig or Qwen3_5MoeTextConfig."""

    def arguments(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
        shared = file.required(f"{kind}.expert_shared_feed_forward_length", int)
        return _of_qwen(file, count, chosen, inner) | {"shared_expert_intermediate_size": shared}

    return arguments


def _of_olmo(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of OlmoeConfig."""
    return {"num_experts": count, "num_experts_per_tok": chosen, "norm_topk_prob": False}


def _routed(
    file: GGUF, kind: str, count: int, chosen: int, inner: int, norm: bool
) -> dict[str, Any]:
    """Arguments of configs that are like DeepSeek-V3's. norm: if the file does not say whether the
    shares of experts are divided by their sum.
    """
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner,
        "n_shared_experts": file.get(f"{kind}.expert_shared_count", int, 0),
        "first_k_dense_replace": file.get(f"{kind}.leading_dense_block_count", int, 0),
        "norm_topk_prob": file.get(f"{kind}.expert_weights_norm", bool, norm),
        "routed_scaling_factor": file.get(f"{kind}.expert_weights_scale", float, 0.0) or 1.0,
        "n_group": 1,
        "topk_group": 1,
    }


def _of_glm(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of Glm4MoeConfig."""
    normed = "blk.0.attn_q_norm.weight" in file.tensors
    return _routed(file, "glm4moe", count, chosen, inner, True) | {"use_qk_norm": normed}


def _of_dots(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of Dots1Config."""
    return _routed(file, "dots1", count, chosen, inner, True)


def _of_nemotron(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of NemotronHConfig, whose experts have no gates."""
    kind = "nemotron_h_moe"
    if file.get(f"{kind}.moe_latent_size", int, 0):
        raise InputError(
            f"{file.path} has experts of another width than the model, which longdraft does not "
            "read from GGUF: use the model's safetensors"
        )
    made = _routed(file, kind, count, chosen, inner, True)
    del made["first_k_dense_replace"]
    shared = file.required(f"{kind}.expert_shared_feed_forward_length", int)
    return made | {"moe_shared_expert_intermediate_size": shared}


def _of_latents(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of DeepseekV2Config or DeepseekV3Config."""
    kind = "deepseek2"
    groups = file.get(f"{kind}.expert_group_count", int, 0) or 1
    some = file.get(f"{kind}.expert_group_used_count", int, 0) or 1
    if not 0 < some <= groups or count % groups:
        raise InputError(
            f"{file.path} claims that {some} of {groups} groups of {count} experts are used: "
            f"{AGAIN}"
        )
    made = _routed(file, kind, count, chosen, inner, False)
    if made["norm_topk_prob"] and latent_family(file, kind) == "deepseek_v2":
        raise InputError(
            f"{file.path} divides shares of experts by their sum, which no DeepSeek-V2 does: use "
            "the model's safetensors"
        )
    return made | {
        "n_group": groups,
        "topk_group": some,
        "topk_method": "group_limited_greedy" if groups > 1 else "greedy",
    }


def _of_mixtral(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of MixtralConfig."""
    return {
        "num_local_experts": count,
        "num_experts_per_tok": chosen,
        "intermediate_size": inner,
        "sliding_window": None,
    }


def _of_granite(kind: str) -> Arguments:
    """Arguments of GraniteMoeConfig, GraniteMoeSharedConfig or GraniteMoeHybridConfig."""

    def arguments(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
        shared = file.get(f"{kind}.expert_shared_feed_forward_length", int, 0)
        return {
            "num_local_experts": count,
            "num_experts_per_tok": chosen,
            "intermediate_size": inner,
            "shared_intermediate_size": shared,
        }

    return arguments


def _of_ernie(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of Ernie4_5_MoeConfig."""
    kind = "ernie4_5-moe"
    return {
        "moe_num_experts": count,
        "moe_k": chosen,
        "moe_intermediate_size": inner,
        "moe_num_shared_experts": file.get(f"{kind}.expert_shared_count", int, 0),
        "moe_layer_start_index": file.get(f"{kind}.leading_dense_block_count", int, 0),
        "moe_layer_interval": 1,
    }


def _of_minimax(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of MiniMaxM2Config."""
    return {
        "num_local_experts": count,
        "num_experts_per_tok": chosen,
        "intermediate_size": inner,
    }


def _of_hunyuan(file: GGUF, count: int, chosen: int, inner: int) -> dict[str, Any]:
    """Arguments of HunYuanMoEV1Config, whose MLP for all nodes is as wide as an expert."""
    kind = "hunyuan-moe"
    shared = file.get(f"{kind}.expert_shared_feed_forward_length", int, inner)
    if shared != inner:
        raise InputError(
            f"{file.path} has {inner} numbers inside an expert and {shared} inside the one for all "
            "nodes, which longdraft reads only if they are equal: use the model's safetensors"
        )
    return {"num_experts": count, "moe_topk": chosen, "intermediate_size": inner}


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
    read, or whose values are those of the model, and the values that they may have. optional: files
    of this architecture may have no experts.
    """

    options: Arguments
    reads: Mapping[str, Container[Any]] = {}
    optional: bool = False


class _Any:
    """Contains everything."""

    def __contains__(self, value: object) -> bool:
        return True


ANY = _Any()
OF_SHARED: Mapping[str, Container[Any]] = {"expert_shared_feed_forward_length": ANY}
ROUTED: Mapping[str, Container[Any]] = {
    "expert_shared_count": ANY,
    "expert_weights_norm": ANY,
    "expert_weights_scale": ANY,
    "leading_dense_block_count": ANY,
    "expert_gating_func": (SIGMOID,),
}
MIXTURES: Mapping[str, Mixture] = {
    QWEN: Mixture(_of_qwen),
    OSS: Mixture(_of_oss),
    "qwen2moe": Mixture(
        _of_qwen2,
        {"expert_shared_feed_forward_length": ANY, "expert_weights_norm": ANY},
    ),
    "olmoe": Mixture(_of_olmo, {"expert_weights_norm": (True, False)}),
    "glm4moe": Mixture(_of_glm, ROUTED),
    "dots1": Mixture(_of_dots, ROUTED),
    "deepseek2": Mixture(
        _of_latents,
        {
            **ROUTED,
            "expert_gating_func": (0, SOFTMAX, SIGMOID),
            "expert_group_count": ANY,
            "expert_group_used_count": ANY,
        },
        optional=True,
    ),
    "nemotron_h_moe": Mixture(
        _of_nemotron,
        {
            **OF_SHARED,
            "expert_shared_count": ANY,
            "expert_weights_norm": ANY,
            "expert_weights_scale": ANY,
            "expert_gating_func": (0, SIGMOID),
        },
    ),
    "llama": Mixture(_of_mixtral, optional=True),
    "granitemoe": Mixture(_of_granite("granitemoe"), OF_SHARED),
    "granitehybrid": Mixture(_of_granite("granitehybrid"), OF_SHARED, optional=True),
    "ernie4_5-moe": Mixture(
        _of_ernie, {**OF_SHARED, "expert_shared_count": ANY, "leading_dense_block_count": ANY}
    ),
    "minimax-m2": Mixture(_of_minimax, {"expert_gating_func": (SIGMOID,)}),
    "hunyuan-moe": Mixture(_of_hunyuan, {**OF_SHARED, "expert_shared_count": (0, 1)}),
    "qwen3next": Mixture(_of_hybrid("qwen3next"), OF_SHARED),
    "qwen35moe": Mixture(_of_hybrid("qwen35moe"), OF_SHARED),
    "lfm2moe": Mixture(
        _of_lfm, {"leading_dense_block_count": ANY, "expert_gating_func": (SIGMOID,)}
    ),
}
