"""The arguments of `generate`: the prompts, and settings that longdraft does not support."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerationMixin

from longdraft.errors import InputError
from longdraft.models import support

CACHE = "leave it out, longdraft keeps keys and values in its own cache"
DRAFTS = "leave it out, longdraft drafts by its `method`"
OTHER = "leave it out, or use plain generate"
# Settings of a GenerationConfig that ask for something else, with the values at which they do not,
# and what to do.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "num_beams": ((1,), "set num_beams=1"),
    "num_beam_groups": ((1,), "leave it out"),
    "constraints": ((), OTHER),
    "force_words_ids": ((), OTHER),
    "penalty_alpha": ((0,), OTHER),
    "dola_layers": ((), OTHER),
    "guidance_scale": ((1,), OTHER),
    "watermarking_config": ((), OTHER),
    "encoder_repetition_penalty": ((1,), OTHER),
    "encoder_no_repeat_ngram_size": ((0,), OTHER),
    "prompt_lookup_num_tokens": ((), "set method='lookup'"),
    "assistant_early_exit": ((), DRAFTS),
    "is_assistant": ((False,), OTHER),
    "use_mtp": ((False,), "set method='mtp'"),
    "cache_implementation": ((), CACHE),
    "cache_config": ((), CACHE),
    "use_cache": ((True,), CACHE),
    "prefill_chunk_size": ((), CACHE),
    "output_scores": ((False,), "leave it out, only sequences are returned"),
    "output_logits": ((False,), "leave it out, only sequences are returned"),
    "output_attentions": ((False,), "leave it out, only sequences are returned"),
    "output_hidden_states": ((False,), "leave it out, only sequences are returned"),
}
# Arguments that `generate` keeps to itself when it calls a function, with what to do about them.
KEPT_BACK = {
    "streamer": "",
    "assistant_model": "give it as drafter= with method='sd'",
    "synced_gpus": OTHER,
}
USED = {
    "attention_mask",
    "position_ids",
    "past_key_values",
    "use_cache",
    "logits_to_keep",
    "cache_position",
}
USED |= {"mm_encoder_outputs", "mm_token_type_ids"}  # those of text alone
# beginnings of the names of other inputs than text
SENSES = (
    "pixel_values",
    "image",
    "video",
    "input_features",
    "input_values",
    "audio",
)


def kept_back() -> dict[str, Any]:
    """The arguments that the `generate` which runs now does not pass on.

    They are only in its frame. Otherwise they would be ignored without a word: the streamer would
    get the prompt and nothing after it.
    """
    code = inspect.unwrap(vars(GenerationMixin)["generate"]).__code__
    frame = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return {} if frame is None else {name: frame.f_locals.get(name) for name in KEPT_BACK}


def refuse(model: Any, config: Any, given: dict[str, Any], hidden: dict[str, Any]) -> None:
    """Raises InputError for arguments that longdraft would have to ignore."""
    support.refuse(model.config, type(model))
    if given.get("inputs_embeds") is not None:
        raise InputError(
            "inputs_embeds cannot be continued, since drafts need tokens: give input_ids"
        )
    for name, (neutral, instead) in REFUSED.items():
        value = getattr(config, name, None)
        if value is not None and value not in neutral:
            raise InputError(
                f"longdraft does not support {name}={str(value)[:40]} in generate: {instead}"
            )
    for name, instead in KEPT_BACK.items():
        if name != "streamer" and hidden.get(name):
            raise InputError(f"longdraft does not support {name} in generate: {instead}")
    cache = given.get("past_key_values")
    if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length()):
        raise InputError(f"longdraft does not support past_key_values in generate: {CACHE}")
    seen = [name for name in given if name.startswith(SENSES) and given[name] is not None]
    encoded = given.get("mm_encoder_outputs") or ()  # by kind where Transformers has encoded them
    if seen := [*encoded, *seen]:
        raise InputError(
            f"longdraft reads text only: leave out {', '.join(seen)}, or use plain generate"
        )
    for name, value in given.items():
        if name not in USED and value is not None and value is not False:
            raise InputError(f"longdraft does not support {name} in generate: {OTHER}")


def prompts_of(input_ids: Tensor, given: dict[str, Any]) -> tuple[list[list[int]], list[int]]:
    """Each row's tokens, and the number of padding tokens in front of them.

    Raises InputError.
    """
    if input_ids.dim() != 2 or input_ids.shape[1] == 0:
        raise InputError("generate was given no tokens: give input_ids [batch, tokens]")
    mask = given.get("attention_mask")
    if mask is None:
        real = torch.ones_like(input_ids, dtype=torch.bool)
    else:
        real = mask.to(input_ids.device) != 0
    size = input_ids.shape[1]
    if real.shape != input_ids.shape:
        raise InputError(
            f"attention_mask is {list(real.shape)} for input_ids {list(input_ids.shape)}: "
            "give one per token"
        )
    padding = (size - real.sum(1)).tolist()
    device = input_ids.device
    begins = torch.tensor(padding, device=device)[:, None]
    if not torch.equal(real, torch.arange(size, device=device) >= begins):
        raise InputError(
            "attention_mask hides tokens inside or behind a prompt: pad on the left "
            "(padding_side='left')"
        )
    positions = given.get("position_ids")
    if positions is not None:
        # [B,S], or [n,B,S] where texts and images have positions of several numbers
        usual = (real.long().cumsum(1) - 1)[real]
        shape = (*positions.shape[:-2], *input_ids.shape)
        given_positions = positions.to(device).expand(*shape)[..., real]
        if not torch.equal(given_positions, usual.expand_as(given_positions)):
            raise InputError("position_ids are not those of the tokens' places: leave them out")
    return [row[n:] for row, n in zip(input_ids.tolist(), padding, strict=True)], padding
