"""The architectures of GGUF files: what each has that a Llama lacks, and what converters
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from longdraft.models.gguf import arguments, experts, gemma3, hybrids, latents, mixtures
from longdraft.models.gguf.arguments import Given
from longdraft.models.gguf.file import GGUF
from longdraft.models.gguf.joined import DELTA_NET, HALVES, LATENTS, InParts

Options = Callable[[GGUF, str, Given], Given]

IN_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{n}": f"self_attn.{n}_proj" for n in "qkv"},
    **{f"attn_{n}_norm": f"self_attn.{n}_norm" for n in "qk"},
    "attn_output": "self_attn.o_proj",
    **{f"ffn_{n}": f"mlp.{n}_proj" for n in ("gate", "up", "down")},
}
TOP: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
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
LFM_NORM = {"token_embd_norm": "model.embedding_norm"}
GLM = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}


def _shared(module: str) -> dict[str, str]:
    """Names of an MLP that all nodes go through."""
    return {f"ffn_{n}_shexp": f"{module}.{n}_proj" for n in experts.MATRICES}


MAMBA = {"in": "in_proj", "conv1d": "conv1d", "norm": "norm", "out": "out_proj"}
LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
}
QUERY_NORMS = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
BEHIND_ATTENTION = {"post_attention_norm": "post_attention_layernorm"}
SHARED_HALVES = {
    "ffn_gate_shexp": "shared_mlp.input_linear.gate",
    "ffn_up_shexp": "shared_mlp.input_linear.up",
    "ffn_down_shexp": "shared_mlp.output_linear",
}
GRANITE_EXPERTS = SHARED_HALVES | {
    **{f"ffn_{n}_exps": f"block_sparse_moe.experts.{n}" for n in experts.MATRICES},
    "ffn_gate_inp": "block_sparse_moe.router",
}
GRANITE_JOINED = {"shared_mlp.input_linear": HALVES}


def _mamba(module: str) -> dict[str, str]:
    """Names of what Mamba-2 or a delta net has, in a module of this name."""
    return {f"ssm_{n}": f"{module}.{theirs}" for n, theirs in MAMBA.items()}


def _state_tensors(module: str) -> dict[str, str]:
    """The same of tensors that are not called weight or bias."""
    return {"ssm_dt.bias": f"{module}.dt_bias", "ssm_a": f"{module}.A_log", "ssm_d": f"{module}.D"}


@dataclass(frozen=True)
class FileArchitecture:
    """names: of a layer's modules by those of the file's parts, beside and in place of IN_LAYER's.
    tensors: of a layer's parameters by those of the file's tensors, where the endings differ.
    top: names of modules that are in no layer, beside and in place of TOP's. joined: matrices whose
    rows a file has in several tensors, by the ends of their names.

    turned: rows of queries and keys lie so that numbers which are rotated together are side by
    side. tiled: the first value head of every key head comes before the second of any. minus_one:
    norms of the file are those of the model plus 1, except those that end with `own_norm`.
    with_windows: its options read a sliding window. partial: they read how many numbers of a head
    are rotated. uneven: its first layer may lack attention or an MLP, or have other shapes.
    own_heads: its options read the sizes of heads. by_multiplier: what YaRN's multiplier of its
    files is multiplied with.
    others: model_types that its files may have beside the one of `families.py`, which
    family(file, kind) tells apart. like: another architecture, of whose family it is.
    options(file, kind, given): arguments of its config, from those that a Llama's would have.
    """

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    tensors: Mapping[str, str] = field(default_factory=dict[str, str])
    top: Mapping[str, str] = field(default_factory=dict[str, str])
    joined: Mapping[str, InParts] = field(default_factory=dict[str, InParts])
    turned: bool = False
    tiled: bool = False
    minus_one: bool = False
    own_norm: str = " "
    with_windows: bool = False
    partial: bool = False
    uneven: bool = False
    own_heads: bool = False
    by_multiplier: float | None = None
    others: tuple[str, ...] = ()
    family: Callable[[GGUF, str], str] | None = None
    like: str | None = None
    options: Options = arguments.unchanged

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


SHARED_EXPERT = _shared("mlp.shared_expert") | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
DELTA_NETS = _mamba("linear_attn") | {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
}
DELTA_NETS_JOINED = _mamba("linear_attn") | {
    "attn_qkv": "linear_attn.in_proj_qkvz.qkv",
    "attn_gate": "linear_attn.in_proj_qkvz.z",
    "ssm_ba": "linear_attn.in_proj_ba",
}
QWEN35: dict[str, Any] = {
    "tensors": _state_tensors("linear_attn"),
    "tiled": True,
    "minus_one": True,
    "own_norm": "linear_attn.norm.weight",
    "partial": True,
    "uneven": True,
    "options": hybrids.qwen_hybrid,
}
NEMOTRON = (
    {"attn_norm": "norm", "attn_output": "mixer.o_proj"}
    | {f"attn_{n}": f"mixer.{n}_proj" for n in "qkv"}
    | {f"ffn_{n}": f"mixer.{n}_proj" for n in ("up", "down")}
    | _mamba("mixer")
)
NEMOTRON_EXPERTS = {
    **{f"ffn_{n}_exps": f"mixer.experts.{n}" for n in ("up", "down")},
    **{f"ffn_{n}_shexp": f"mixer.shared_experts.{n}_proj" for n in ("up", "down")},
    "ffn_gate_inp": "mixer.gate",
}
NEMOTRON_HYBRID: dict[str, Any] = {
    "top": {"token_embd": "model.embeddings", "output_norm": "model.norm_f"},
    "uneven": True,
    "own_heads": True,
    "options": hybrids.nemotron_hybrid,
}
ARCHITECTURES: Mapping[str, FileArchitecture] = {
    "llama": FileArchitecture(
        ROUTED,
        turned=True,
        others=("mixtral",),
        family=mixtures.mixtral_or_llama,
        options=arguments.with_biases,
    ),
    "qwen2": FileArchitecture(),
    "qwen3": FileArchitecture(options=arguments.with_biases),
    "granite": FileArchitecture(turned=True, options=arguments.granite),
    "smollm3": FileArchitecture(turned=True, options=arguments.with_biases),
    "seed_oss": FileArchitecture(BEHIND_ATTENTION, options=arguments.seed),
    "olmo2": FileArchitecture(
        BEHIND,
        with_windows=True,
        others=("olmo3",),
        family=arguments.olmo_family,
        options=arguments.olmo,
    ),
    "exaone4": FileArchitecture(BEHIND, with_windows=True, options=arguments.exaone),
    "glm4": FileArchitecture(GLM, partial=True, options=arguments.glm),
    "ernie4_5": FileArchitecture(options=arguments.ernie),
    "command-r": FileArchitecture(options=arguments.cohere),
    "cohere2": FileArchitecture(with_windows=True, options=arguments.cohere),
    "starcoder2": FileArchitecture(UNGATED, with_windows=True, options=arguments.starcoder),
    "phi3": FileArchitecture(JOINED, with_windows=True, partial=True, options=arguments.phi),
    "gemma2": FileArchitecture(GEMMA, minus_one=True, with_windows=True, options=arguments.gemma2),
    gemma3.KIND: FileArchitecture(GEMMA, minus_one=True, with_windows=True, options=gemma3.options),
    mixtures.QWEN: FileArchitecture(ROUTED, options=arguments.with_biases),
    mixtures.OSS: FileArchitecture(
        ROUTED | BEHIND_ATTENTION | {"ffn_gate_inp": "mlp.router"},
        {"attn_sinks.weight": "self_attn.sinks"},
        with_windows=True,
        options=arguments.oss,
    ),
    "qwen2moe": FileArchitecture(ROUTED | SHARED_EXPERT),
    "olmoe": FileArchitecture(ROUTED, options=arguments.with_biases),
    "glm4moe": FileArchitecture(
        ROUTED | _shared("mlp.shared_experts") | BEHIND_ATTENTION,
        {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        partial=True,
        options=arguments.glm,
    ),
    "lfm2": FileArchitecture(LFM, top=LFM_NORM, options=hybrids.lfm),
    "lfm2moe": FileArchitecture(
        LFM
        | {f"ffn_{n}_exps": f"feed_forward.experts.{n}" for n in experts.MATRICES}
        | {"ffn_gate_inp": "feed_forward.gate"},
        {"exp_probs_b.bias": "feed_forward.expert_bias"},
        top=LFM_NORM,
        options=hybrids.lfm,
    ),
    "dots1": FileArchitecture(
        ROUTED | _shared("mlp.shared_experts"),
        {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        options=arguments.with_biases,
    ),
    "ernie4_5-moe": FileArchitecture(
        ROUTED | _shared("mlp.shared_experts"),
        {"exp_probs_b.bias": "mlp.gate.moe_statics.e_score_correction_bias"},
        options=arguments.ernie,
    ),
    "minimax-m2": FileArchitecture(
        ROUTED,
        {"exp_probs_b.bias": "mlp.e_score_correction_bias"},
        partial=True,
        options=arguments.partial,
    ),
    "hunyuan-dense": FileArchitecture(QUERY_NORMS, options=arguments.with_biases),
    "hunyuan-moe": FileArchitecture(
        ROUTED | QUERY_NORMS | _shared("mlp.shared_mlp") | {"ffn_gate_inp": "mlp.gate.wg"},
        options=arguments.with_biases,
    ),
    "nemotron": FileArchitecture(minus_one=True, partial=True, options=arguments.nemotron),
    "mistral3": FileArchitecture(turned=True, by_multiplier=1.0, options=arguments.ministral),
    "granitemoe": FileArchitecture(
        GRANITE_EXPERTS,
        joined=GRANITE_JOINED,
        turned=True,
        others=("granitemoeshared",),
        family=mixtures.granite_family,
        options=arguments.granite,
    ),
    "granitehybrid": FileArchitecture(
        GRANITE_EXPERTS
        | {name.removesuffix("_shexp"): module for name, module in SHARED_HALVES.items()}
        | _mamba("mamba"),
        _state_tensors("mamba"),
        joined=GRANITE_JOINED,
        turned=True,
        uneven=True,
        options=hybrids.granite_hybrid,
    ),
    "nemotron_h": FileArchitecture(NEMOTRON, _state_tensors("mixer"), **NEMOTRON_HYBRID),
    "nemotron_h_moe": FileArchitecture(
        NEMOTRON | NEMOTRON_EXPERTS,
        _state_tensors("mixer") | {"exp_probs_b.bias": "mixer.gate.e_score_correction_bias"},
        like="nemotron_h",
        **NEMOTRON_HYBRID,
    ),
    "qwen3next": FileArchitecture(
        ROUTED | SHARED_EXPERT | BEHIND_ATTENTION | DELTA_NETS_JOINED,
        _state_tensors("linear_attn"),
        joined={"linear_attn.in_proj_qkvz": DELTA_NET},
        minus_one=True,
        own_norm="linear_attn.norm.weight",
        partial=True,
        uneven=True,
        options=hybrids.qwen_hybrid,
    ),
    "qwen35": FileArchitecture(BEHIND_ATTENTION | DELTA_NETS, **QWEN35),
    "qwen35moe": FileArchitecture(ROUTED | SHARED_EXPERT | BEHIND_ATTENTION | DELTA_NETS, **QWEN35),
    "deepseek2": FileArchitecture(
        ROUTED
        | LATENT
        | _shared("mlp.shared_experts")
        | {f"attn_{n}_b": f"self_attn.kv_b_proj.{n}" for n in "kv"},
        {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        joined={"self_attn.kv_b_proj": LATENTS},
        uneven=True,
        own_heads=True,
        by_multiplier=10.0,
        others=("deepseek_v2",),
        family=mixtures.latent_family,
        options=latents.latent,
    ),
    "minicpm3": FileArchitecture(
        LATENT | {"attn_kv_b": "self_attn.kv_b_proj"},
        uneven=True,
        own_heads=True,
        options=latents.minicpm,
    ),
}
