"""The form of longdraft.hf_generate that `generate(custom_generate=FOLDER, trust_remote_code=True)`
loads.
"""

from __future__ import annotations

from typing import Any

from longdraft.hf import hf_generate


def generate(model: Any, **arguments: Any) -> Any:
    """Continue as `model.generate` does with these arguments, by longdraft."""
    return model.generate(**arguments, custom_generate=hf_generate)
