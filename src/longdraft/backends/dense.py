"""The backend of models that do not use Transformers' attention interface: Falcon, BLOOM, MPT,
GPT-J and others.

Their modules compute attention themselves. They get keys by Transformers' cache protocol, and hooks
on the layers replace their masks and position biases by those of the tree.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from longdraft.backends.architecture import Architecture
from longdraft.backends.current_pass import CurrentPass, current
from longdraft.backends.dense_pass import DensePass
from longdraft.backends.eager import Eager
from longdraft.backends.features.scans.recurrent_layers import has_scans
from longdraft.core import Captures, KVCache, KVView, Tree, is_indexable
from longdraft.errors import InputError

# names of the number of positions where it has another than usual
LIMITS = (
    "max_seq_len",
    "seq_length",
)
SIDE = 1 << 30  # of the mask that takes the place of a module's own


def lacks_interface(model: Any) -> bool:
    """Whether the model, or its class, has its own attention instead of Transformers' attention
    interface.

    Most hybrid models have the interface and do not say so; those without any attention count as
    having it.
    """
    cls = model if isinstance(model, type) else type(model)
    return not getattr(cls, "_supports_attention_backend", False) and not uses_interface(cls)


def uses_interface(cls: type) -> bool:
    names = vars(sys.modules[cls.__module__])
    return has_scans(cls) and (
        "ALL_ATTENTION_FUNCTIONS" in names or not any("Attention" in name for name in names)
    )


def obstacle(cls: type, config: Any) -> str | None:
    """The reason why Dense cannot run a class without the attention interface; None if it can."""
    if getattr(config, "patcher_config", None) is not None:
        return "has layers over groups of bytes beside those over bytes"
    accepted = inspect.signature(cls.forward).parameters
    if "past_key_values" not in accepted:
        return "takes no past_key_values"
    by_bias = any("alibi" in name for name in vars(sys.modules[cls.__module__]))
    return None if "position_ids" in accepted or by_bias else "takes no position_ids"


class DenseArchitecture(Architecture):
    """A Transformers model whose layers take a mask and a cache, and compute attention by
    themselves.

    Its layers read the running pass of the calling thread, if there is one.
    """

    implementation = "eager"  # the one that all of them have, and that computes weights
    by_interface = False

    def __init__(self, hf: Any):
        super().__init__(hf)
        c = self.config
        trained = [n for name in LIMITS if isinstance(n := getattr(c, name, None), int)]
        self.positions = min([self.positions, *trained])
        # MPT's biases end there
        self.reach = min(self.reach, getattr(c, "max_seq_len", self.reach))
        self._accepted = inspect.signature(type(hf).forward).parameters
        hook_passes(self.layout.layers, self.owner)

    def use(self, implementation: str) -> None:
        """Modules read the config at each call; Transformers' setter refuses what does not use its
        interface.
        """
        self.hf.config._attn_implementation = implementation

    @cached_property
    def _own_masks(self) -> list[tuple[dict[str, Any], str]]:
        """Causal masks by slot that modules keep in buffers and apply beside the mask they are
        given.
        """
        modules = self.layout.layers.modules()
        buffers = ((m._buffers, name) for m in modules for name in m._buffers)  # pyright: ignore[reportPrivateUsage]
        return [(table, name) for table, name in buffers if _is_square_mask(table[name])]

    def run_row(
        self, row: DensePass, tokens: Tensor, position: Tensor, captured: Captures, logits: int
    ) -> Tensor:
        """Transformers' forward of one row's tokens, position [1,W] -> logits [1,W,V] (of the last
        `logits` nodes, 0: all). Raises InputError where not every layer puts its keys into the
        pass.
        """
        options = {"position_ids": position, "logits_to_keep": logits}
        options = {name: value for name, value in options.items() if name in self._accepted}
        p = CurrentPass(captured=captured, cache=row.cache.row(row.b), position=position, dense=row)
        with self.running(p), self._without_own_masks():
            out = self.hf(input_ids=tokens, past_key_values=row, use_cache=True, **options)
        if len(row.updated) != len(self.layout.layers):
            used = f"{len(row.updated)} of {len(self.layout.layers)} layers use the cache protocol"
            raise InputError(f"{type(self.hf).__name__}: {used}; longdraft needs all of them")
        return out.logits[:, -logits:]

    @contextmanager
    def _without_own_masks(self) -> Generator[None]:
        """The pass's mask is complete and knows positions; a module's own goes by slots, which in a
        tree are others.
        """
        kept = [table[name] for table, name in self._own_masks]
        for table, name in self._own_masks:
            table[name] = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.hf.device).expand(
                1, 1, SIDE, SIDE
            )
        try:
            yield
        finally:
            for (table, name), mask in zip(self._own_masks, kept, strict=True):
                table[name] = mask


def _is_square_mask(buffer: Any) -> bool:
    return (
        buffer is not None
        and buffer.dtype == torch.bool
        and buffer.dim() == 4
        and buffer.shape[2] == buffer.shape[3]
    )


def hook_passes(layers: Any, owner: object) -> None:
    """Hooks that give layers the mask and biases of the row that the thread computes, and show it
    their weights, where its pass belongs to `owner`.
    """

    def running() -> DensePass | None:
        p = current()
        return p.dense if p.owner is owner else None

    def before(n: int, names: list[str]) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            row = running()
            if row is None:
                return None
            given = dict(zip(names, args, strict=False)) | kwargs
            return (), given | row.arguments(n, given)

        return hook

    def after(n: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
            row = running()
            if row is not None and isinstance(output, tuple):
                row.see(n, output[1:])

        return hook

    for n, layer in enumerate(layers):
        names = list(inspect.signature(type(layer).forward).parameters)[1:]
        layer.register_forward_pre_hook(before(n, names), with_kwargs=True)
        for module in layer.modules():
            if hasattr(module, "layer_idx") or hasattr(module, "layer_id"):
                module.register_forward_hook(after(n))


class Dense(Eager):
    """Transformers' forward of one row at a time, whose layers read slots of a KVCache as if it
    were Transformers' own.

    A node's numbers depend on the nodes beside it in float32 rounding only, and never on other
    rows.
    """

    name = "dense"
    max_nodes = 1024

    def __init__(self, architecture: DenseArchitecture):
        super().__init__(architecture)
        self._dense = architecture

    def forward(
        self,
        tree: Tree,
        cache: KVCache,
        start: int,
        view: KVView | None,
        captured: Captures,
        logits: int = 0,
    ) -> Tensor:
        """Backend.forward. Raises InputError for a view that selects by the queries, which
        modules do not show.
        """
        model = self._dense
        spec = captured.spec
        if not is_indexable(view):
            raise InputError(
                f"{model.config.model_type}'s attention shows no queries, by which this "
                "method selects keys: use a"
                " method that selects them before, such as vegas"
            )
        position = model.position(tree, start, cache)
        rows = list[Tensor]()
        states = {n: list[Tensor]() for n in spec.hidden}
        for b in range(len(tree.tokens)):
            own = Captures(spec)
            span = slice(b, b + 1)
            row = DensePass(
                cache, b, tree, start, view, captured, model.spans, model.reach, model.hf.dtype
            )
            tokens = tree.tokens[span, start:]
            rows.append(model.run_row(row, tokens, position[span], own, logits))
            for n, state in own.states.items():
                states[n].append(state)
        captured.states |= {n: torch.cat(parts) for n, parts in states.items() if parts}
        return torch.cat(rows)
