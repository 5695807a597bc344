"""Sample a batch of prompts with a seed: the same seed gives the same output, with or without a
drafter.
"""

from __future__ import annotations

from longdraft import Sampler, build, generate, load, row_seed

target, tokenizer = load("bundled", dtype="float32")
prompts = [
    tokenizer(text)["input_ids"]
    for text in ("It was the best of times, ", "import os\nimport sys\n\ndef ")
]
sampler = Sampler(temperature=0.8, top_p=0.95)

plain = generate(target, prompts, sampler=sampler, seed=7, max_new_tokens=40)
drafted = generate(
    target, prompts, build("suffix", target), sampler=sampler, seed=7, max_new_tokens=40
)
other = generate(target, prompts, sampler=sampler, seed=8, max_new_tokens=40)

for row in drafted:
    print(repr(tokenizer.decode(row)))
print("equal to plain decoding:", drafted == plain)
print("equal with another seed:", drafted == other)

# Row b of a batch uses the seed row_seed(seed, b), so a prompt can be decoded alone with the same
# result.
alone = generate(target, prompts[1:], sampler=sampler, seed=row_seed(7, 1), max_new_tokens=40)
print("row 1 decoded alone is equal:", alone[0] == plain[1])
