"""Tiny random models: one per thing that an architecture can do differently."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import torch
from support import tiny_families
from torch import Tensor
from transformers import (
    ArceeConfig,
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    CwmConfig,
    DeepseekV3Config,
    Dots1Config,
    Ernie4_5_MoeConfig,
    Ernie4_5Config,
    Exaone4Config,
    FlexOlmoConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    Glm4MoeConfig,
    GlmConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    HunYuanMoEV1Config,
    LlamaConfig,
    MiniMaxM2Config,
    MinistralConfig,
    MistralConfig,
    MixtralConfig,
    NemotronConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoeConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SeedOssConfig,
    SmolLM3Config,
    Starcoder2Config,
    VaultGemmaConfig,
)

from longdraft.backends.describe_experts import CORRECTIONS
from longdraft.backends.packed_linear import round_inputs
from longdraft.backends.quantize import quantize
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.drafters import Glide, random_glide
from longdraft.families import GEMMA
from longdraft.models.lm import LM
from longdraft.training import data

BASE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts_per_tok": 2}
SMALL = {**MOE, "moe_intermediate_size": 32}  # experts of this size
GROUPED = {
    **SMALL,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
}
SHARED = {**SMALL, "num_experts": 4, "shared_expert_intermediate_size": 48}
MIXED = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GRANITE = {  # none of which changes anything by default
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
CONFIGS = {
    "llama": LlamaConfig(**BASE),
    "qwen3": Qwen3Config(**BASE),
    "mistral-window": MistralConfig(**BASE, sliding_window=24),
    "gpt-oss": GptOssConfig(
        **{**BASE, "num_hidden_layers": 4}, num_local_experts=4, sliding_window=24, **MOE
    ),
    "qwen3-moe": Qwen3MoeConfig(**BASE, num_experts=4, moe_intermediate_size=32, **MOE),
}
# computed by the native kernels with parts that Llama's layers lack, or other names
DESCRIBED = ["gemma3", "granite", "smollm3", "seed-oss", "cwm", "ministral", "phi3", "glm", "glm4"]
DESCRIBED += ["helium", "ernie", "olmo2", "olmo3", "exaone4", "arcee", "starcoder2", "nemotron"]
DESCRIBED += ["cohere", "cohere2", "vaultgemma"]
if hasattr(GEMMA.modeling, GEMMA.scaled_embeddings[0]):  # older versions scale embeddings elsewhere
    DESCRIBED += ["gemma", "gemma2-softcap"]
EXPERTS = ["mixtral", "qwen2-moe", "olmoe", "flex-olmo", "glm4-moe", "dots1", "ernie-moe"]
EXPERTS += ["minimax-m2", "granite-moe", "hunyuan-moe"]
EXPERTS += tiny_families.there(tiny_families.EXPERTS | tiny_families.LATENT_EXPERTS)
DESCRIBED += [*tiny_families.there(tiny_families.DENSE | tiny_families.LATENTS), *EXPERTS]
# their caches hold latents
LATENTS = list(tiny_families.there(tiny_families.LATENTS | tiny_families.LATENT_EXPERTS))
HYBRIDS = ["qwen3.5", *tiny_families.there(tiny_families.HYBRIDS)]
# what the whole lossless matrix runs on; of the others, single passes and a method or two
MAIN = tuple(CONFIGS)
CONFIGS |= {
    "llama-loops": LlamaConfig(
        **BASE
    ),  # its next token depends on its last one alone, so greedy text runs in circles
    "llama-torch": LlamaConfig(**BASE),  # the same model by the path that needs no compiler
    "qwen3-torch": Qwen3Config(**BASE),
    "llama-mha": LlamaConfig(**{**BASE, "num_key_value_heads": 4}),
    "llama-mqa": LlamaConfig(**{**BASE, "num_key_value_heads": 1, "head_dim": 20}),
    "llama-6of3": LlamaConfig(
        **{**BASE, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
    ),
    "qwen2": Qwen2Config(**BASE),
    "wide": Qwen3Config(
        **{**BASE, "head_dim": 64, "max_position_embeddings": 2048}
    ),  # as wide as matrix tiles want
    "qwen3-mixed": Qwen3Config(**BASE, use_sliding_window=True, **MIXED),
    "gemma2-softcap": Gemma2Config(
        **BASE, **MIXED, query_pre_attn_scalar=16, attn_logit_softcapping=5.0
    ),
    "gemma3": Gemma3TextConfig(**BASE, **MIXED, query_pre_attn_scalar=16),
    "gemma": GemmaConfig(**BASE),
    "granite": GraniteConfig(**BASE, **GRANITE),
    "smollm3": SmolLM3Config(**BASE, no_rope_layers=[1, 0, 1]),
    "seed-oss": SeedOssConfig(**BASE, attention_bias=True, attention_out_bias=True),
    "cwm": CwmConfig(**BASE, **MIXED),
    "ministral": MinistralConfig(**BASE, **MIXED),
    "phi3": Phi3Config(**BASE),
    "glm": GlmConfig(**BASE, attention_bias=True),
    "helium": HeliumConfig(**BASE),
    "ernie": Ernie4_5Config(**BASE, use_bias=True),
    "olmo2": Olmo2Config(**BASE),
    "exaone4": Exaone4Config(**BASE, **MIXED),
    "arcee": ArceeConfig(**BASE),
    "vaultgemma": VaultGemmaConfig(**BASE, query_pre_attn_scalar=16),
    "starcoder2": Starcoder2Config(**BASE, sliding_window=24),
    "nemotron": NemotronConfig(**BASE),
    "cohere": CohereConfig(**BASE),
    "mixtral": MixtralConfig(**BASE, num_local_experts=4, **MOE),
    "qwen2-moe": Qwen2MoeConfig(**BASE, **SHARED, decoder_sparse_step=2),
    "olmoe": OlmoeConfig(**BASE, **MOE, num_experts=4),
    "flex-olmo": FlexOlmoConfig(**BASE, **MOE, num_experts=4),
    "glm4-moe": Glm4MoeConfig(**BASE, **GROUPED, use_qk_norm=True),
    "dots1": Dots1Config(**BASE, **GROUPED, **MIXED),
    "ernie-moe": Ernie4_5_MoeConfig(
        **BASE,
        moe_k=2,
        moe_num_experts=4,
        moe_intermediate_size=32,
        moe_num_shared_experts=1,
        moe_layer_start_index=1,
    ),
    "minimax-m2": MiniMaxM2Config(**BASE, **MOE, num_local_experts=20, rotary_dim=8),
    "hunyuan": HunYuanDenseV1Config(**BASE),
    "hunyuan-moe": HunYuanMoEV1Config(**BASE, num_experts=4, moe_topk=2),
    "granite-moe": GraniteMoeConfig(**BASE, **GRANITE, **MOE, num_local_experts=4),
    "olmo3": Olmo3Config(**BASE, **MIXED),
    "glm4": Glm4Config(**BASE),
    "cohere2": Cohere2Config(**BASE, **MIXED),
    "deepseek": DeepseekV3Config(  # keys and values of different widths
        **{**BASE, "head_dim": 8, "num_key_value_heads": 4},
        **MOE,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        moe_intermediate_size=32,
    ),
}
CONFIGS |= {  # with recurrent layers
    "qwen3.5": Qwen3_5TextConfig(
        **{
            **BASE,
            "num_hidden_layers": 4,
            "max_position_embeddings": 4096,
        },  # for texts beyond its checkpoints
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
    ),
}
CONFIGS["qwen3.5-moe"] = Qwen3_5MoeTextConfig(
    **{**CONFIGS["qwen3.5"].to_dict(), **SHARED, "model_type": "qwen3_5_moe_text"}
)
for rows in tiny_families.ALL:
    CONFIGS |= tiny_families.there(rows)
# for texts beyond a drafter's window and a state's checkpoints
CONFIGS["qwen3.5-long"] = deepcopy(CONFIGS["qwen3.5"])
CONFIGS["qwen3.5-long"].max_position_embeddings = 4096


# inputs in 8 bits
A8 = ("llama-torch-a8", "qwen3-a8", "mistral-window-a8", "qwen3-moe-a8", "gpt-oss-a8")
# the same of projections side by side in one layer
JOINED_A8 = ("phi3-a8", "glm4-a8")
JOINED_A8 += tuple(f"{n}-a8" for n in ("gpt-neox", "granite-hybrid-dense") if n in CONFIGS)
A8 += (*JOINED_A8, *(f"{n}-a8" for n in ("lfm2", "lfm3") if n in CONFIGS))
# keys and values in 8 bits
KV8 = (
    "llama-torch-kv8",
    "qwen3-kv8",
    "gpt-oss-kv8",
    "mistral-window-kv8",
    "qwen2-kv8",
)
# parameters of one dimension that show nothing with the values that they begin with
WEIGHED = tuple(f"{part}_layernorm.weight" for part in ("query", "key", "q_a", "kv_a"))
VARIED = ("alpha_p", "alpha_n", "dt_bias", "conv1d.bias", "mamba.norm.weight", "mixer.norm.weight")
VARIED += ("o_norm.weight",)
STD = {"embed_tokens": 1.0, "o_proj": 0.06}


MADE: dict[str, tuple[PreTrainedModel, Tensor]] = {}  # and the state of torch's generator then


@torch.inference_mode(
    False
)  # models are shared: one made in a test that needs no gradients serves all
def stock(name: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes):
    """A random Transformers model whose next tokens are neither constant nor uniform: a copy, which
    a test may change.

    changes: of the configuration.

    Attention matters, but not so much that a draft under a sparse view is never right.
    """
    wanted = repr((name, seed, dtype, changes, CONFIGS[name].to_dict()))
    if wanted not in MADE:
        MADE[wanted] = _made(name, seed, dtype, changes), torch.get_rng_state()
    model, state = MADE[wanted]
    torch.set_rng_state(state)  # whether or not it was made before
    return deepcopy(model)


def _made(name: str, seed: int, dtype: torch.dtype, changes: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = deepcopy(CONFIGS[name])
    config.update(changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for key, p in model.named_parameters():
        if p.dim() > 1 or key.endswith("sinks"):
            torch.nn.init.normal_(p, std=STD.get(key.split(".")[-2], 0.25))
        if ("gemma" in name or name in ("nemotron", "qwen3-next")) and key.endswith("norm.weight"):
            torch.nn.init.normal_(p, std=0.25)  # added to one
        if key.endswith("A_log"):
            torch.nn.init.uniform_(p, -6, -3)  # states that remember hundreds of tokens
        if key.endswith(WEIGHED):
            torch.nn.init.normal_(p, 1.0, 0.5)  # norms of equal weights do not show the rotation
        if key.endswith(VARIED):
            torch.nn.init.normal_(p)
        if key.endswith((*CORRECTIONS, "layernorm.bias")):
            torch.nn.init.normal_(p, std=0.1)
        if name == "qwen2" and key.endswith("k_proj.bias"):
            torch.nn.init.normal_(p, std=4.0)
    for key, buffer in model.named_buffers():
        if key.endswith(CORRECTIONS):
            torch.nn.init.normal_(buffer, std=0.1)
    if name == "llama-loops":
        for layer in model.model.layers:
            torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    model.generation_config.eos_token_id = None  # a text has the length that its test asks for
    return model.to(dtype)


@cache
def target(name: str) -> LM:
    """The model of this name. Behind it: "-bf16" for bfloat16; "-kv8" for keys and values in 8
    bits; "-a8" for weights in 4 bits whose inputs have 8.
    """
    wide = name.removesuffix("-bf16")
    stored = wide.removesuffix("-a8")
    plain = stored.removesuffix("-kv8")
    hf = stock(plain, dtype=torch.float32 if wide == name else torch.bfloat16)
    if stored != wide:
        quantize(hf, "int4")
        round_inputs(hf)
    lm = LM(
        hf,
        name,
        kv=None if plain == stored else "int8",
        activations=None if stored == wide else "int8",
    )
    if plain.endswith("-torch"):
        lm.backend = lm.eager
    return lm


@cache
def eager(name: str):
    """The same weights under Transformers' own attention; generates to the length asked for."""
    return stock(name)


def prompts(*lengths: int, seed: int = 0, vocab: int = 96) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab, (n,), generator=g).tolist() for n in lengths]


@torch.no_grad()
def taught_glide(target: LM, seed: int = 0, **options) -> Glide:
    """A random block whose MLP is a table: unit i fires at token i and says what the target says
    after i alone.
    """
    block = random_glide(target, seed, **options)
    tokens = torch.arange(target.vocab)[:, None]
    embedded = block.embed(tokens)[:, 0]
    captured = Captures(CaptureSpec(hidden=(target.config.num_hidden_layers,)))
    target(Tree.root(tokens[:, 0]), target.new_cache(len(tokens), 1), captured=captured)
    wanted = target.norm(captured.states[target.config.num_hidden_layers][:, 0])
    # 8 at its own token, about 1 at any other
    keys = embedded / embedded.norm(dim=-1, keepdim=True)
    block.gate_proj.weight.copy_(4 * keys)
    block.up_proj.weight.copy_(keys)
    said = torch.nn.functional.silu(block.gate_proj(block.mlp_norm(embedded))) * block.up_proj(
        block.mlp_norm(embedded)
    )
    block.down_proj.weight.copy_(
        torch.linalg.lstsq(said.float(), (wanted - embedded).float()).solution.T
    )
    return block


def corpus() -> data.Corpus:
    """Groups of 100 (code), 30 (code) and 400 (book) tokens; a token tells its group by its
    hundreds.
    """
    groups = np.asarray([0, 100, 130, 530])
    tokens = np.concatenate([np.arange(100), 200 + np.arange(30), 300 + np.arange(400)]).astype(
        np.uint16
    )
    return data.Corpus(
        tokens, groups, groups, ["a", "b", "c"], ["a", "b", "c"], ["code", "code", "book"]
    )


class Words:
    """A tokenizer whose tokens are numbers."""

    backend_tokenizer = None

    def decode(self, tokens, **options) -> str:
        return " ".join(map(str, tokens))
