"""DFlash's block as a kind of drafter: how it is created, stored, imported and trained."""

from __future__ import annotations

from typing import Any

from longdraft.drafters.checkpoint import ModuleKind
from longdraft.drafters.dflash.block import DFlashBlock, random_dflash, taps
from longdraft.drafters.kind import Layout, Training
from longdraft.drafters.released import TABLES, Names, Released, original, renamed
from longdraft.drafters.rotations import released_ropes
from longdraft.errors import InputError
from longdraft.models.lm import LM

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
LAYER = {
    **{f"{p}_proj": f"self_attn.{p}_proj" for p in "qkvo"},
    **{f"{p}_norm": f"self_attn.{p}_norm" for p in "qk"},
    **{f"{p}_proj": f"mlp.{p}_proj" for p in ("gate", "up", "down")},
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}
# Fields that change the computation in ways that the block does not support, with the values that
# change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "conv_kernel_size": (None, 0),
    "selector_rank": (None, 0),
    "markov_rank": (None, 0),
    "output_multiplier": (None, 1),
    "input_embedding_scale": (None, 1),
    "final_logit_softcapping": (None, 0),
    "hidden_act": (None, "silu"),
    "sample_from_anchor": (None, False),
    "shift_label": (None, False),
    "projector_type": (None, "dflash"),
}
WINDOW = 2048  # of a release with full attention, whose memory would grow with the context


def _build(target: LM, shape: dict[str, Any]) -> DFlashBlock:
    block = DFlashBlock(shape)
    layers = target.depth
    if len(block.mask) != target.config.hidden_size or not all(
        0 <= n <= layers for n in block.taps
    ):
        raise ValueError(
            f"a block of width {len(block.mask)} on states after layers {block.taps} is "
            "not this target's"
        )
    if block.slots < 2 or block.window < 1:
        raise ValueError(
            f"a block of {block.slots} slots that sees {block.window} positions cannot draft"
        )
    return block


def _read(source: Released, target: LM) -> DFlashBlock | None:
    """z-lab/*-DFlash-*, or as `speculators` writes it: `fc` and `hidden_norm` for the features,
    Qwen3 layers, `norm`; tables are the target's.
    """
    if "hidden_norm.weight" not in source or "layers.0.self_attn.q_norm.weight" not in source:
        return None
    c = _fields(source)
    odd = next((k for k, plain in UNSUPPORTED.items() if c.get(k) not in plain), None)
    if odd:
        raise InputError(
            f"{source.folder} was made with {odd}={c[odd]}, which longdraft's DFlash does "
            "not support"
        )
    known = c.get("draft_vocab_size") or target.vocab
    if "d2t" in source or known != target.vocab:
        fault = (
            f"drafts from {known} of the target's tokens, which longdraft's DFlash does not support"
        )
        raise InputError(f"{source.folder} {fault}: give one with the whole vocabulary")
    block = _build(target, _shape(source, target, c))
    source.check_tables(target)
    mask = c.get("mask_token_id")
    if not isinstance(mask, int) or not 0 <= mask < target.vocab:
        raise InputError(
            f"{source.folder}: its mask token is {mask}; give a target that has one (0 to "
            f"{target.vocab})"
        )
    table = target.hf.get_input_embeddings()(
        target.hf.get_input_embeddings().weight.new_tensor([mask]).long()
    )
    block.mask.data.copy_(table[0])
    return source.fill(block, _names(block), TABLES, {"mask"})


def _fields(source: Released) -> dict[str, Any]:
    """All fields by z-lab's names. `speculators` counts a state by the layers before it, z-lab by
    the one before it.
    """
    c = (
        source.config
        | source.config.get("transformer_layer_config", {})
        | source.config.get("dflash_config", {})
    )
    if ids := c.get("aux_hidden_state_layer_ids"):
        c["target_layer_ids"] = [n - 1 for n in ids]
    return c | ({"is_causal": False} if c.get("sliding_window_non_causal") else {})


def _export(block: DFlashBlock, target: LM) -> Layout:
    """Every layer slides, since ours do, unless causal and other layers are mixed: then the causal
    ones.
    """
    if block.vocabulary is not None:
        raise InputError(
            "it drafts some of the target's tokens, which the layout of `speculators` has "
            "no place for"
        )
    shape = dict(block.shape)
    mixed = len(set(block.causal)) > 1
    slides = [causal or not mixed for causal in block.causal]
    del shape["taps"], shape["causal"], shape["slots"], shape["window"]
    fixed = {"model_type": "qwen3", "num_hidden_layers": len(block.causal), "hidden_act": "silu"}
    fixed |= {"vocab_size": target.vocab, "tie_word_embeddings": False}
    sliding: dict[str, Any] = {"use_sliding_window": True, "sliding_window": block.window}
    sliding["layer_types"] = [
        "sliding_attention" if slide else "full_attention" for slide in slides
    ]
    config = {
        "architectures": ["DFlashDraftModel"],
        "draft_vocab_size": target.vocab,
        "block_size": block.slots,
        "aux_hidden_state_layer_ids": block.taps,
        "mask_token_id": _mask_token(block, target),
        "sliding_window_non_causal": not any(block.causal),
        "sample_from_anchor": False,
        "target_hidden_size": None,
        "transformer_layer_config": shape | fixed | sliding,
    }
    return Layout(original(block, _names(block)), config, drafted=block.slots - 1)


def _mask_token(block: DFlashBlock, target: LM) -> int:
    """The token whose embedding the mask is. Raises InputError."""
    table = target.hf.get_input_embeddings().weight
    mask = block.mask
    for form in (table, table.bfloat16()):  # it was imported beside a target in one of these dtypes
        if len(matches := (form.to(mask.dtype) == mask).all(1).nonzero()):
            return int(matches[0, 0])
    why = (
        "its mask is a separate embedding, and `speculators` takes that of one of the target's "
        "tokens"
    )
    raise InputError(f"{why}: this block cannot be written in its layout")


def _names(block: DFlashBlock) -> Names:
    places = {
        f"layers.{n}.{ours}": f"layers.{n}.{theirs}"
        for n in range(len(block.layers))
        for ours, theirs in LAYER.items()
    }
    return renamed(
        block, places | {"fuse": "fc", "feature_norm": "hidden_norm", "norm_out": "norm"}
    )


def _shape(source: Released, target: LM, c: dict[str, Any]) -> dict[str, Any]:
    """The block's shape from the release's config. Raises InputError for what the block does not
    support.
    """
    missing = next((k for k in (*SIZES, "block_size") if k not in c), None)
    if missing:
        raise InputError(
            f"{source.folder}/config.json lacks {missing}: download it with the drafter's "
            "own config"
        )
    layers = target.depth
    for name, theirs, given in (
        ("hidden_size", c["hidden_size"], target.config.hidden_size),
        ("num_target_layers", c.get("num_target_layers", layers), layers),
    ):
        if theirs != given:
            fault = f"its {name} is {theirs}, the target's is {given}"
            raise InputError(
                f"{source.folder}: {fault}: give the target that it was trained for (-m)"
            )
    read = [
        n + 1
        for n in c.get("target_layer_ids") or (n - 1 for n in taps(layers, c["num_hidden_layers"]))
    ]
    if not all(0 < n < layers for n in read):  # Transformers' state after the last layer is normed
        raise InputError(
            f"{source.folder} reads states after layers {read}; longdraft supports 1 to "
            f"{layers - 1}"
        )
    sliding, causal = _attention(source, c)
    heads = c["num_attention_heads"]
    return {
        **{k: c[k] for k in SIZES if k != "num_hidden_layers"},
        "num_key_value_heads": c.get("num_key_value_heads") or heads,
        "head_dim": c.get("head_dim") or c["hidden_size"] // heads,
        "rms_norm_eps": float(c.get("rms_norm_eps", 1e-6)),
        "rope_parameters": released_ropes(source, c),
        "max_position_embeddings": c.get("max_position_embeddings", 2048),
        "attention_bias": "layers.0.self_attn.q_proj.bias" in source,
        "taps": read,
        "causal": causal,
        "slots": int(c["block_size"]),
        "window": sliding,
    }


def _attention(source: Released, c: dict[str, Any]) -> tuple[int, list[bool]]:
    """The window, and which layers are causal inside the block: as released, those that slide
    unless it is stated.
    """
    count = c["num_hidden_layers"]
    types = c.get("layer_types") or ["full_attention"] * count
    odd = next(
        (kind for kind in types if kind not in ("full_attention", "sliding_attention")), None
    )
    if odd or len(types) != count:
        fault = f"{odd} layers" if odd else f"{len(types)} layer_types for {count} layers"
        raise InputError(f"{source.folder} has {fault}, which longdraft's DFlash does not support")
    sliding = [kind == "sliding_attention" for kind in types]
    stated = c.get("is_causal", c.get("causal"))
    window = int(c.get("sliding_window") or WINDOW) if any(sliding) else WINDOW
    return window, sliding if stated is None else [bool(stated)] * count


DFLASH = ModuleKind(
    name="dflash",
    title="a block of DFlash",
    weights=DFlashBlock,
    random=random_dflash,
    options_of=lambda block: {"shape": block.shape},
    build=_build,
    importer=_read,
    exporter=_export,
    training=Training(
        "dflash",
        "Train DFlash's block, which drafts in one pass.",
        "longdraft.drafters.dflash.objective:objective",
    ),
)
