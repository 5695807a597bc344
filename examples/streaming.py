"""Print tokens as they are decoded, with a trained drafter whose draft length adapts to predicted
costs.
"""

from __future__ import annotations

from pathlib import Path

import longdraft
from longdraft import build, load, stream

ASSETS = Path(longdraft.__file__).parent / "assets"

target, tokenizer = load("bundled")
prompt = tokenizer((ASSETS / "text" / "great-expectations.txt").read_text(encoding="utf-8"))[
    "input_ids"
][:2048]

# Weights of LongSpec's block for the bundled target; `longdraft train glide` makes one for a model
# of yours.
drafter = build("longspec", target, drafter=ASSETS / "models" / "glide", adaptive=True, gamma=4)

for step in stream(target, [prompt], drafter, max_new_tokens=64):
    print(tokenizer.decode(step.tokens[0]), end="|", flush=True)  # "|" separates decoding steps
print()
