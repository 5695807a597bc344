"""What llama.cpp (the package xllamacpp) says of a GGUF file, for test_gguf_llama_cpp.py.

    python -m support.beside_llama_cpp FILE PROMPTS

A process of its own: llama.cpp ends its process where it finds a fault. PROMPTS: lists of tokens,
as JSON. Prints, as JSON, the log-probabilities of the likeliest tokens after each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support import gguf_files as files

COUNT = 10  # tokens
CONTEXT = 256
# In llama.cpp a token that is part of a character has no probabilities: such bytes get other names.
KEPT = "ĊĠ"
BYTES = files.tokenizer()


def tokenizer() -> dict[str, tuple[int, object]]:
    """As files.tokenizer(), but each token is a whole text."""
    kind, (of, texts) = BYTES["tokenizer.ggml.tokens"]
    whole = [
        text if len(text) > 1 or text.isascii() or text in KEPT else f"x{i}"
        for i, text in enumerate(texts)
    ]
    return BYTES | {"tokenizer.ggml.tokens": (kind, (of, whole))}


def likeliest(file: Path, prompts: list[list[int]]) -> list[dict[int, float]]:
    from longdraft.bench.peers.llama_server import LlamaServerSettings
    from longdraft.bench.peers.llama_wheel import Wheel

    running = Wheel().start(LlamaServerSettings(file, CONTEXT, 1))
    try:
        return [running.likeliest(prompt, COUNT) for prompt in prompts]
    finally:
        running.close()


if __name__ == "__main__":
    print("\n" + json.dumps(likeliest(Path(sys.argv[1]), json.loads(sys.argv[2]))))
