"""The part of a model's generation_config that changes its output with any sampler settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from longdraft.core.processors import Settings, chain, frozen
from longdraft.errors import InputError

# Settings that are applied at any temperature, with the values at which each has no effect.
APPLIED: dict[str, tuple[Any, ...]] = {
    "sequence_bias": (),
    "repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "bad_words_ids": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "remove_invalid_values": (False,),
    "exponential_decay_length_penalty": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
}
# Settings of other decoding methods. They are refused, since ignoring them would silently change
# the output.
REFUSED: dict[str, tuple[Any, ...]] = {
    "constraints": (),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "force_words_ids": (),
    "guidance_scale": (1,),
    "max_time": (),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "stop_strings": ([],),
    "token_healing": (False,),
    "watermarking_config": (),
}


@dataclass(frozen=True)
class Rules:
    """Settings of a GenerationConfig that change a model's distribution.

    They go by a node's own path and position. They exclude the sampling settings (do_sample,
    temperature, top_k, top_p and the like), which the user chooses with a Sampler, and the length
    limits.
    """

    settings: Settings = ()

    def with_least(self, tokens: int) -> Rules:
        """These rules, and no end token among this many first new tokens."""
        settings = dict(self.settings)
        settings["min_new_tokens"] = max(tokens, settings.get("min_new_tokens", 0))
        return Rules(tuple(settings.items())) if tokens else self

    def without(self, name: str) -> Rules:
        """These rules, except for one setting."""
        return Rules(tuple(setting for setting in self.settings if setting[0] != name))

    @staticmethod
    def of(config: Any, vocab: int) -> Rules:
        """The rules in a model's generation_config (or None).

        Raises InputError for those that cannot be applied.
        """
        for name, neutral in REFUSED.items():
            value = getattr(config, name, None)
            if value is not None and value not in neutral:
                raise InputError(
                    f"the model's generation_config sets {name} to {str(value)[:60]}, "
                    "which longdraft does not support:"
                    f" remove {name} from generation_config.json, or use another model"
                )
        values = {name: getattr(config, name, None) for name in APPLIED}
        kept = tuple(
            (n, frozen(v)) for n, v in values.items() if v is not None and v not in APPLIED[n]
        )
        if kept:
            _try(kept, end_tokens(config), vocab)
        return Rules(kept)


def _try(settings: Settings, eos: tuple[int, ...], vocab: int) -> None:
    """Apply the rules once, to a single token, so that invalid values are found early.

    Raises InputError.
    """
    try:
        for process in chain(settings, eos, 1, 2, vocab, torch.device("cpu")):
            process(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, vocab))
    except Exception as error:  # each processor checks its own values
        names = ", ".join(name for name, _ in settings)
        reason = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"Transformers refuses a value of {names} in the model's generation_config"
            f" ({reason[:160] or type(error).__name__}): correct generation_config.json"
        ) from None


def end_tokens(config: Any, tokenizer: Any = None) -> tuple[int, ...]:
    """The ids that end a sequence, from a model's generation_config and its tokenizer.

    Raises InputError.
    """
    eos = getattr(config, "eos_token_id", None)
    ids = [
        *(eos if isinstance(eos, list | tuple) else [eos]),
        getattr(tokenizer, "eos_token_id", None),
    ]
    ids = [i for i in ids if i is not None]
    odd = next((i for i in ids if not isinstance(i, int) or isinstance(i, bool)), None)
    if odd is not None:
        raise InputError(
            f"the model's eos_token_id contains {str(odd)[:60]!r}: give token ids, which "
            "are integers"
        )
    return tuple(sorted(set(ids)))
