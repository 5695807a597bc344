"""What every backend needs of a Transformers model: its layers call longdraft's attention
function.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from longdraft.backends.attention_pass import AttentionPass
from longdraft.backends.biased_keys import has_biases, unbiased_length, with_biases
from longdraft.backends.compressed import LAYERS as COMPRESSED
from longdraft.backends.compressed import Path, compress_rates
from longdraft.backends.current_pass import CurrentPass, current, passing
from longdraft.backends.differential import is_differential
from longdraft.backends.indexers import LAYERS, Choice, Intercepting, indexed_layers
from longdraft.backends.latent import latents_of
from longdraft.backends.layer_numbers import follow_layers, number_of
from longdraft.backends.layout import Layout, layout_of
from longdraft.backends.longrope import LongRope
from longdraft.backends.past import LatentPass, Past
from longdraft.backends.recurrent_layers import scans_in
from longdraft.backends.recurrent_layers import take_over as take_over_scans
from longdraft.backends.recurrent_pass import RecurrentPass
from longdraft.backends.shared_keys import sources_of
from longdraft.backends.span import CHUNKED, spans_of
from longdraft.backends.temperature import take_over, tempered
from longdraft.core import Captures, KVCache, Tree
from longdraft.errors import InputError

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
# they do not depend on the length of the text
ROPES = {
    "default",
    "linear",
    "llama3",
    "yarn",
    "proportional",
}
NEAR = {"sliding_attention", *COMPRESSED}  # types of layers that read the keys of their window
# types of layers with a state and without keys
RECURRENT = {
    "linear_attention",
    "conv",
    "mamba",
    "recurrent",
}
MIXED = {"hybrid", "hybrid_sliding"}  # and those with both
WITHOUT_KEYS = RECURRENT | {"moe", "mlp"}
# names of their number in configs
EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
)


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
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    longdraft: AttentionPass | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [B,H,T,D] of the last T new nodes, key, value [B,K,W,D] of all -> [B,T,H,Dv].

    Windows come from the config (windows_of). indices [B,W,k]: the slots that an indexer chose;
    block_indices [B,K,W,k]: the blocks. Raises InputError for arguments that would change the
    result and that no backend knows.
    """
    name = type(module).__name__
    longdraft = current().attention if longdraft is None else longdraft
    if longdraft is None:
        raise InputError(
            f"{name} does not pass its arguments on to attention, so longdraft cannot run "
            "this architecture"
        )
    odd = sorted(k for k in others if k not in HARMLESS and others[k] is not None)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if attention_mask is not None and has_biases(module):
        query, key = with_biases(query, key, attention_mask, scale)
        attention_mask = None
    query = tempered(module, query)
    if isinstance(longdraft, Path) and attention_mask is not None and not odd:
        longdraft.calls += 1
        return longdraft.attend_masked(
            query, key, value, attention_mask, scale, softcap, s_aux
        ).contiguous(), None
    choice: Choice | None = getattr(longdraft, "choice", None)
    if choice is not None and attention_mask is choice.mask and indices is not None:
        choice.choose(module.layer_idx, indices)
        attention_mask = None
        indices = None
    if choice is not None and block_indices is not None:
        choice.choose_blocks(module.layer_idx, block_indices, module.indexer.block_size)
        block_indices = None
    odd += [
        name
        for name, x in (("indices", indices), ("block_indices", block_indices))
        if x is not None
    ]
    if odd or attention_mask is not None or others.get("is_causal") is False:
        argument = (
            odd[0] if odd else "a custom mask" if attention_mask is not None else "is_causal=False"
        )
        raise InputError(
            f"{name} passes {argument} to attention, which longdraft does not know: its "
            "output would be wrong"
        )
    longdraft.calls += 1
    return longdraft.attend(
        number_of(module), query, key, value, scale, softcap, s_aux
    ).contiguous(), None


AttentionInterface.register(NAME, attention)


class Architecture:
    """A Transformers model whose layers call longdraft's attention function.

    windows {layer: size}: layers without full attention, and the number of keys that a node sees;
    spans {layer: Span}: which ones. sources {layer: layer}: layers without their own keys, and the
    layer whose keys they read. calls: of attention in a pass, two for each layer if it is
    differential. longest: a text's maximum length, None: no limit. longrope: how rows choose
    rotations that depend on the text's length, if the model has such. tempered: whether queries are
    scaled by position (temperature.py). positions: how many the model was trained on.
    reach: how many it can be given; later ones are clamped. experts: how many a layer selects from;
    0: it has none. latents {layer: Latent}: layers whose cache holds latents, as keys without
    values.
    indexed: layers that read only what an indexer chooses. rates {layer: how many positions it
    compresses to one}. owner: stands for this architecture in its hooks, which modules can share
    with another one.
    """

    implementation = NAME  # of attention in Transformers
    by_interface = True  # whether its layers call the attention function that they are given

    def __init__(self, hf: Any):
        self.hf = hf
        self.config = hf.config.get_text_config()
        self.use(self.implementation)
        self.layout = layout_of(hf)
        self.owner = object()
        follow_layers(hf)
        hook_hidden_states(self.layout, self.owner)
        self.windows = windows_of(hf.config)
        self.sources = sources_of(hf)
        self.latents = latents_of(hf)
        self.indexed = indexed_layers(hf.config)
        self.rates = compress_rates(hf.config)
        self.spans = spans_of(hf.config, self.windows)
        self.longrope = LongRope.of(self.layout.body, self.owner)
        self.tempered = take_over(hf)
        self.positions = int(getattr(self.config, "max_position_embeddings", None) or 1 << 30)
        self.reach = 1 << 30 if rotates(hf) else self.positions
        self.longest = unbiased_length(hf)
        self.differential = is_differential(hf)
        types = getattr(self.config, "layer_types", None) or getattr(
            self.config, "layers_block_type", None
        )
        types = types or [""] * self.config.num_hidden_layers
        self.with_keys = [i for i, kind in enumerate(types) if kind not in WITHOUT_KEYS]
        self.calls = len(self.with_keys) * (2 if self.differential else 1)
        self.scans = take_over_scans(self.layout.layers)
        counts = (getattr(self.config, name, None) for name in EXPERTS)
        self.experts = next(filter(None, counts), 0)

    def has_scans(self, layers: nn.Module) -> bool:
        """Whether layers of this model's kind have a state beside their keys."""
        return bool(scans_in(layers))

    def use(self, implementation: str) -> None:
        """Compute attention by this one of Transformers' implementations, or longdraft's."""
        self.hf.set_attn_implementation(implementation)

    def position(self, tree: Tree, start: int, cache: KVCache) -> Tensor:
        """[B,W] positions of nodes [start, size)."""
        position = (cache.length[:, None] + tree.depth[:, start:]).clamp(max=self.reach - 1)
        return position if self.longrope is None else self.longrope.clamp(position, cache)

    def rotating(self, cache: KVCache) -> AbstractContextManager[object]:
        """A pass over this cache's rows, with the rotations of each."""
        if self.longrope is None:
            return nullcontext()
        return self.longrope.rotating(self.longrope.long(cache))

    def run(
        self,
        attention: AttentionPass | Path,
        tokens: Tensor,
        position: Tensor,
        captured: Captures,
        logits: int = 0,
        recurrent: RecurrentPass | None = None,
    ) -> Tensor:
        """Transformers' forward of tokens, position [B,W] -> logits [B,W,V] (of the last `logits`
        nodes, 0: all).

        recurrent: of a model with `scans`. Raises InputError where not every layer calls attention,
        or its scan.
        """
        if self.longest is not None and int(position.max()) >= self.longest:
            fault = f"drops keys from {self.longest} tokens on, which longdraft does not"
            raise InputError(
                f"{self.config.model_type} {fault}: give a shorter prompt, or ask for fewer tokens"
            )
        keep: Any = logits
        if logits and self.sources and (captured.spec.hidden or captured.spec.rows is not None):
            # of a number, Transformers computes the layers without keys for the last nodes only
            keep = torch.arange(tokens.shape[1] - logits, tokens.shape[1], device=tokens.device)
        more = dict[str, Any]()
        intercepting = nullcontext()
        choice: Choice | None = getattr(attention, "choice", None)
        if isinstance(attention, Path):
            more = attention.arguments()
            intercepting = Intercepting(attention.replaced)
        elif self.latents or choice is not None:
            more["past_key_values"] = past = Past(self.latents, choice)
            attention = LatentPass(attention, past)
        if choice is not None:
            more |= choice.arguments(self.config.layer_types)
            intercepting = Intercepting(choice.replaced)
        p = passing(
            owner=self.owner,
            captured=captured,
            position=position,
            attention=attention,
            recurrent=recurrent,
        )
        with p, intercepting:
            out = self.hf(
                input_ids=tokens,
                position_ids=position,
                use_cache=False,
                logits_to_keep=keep,
                longdraft=attention,
                **more,
            )
        if attention.calls != self.calls:
            used = (
                f"attends {attention.calls} times in a pass by the attention interface of "
                "Transformers"
            )
            raise InputError(
                f"{self.config.model_type} {used}; longdraft needs {self.calls} for its layers"
            )
        if recurrent is not None and recurrent.calls < self.scans:
            fault = (
                f"{self.scans - recurrent.calls} of its {self.scans} recurrent layers did not "
                "scan in a pass"
            )
            raise InputError(f"{self.config.model_type}: {fault}, so its output would be wrong")
        if recurrent is not None:
            recurrent.finish()
        return out.logits[:, -logits:]  # some classes do not know logits_to_keep

    def capturing(self, captured: Captures) -> AbstractContextManager[CurrentPass]:
        """Store the hidden states that captured.spec requests of passes in this thread."""
        return passing(owner=self.owner, captured=captured)


def hook_hidden_states(layout: Layout, owner: object) -> None:
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


def windows_of(config: Any) -> dict[int, int]:
    """{layer: size} of the layers that see a window or a chunk of this size (span.py), read from
    the config.

    The attention argument is not enough: some architectures put the window in their mask alone.
    Raises InputError for layer types that are not attention over keys and values.
    """
    c = config.get_text_config()
    types = getattr(c, "layer_types", None)
    window: int | None = getattr(c, "sliding_window", None)
    if types is None:
        used = getattr(c, "use_sliding_window", True)
        return (
            dict.fromkeys(range(c.num_hidden_layers), window) if window is not None and used else {}
        )
    chunk: int | None = getattr(c, "attention_chunk_size", None)
    sizes = {CHUNKED: chunk, "hybrid_sliding": window, **dict.fromkeys(NEAR, window)}
    odd = sorted(set(types) - {"full_attention", *sizes} - LAYERS - WITHOUT_KEYS - MIXED)
    if odd:
        usable = "use a model of full, sliding, chunked or indexed attention"
        raise InputError(
            f"{c.model_type} has {odd[0]} layers, which longdraft does not support yet: {usable}"
        )
    if CHUNKED in types and not chunk:
        raise InputError(
            f"this {c.model_type} has chunked layers and no attention_chunk_size: give it one"
        )
    return {i: size for i, kind in enumerate(types) if (size := sizes.get(kind)) is not None}


def rotates(hf: Any) -> bool:
    """Whether all positions are rotations of a kind in ROPES, so that the model accepts any
    position.
    """
    kinds = getattr(layout_of(hf).rotary, "rope_type", None)
    return (
        kinds is not None and set(kinds.values() if isinstance(kinds, dict) else [kinds]) <= ROPES
    )
