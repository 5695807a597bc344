"""The default room of a server for earlier prompts: the whole context, if memory allows it."""

from __future__ import annotations

from math import ceil

import torch

from longdraft.host import limits, memory
from longdraft.models.lm import LM

MIN_TOKENS = 1 << 15  # tokens, however short the context is
SHARE = 4  # prefix caches take at most a quarter of the memory
TAILS = 2  # states at ends of texts: of the last prompt and of its answer
FLOOR = 1 << 10  # tokens, however little memory there is


@torch.inference_mode()
def prefix_room(target: LM, context: int, rows: int, models: int = 1) -> int:
    """The number of tokens for a prefix cache.

    It is `context`, with the states that recurrent layers leave on the way and at the ends of
    texts, or MIN_TOKENS; but no more than fit into this model's part of a quarter of the free
    memory. rows: slots of the session that will run beside it. models: those that share the memory.
    Runs one token.
    """
    scratch = target.new_cache(1, 1)
    target.prefill([0], scratch)
    slot = sum(scratch.slot_bytes(layer) for layer in scratch.layers) or 1
    states = sum(x.nbytes for x in (scratch.states_at(1) or {}).values())
    kept = context // target.checkpoints + TAILS
    wanted = max(context + kept * ceil(states / slot), MIN_TOKENS)
    free = free_memory(target, rows * slot)
    return wanted if free is None else min(wanted, max(free // SHARE // models // slot, FLOOR))


def free_memory(target: LM, rows: int) -> int | None:
    """The bytes for caches where this model runs; None: the system does not say.

    rows: bytes that a GPU reserves first.
    """
    if target.device.type == "cuda":
        return max(torch.cuda.mem_get_info(target.device)[0] - rows, 0)
    limit = limits.memory()
    available = memory.available() or memory.total()
    left = None if limit is None else max(limit - target.nbytes(), 0)
    return min((size for size in (available, left) if size is not None), default=None)
