"""longdraft inside Transformers.

Call it as `model.generate(**inputs, custom_generate=longdraft.hf_generate)`.
"""

from __future__ import annotations

from pathlib import Path

from longdraft.hf.generation import hf_generate as hf_generate

# has custom_generate/generate.py: for `generate(custom_generate=FOLDER)`
FOLDER = str(Path(__file__).parent)
