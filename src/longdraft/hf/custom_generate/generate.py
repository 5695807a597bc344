"""longdraft.hf_generate for `generate(custom_generate=FOLDER, trust_remote_code=True)`."""

from __future__ import annotations

from typing import Any

from longdraft.hf import hf_generate


def generate(model: Any, **arguments: Any) -> Any:
    """Continue as `model.generate` does with these arguments, using longdraft."""
    return model.generate(**arguments, custom_generate=hf_generate)
