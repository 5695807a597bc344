"""Finds a Transformers decoder's layers and its final norm by structure: each family names them
differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

from longdraft.errors import InputError


@dataclass(frozen=True)
class DecoderLayout:
    """`body` runs `layers` in order, then `tail`, and returns the state that the model's head
    reads.

    below_head: the names that lead to the outermost module that contains body and not the head.
    norm: the module of the tail that normalizes, if it has one (a decoder that normalizes after
    each layer has none). join: what makes one state [B,W,d] of the several streams between layers,
    or None: of [B,W,N,d] (hyper-connections) a weighted sum, of [N,B,W,d] (AltUp, Gemma 3n) the one
    that attention and MLP read.
    """

    body: nn.Module
    below_head: tuple[str, ...]
    layers: nn.ModuleList
    norm: Any  # a module, or None
    tail: tuple[nn.Module, ...]
    join: Callable[[Tensor], Tensor] | None = None

    def finish(self, hidden: Tensor) -> Tensor:
        """The final norm and whatever else the body does to the residual stream after the last
        layer [..,d].
        """
        for module in self.tail:
            hidden = module(hidden)
        return hidden

    @property
    def rotary(self) -> Any:
        """The module that computes rotations of positions; None: the decoder has none, or one for
        each layer.
        """
        # the latter is LFM2-MoE's
        return getattr(self.body, "rotary_emb", None) or getattr(self.body, "pos_emb", None)

    def rotations(self, like: Tensor, position: Tensor, *kind: str) -> Any:
        """Cosines and sines of positions [B,W] of text, in the dtype of `like`.

        Models that read images give each token several positions, mostly three, which are equal in
        text.
        """
        axes = len(getattr(self.rotary, "mrope_section", None) or ())
        return self.rotary(like, position.expand(axes, -1, -1) if axes else position, *kind)

    def norm_weight(self) -> Tensor | None:
        """[d]; None without a final norm, or for one without weights."""
        return getattr(self.norm, "weight", None)


def layout_of(hf: Any) -> DecoderLayout:
    """Raises InputError for a model without decoder layers."""
    c = hf.config.get_text_config()
    if not c.num_hidden_layers:
        raise InputError(
            f"this {c.model_type} has no layers: its config.json is not that of a language model"
        )
    path, owner, layers = _layers(hf, c.num_hidden_layers)
    if not path:
        raise InputError(
            f"{c.model_type}: its decoder is not a separate module, which longdraft needs"
        )
    body = _body(hf, path)
    norm = _final_norm(body) or (_final_norm(owner) if owner is not body else None)
    project = getattr(owner, "project_out", None)  # OPT's, to narrower embeddings
    tail = tuple(module for module in (norm, project) if isinstance(module, nn.Module))
    return DecoderLayout(body, _below_head(hf, path), layers, norm, tail, _join(owner))


def _join(owner: nn.Module) -> Callable[[Tensor], Tensor] | None:
    active = getattr(getattr(owner, "config", None), "altup_active_idx", None)
    return getattr(owner, "hc_head", None) if active is None else itemgetter(active)


def _layers(hf: Any, count: int) -> tuple[tuple[str, ...], nn.Module, nn.ModuleList]:
    """The path of the module that has the decoder's list of layers, the module, and the list.

    Layers are modules of several parts. Of several lists the decoder's is that of `count` layers; a
    vision tower's lies elsewhere, as get_decoder tells where it is right.
    """
    decoder = hf.get_decoder()
    inside = [(name, m) for name, m in decoder.named_modules() if _is_list(m)]
    if inside and decoder is not hf:
        prefix = next(name for name, m in hf.named_modules() if m is decoder)
        lists = [(f"{prefix}.{name}", m) for name, m in inside]
    else:
        lists = [(name, m) for name, m in hf.named_modules() if _is_list(m)]
    if not lists:
        raise InputError(
            f"{hf.config.model_type}: its decoder has no list of layers, which longdraft "
            "needs to read hidden states"
        )
    name, layers = min(lists, key=lambda pair: (len(pair[1]) != count, pair[0].count(".")))
    path = tuple(name.split(".")[:-1])
    owner = hf.get_submodule(".".join(path))
    return path, owner, layers


def _is_list(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.ModuleList)
        and len(module) > 0
        and all(len(list(m.children())) > 1 for m in module)
    )


def _body(hf: Any, path: tuple[str, ...]) -> nn.Module:
    """The decoder by get_decoder, where it contains the layers at `path`; else the model's own part
    that does.
    """
    decoder = hf.get_decoder()
    above = [hf.get_submodule(".".join(path[:n])) for n in range(1, len(path) + 1)]
    return decoder if any(m is decoder for m in above) else above[0]


def _below_head(hf: Any, path: tuple[str, ...]) -> tuple[str, ...]:
    head = hf.get_output_embeddings()
    for n in range(1, len(path) + 1):
        if all(m is not head for m in hf.get_submodule(".".join(path[:n])).modules()):
            return path[:n]
    return path


def _final_norm(module: nn.Module) -> nn.Module | None:
    """The last of the norms. The embeddings' norm comes before the layers; LFM2's only one has that
    name and follows them.

    Gemma 4 defines that of its layers' further inputs last, and the final one as `norm`.
    """
    norms = {name: m for name, m in module.named_children() if "norm" in type(m).__name__.lower()}
    later = [m for name, m in norms.items() if "emb" not in name] or list(norms.values())
    return norms.get("norm", later[-1] if later else None)
