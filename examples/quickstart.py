"""Decode a 2,048-token prompt plainly and with vegas, and compare the two outputs."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import longdraft
from longdraft import Stats, build, generate, load

BOOK = Path(longdraft.__file__).parent / "assets" / "text" / "great-expectations.txt"

target, tokenizer = load("bundled", dtype="float32")  # or a folder, or a Hub id
prompt = tokenizer(BOOK.read_text(encoding="utf-8"))["input_ids"][2048:4096]

outputs = {}
for method in ("plain", "vegas"):
    stats = Stats()
    begin = perf_counter()
    outputs[method] = generate(
        target, [prompt], build(method, target), max_new_tokens=64, stats=stats
    )
    seconds = perf_counter() - begin
    length = stats.mean_acceptance_length
    print(f"{method}: {seconds:.2f} s with prefill, {length:.2f} tokens per step")

print(tokenizer.decode(outputs["vegas"][0]))
print("equal to plain decoding:", outputs["vegas"] == outputs["plain"])
