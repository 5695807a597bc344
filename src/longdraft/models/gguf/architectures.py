"""The architectures of GGUF files: what each has that a Llama lacks, and what converters
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from longdraft.errors import InputError
from longdraft.models.gguf import experts, gemma3
from longdraft.models.gguf.file import AGAIN, GGUF

Given = dict[str, Any]
Options = Callable[[GGUF, str, Given], Given]

IN_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{n}": f"self_attn.{n}_proj" for n in "qkv"},
    **{f"attn_{n}_norm": f"self_attn.{n}_norm" for n in "qk"},
    "attn_output": "self_attn.o_proj",
    **{f"ffn_{n}": f"mlp.{n}_proj" for n in ("gate", "up", "down")},
}
# Norms of what attention and MLP add to the stream.
BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA = BEHIND | {"ffn_norm": "pre_feedforward_layernorm"}
JOINED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
UNGATED = {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
ROUTED = experts.OF_EXPERTS | {"ffn_gate_inp": "mlp.gate"}
LFM = {
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    **{f"shortconv.{n}": f"conv.{n}" for n in ("conv", "in_proj", "out_proj")},
}
LFM_NORM = ("token_embd_norm", "model.embedding_norm")
GLM = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}


def _shared(module: str) -> dict[str, str]:
    """Names of an MLP that all nodes go through."""
    return {f"ffn_{n}_shexp": f"{module}.{n}_proj" for n in experts.MATRICES}


def with_biases(file: GGUF, kind: str, given: Given) -> Given:
    """Queries, keys and values have biases if the file has them."""
    return given | {"attention_bias": "blk.0.attn_q.bias" in file.tensors}


def unchanged(file: GGUF, kind: str, given: Given) -> Given:
    return given


@dataclass(frozen=True)
class Architecture:
    """names: of a layer's modules by those of the file's parts, beside and in place of IN_LAYER's.
    tensors: of a layer's parameters by those of the file's tensors, where the endings differ.
    final_norm: the last norm, in the file and in the model.

    turned: rows of queries and keys lie so that numbers which are rotated together are side by
    side. minus_one: norms of the file are those of the model plus 1. with_windows: its options read
    a sliding window. partial: they read how many numbers of a head are rotated.
    options(file, kind, given): arguments of its config, from those that a Llama's would have.
    """

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    tensors: Mapping[str, str] = field(default_factory=dict[str, str])
    final_norm: tuple[str, str] = ("output_norm", "model.norm")
    turned: bool = False
    minus_one: bool = False
    with_windows: bool = False
    partial: bool = False
    options: Options = unchanged

    @property
    def joins_queries(self) -> bool:
        """Whether rows of queries, keys and values lie in one matrix."""
        return "attn_qkv" in self.names

    @property
    def joins_gate(self) -> bool:
        """Whether `ffn_up` has the rows of gates, too."""
        return self.names.get("ffn_up", "").endswith("gate_up_proj")

    def parameter_of(self, tensor: str) -> str | None:
        """The name in a layer of what a file has as this; None: layers have no such tensor."""
        part, _, leaf = tensor.rpartition(".")
        module = self.names.get(part) or IN_LAYER.get(part)
        return self.tensors.get(tensor) or (module and f"{module}.{leaf}")


def scale(file: GGUF, key: str, default: float) -> float:
    """A number of the metadata that multiplies; 0 stands for none. Raises InputError."""
    value = file.get(key, float, 0.0) or default
    if value <= 0:
        raise InputError(f"{file.path}: {key} is {value}: {AGAIN}")
    return value


def _window(file: GGUF, kind: str) -> int:
    window = file.get(f"{kind}.attention.sliding_window", int)
    if not window or window < 1:
        raise InputError(f"{file.path} has no sliding window, which every {kind} has: {AGAIN}")
    return window


def _layer_types(file: GGUF, kind: str, layers: int, period: int) -> list[str]:
    """Which layers have a window: as the file says, or all but each `period`-th."""
    key = f"{kind}.attention.sliding_window_pattern"
    pattern: Any = file.metadata.get(key, period)
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        slides = [bool(pattern and (i + 1) % pattern) for i in range(layers)]
    else:
        slides = [bool(x) for x in pattern]
    if len(slides) != layers:
        raise InputError(
            f"{file.path}: {key} has {len(slides)} entries for {layers} layers: {AGAIN}"
        )
    return ["sliding_attention" if x else "full_attention" for x in slides]


def _granite(file: GGUF, kind: str, given: Given) -> Given:
    return with_biases(file, kind, given) | {
        "attention_multiplier": scale(file, f"{kind}.attention.scale", given["head_dim"] ** -0.5),
        "embedding_multiplier": scale(file, f"{kind}.embedding_scale", 1.0),
        "residual_multiplier": scale(file, f"{kind}.residual_scale", 1.0),
        "logits_scaling": scale(file, f"{kind}.logit_scale", 1.0),
    }


def _exaone(file: GGUF, kind: str, given: Given) -> Given:
    layers = given["num_hidden_layers"]
    if not file.get(f"{kind}.attention.sliding_window", int):
        return given | {"sliding_window": None, "layer_types": ["full_attention"] * layers}
    return given | {
        "sliding_window": _window(file, kind),
        "layer_types": _layer_types(file, kind, layers, 4),
    }


LARGEST_GEMMA2 = 46  # layers of the one size whose queries are not scaled by a head's numbers


def _gemma2(file: GGUF, kind: str, given: Given) -> Given:
    large = given["num_hidden_layers"] == LARGEST_GEMMA2
    dim = given["hidden_size"] // given["num_attention_heads"] if large else given["head_dim"]
    return given | {
        "sliding_window": _window(file, kind),
        "query_pre_attn_scalar": dim,
        "attn_logit_softcapping": scale(file, f"{kind}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": scale(file, f"{kind}.final_logit_softcapping", 30.0),
    }


def _glm(file: GGUF, kind: str, given: Given) -> Given:
    rotated = file.get(f"{kind}.rope.dimension_count", int, given["head_dim"] // 2)
    rope = given["rope_parameters"] | {"partial_rotary_factor": rotated / given["head_dim"]}
    return with_biases(file, kind, given) | {"rope_parameters": rope}


def _seed(file: GGUF, kind: str, given: Given) -> Given:
    return with_biases(file, kind, given) | {
        "attention_out_bias": "blk.0.attn_output.bias" in file.tensors
    }


def _ernie(file: GGUF, kind: str, given: Given) -> Given:
    return given | {"use_bias": "blk.0.attn_q.bias" in file.tensors}


def _with_layer_norms(file: GGUF, kind: str, given: Given) -> Given:
    """Arguments of a config whose norms subtract the mean, without their epsilon."""
    return {name: value for name, value in given.items() if name != "rms_norm_eps"}


def _layer_eps(file: GGUF, kind: str) -> float:
    return scale(file, f"{kind}.attention.layer_norm_epsilon", 1e-5)


def _cohere(file: GGUF, kind: str, given: Given) -> Given:
    made = _with_layer_norms(file, kind, given) | {
        "layer_norm_eps": _layer_eps(file, kind),
        "logit_scale": scale(file, f"{kind}.logit_scale", 1.0),
    }
    if kind != "cohere2":
        return made | {"use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors}
    types = _layer_types(file, kind, given["num_hidden_layers"], 4)
    return made | {"sliding_window": _window(file, kind), "layer_types": types}


def _starcoder(file: GGUF, kind: str, given: Given) -> Given:
    return _with_layer_norms(file, kind, given) | {
        "norm_epsilon": _layer_eps(file, kind),
        "use_bias": "blk.0.attn_q.bias" in file.tensors,
        "sliding_window": file.get(f"{kind}.attention.sliding_window", int) or None,
    }


def _phi(file: GGUF, kind: str, given: Given) -> Given:
    rotated = file.get(f"{kind}.rope.dimension_count", int, given["head_dim"])
    rope = given["rope_parameters"] | {"partial_rotary_factor": rotated / given["head_dim"]}
    return given | {
        "rope_parameters": rope,
        "sliding_window": file.get(f"{kind}.attention.sliding_window", int) or None,
    }


def _lfm(file: GGUF, kind: str, given: Given) -> Given:
    eps = given.pop("rms_norm_eps")
    heads = given.pop("key_heads")
    return given | {
        "norm_eps": eps,
        "layer_types": ["full_attention" if n else "conv" for n in heads],
        "conv_L_cache": file.required(f"{kind}.shortconv.l_cache", int),
        "block_auto_adjust_ff_dim": False,
    }


def _oss(file: GGUF, kind: str, given: Given) -> Given:
    rope = given["rope_parameters"]
    if rope["rope_type"] == "yarn":  # its makers' code does not round where the ramp begins
        rope = rope | {"truncate": False}
    return given | {"rope_parameters": rope}


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(turned=True, options=with_biases),
    "qwen2": Architecture(),
    "qwen3": Architecture(options=with_biases),
    "granite": Architecture(turned=True, options=_granite),
    "smollm3": Architecture(turned=True, options=with_biases),
    "seed_oss": Architecture({"post_attention_norm": "post_attention_layernorm"}, options=_seed),
    "olmo2": Architecture(BEHIND, options=with_biases),
    "exaone4": Architecture(BEHIND, with_windows=True, options=_exaone),
    "glm4": Architecture(GLM, partial=True, options=_glm),
    "ernie4_5": Architecture(options=_ernie),
    "command-r": Architecture(options=_cohere),
    "cohere2": Architecture(with_windows=True, options=_cohere),
    "starcoder2": Architecture(UNGATED, with_windows=True, options=_starcoder),
    "phi3": Architecture(JOINED, with_windows=True, partial=True, options=_phi),
    "gemma2": Architecture(GEMMA, minus_one=True, with_windows=True, options=_gemma2),
    gemma3.KIND: Architecture(GEMMA, minus_one=True, with_windows=True, options=gemma3.options),
    experts.QWEN: Architecture(ROUTED, options=with_biases),
    experts.OSS: Architecture(
        ROUTED | {"ffn_gate_inp": "mlp.router", "post_attention_norm": "post_attention_layernorm"},
        {"attn_sinks.weight": "self_attn.sinks"},
        with_windows=True,
        options=_oss,
    ),
    "qwen2moe": Architecture(
        ROUTED | _shared("mlp.shared_expert") | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
    ),
    "olmoe": Architecture(ROUTED, options=with_biases),
    "glm4moe": Architecture(
        ROUTED
        | _shared("mlp.shared_experts")
        | {"post_attention_norm": "post_attention_layernorm"},
        {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        partial=True,
        options=_glm,
    ),
    "lfm2": Architecture(LFM, final_norm=LFM_NORM, options=_lfm),
    "lfm2moe": Architecture(
        LFM
        | {f"ffn_{n}_exps": f"feed_forward.experts.{n}" for n in experts.MATRICES}
        | {"ffn_gate_inp": "feed_forward.gate"},
        {"exp_probs_b.bias": "feed_forward.expert_bias"},
        final_norm=LFM_NORM,
        options=_lfm,
    ),
}
