"""The function for `generate(custom_generate=...)` of Transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import EosTokenCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from longdraft.core import Constraint, match
from longdraft.engine.generate import Stats, check, decode, prefill
from longdraft.errors import InputError
from longdraft.hf.output import GenerateOutput
from longdraft.hf.request import kept_back, prompts_of, refuse
from longdraft.hf.sampler import sampler_of
from longdraft.hf.wrapped import lm_of
from longdraft.methods import METHODS, build
from longdraft.sampling_parameters import SEED

OPTIONS = {name for method in METHODS.values() for name in method.options.model_fields} - {"pace"}


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Name the options of all methods in the signature.

    `generate` learns from it which arguments it may pass on.
    """
    signature = inspect.signature(function)
    *named, rest = signature.parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in sorted(OPTIONS)
    ]
    function.__dict__["__signature__"] = signature.replace(parameters=[*named, *added, rest])
    return function


@_with_options
def hf_generate(
    model: Any,
    input_ids: Tensor,
    *,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    method: str = "fill",
    drafter: Any = None,
    adaptive: bool = False,
    any_target: bool = False,
    seed: int | None = None,
    stats: Stats | None = None,
    streamer: Any = None,
    constraint: Constraint | None = None,
    **given: Any,
) -> Any:
    """A function for Transformers' `generate(custom_generate=...)`.

    Call `model.generate(**inputs, custom_generate=longdraft.hf_generate)`, or with another method
    and its options: method="vegas", gamma=4.

    In float32, greedy output equals that of plain `generate`. In bfloat16 the two round in
    different places, so they can diverge where two tokens tie within rounding. Sampled output
    equals that of longdraft.generate with the same seed (None: one is drawn from torch's
    generator): row b draws with row_seed(seed, b), also where num_return_sequences repeats a
    prompt. method, drafter, adaptive, any_target and the method's options are those of `build`.
    constraint: a constraint of the text (longdraft.constraints). The model is not changed. Raises
    InputError for arguments that it would have to ignore.
    """
    options = {name: given.pop(name) for name in OPTIONS & given.keys()}
    if seed is not None:
        SEED.check(seed)
    hidden = kept_back()
    refuse(model, generation_config, given, hidden)
    streamer = hidden.get("streamer") if streamer is None else streamer
    prompts, padding = prompts_of(input_ids, given)
    lm = lm_of(model)
    processors = list(logits_processor)
    do_sample = bool(generation_config.do_sample)
    sampler = sampler_of(processors, do_sample, input_ids, padding, lm.vocab, constraint)
    chosen = build(method, lm, drafter, adaptive=adaptive, any_target=any_target, **options)
    if stopping_criteria.max_length is None:
        raise InputError("generate has no limit: give max_new_tokens or max_length")
    limit = stopping_criteria.max_length - input_ids.shape[1]
    check(lm, prompts, limit, chosen, match)
    if seed is None:
        seed = int(torch.randint(1 << 31, (1,))) if do_sample else 0
    output = GenerateOutput(
        input_ids, limit, stopping_criteria, generation_config._pad_token_tensor, streamer
    )
    stats = Stats() if stats is None else stats
    seqs = prefill(
        lm, prompts, limit, sampler, seed, _ends(stopping_criteria), keep=chosen.prompt_captures()
    )
    rows: list[list[int]] = [[] for _ in prompts]
    for step in decode(lm, chosen, seqs, match, stats):
        for row, tokens in zip(rows, step.tokens, strict=True):
            row += tokens
        if not output.take(rows):
            break
        if output.pads:
            with torch.inference_mode():
                seqs.done |= ~output.unfinished.to(seqs.done.device)
    if streamer is not None:
        streamer.end()
    sequences: Any = output.ids.clone()
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=sequences)
    return sequences


def _ends(criteria: Any) -> tuple[int, ...]:
    """The end tokens among the criteria, at which decoding a row can end by itself."""
    sets = [c.eos_token_id.tolist() for c in criteria if isinstance(c, EosTokenCriteria)]
    return tuple(sorted(set(chain.from_iterable(sets))))
