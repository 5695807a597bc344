"""The baseline `generate` of Transformers: its own model, attention and cache."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.cache_utils import DynamicCache, StaticCache
from transformers.generation.streamers import BaseStreamer

from longdraft.models.lm import LM
from longdraft.models.untrusted import OURS, neutral

STOCK = ("hf-dynamic", "hf-static")  # by the class of its cache


@dataclass(frozen=True)
class Baseline:
    """An entry of a benchmark beside the methods (MethodSpec): it has no options and drafts nothing."""

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    speculative = pace = False


class _Clock(BaseStreamer):
    """Times at which tokens arrive; the first call of `put` passes the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(perf_counter())

    def end(self) -> None: ...


class Stock:
    """A separate copy of the model that runs without any code of longdraft."""

    def __init__(self, target: LM):
        folder = target.hf.name_or_path
        options: dict[str, Any] = {"dtype": target.dtype, "attn_implementation": "sdpa"}
        if folder:
            kept = {"trust_remote_code": False, "local_files_only": True}
            options |= {"use_safetensors": True, **kept, "config": neutral(AutoConfig.from_pretrained(folder, **kept))}
            self.hf: Any = AutoModelForCausalLM.from_pretrained(folder, **OURS | options)
        else:
            config = deepcopy(target.hf.config)
            self.hf = AutoModelForCausalLM.from_config(config, **options)
            self.hf.load_state_dict(target.hf.state_dict())
        self.hf = self.hf.eval().to(target.device)
        self.hf.generation_config = deepcopy(target.hf.generation_config)  # rules such as suppressed tokens
        self.hf.generation_config.eos_token_id = None

    @torch.inference_mode()
    def prefill(self, kind: str, prompts: list[list[int]], new_tokens: int, chunk: int = 1024) -> tuple[Any, float]:
        """A cache of this kind that holds all prompt tokens but the last, and the seconds it took."""
        begin = perf_counter()
        ids = torch.tensor(prompts, device=self.hf.device)
        slots = ids.shape[1] + new_tokens
        config = self.hf.config
        cache = StaticCache(config=config, max_cache_len=slots) if kind == "hf-static" else DynamicCache(config=config)
        for part in ids[:, :-1].split(chunk, 1):
            if part.shape[1]:
                self.hf(input_ids=part, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache, perf_counter() - begin

    @torch.inference_mode()
    def decode(self, prompts: list[list[int]], cache: Any, new_tokens: int) -> tuple[list[list[int]], float]:
        """The greedy new tokens of each row, and the seconds from the first to the last; the cache is not changed."""
        ids, clock = torch.tensor(prompts, device=self.hf.device), _Clock()
        settings = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
        out = self.hf.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=deepcopy(cache),
            generation_config=settings,
            streamer=clock,
        )
        return out[:, ids.shape[1] :].tolist(), clock.times[-1] - clock.times[1]
