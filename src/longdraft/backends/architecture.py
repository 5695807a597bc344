"""Makes a Transformers model ready for every backend: its layers call longdraft's attention
function.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn
from transformers import AttentionInterface

from longdraft.backends.attention_pass import AttentionPass
from longdraft.backends.current_pass import CurrentPass, current, passing
from longdraft.backends.features.biased_keys import BiasedKeys
from longdraft.backends.features.bounded_positions import BoundedPositions, trained_positions
from longdraft.backends.features.experts import Experts
from longdraft.backends.features.feature import (
    Call,
    Feature,
    Slot,
    overriding,
    plain_slot,
    wrapped,
)
from longdraft.backends.features.indexer import Indexer
from longdraft.backends.features.latent import Latent, Latents
from longdraft.backends.features.longrope import LongRope
from longdraft.backends.features.scans.recurrent_layers import RECURRENT, Scans, scans_in
from longdraft.backends.features.shared_keys import SharedKeys
from longdraft.backends.features.span import Span
from longdraft.backends.features.table import WITHOUT_ATTENTION, features_of
from longdraft.backends.layer_configs import layer_configs
from longdraft.backends.layout import DecoderLayout, layout_of
from longdraft.core import Captures, KVCache, Tree
from longdraft.errors import InputError

F = TypeVar("F", bound=Feature)
NAME = "longdraft"  # of the attention function
# Arguments that models pass to attention functions and that do not change the result.
HARMLESS = {
    "position_ids",
    "use_cache",
    "cache_position",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "is_causal",
    "position_embeddings",
    "logits_to_keep",
}
WITHOUT_KEYS = RECURRENT | WITHOUT_ATTENTION  # layer types


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [B,H,T,D] of the last T new nodes, key, value [B,K,W,D] of all -> [B,T,H,Dv].

    Windows come from the config. Raises InputError outside of longdraft's passes, and for arguments
    that would change the result and that no feature of the model knows.
    """
    attend = current().attend
    if attend is None:
        raise InputError(
            f"{type(module).__name__} attends outside of longdraft's passes, so longdraft cannot "
            "run this architecture"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    arguments = {name: x for name, x in others.items() if x is not None and name not in HARMLESS}
    if others.get("is_causal") is False:
        arguments["is_causal=False"] = True
    layer = getattr(module, "layer_idx", None)
    call = Call(module, layer, query, key, value, attention_mask, scale, softcap, s_aux, arguments)
    return attend(call).contiguous(), None


AttentionInterface.register(NAME, attention)


def attend_plainly(call: Call) -> Tensor:
    """Attention without features. Raises InputError for arguments that no feature has taken out."""
    if call.arguments or call.mask is not None:
        argument = min(call.arguments, default="a custom mask")
        raise InputError(
            f"{type(call.module).__name__} passes {argument} to attention, which longdraft does "
            "not know: its output would be wrong"
        )
    attention = current().attention
    assert attention is not None
    attention.calls += 1
    more = () if call.compute is None else (call.compute,)
    return attention.attend(
        call.layer, call.query, call.key, call.value, call.scale, call.softcap, call.sink, *more
    )


class Architecture:
    """A Transformers model whose layers call longdraft's attention function.

    features: how it differs from plain attention, in the order in which they wrap it. windows
    {layer: size}: layers without full attention, and the number of keys that a node sees; spans
    {layer: Span}: which ones. calls: of attention in a pass. positions: how many the model was
    trained on. reach: how many it can be given; later ones are clamped. owner: stands for this
    architecture in its hooks, which modules can share with another one.
    """

    implementation = NAME  # of attention in Transformers
    by_interface = True  # whether its layers call the attention function that they are given

    def __init__(self, hf: Any):
        self.hf = hf
        self.config = hf.config.get_text_config()
        self.use(self.implementation)
        self.layout = layout_of(hf)
        self.owner = object()
        hook_hidden_states(self.layout, self.owner)
        self.features = features_of(hf)
        self.spans: dict[int, Span] = {}
        self.calls = 1
        for feature in self.features:
            self.spans |= feature.spans
            self.calls *= feature.calls
        self.windows = {layer: self.spans[layer].size for layer in sorted(self.spans)}
        self.positions = trained_positions(self.config)
        bounded = self.find(BoundedPositions)
        self.reach = 1 << 30 if bounded is None else bounded.count
        types = getattr(self.config, "layer_types", None)
        types = types or getattr(self.config, "layers_block_type", None)
        types = types or [""] * self.config.num_hidden_layers
        self.with_keys = [i for i, kind in enumerate(types) if kind not in WITHOUT_KEYS]
        self.calls *= len(self.with_keys)
        self.longrope = self.find(LongRope)
        self._attend = wrapped(overriding(self.features, "attend"), attend_plainly)
        self._around = overriding(self.features, "around")
        self._positions = overriding(self.features, "positions")
        self.reading = overriding(self.features, "groups")
        self.by_path = next((f for f in self.features if f.by_path), None)

    def find(self, kind: type[F]) -> F | None:
        """The feature of this kind; None: the model does not have it."""
        return next((f for f in self.features if isinstance(f, kind)), None)

    @property
    def longest(self) -> int | None:
        """A text's maximum length; None: no limit."""
        biased = self.find(BiasedKeys)
        return None if biased is None else biased.longest

    @property
    def sources(self) -> dict[int, int]:
        """{layer: the layer whose keys it reads} of the layers without their own keys."""
        shared = self.find(SharedKeys)
        return {} if shared is None else shared.sources

    @property
    def latents(self) -> dict[int, Latent]:
        """Layers whose cache holds latents, as keys without values."""
        latents = self.find(Latents)
        return {} if latents is None else latents.layers

    @property
    def indexed(self) -> set[int]:
        """Layers that read only what an indexer chooses."""
        indexer = self.find(Indexer)
        return set() if indexer is None else indexer.layers

    @property
    def scans(self) -> int:
        """How many recurrent layers scan in a pass."""
        scans = self.find(Scans)
        return 0 if scans is None else scans.count

    @property
    def experts(self) -> int:
        """How many experts a layer selects from; 0: it has none."""
        experts = self.find(Experts)
        return 0 if experts is None else experts.count

    def has_scans(self, layers: nn.Module) -> bool:
        """Whether layers of this model's kind have a state beside their keys."""
        return bool(scans_in(layers))

    def slot(self, layer: int) -> Slot:
        """The slot that this layer, or the layer whose keys it reads, caches for a token."""
        for feature in self.features:
            if (slot := feature.slot(layer)) is not None:
                return slot
        return plain_slot(layer_configs(self.config)[layer])

    def use(self, implementation: str) -> None:
        """Compute attention by this one of Transformers' implementations, or longdraft's."""
        self.hf.set_attn_implementation(implementation)

    def position(self, tree: Tree, start: int, cache: KVCache) -> Tensor:
        """[B,W] positions of nodes [start, size)."""
        position = (cache.length[:, None] + tree.depth[:, start:]).clamp(max=self.reach - 1)
        for change in self._positions:
            position = change(position, cache)
        return position

    @contextmanager
    def running(self, p: CurrentPass) -> Generator[None]:
        """Inside, the model's modules compute this pass in the calling thread."""
        p.owner = self.owner
        p.attend = self._attend
        with ExitStack() as inside:
            inside.enter_context(passing(p))
            for around in self._around:
                inside.enter_context(around(p))
            yield

    def attending(self, attention: AttentionPass) -> AbstractContextManager[None]:
        """Inside, layers of the model's kind outside of the model attend by this."""
        return passing(CurrentPass(owner=self.owner, attention=attention, attend=self._attend))

    def run(
        self,
        attention: AttentionPass,
        tokens: Tensor,
        position: Tensor,
        captured: Captures,
        logits: int = 0,
        *,
        tree: Tree | None = None,
        start: int = 0,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Transformers' forward of tokens, position [B,W] -> logits [B,W,V] (of the last `logits`
        nodes, 0: all).

        tree, start, cache: of the pass, which some features need. Raises InputError where not every
        layer calls attention.
        """
        p = CurrentPass(
            attention=attention,
            captured=captured,
            tree=tree,
            start=start,
            cache=cache,
            position=position,
            logits=logits,
        )
        p.arguments["logits_to_keep"] = logits
        with self.running(p):
            out = self.hf(input_ids=tokens, position_ids=position, use_cache=False, **p.arguments)
            if attention.calls != self.calls:
                used = (
                    f"attends {attention.calls} times in a pass by the attention interface of "
                    "Transformers"
                )
                raise InputError(
                    f"{self.config.model_type} {used}; longdraft needs {self.calls} for its layers"
                )
        return out.logits[:, -logits:]  # some classes do not know logits_to_keep

    def capturing(self, captured: Captures) -> AbstractContextManager[None]:
        """Store the hidden states that captured.spec requests of passes in this thread."""
        return passing(CurrentPass(owner=self.owner, captured=captured))


def hook_hidden_states(layout: DecoderLayout, owner: object) -> None:
    """Hooks that store what enters each layer and what leaves the last, where the thread's pass
    belongs to `owner` and requests it.

    Of several streams it is what `join` makes of them, and what the final norm reads after the last
    layer. The hooks stay registered, so that no thread changes the modules while another one runs
    them.
    """

    def store(n: int, state: Tensor) -> None:
        p = current()
        captured = p.captured if p.owner is owner else None
        if captured is not None and n in captured.spec.hidden:
            captured.states[n] = state

    def before(n: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state = args[0] if args else kwargs["hidden_states"]
            store(
                n, state if layout.join is None or n == len(layout.layers) else layout.join(state)
            )

        return hook

    def after(module: Any, args: tuple[Any, ...], output: Any) -> None:
        store(len(layout.layers), output[0] if isinstance(output, tuple) else output)

    for n, layer in enumerate(layout.layers):
        layer.register_forward_pre_hook(before(n), with_kwargs=True)
    if layout.join is None:
        layout.layers[-1].register_forward_hook(after)
    else:  # streams become one between the last layer and the norm
        layout.norm.register_forward_pre_hook(before(len(layout.layers)), with_kwargs=True)
