"""Which parts a worker's model runner is made of."""

from __future__ import annotations

from typing import Any

from longdraft_vllm import contract
from longdraft_vllm.keyed import Keyed
from longdraft_vllm.options import chosen, keyed_noise
from longdraft_vllm.plain_steps import sample_plainly
from longdraft_vllm.recycle import Recycling
from longdraft_vllm.repairs import repair_sampling
from longdraft_vllm.window import Windowed
from longdraft_vllm.window_options import window_of

# by the name of their part of the contract
ADDED = {
    "keyed": Keyed,
    "recycle": Recycling,
    "window": Windowed,
}


def runner_for(vllm_config: Any, drafting: type, plain: type) -> type:
    """The model runner's class: `drafting` if the target drafts for itself, else vLLM's own, with
    what is added.

    Raises Mismatch if a part does not fit this vLLM, and corrects vLLM's sampler where it is wrong
    or slow.
    """
    repair_sampling()
    offered = chosen(vllm_config)
    if offered:
        sample_plainly()
    drafts_from = offered.drafts_from if offered else "text"
    used = {
        "keyed": keyed_noise(vllm_config),
        "recycle": drafts_from == "logits",
        "window": bool(window_of(vllm_config)),
    }
    parts = [name for name, wanted in used.items() if wanted]
    for name in parts:
        contract.check(name)
    kind = drafting if drafts_from == "target" else plain
    return type("Runner", (*(ADDED[name] for name in parts), kind), {}) if parts else kind
