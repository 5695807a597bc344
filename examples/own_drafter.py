"""Write a drafter of your own: only `grow` is required, and no drafter can change the output."""

from __future__ import annotations

from pathlib import Path

import longdraft
from longdraft import Stats, generate, load
from longdraft.drafters import Drafter


class Bigram(Drafter):
    """Drafts the tokens that followed the latest earlier occurrence of the last two tokens."""

    def __init__(self, count: int = 5):
        self.count = count

    def grow(self, tree, seqs, limits):
        drafts = []
        for tokens, length in zip(seqs.tokens.tolist(), seqs.length.tolist(), strict=True):
            last = tokens[length - 2 : length]
            end = next((i for i in range(length - 1, 1, -1) if tokens[i - 2 : i] == last), length)
            drafts.append(tokens[end : min(end + min(self.count, limits.depth), length)])
        # Each row's draft is a list of (parent, token): parent 0 is the root, i the row's i-th
        # drafted node.
        return tree.add_below_root([list(enumerate(draft)) for draft in drafts])


target, tokenizer = load("bundled", dtype="float32")
book = Path(longdraft.__file__).parent / "assets" / "text" / "great-expectations.txt"
prompt = tokenizer(book.read_text(encoding="utf-8"))["input_ids"][:2048]

stats = Stats()
plain = generate(target, [prompt], max_new_tokens=96)
drafted = generate(target, [prompt], Bigram(), max_new_tokens=96, stats=stats)
print(
    f"equal to plain decoding: {drafted == plain}; {stats.mean_acceptance_length:.2f} "
    "tokens per step"
)
