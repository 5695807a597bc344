"""Finds the description of an MLP of experts in its modules; see describe.py."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from longdraft.backends.decoder_layer import ExpertsMLP, GatedMLP, Linear
from longdraft.backends.known_modules import Unknown, check, class_of, name_of, reads
from longdraft.backends.packed_experts import PackedExperts
from longdraft.families import ModelFamily

# Attributes that are read below, or change nothing in a pass without gradients.
OF_SPARSE_MLP = {
    *("config", "top_k", "jitter_noise", "hidden_dim", "num_experts", "input_size"),
    "enable_moe_fp32_combine",
}
OF_ROUTER = {
    *("config", "top_k", "num_experts", "norm_topk_prob", "hidden_dim", "norm_min"),
    *("routed_scaling_factor", "router_scaling_factor", "num_group", "topk_group", "layer_idx"),
}
OF_EXPERTS = {
    *("config", "num_experts", "hidden_size", "hidden_dim", "intermediate_size"),
    *("intermediate_dim", "alpha", "limit", "is_transposed", "is_concatenated"),
    *("has_gate", "has_bias", "has_post_expert_norm"),
}
CORRECTION = "e_score_correction_bias"
SHARED = ("shared_expert", "shared_experts", "shared_mlp")
SCALES = ("routed_scaling_factor", "router_scaling_factor")
GATE = "shared_expert_gate"


class MLPFinder(Protocol):
    """A Finder, which knows other modules."""

    @property
    def family(self) -> ModelFamily: ...

    @property
    def config(self) -> Any: ...

    def mlp(self, module: Any, inner: int | None = None) -> GatedMLP: ...

    def linear(self, module: Any, name: str, shape: tuple[int, int]) -> Linear: ...


def experts_of(finder: MLPFinder, module: Any) -> ExpertsMLP:
    """The description of this MLP. Raises Unknown."""
    family = finder.family
    name = "router" if hasattr(module, "router") else "gate"
    known = {*SHARED, GATE, CORRECTION}
    check(module, class_of(family, family.sparse_mlp), {"experts", name}, OF_SPARSE_MLP, known)
    router = getattr(module, name)
    held_by = module.experts
    packed = isinstance(held_by, PackedExperts)
    inner = held_by.own if packed else held_by
    activations = {"act_fn"} if hasattr(inner, "act_fn") else set[str]()
    matrices = {"gate_up_proj", "down_proj"}
    biases = {"gate_up_proj_bias", "down_proj_bias"}
    of_router = {"bias", CORRECTION, "moe_statics"}
    matrix = getattr(router, "wg", router)
    held = {"weight"} if matrix is router else {"wg"}
    check(router, class_of(family, family.router), held, OF_ROUTER, of_router)
    if matrix is not router:
        finder.linear(matrix, "wg", (router.num_experts, finder.config.hidden_size))
    parts = activations if packed else activations | matrices
    check(inner, class_of(family, family.experts), parts, OF_EXPERTS, set() if packed else biases)
    # older versions of Transformers lack them
    layout = ("has_gate", "is_transposed", "is_concatenated")
    if not all(hasattr(inner, attribute) for attribute in layout):
        raise Unknown(f"{type(inner).__name__} does not say how its matrices are stored")
    if not inner.has_gate or getattr(inner, "has_post_expert_norm", False):
        raise Unknown(f"{type(inner).__name__} has no gates, or normalizes its outputs")
    if bool(activations) == hasattr(inner, "limit"):
        raise Unknown(f"{type(inner).__name__} has no activation, or two")
    scoring = [name for name in ("softmax", "sigmoid") if reads(router, name)]
    if len(scoring) != 1:
        raise Unknown(f"{type(router).__name__} has no shares that are known")
    groups = getattr(router, "num_group", None) or 1
    return ExpertsMLP(
        router=matrix.weight,
        router_bias=getattr(matrix, "bias", None),
        count=router.num_experts,
        chosen=router.top_k,
        scoring="softmax" if scoring == ["softmax"] else "sigmoid",
        normalized=getattr(router, "norm_topk_prob", True),
        share_scale=next((getattr(router, x) for x in SCALES if hasattr(router, x)), 1.0),
        correction=_correction(module, router),
        groups=groups,
        chosen_groups=router.topk_group if groups > 1 else 1,
        **_matrices(held_by),
        activation=name_of(inner.act_fn) if activations else "clamped",
        limit=getattr(inner, "limit", None),
        slope=getattr(inner, "alpha", 1.0),
        shared=_shared(finder, module),
        shared_gate=_shared_gate(finder, module),
    )


def _matrices(experts: Any) -> dict[str, Any]:
    """The fields of a description that say where its matrices lie."""
    if isinstance(experts, PackedExperts):
        return {"gate_up": (experts.gate, experts.up), "down": experts.down}
    return {
        "gate_up": experts.gate_up_proj,
        "gate_up_bias": getattr(experts, "gate_up_proj_bias", None),
        "down": experts.down_proj,
        "down_bias": getattr(experts, "down_proj_bias", None),
        "transposed": experts.is_transposed,
        "interleaved": not experts.is_concatenated,
    }


def _correction(module: Any, router: Any) -> Tensor | None:
    """The correction of scores where experts are chosen; several classes hold it."""
    holders = (module, router, getattr(router, "moe_statics", None))
    found = [x for h in holders if (x := getattr(h, CORRECTION, None)) is not None]
    if len(found) > 1:
        raise Unknown(f"{type(module).__name__} has several corrections of scores")
    return found[0].flatten() if found else None


def _shared(finder: MLPFinder, module: Any) -> GatedMLP | None:
    """The MLP that all nodes go through."""
    found = [x for name in SHARED if (x := getattr(module, name, None)) is not None]
    if not found:
        return None
    if not isinstance(up := getattr(found[0], "up_proj", None), nn.Module):
        raise Unknown(f"{type(found[0]).__name__} has other projections than are known")
    return finder.mlp(found[0], int(getattr(up, "out_features", 0)))


def _shared_gate(finder: MLPFinder, module: Any) -> Linear | None:
    gate = getattr(module, GATE, None)
    return None if gate is None else finder.linear(gate, GATE, (1, finder.config.hidden_size))
