"""Finds the description of an MLP of experts in its modules; see describe.py."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from longdraft.backends.decoder_layer import ExpertsMLP, GatedMLP, Linear
from longdraft.backends.describe_parts import PartFinder
from longdraft.backends.known_modules import Unknown, check, class_of, name_of, reads
from longdraft.backends.packed_experts import PackedExperts

# Attributes that are read below, or change nothing in a pass without gradients.
OF_SPARSE_MLP = {
    *("config", "top_k", "jitter_noise", "hidden_dim", "num_experts", "input_size"),
    *("enable_moe_fp32_combine", "routed_scaling_factor", "use_expert_bias", "num_shared_experts"),
    "shared_expert_combination_strategy",
}
OF_ROUTER = {
    *("config", "top_k", "num_experts", "norm_topk_prob", "hidden_dim", "norm_min"),
    *("routed_scaling_factor", "router_scaling_factor", "num_group", "topk_group", "layer_idx"),
    *("router_logit_softcapping", "use_expert_bias", "expert_selection_fn", "route_scale"),
    "topk_method",
}
OF_EXPERTS = {
    *("config", "num_experts", "hidden_size", "hidden_dim", "intermediate_size"),
    *("intermediate_dim", "alpha", "limit", "is_transposed", "is_concatenated"),
    *("has_gate", "has_bias", "has_post_expert_norm", "act_fn"),
}
CORRECTION = "e_score_correction_bias"
CORRECTIONS = (CORRECTION, "expert_bias")
SHARED = ("shared_expert", "shared_experts", "shared_mlp")
SCALES = ("routed_scaling_factor", "router_scaling_factor", "route_scale")
MATRICES = ("wg", "gate")  # of routers that have a linear layer
GATE = "shared_expert_gate"
OUTPUT_NORM = "post_mlp_layernorm"  # which some have inside; see Finder.layer
OF_STACKED_MLP = {"top_k", "moe_normalize_expert_weights"}
OF_STACKED_ROUTER = {"hidden_size", "moe_jitter_eps"}
OF_STACKED = {"hidden_size", "ffn_hidden_size", "num_experts", "moe_num_experts"}
UNCHANGED = ("fc1_latent_proj", "fc2_latent_proj")  # what experts read and return, if identities


def experts_of(finder: PartFinder, module: Any) -> ExpertsMLP:
    """The description of this MLP. Raises Unknown."""
    if hasattr(module.experts, "mlp"):
        return _stacked(finder, module)
    family = finder.family
    name = "router" if hasattr(module, "router") else "gate"
    known = {*SHARED, GATE, *CORRECTIONS, *UNCHANGED, OUTPUT_NORM}
    check(module, class_of(family, family.sparse_mlp), {"experts", name}, OF_SPARSE_MLP, known)
    router = getattr(module, name)
    held_by = module.experts
    packed = isinstance(held_by, PackedExperts)
    inner = held_by.own if packed else held_by
    function = getattr(inner, "act_fn", None)
    activations = {"act_fn"} if isinstance(function, nn.Module) else set[str]()
    if any(type(getattr(module, n, None)) not in (nn.Identity, type(None)) for n in UNCHANGED):
        raise Unknown(f"{type(module).__name__} has experts of another width")
    matrices = {_up(inner), "down_proj"}
    biases = {"gate_up_proj_bias", "down_proj_bias"}
    of_router = {"bias", CORRECTION, "moe_statics"}
    named = next((n for n in MATRICES if hasattr(router, n)), None)
    matrix = getattr(router, named) if named else router
    held = {named or "weight"}
    check(router, class_of(family, family.router), held, OF_ROUTER, of_router)
    if named:
        finder.linear(matrix, named, (router.num_experts, finder.config.hidden_size))
    if getattr(router, "router_logit_softcapping", None):
        raise Unknown(f"{type(router).__name__} caps its scores")
    parts = activations if packed else activations | matrices
    check(inner, class_of(family, family.experts), parts, OF_EXPERTS, set() if packed else biases)
    # older versions of Transformers lack them
    layout = ("has_gate", "is_transposed", "is_concatenated")
    if not all(hasattr(inner, attribute) for attribute in layout):
        raise Unknown(f"{type(inner).__name__} does not say how its matrices are stored")
    if getattr(inner, "has_post_expert_norm", False):
        raise Unknown(f"{type(inner).__name__} normalizes its outputs")
    if (function is not None) == hasattr(inner, "limit"):
        raise Unknown(f"{type(inner).__name__} has no activation, or two")
    scoring = _scoring(router)
    groups, bests = _groups(router)
    return ExpertsMLP(
        router=matrix.weight,
        router_bias=getattr(matrix, "bias", None),
        count=router.num_experts,
        chosen=router.top_k,
        scoring=scoring,
        normalized=_normalized(router),
        share_scale=_share_scale(module, router),
        shared_scale=_shared_scale(module),
        correction=_correction(module, router),
        corrects_scores=family.corrects_scores,
        groups=groups,
        chosen_groups=router.topk_group if groups > 1 else 1,
        group_bests=bests,
        **_matrices(held_by),
        activation="clamped" if function is None else _name_of(function),
        limit=getattr(inner, "limit", None),
        slope=getattr(inner, "alpha", 1.0),
        shared=_shared(finder, module),
        shared_gate=_shared_gate(finder, module),
    )


def _groups(router: Any) -> tuple[int, int]:
    """How many groups of experts there are, and how many of each are added up to choose some."""
    method = getattr(router, "topk_method", None)
    if method == "greedy":
        return 1, 2
    if method not in (None, "group_limited_greedy"):
        raise Unknown(f"{type(router).__name__} chooses experts by {method}")
    return getattr(router, "num_group", None) or 1, 2 if method is None else 1


def _stacked(finder: PartFinder, module: Any) -> ExpertsMLP:
    """Experts whose rows lie one after the other in matrices of gates, up and down."""
    family, router, experts = finder.family, module.router, module.experts
    check(module, class_of(family, family.sparse_mlp), {"router", "experts"}, OF_STACKED_MLP)
    check(router, class_of(family, family.router), {"layer"}, OF_STACKED_ROUTER)
    check(experts, class_of(family, family.experts), {"mlp"}, OF_STACKED)
    held, count = experts.mlp, experts.num_experts
    parts = {"w1", "v1", "w2", "activation_fn"}
    check(held, class_of(family, family.expert_matrices), parts, OF_STACKED)
    power = module.moe_normalize_expert_weights
    if power not in (None, 1):
        raise Unknown(f"{type(module).__name__} divides its shares by a norm of power {power}")
    scores = finder.linear(router.layer, "layer", (count, finder.config.hidden_size)).module
    gate, up, down = (x.unflatten(0, (count, -1)) for x in (held.w1, held.v1, held.w2))
    return ExpertsMLP(
        router=scores.weight,
        router_bias=scores.bias,
        count=count,
        chosen=module.top_k,
        normalized=power is not None,
        gate_up=(gate, up),
        down=down.mT,
        activation=name_of(held.activation_fn),
    )


def _matrices(experts: Any) -> dict[str, Any]:
    """The fields of a description that say where its matrices lie."""
    if isinstance(experts, PackedExperts):
        gated = experts.gate is not None
        first = (experts.gate, experts.up) if gated else experts.up
        return {"gate_up": first, "gated": gated, "down": experts.down}
    return {
        "gate_up": getattr(experts, _up(experts)),
        "gated": experts.has_gate,
        "gate_up_bias": getattr(experts, "gate_up_proj_bias", None),
        "down": experts.down_proj,
        "down_bias": getattr(experts, "down_proj_bias", None),
        "transposed": experts.is_transposed,
        "interleaved": not experts.is_concatenated,
    }


def _up(experts: Any) -> str:
    return "gate_up_proj" if getattr(experts, "has_gate", True) else "up_proj"


def _name_of(function: Any) -> str:
    return "silu" if function is F.silu else name_of(function)


def _scoring(router: Any) -> Literal["softmax", "sigmoid"]:
    read = [name for name in ("softmax", "sigmoid") if reads(router, name)]
    chosen = getattr(router, "expert_selection_fn", None)
    found = read if chosen is None else [name for name in read if name == chosen]
    if len(found) != 1:
        raise Unknown(f"{type(router).__name__} has no shares that are known")
    return "softmax" if found == ["softmax"] else "sigmoid"


def _normalized(router: Any) -> bool:
    """Whether shares of the chosen experts are divided by their sum."""
    # the softmax of the chosen scores alone is that of all, divided by the sum of the chosen
    of_chosen = getattr(router, "expert_selection_fn", None) == "softmax"
    always = not hasattr(router, "topk_method")
    return getattr(router, "norm_topk_prob", always) or of_chosen


def _share_scale(module: Any, router: Any) -> float:
    scales = [getattr(h, x) for h in (router, module) for x in SCALES if hasattr(h, x)]
    if len(scales) > 1:
        raise Unknown(f"{type(module).__name__} has several scales of shares")
    return (scales[0] if scales else 1.0) * _shared_scale(module)


def _shared_scale(module: Any) -> float:
    """By which the outputs of the MLP for all nodes are multiplied, and those of experts too."""
    strategy = getattr(module, "shared_expert_combination_strategy", "sum")
    if strategy not in ("sum", "average"):
        raise Unknown(f"{type(module).__name__} combines its experts by {strategy}")
    shared = any(getattr(module, name, None) is not None for name in SHARED)
    return 0.5 if strategy == "average" and shared else 1.0


def _correction(module: Any, router: Any) -> Tensor | None:
    """The correction of scores where experts are chosen; several classes hold it."""
    holders = (module, router, getattr(router, "moe_statics", None))
    found = [x for h in holders for n in CORRECTIONS if (x := getattr(h, n, None)) is not None]
    if len(found) > 1:
        raise Unknown(f"{type(module).__name__} has several corrections of scores")
    return found[0].flatten() if found else None


def _shared(finder: PartFinder, module: Any) -> GatedMLP | None:
    """The MLP that all nodes go through."""
    found = [x for name in SHARED if (x := getattr(module, name, None)) is not None]
    if not found:
        return None
    if not isinstance(up := getattr(found[0], "up_proj", None), nn.Module):
        raise Unknown(f"{type(found[0]).__name__} has other projections than are known")
    return finder.mlp(found[0], int(getattr(up, "out_features", 0)))


def _shared_gate(finder: PartFinder, module: Any) -> Linear | None:
    gate = getattr(module, GATE, None)
    return None if gate is None else finder.linear(gate, GATE, (1, finder.config.hidden_size))
