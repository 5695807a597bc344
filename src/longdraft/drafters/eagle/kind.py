"""EAGLE's layers as kinds of drafters: how they are created, stored, imported and trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from longdraft.drafters.checkpoint import ModuleKind
from longdraft.drafters.eagle.block import (
    Eagle2Block,
    Eagle3Block,
    EagleBlock,
    random_eagle2,
    random_eagle3,
)
from longdraft.drafters.kind import Layout, Training
from longdraft.drafters.released import TABLES, Names, Released, original, renamed
from longdraft.drafters.rotations import released_ropes
from longdraft.errors import InputError
from longdraft.models.lm import LM

PREFIXES = ("layers.0", "midlayer")  # EAGLE-2, or EAGLE-3 as `speculators` writes it; EAGLE-3
LAYER = {
    **{p: f"self_attn.{p}_proj" for p in "qkvo"},
    **{p: f"mlp.{p}_proj" for p in ("gate", "up", "down")},
    "norm_mlp": "post_attention_layernorm",
    "norm_feature": "hidden_norm",
    "norm_token": "input_layernorm",
}
OWN3 = {"fuse": "fc", "norm_out": "norm", "head": "lm_head"}
# Fields that change the computation in ways that the block does not support.
UNSUPPORTED = ("norm_before_fc", "norm_output", "fc_norm", "mlp_bias", "sliding_window")


def _build_eagle2(target: LM, layer: dict[str, Any]) -> Eagle2Block:
    return Eagle2Block(SimpleNamespace(**layer))


def _build_eagle3(target: LM, layer: dict[str, Any], vocab: int) -> Eagle3Block:
    return Eagle3Block(SimpleNamespace(**layer), vocab)


def _version(source: Released) -> int | None:
    if "fc.weight" not in source or not any(
        f"{prefix}.self_attn.q_proj.weight" in source for prefix in PREFIXES
    ):
        return None
    return (
        3
        if "d2t" in source or any(f"{prefix}.hidden_norm.weight" in source for prefix in PREFIXES)
        else 2
    )


def _read_eagle2(source: Released, target: LM) -> Eagle2Block | None:
    if _version(source) != 2:
        return None
    layer = _layer_of(source, target)
    source.check_tables(target)
    block = _build_eagle2(target, layer)
    return source.fill(block, _names(source, block, {"fuse": "fc"}), TABLES)


def _read_eagle3(source: Released, target: LM) -> Eagle3Block | None:
    """Without d2t the drafter has the target's whole vocabulary; t2d is the inverse table."""
    if _version(source) != 3:
        return None
    layer = _layer_of(source, target)
    if (
        "speculators_model_type" in source.config and "norm_before_residual" not in source.config
    ):  # readers disagree
        raise InputError(
            f"{source.folder}/config.json lacks norm_before_residual: download it with its "
            "own config"
        )
    source.check_tables(target, embeddings_only=True)
    ids = source.config.get("eagle_aux_hidden_state_layer_ids")
    layers = Eagle3Block.captured_layers(target.depth)
    if ids and list(ids) != layers:
        raise InputError(
            f"{source.folder} reads states before layers {ids}; longdraft supports those "
            f"before {layers}"
        )
    block = _build_eagle3(target, layer, len(source.get("lm_head.weight")))
    names = _names(source, block, OWN3)
    if "d2t" not in source and block.known != target.vocab:
        raise InputError(
            f"{source.folder} lacks d2t, which maps its {block.known} tokens to the target's"
        )
    if "d2t" in source:
        names["d2t"] = "d2t"
    source.fill(block, names, {"embed_tokens.weight", "t2d"}, {"d2t"} - names.keys())
    _check_vocabulary(source, block)
    return block


def _check_vocabulary(source: Released, block: Eagle3Block) -> None:
    """Raises InputError unless a release says in all places that these tokens can be drafted."""
    said = source.config.get("draft_vocab_size") or block.known
    if said != block.known:
        fault = f"{block.known} rows in lm_head for a draft_vocab_size of {said}"
        raise InputError(f"{source.folder} has {fault}: download it again")
    if "t2d" in source and not torch.equal(
        source.get("t2d").nonzero()[:, 0], block.tokens.sort().values
    ):
        raise InputError(
            f"{source.folder}: its d2t and t2d name different tokens: download it again"
        )


def _export_eagle3(block: Eagle3Block, target: LM) -> Layout:
    """The layer is written as layers.0, with the target's embeddings beside it, as `speculators`
    does.
    """
    layer = dict(block.layer)
    tokens = block.tokens.cpu()
    if layer.pop("qkv_bias"):
        fault = "its q, k and v have biases, which `speculators` only has together with one of o"
        raise InputError(f"{fault}: this layer cannot be written in its layout")
    normed = layer.pop("norm_before_residual")
    fixed = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    weights = original(block, renamed(block, _places("layers.0") | OWN3))
    if not torch.equal(tokens, torch.arange(target.vocab)):
        known = torch.zeros(target.vocab, dtype=torch.bool).index_fill(0, tokens, True)
        weights |= {"d2t": block.d2t, "t2d": known}
    weights["embed_tokens.weight"] = target.hf.get_input_embeddings().weight.to(
        block.o.weight.dtype
    )
    config = {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": block.known,
        "norm_before_residual": normed,
        "norm_before_fc": False,
        "embed_requires_grad": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": block.captured_layers(target.depth),
        "transformer_layer_config": layer | fixed | {"attention_bias": False, "mlp_bias": False},
    }
    return Layout(weights, config, drafted=5)


def _places(prefix: str) -> dict[str, str]:
    return {ours: f"{prefix}.{theirs}" for ours, theirs in LAYER.items()}


def _names(source: Released, block: EagleBlock, own: dict[str, str]) -> Names:
    prefix = "midlayer" if "midlayer.self_attn.q_proj.weight" in source else "layers.0"
    return renamed(block, _places(prefix) | own)


def _layer_of(source: Released, target: LM) -> dict[str, Any]:
    """The layer's config as EagleBlock takes it. Raises InputError for what the block does not
    support.
    """
    c = source.config | source.config.get("transformer_layer_config", {})
    used = (
        k
        for k in UNSUPPORTED
        if c.get(k) and (k != "sliding_window" or c.get("use_sliding_window", True))
    )
    odd = next(used, None)
    if odd or c.get("hidden_act", "silu") != "silu":
        setting = f"{odd}={c[odd]}" if odd else f"hidden_act={c['hidden_act']}"
        raise InputError(
            f"{source.folder} was made with {setting}, which longdraft's EAGLE layer does "
            "not support"
        )
    missing = next(
        (k for k in ("hidden_size", "intermediate_size", "num_attention_heads") if k not in c), None
    )
    if missing:
        raise InputError(
            f"{source.folder}/config.json lacks {missing}: download it with the drafter's "
            "own config"
        )
    if c["hidden_size"] != target.config.hidden_size:
        sizes = (
            f"its hidden_size is {c['hidden_size']}, the target's is {target.config.hidden_size}"
        )
        raise InputError(f"{source.folder}: {sizes}: give the target that it was trained for (-m)")
    return c | {
        "rms_norm_eps": float(c.get("rms_norm_eps", 1e-6)),
        "rope_parameters": released_ropes(source, c),
        "vocab_size": target.vocab,
        "qkv_bias": any(n.endswith("self_attn.q_proj.bias") for n in source.places),
        "fuse_bias": "fc.bias" in source,
    }


EAGLE2 = ModuleKind(
    name="eagle2",
    title="a layer of EAGLE-2",
    weights=Eagle2Block,
    random=random_eagle2,
    options_of=lambda block: {"layer": block.layer},
    build=_build_eagle2,
    importer=_read_eagle2,
)
EAGLE3 = ModuleKind(
    name="eagle3",
    title="a layer of EAGLE-3",
    weights=Eagle3Block,
    random=random_eagle3,
    options_of=lambda block: {"layer": block.layer, "vocab": block.known},
    build=_build_eagle3,
    importer=_read_eagle3,
    exporter=_export_eagle3,
    training=Training(
        "eagle",
        "Train an EAGLE-3 layer on its own outputs.",
        "longdraft.drafters.eagle.objective:objective",
    ),
)
