"""A language model: a Transformers model, and the backend that computes its passes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longdraft.backends import choose, reference
from longdraft.backends.base import Backend
from longdraft.backends.eager import Eager
from longdraft.backends.head import without_layers
from longdraft.backends.key_offsets import key_offsets
from longdraft.backends.layer_configs import layer_configs
from longdraft.backends.packed_linear import PackedLinear, round_inputs, rows_of
from longdraft.backends.partition import in_parts
from longdraft.backends.quantize import bytes_saved, quantized_copy
from longdraft.core import (
    Captures,
    CaptureSpec,
    KVCache,
    KVView,
    PromptSpec,
    Sampling,
    Sequences,
    Tree,
)
from longdraft.core.processes import ALONE, Team
from longdraft.core.rules import Rules
from longdraft.core.rules import end_tokens as ends_of
from longdraft.errors import InputError
from longdraft.models.alignment import align_weights
from longdraft.models.tensor_parallel import rows_of_all

KV_BITS = {"int8": 8}
AUTO = "auto"
IN_8_BITS = (
    "keys and values are kept in 8 bits, faster at long contexts; --kv full keeps them whole"
)
CHECKPOINT = 512  # tokens between two checkpoints of recurrent states
PART = 1024  # prompt tokens of a pass, where the backend computes as many


class LM:
    """A language model whose forward passes run trees over a cache.

    A pass returns logits and writes keys and values to scratch slots.
    Complete once it is constructed: `end_tokens`, `note`, `stored` and `digest` are what loading
    knows and `hf` does not tell. backend: makes the backend of `eager`, which computes the passes
    that the backend does not support.
    rope: the scaling of its rotations that was asked for when it was loaded (KIND:FACTOR); None:
    the model's own. weights: "int8" or "int4" if its linear layers were quantized when it was
    loaded; None: as stored.
    kv: "int8" if its caches hold keys and values in 8 bits; None: in its own dtype. Given "auto",
    it is "int8" where the backend prefers that.
    activations: "int8" if its packed layers round their inputs to 8 bits; None: they do not.
    team: the processes that hold a share of its heads and weights each; caches have this process's
    heads.
    end_tokens: the tokens that end a sequence; None: those of its generation_config.
    note: what a user should know about how it was loaded.
    stored: the digest of its weights before they were quantized, if they were.
    digest: of all its weights, if they cannot be read from `hf` any more.
    Safe to use from several threads: one pass runs at a time, and what a pass captures belongs to
    its call. A cache belongs to one call at a time.
    """

    def __init__(
        self,
        hf: Any,
        name: str = "",
        rope: str | None = None,
        weights: str | None = None,
        kv: str | None = None,
        team: Team = ALONE,
        activations: str | None = None,
        *,
        end_tokens: tuple[int, ...] | None = None,
        note: str | None = None,
        stored: str | None = None,
        digest: str | None = None,
        backend: Callable[[Eager], Backend] = choose,
    ):
        if kv not in (None, AUTO) and (kv not in KV_BITS or hf.device.type not in ("cpu", "meta")):
            raise InputError(
                f"kv is {kv[:40]!r}: choose {' or '.join(KV_BITS)}, on a CPU, or leave it out"
            )
        self.hf = hf.eval()
        # looked up in every step, which takes Transformers a dozen microseconds
        self.device: torch.device = hf.device
        self.dtype: torch.dtype = hf.dtype
        self.name = name
        self.rope = rope
        self.weights = weights
        self.activations = activations
        self.lock = threading.RLock()
        self._process = os.getpid()
        self.eager = reference(hf, team)
        a = self.eager.architecture
        self.architecture = a
        self.config = a.config
        self.windows = a.windows
        self.sources = a.sources
        self.experts = a.experts
        self.positions = a.positions
        self.reach = a.reach
        self.team = team
        self.backend: Backend = backend(self.eager) if team.size == 1 else self.eager
        if kv == AUTO:
            kv = "int8" if self.backend.prefers_codes else None
            note = "\n".join(filter(None, (note, kv and IN_8_BITS))) or None
        self.kv = kv
        self.kv_bits = 0 if kv is None else KV_BITS[kv]
        if self.kv_bits and not self.backend.reads_codes:
            self.backend = self.eager
        self.key_offsets = key_offsets(hf) if self.kv_bits else {}
        self.vocab = int(self.config.vocab_size)
        self.end_tokens = (
            ends_of(getattr(hf, "generation_config", None)) if end_tokens is None else end_tokens
        )
        self.note = note
        self.stored = stored
        self.digest = digest
        # tokens for what is no text
        self.placeholders: dict[int, str] = getattr(hf, "placeholders", {})
        self.copies: dict[str, LM] = {}  # those that `quantized` has made, by kind

    @property
    def depth(self) -> int:
        """The number of decoder layers.

        States are numbered 0 (the embeddings) to this (before the final norm).
        """
        return len(self.architecture.layout.layers)

    @property
    def layer_config(self) -> Any:
        """The config of its first layer, from which fields can be read that differ by layer."""
        return layer_configs(self.config)[0]

    def layer_config_of(self, kind: str) -> Any:
        """The config of layer `number_of(kind)`."""
        return layer_configs(self.config)[self.number_of(kind)]

    def number_of(self, kind: str) -> int:
        """Its last layer of this type.

        The last one that has keys where no layer has the type.
        """
        types = getattr(self.config, "layer_types", None) or []
        return max(
            (i for i, name in enumerate(types) if name == kind),
            default=self.architecture.with_keys[-1],
        )

    @property
    def exact(self) -> bool:
        """Whether a node's numbers are the same bits whatever is computed beside it."""
        return self.backend.exact

    @property
    def prompt_block(self) -> int:
        """The multiple at which calls of `prefill` must end for keys of the same bits in every run.

        They may also end at the prompt's end. 1: reading is exact; else decoding the tokens would
        write other bits than reading them.
        """
        return 1 if self._backend_for(None, 1).exact else PART

    @property
    def checkpoints(self) -> int:
        """The number of tokens after which states are kept, for texts that share a beginning."""
        return max(CHECKPOINT, self.prompt_block)

    def rules(self) -> Rules:
        """The rules in its current generation_config.

        Raises InputError for those that cannot be applied.
        """
        return Rules.of(getattr(self.hf, "generation_config", None), self.vocab)

    def nbytes(self) -> int:
        """Bytes of weights that one decoding step reads.

        All except embedding tables, of which it reads one row.
        """
        head = self.hf.get_output_embeddings()
        read = set() if head is None else {id(p) for p in head.parameters()}
        tables = dict[int, torch.nn.Parameter]()
        for module in self.hf.modules():
            if isinstance(module, torch.nn.Embedding):
                tables |= {id(p): p for p in module.parameters()}
        unread = sum(p.nbytes for n, p in tables.items() if n not in read)
        return sum(p.nbytes for p in self.hf.parameters()) - unread

    def quantized(self, kind: str) -> LM:
        """A copy of this model in "int8" or "int4", made once.

        Its passes can use this model's caches.
        """
        with self.lock:
            if kind not in self.copies:
                copy = quantized_copy(self.hf, kind)
                shared = {id(p) for p in self.hf.parameters()}
                if self.activations:
                    round_inputs(copy)
                align_weights(p for p in copy.parameters() if id(p) not in shared)
                self.copies[kind] = LM(
                    copy,
                    f"{self.name} in {kind}",
                    kv=self.kv,
                    team=self.team,
                    activations=self.activations,
                )
            return self.copies[kind]

    def saving(self, kind: str) -> float:
        """The share of `nbytes` that a quantized copy does not read, computed without copying."""
        return bytes_saved(self.hf, kind) / self.nbytes()

    def new_cache(self, batch: int, slots: int) -> KVCache:
        self.check_process()
        return KVCache(batch, slots, self.device, self.kv_bits, self.key_offsets)

    def rotation(self, planned: int) -> str:
        """The name of the rotations of a row's keys, whose text may fill this many slots.

        Rows with the same name may share keys. "": they do not depend on it.
        """
        longrope = self.architecture.longrope
        if longrope is None:
            return ""
        return "long" if planned > longrope.border else "short"

    def sequences(
        self,
        prompts: list[list[int]],
        limit: int,
        cache: KVCache,
        sampler: Sampling,
        seed: int = 0,
        eos: tuple[int, ...] | None = None,
    ) -> Sequences:
        """Rows that the model decodes, under its rules unless the sampler has its own.

        eos None: its end tokens.
        """
        ends = self.end_tokens if eos is None else eos
        return Sequences.of(prompts, limit, cache, sampler.under(self.rules()), seed, ends)

    def __call__(
        self,
        tree: Tree,
        cache: KVCache,
        start: int = 0,
        view: KVView | None = None,
        captured: Captures | None = None,
        logits: int = 0,
    ) -> Tensor:
        """Run nodes [start, size) of a tree whose earlier nodes sit in scratch -> logits [B,W,V].

        logits: of this many last nodes, 0: of all. The nodes' keys and values are written to slots
        length+start and on.
        """
        self.check_process()
        captured = Captures() if captured is None else captured
        if captured.spec.rows is not None:
            captured.covered = cache.length + 1
        with self.lock:
            backend = self._backend_for(view, logits)
            if tree.size - start <= backend.max_nodes:
                return backend.forward(tree, cache, start, view, captured, logits)
            return in_parts(backend, tree, cache, start, view, captured)[:, -logits:]

    def check_process(self) -> None:
        """Raises InputError in a forked child, where a pass would hang.

        The threads that compute passes were not copied.
        """
        if os.getpid() != self._process:
            raise InputError(
                "this model was loaded before the process was forked, and a pass would hang: "
                "load it in the child, or start the process with the 'spawn' method"
            )

    def extend_cache(
        self, tokens: Tensor, cache: KVCache, spec: CaptureSpec | None = None, chunk: int = 1024
    ) -> list[Captures]:
        """Run tokens [1,N] and commit them to a cache of one row -> what each pass captured.

        chunk: the number of tokens in a pass. An exact backend computes it, so the keys are those
        that decoding these tokens would have written.
        """
        logits = 0 if self.exact and not self.backend.supports(None, 1) else 1
        spec = spec or CaptureSpec()
        return [
            self._commit(part, cache, Captures(spec), logits)
            for part in self._split(tokens, chunk, logits)
        ]

    def prefill(
        self,
        tokens: list[int],
        cache: KVCache,
        chunk: int | None = None,
        report: Callable[[int], None] | None = None,
        keep: PromptSpec | None = None,
    ) -> dict[int, Tensor]:
        """Run one row's tokens and commit them to a cache of one row.

        By the backend, if it can leave out logits.
        chunk: passes end at multiples of this position, wherever the call begins (None: PART).
        report: called after every pass with its number of tokens. -> {layer: [1,m,d]}, the states
        that `keep` requests of the last m of these tokens, at most keep.count; {} for none.
        """
        self.check_process()
        keep = keep or PromptSpec()
        left = len(tokens)
        kept = []
        given = torch.tensor([tokens], device=self.device)
        for part in self._split(given, chunk or PART, 1, int(cache.length[0])):
            left -= part.shape[1]
            wanted = left < keep.count
            spec = CaptureSpec(hidden=keep.hidden if wanted else ())
            captured = self._commit(part, cache, Captures(spec), 1)
            if wanted:
                kept.append(captured.states)
            if report is not None:
                report(part.shape[1])
        return {
            n: torch.cat([states[n] for states in kept], 1)[:, -keep.count :]
            for n in keep.hidden
            if kept
        }

    def _split(self, tokens: Tensor, chunk: int, logits: int, begin: int = 0) -> list[Tensor]:
        """Divide tokens [1,N] from position `begin` on into parts for one call of the backend each.

        Parts end at multiples of `chunk`, or of the backend's most nodes if these are fewer.
        """
        size = min(chunk, self._backend_for(None, logits).max_nodes)
        first = size - begin % size
        return [
            part for part in (tokens[:, :first], *tokens[:, first:].split(size, 1)) if part.shape[1]
        ]

    def _backend_for(self, view: KVView | None, logits: int) -> Backend:
        return self.backend if self.backend.supports(view, logits) else self.eager

    def _commit(self, tokens: Tensor, cache: KVCache, captured: Captures, logits: int) -> Captures:
        if self.architecture.longrope is not None:
            self.architecture.longrope.check(cache, tokens.shape[1])
        with cache.appending(tokens.shape[1]):
            self(Tree.chain(tokens), cache, captured=captured, logits=logits)
        return captured

    def norm(self, hidden: Tensor) -> Tensor:
        """The final norm, if it has one: residual stream after the last layer [..,d] -> [..,d]."""
        return self.architecture.layout.finish(hidden.to(self.dtype))

    def project(self, normed: Tensor) -> Tensor:
        """Logits [..,V] of a normed state [..,d].

        By the output matrix, and any bias, scaling and soft cap. This runs the model's own forward
        without its layers, so that no architecture's scaling is repeated here. A packed output
        matrix is unpacked at the first call, and stays in memory in both forms.
        """
        self.team.agree("logits", *normed.shape)
        state = normed.to(self.dtype).reshape(1, -1, normed.shape[-1])
        head = self.hf.get_output_embeddings()
        if isinstance(head, PackedLinear):
            head.unpack(self.dtype)
        # some models ask for their shape
        ids = torch.zeros(state.shape[:2], dtype=torch.long, device=state.device)
        model = without_layers(self.hf, self.architecture.layout, state)
        logits = model(input_ids=ids, use_cache=False).logits
        return logits.view(*normed.shape[:-1], -1)

    def head_rows(self, tokens: Tensor) -> Any:
        """The output layer for these tokens only, packed if the whole one is."""
        if self.team.size > 1:
            self.team.agree("rows of the output matrix", tokens)
            return rows_of_all(self.hf.get_output_embeddings(), tokens, self.team, self.vocab)
        return rows_of(self.hf.get_output_embeddings(), tokens)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..,V] of the residual stream after the last layer [..,d].

        See Captures.states of layer L.
        """
        return self.project(self.norm(hidden))
