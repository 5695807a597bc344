"""MTP layers: each is a decoder layer of the target's own class, behind a projection of a token and
a feature.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from longdraft.core.draft_layers import DraftLayers
from longdraft.drafters.mtp.ring import RingPass
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import Weights, size_of
from longdraft.models.stock_layers import stock_parts

FULL = "full_attention"
SLIDING = "sliding_attention"


class MtpLayer(nn.Module):
    """Reads the feature of token t and the embedding of token t+1; its output is the next feature
    and predicts t+2.

    layer(fuse [norm(token); norm(feature)]), then a norm; hidden_first: the feature comes before
    the token. layer is a decoder layer of the target's class, with that class's attention, rotation
    and experts.
    """

    def __init__(self, target: LM, config: Any, number: int, hidden_first: bool):
        super().__init__()
        layout = target.architecture.layout
        d = config.hidden_size
        eps = float(getattr(config, "rms_norm_eps", None) or 1e-6)
        self.norm_token, self.norm_feature, self.norm_out = (
            type(layout.norm)(d, eps=eps) for _ in range(3)
        )
        self.fuse = nn.Linear(2 * d, d, bias=False)
        layer: Any = type(layout.layers[number])
        # Bamba's
        typed = {"layer_type": FULL} if "layer_type" in inspect.signature(layer).parameters else {}
        self.layer = layer(config, number, **typed)
        self.hidden_first = hidden_first

    def forward(self, feature: Tensor, token: Tensor, **place: Any) -> Tensor:
        """feature, token [B,W,d], and what tells the decoder layer their positions -> output
        [B,W,d].
        """
        parts = [self.norm_token(token), self.norm_feature(feature)]
        x = self.fuse(torch.cat(parts[::-1] if self.hidden_first else parts, -1))
        output = self.layer(x, attention_mask=None, past_key_values=None, **place)
        return self.norm_out(output[0] if isinstance(output, tuple) else output)


class MtpLayers(nn.Module):
    """One or more MTP layers; embedding, head and rotation are the target's and are not in the
    state dict.

    The first layer's feature is the target's last hidden state, after its final norm unless `raw`;
    the feature of a later one is the output of the layer before. sparse: the layers have experts,
    if the target has some. sliding: they have the target's window, else `window` is None. options:
    the arguments besides the target. Raises InputError.
    """

    def __init__(
        self,
        target: LM,
        count: int = 1,
        sparse: bool = True,
        sliding: bool = False,
        hidden_first: bool = False,
        raw: bool = False,
    ):
        super().__init__()
        self.options = {
            "count": count,
            "sparse": sparse,
            "sliding": sliding,
            "hidden_first": hidden_first,
            "raw": raw,
        }
        if not target.architecture.by_interface:
            fault = (
                f"{target.config.model_type}'s layers do not use the attention interface of "
                "Transformers"
            )
            raise InputError(f"{fault}: use another method than mtp")
        if not target.architecture.with_keys:
            fault = "has no layers with attention, of which MTP layers are built"
            raise InputError(f"{target.config.model_type} {fault}: use another method than mtp")
        if target.sources or getattr(target.config, "hidden_size_per_layer_input", None):
            fault = "layers read more than a state, which MTP layers do not have"
            raise InputError(f"{target.config.model_type}'s {fault}: use another method than mtp")
        kind = SLIDING if sliding else FULL
        number = target.number_of(kind)
        config = layer_config(target.layer_config_of(kind), sparse, kind)
        self.window: int | None = config.sliding_window if sliding else None
        try:
            self.layers = nn.ModuleList(
                MtpLayer(target, config, number, hidden_first) for _ in range(count)
            )
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            fault = (
                f"{target.config.model_type}'s layers cannot be built one by one "
                f"({type(error).__name__}: {error})"
            )
            raise InputError(f"{fault}: use another method than mtp") from None
        indexed = any(getattr(m, "indexer", None) is not None for m in self.layers.modules())
        if indexed or target.architecture.layout.join is not None:
            fault = (
                f"{target.config.model_type}'s layers have an indexer, or several residual streams"
            )
            raise InputError(f"{fault}, which mtp does not run: use another method")
        if target.architecture.has_scans(self.layers):
            fault = (
                "layers of this kind have a state beside their keys, which MTP layers do not have"
            )
            raise InputError(f"{target.config.model_type}'s {fault}: use another method than mtp")
        # in a tuple, so that the target's weights do not become this module's
        self.host = (target,)
        self._rotary = target.architecture.layout.rotary
        by_type = (
            self._rotary is not None
            and "layer_type" in inspect.signature(self._rotary.forward).parameters
        )
        self._kind = (kind,) if by_type else ()
        rotated: Any = getattr(self._rotary, "rope_type", None)
        if (
            by_type and isinstance(rotated, dict) and kind not in rotated
        ):  # layers of this type do not rotate
            self._rotary = None

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def target(self) -> LM:
        return self.host[0]

    @property
    def weights(self) -> Weights:
        """Bytes of one layer's weights, without embedding and head."""
        experts = sum(
            p.nbytes for name, p in self.layers[0].named_parameters() if ".experts." in name
        )
        each = getattr(self.target.config, "num_experts_per_tok", None) or 1
        return Weights(
            size_of(self.layers[0]) - experts, experts, min(each / max(self.target.experts, 1), 1.0)
        )

    def compilable(self, i: int) -> DraftLayers | None:
        """Layer i as backends see it; None if its class is one that no backend compiles."""
        part: Any = self.layers[i]
        norms = {
            "token_norm": part.norm_token,
            "feature_norm": part.norm_feature,
            "norm": part.norm_out,
        }
        parts = stock_parts(self.target, part.layer, [*norms.values(), part.fuse])
        if parts is None:
            return None
        return DraftLayers(
            **parts,
            **norms,
            starts="fused",
            fuse=part.fuse,
            feature_first=part.hidden_first,
            normed_feature=True,
            ring=True,
        )

    def feature(self, state: Tensor) -> Tensor:
        """The target's residual stream after its last layer [B,W,d] -> the first layer's feature
        [B,W,d].
        """
        return state.to(self.target.dtype) if self.options["raw"] else self.target.norm(state)

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [B,W] -> [B,W,d]."""
        return self.target.hf.get_input_embeddings()(tokens).to(self.target.dtype)

    def scores(self, output: Tensor) -> Tensor:
        """output [B,W,d] -> logits [B,W,V] of the target's output matrix."""
        return self.target.project(output).float()

    def run(
        self, layer: int, feature: Tensor, tokens: Tensor, position: Tensor, attention: RingPass
    ) -> Tensor:
        """feature [B,W,d] with the tokens [B,W] after it, at their position [B,W] -> output
        [B,W,d].
        """
        position = position.clamp(max=self.target.reach - 1)
        token = self.embed(tokens)
        rotation = (
            None
            if self._rotary is None
            else self.target.architecture.layout.rotations(token, position, *self._kind)
        )
        with self.target.architecture.attending(attention):
            return self.layers[layer](
                feature, token, position_ids=position, position_embeddings=rotation
            )


def layer_config(config: Any, sparse: bool, kind: str) -> Any:
    """The target's config, changed so that each layer is an MTP layer: with experts or not, and of
    this type.

    Where types follow from other fields, only those layers are that have this type.
    """
    config = deepcopy(config)
    if getattr(config, "layer_types", None):
        with suppress(AttributeError):
            config.layer_types = [kind] * len(config.layer_types)
    if getattr(config, "mlp_layer_types", None):
        config.mlp_layer_types = ["sparse" if sparse else "dense"] * len(config.mlp_layer_types)
    if getattr(config, "first_k_dense_replace", None) is not None:
        config.first_k_dense_replace = 0 if sparse else config.num_hidden_layers
    return config


def placed(module: MtpLayers) -> MtpLayers:
    """The module in the target's dtype, except for what the target keeps in float32, and on its
    device.
    """
    target = module.target
    module.to(target.device, target.dtype)
    whole = getattr(target.hf, "_keep_in_fp32_modules_strict", None) or ()
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        if any(part in name for part in whole):
            x.data = x.data.float()
    return module.eval().requires_grad_(False)


def random_mtp(target: LM, seed: int, count: int = 1) -> MtpLayers:
    """Untrained layers of the type of the target's last layer with keys."""
    sliding = bool(set(target.architecture.with_keys[-1:]) & set(target.windows))
    module = MtpLayers(target, count, sliding=sliding)
    generator = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=p.shape[-1] ** -0.5, generator=generator)
        elif "norm" not in name:
            nn.init.zeros_(p)
    return placed(module)
