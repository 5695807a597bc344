"""Arguments of configs of models with recurrent layers, from the metadata of GGUF files.

Layers without key heads are recurrent. All functions raise InputError.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from longdraft.errors import InputError
from longdraft.models.gguf.arguments import Given, granite, layer_eps, partial, without
from longdraft.models.gguf.file import AGAIN, GGUF

RECURRENT = "linear_attention"
FULL = "full_attention"


def layers_of(file: GGUF, key: str, layers: int, default: int) -> list[int]:
    """A number of the metadata for each layer, which may be one for all. Raises InputError."""
    value: Any = file.metadata.get(key, default)
    if isinstance(value, int):
        return [value] * layers
    each = [int(n) for n in value]
    if len(each) != layers or not max(each, default=0):
        raise InputError(f"{file.path}: {key} has {len(each)} entries for {layers} layers: {AGAIN}")
    return each


def _has(file: GGUF, tensor: str) -> bool:
    """Whether a layer has a tensor of this name."""
    return any(name.endswith(f".{tensor}") for name in file.tensors)


def lfm(file: GGUF, kind: str, given: Given) -> Given:
    eps = given.pop("rms_norm_eps")
    heads = given.pop("key_heads")
    return given | {
        "norm_eps": eps,
        "layer_types": [FULL if n else "conv" for n in heads],
        "conv_L_cache": file.required(f"{kind}.shortconv.l_cache", int),
        "block_auto_adjust_ff_dim": False,
    }


class _Mamba(NamedTuple):
    """Sizes of Mamba-2 layers: heads, groups of them, numbers of a state, taps of the convolution,
    numbers of all heads.
    """

    heads: int
    groups: int
    state: int
    kernel: int
    inner: int


def _mamba(file: GGUF, kind: str) -> _Mamba:
    heads, groups, state, kernel, inner = (
        file.required(f"{kind}.ssm.{name}", int)
        for name in ("time_step_rank", "group_count", "state_size", "conv_kernel", "inner_size")
    )
    if not (heads > 0 and groups > 0 and inner > 0 and inner % heads == 0 == heads % groups):
        raise InputError(
            f"{file.path} claims {inner} numbers of {heads} heads in {groups} groups: {AGAIN}"
        )
    return _Mamba(heads, groups, state, kernel, inner)


def granite_hybrid(file: GGUF, kind: str, given: Given) -> Given:
    """GraniteMoeHybridConfig; layers without key heads are of Mamba-2."""
    sizes = _mamba(file, kind)
    width, mlp = given["hidden_size"], given["intermediate_size"]
    if sizes.inner % width:
        raise InputError(
            f"{file.path} claims {sizes.inner} numbers in layers of Mamba-2, which must be a "
            f"multiple of its width {width}: {AGAIN}"
        )
    types = [FULL if n else RECURRENT for n in given["key_heads"]]
    shared = file.get(f"{kind}.expert_shared_feed_forward_length", int, mlp)
    return granite(file, kind, without(given, "key_heads")) | {
        "attention_bias": _has(file, "attn_q.bias"),
        "num_local_experts": given.get("num_local_experts", 0),
        "shared_intermediate_size": shared,
        "layer_types": types,
        "position_embedding_type": "rope" if _rotates(file, kind) else None,
        "mamba_n_heads": sizes.heads,
        "mamba_n_groups": sizes.groups,
        "mamba_d_state": sizes.state,
        "mamba_d_conv": sizes.kernel,
        "mamba_d_head": sizes.inner // sizes.heads,
        "mamba_expand": sizes.inner // width,
        "mamba_conv_bias": _has(file, "ssm_conv1d.bias"),
        "mamba_proj_bias": _has(file, "ssm_in.bias"),
    }


def _rotates(file: GGUF, kind: str) -> bool:
    """Whether layers with attention rotate; files say so under a name with another meaning."""
    return bool(file.get(f"{kind}.rope.scaling.finetuned", bool, True))


def nemotron_hybrid(file: GGUF, kind: str, given: Given) -> Given:
    """NemotronHConfig: a layer is Mamba-2, attention or an MLP, which may be one of experts."""
    sizes = _mamba(file, kind)
    blocks = file.required(f"{kind}.block_count", int)
    mlps = layers_of(file, f"{kind}.feed_forward_length", blocks, 0)
    mlp = "moe" if file.get(f"{kind}.expert_count", int, 0) else "mlp"
    types = [FULL if keys else RECURRENT for keys in given["key_heads"]]
    types = [mlp if inner else other for other, inner in zip(types, mlps, strict=False)]
    # files have it under one of two names
    has_own = f"{kind}.attention.layer_norm_rms_epsilon" in file.metadata
    return without(given, "key_heads", "rms_norm_eps", "rope_parameters") | {
        "layers_block_type": types,
        "layer_norm_epsilon": given["rms_norm_eps"] if has_own else layer_eps(file, kind),
        "mamba_num_heads": sizes.heads,
        "mamba_head_dim": sizes.inner // sizes.heads,
        "ssm_state_size": sizes.state,
        "n_groups": sizes.groups,
        "conv_kernel": sizes.kernel,
        "use_conv_bias": _has(file, "ssm_conv1d.bias"),
        "use_bias": _has(file, "ssm_in.bias"),
        "mlp_bias": _has(file, "ffn_up.bias"),
        "attention_bias": _has(file, "attn_q.bias"),
    }


def qwen_hybrid(file: GGUF, kind: str, given: Given) -> Given:
    """Qwen3NextConfig, Qwen3_5TextConfig or Qwen3_5MoeTextConfig."""
    kernel, key_dim, keys, values, inner = (
        file.required(f"{kind}.ssm.{name}", int)
        for name in ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")
    )
    period = file.get(f"{kind}.full_attention_interval", int, 4)
    if not (keys > 0 and values > 0 and values % keys == 0 == inner % values and period > 0):
        raise InputError(
            f"{file.path} claims {inner} numbers of {values} value heads for {keys} key heads, and "
            f"attention in every {period} layers: {AGAIN}"
        )
    types = [RECURRENT if (i + 1) % period else FULL for i in range(given["num_hidden_layers"])]
    return partial(file, kind, given) | {
        "linear_conv_kernel_dim": kernel,
        "linear_key_head_dim": key_dim,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "linear_value_head_dim": inner // values,
        "layer_types": types,
    }
