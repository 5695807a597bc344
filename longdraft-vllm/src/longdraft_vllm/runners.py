"""Which parts a worker's model runner is made of."""

from __future__ import annotations

from typing import Any

from longdraft_vllm.keyed import Keyed
from longdraft_vllm.options import keyed_noise
from longdraft_vllm.plugin import RECYCLE, SELF_DRAFTING, names
from longdraft_vllm.recycle import Recycling


def runner_for(vllm_config: Any, drafting: type, plain: type) -> type:
    """The model runner's class: `drafting` if the target drafts for itself, else vLLM's own, with what is added."""
    kind = drafting if names(vllm_config, *SELF_DRAFTING) else plain
    added = {Keyed: keyed_noise(vllm_config), Recycling: names(vllm_config, RECYCLE)}
    parts = [part for part, used in added.items() if used]
    return type("Runner", (*parts, kind), {}) if parts else kind
