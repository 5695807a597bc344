"""`generate` of Transformers: its own model, attention and cache, alone or with its own
speculation.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import wraps
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.cache_utils import DynamicCache, StaticCache
from transformers.generation.streamers import BaseStreamer

from longdraft.bench.peers.base import CannotRun, Peer, PeerOutput, Reading, Work
from longdraft.core.sampling import Sampler
from longdraft.engine.generate import Stats
from longdraft.models.lm import LM

STOCK = ("hf-dynamic", "hf-static")  # baselines by the class of their cache
LOOKUP = 10  # tokens of a draft by prompt lookup


class _Clock(BaseStreamer):
    """Times at which tokens arrive, and how many; the first call of `put` passes the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(perf_counter())
        self.counts.append(value.numel())

    def end(self) -> None: ...


class Stock:
    """A separate copy of a model, with unpacked weights, that runs without any code of
    longdraft.
    """

    def __init__(self, lm: LM):
        config = deepcopy(lm.hf.config)
        attention = "sdpa" if getattr(lm.hf, "_supports_sdpa", False) else "eager"
        with torch.random.fork_rng(
            devices=[]
        ):  # a new model's weights are drawn before ours replace them
            self.hf: Any = AutoModelForCausalLM.from_config(
                config, dtype=lm.dtype, attn_implementation=attention
            )
        with torch.no_grad():
            for name, tensor in self.hf.state_dict().items():
                tensor.copy_(_weight(lm.hf, name))
        self.hf = self.hf.eval().to(lm.device)
        # rules such as suppressed tokens
        self.hf.generation_config = deepcopy(lm.hf.generation_config)
        self.hf.generation_config.eos_token_id = None
        self._read: dict[str, tuple[list[list[int]], int, Any, float]] = {}
        self.hf.prepare_inputs_for_generation = _only_unread(self.hf.prepare_inputs_for_generation)

    @torch.inference_mode()
    def prefill(
        self, kind: str, prompts: list[list[int]], new_tokens: int, chunk: int = 1024
    ) -> tuple[Any, float]:
        """A cache of this kind that holds all prompt tokens but the last, and the seconds it took;
        once per prompt.
        """
        if kind in self._read and self._read[kind][:2] == (prompts, new_tokens):
            return self._read[kind][2:]
        begin = perf_counter()
        ids = torch.tensor(prompts, device=self.hf.device)
        slots = ids.shape[1] + new_tokens
        config = self.hf.config
        cache = (
            StaticCache(config=config, max_cache_len=slots)
            if kind == "static"
            else DynamicCache(config=config)
        )
        for part in ids[:, :-1].split(chunk, 1):
            if part.shape[1]:
                self.hf(input_ids=part, past_key_values=cache, use_cache=True, logits_to_keep=1)
        self._read[kind] = (prompts, new_tokens, cache, perf_counter() - begin)
        return self._read[kind][2:]

    @torch.inference_mode()
    def decode(
        self, work: Work, cache: Any, limit: int, speculation: dict[str, Any]
    ) -> tuple[list[list[int]], _Clock]:
        """The new tokens of each row, and when they arrived; the cache is not changed."""
        ids = torch.tensor(work.prompts, device=self.hf.device)
        clock = _Clock()
        settings = GenerationConfig(max_new_tokens=limit, do_sample=False, pad_token_id=0)
        if work.sampler.temperature > 0:
            settings.update(
                do_sample=True, temperature=work.sampler.temperature, top_k=0, top_p=1.0
            )
        lookup = speculation.get("prompt_lookup_num_tokens")
        if lookup:
            settings.prompt_lookup_num_tokens = lookup
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(work.seed)
            out = self.hf.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=deepcopy(cache),
                generation_config=settings,
                streamer=clock,
                **({} if lookup else speculation),
            )
        return out[:, ids.shape[1] :].tolist(), clock

    def forget(self) -> None:
        """Free the caches."""
        self._read.clear()


_STOCKS: WeakKeyDictionary[LM, Stock] = WeakKeyDictionary()


def stock(lm: LM) -> Stock:
    """Made once per model."""
    if lm not in _STOCKS:
        _STOCKS[lm] = Stock(lm)
    return _STOCKS[lm]


class Transformers(Peer):
    """cache: `dynamic` or `static`. lookup: tokens of a draft by prompt lookup. draft: a small
    model that drafts.
    """

    def __init__(
        self, label: str, cache: str = "dynamic", lookup: int = 0, draft: LM | None = None
    ):
        name = label if label in STOCK else "transformers"
        speculation = "draft model" if draft else "none"
        if lookup:
            speculation = "prompt lookup"
        kind = {"speculation": speculation, "cache": cache}
        super().__init__(name, label, transformers.__version__, {} if name in STOCK else kind)
        self.cache = cache
        self.lookup = lookup
        self.draft = draft

    def read(self, work: Work) -> Reading:
        target = stock(work.target)
        speculation: dict[str, Any] = (
            {"prompt_lookup_num_tokens": self.lookup} if self.lookup else {}
        )
        if self.draft is not None:
            speculation = {"assistant_model": stock(self.draft).hf}
            if self.draft.vocab != work.target.vocab:
                raise CannotRun(
                    f"the draft model has {self.draft.vocab} tokens, the model {work.target.vocab}"
                )
        if speculation and len(work.prompts) > 1:
            raise CannotRun("its speculation decodes one row only, without --batch")
        return _Reading(
            work, target, *target.prefill(self.cache, work.prompts, work.new_tokens), speculation
        )


@dataclass
class _Reading(Reading):
    work: Work
    target: Stock
    cache: Any
    prefill_s: float
    speculation: dict[str, Any]

    def decode(self, limit: int, sampler: Sampler | None = None) -> PeerOutput:
        work = self.work if sampler is None else replace(self.work, sampler=sampler)
        try:
            rows, clock = self.target.decode(work, self.cache, limit, self.speculation)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise CannotRun(
                f"generate fails: {str(error).splitlines()[0][:200] if str(error) else error!r}"
            ) from None
        if self.speculation:  # the start of a draft model counts: from the call on
            emitted = sum(clock.counts[1:])
            seconds = clock.times[-1] - clock.times[0]
            steps = len(clock.counts) - 1
            own = {"mean_acceptance_length": emitted / steps, "verify_steps": steps}
        else:
            emitted = (limit - 1) * len(rows)
            seconds = clock.times[-1] - clock.times[1]
            own = {}
        return PeerOutput(
            rows, Stats(self.prefill_s, decode_s=seconds, verify_s=seconds, emitted=emitted), own
        )

    def close(self) -> None:
        self.target.forget()


def _only_unread(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Leave out what the cache holds: the first step of assisted generation would read it again."""

    @wraps(prepare)  # `generate` reads the signature
    def wrapped(input_ids: torch.Tensor, **options: Any) -> Any:
        cache = options.get("past_key_values")
        if (
            options.get("is_first_iteration")
            and cache is not None
            and options.get("next_sequence_length") is None
        ):
            options["next_sequence_length"] = input_ids.shape[1] - int(cache.get_seq_length())
        return prepare(input_ids, **options)

    return wrapped


def _weight(model: Any, name: str) -> torch.Tensor:
    """A parameter or buffer by its name in the state dict; a packed layer computes its own."""
    parent, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(parent), leaf)
