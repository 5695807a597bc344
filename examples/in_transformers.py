"""Continue with Transformers' own `generate`, and let longdraft decode: the same tokens in fewer
steps (in float32).
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, TextStreamer

import longdraft

# the bundled model; any causal language model will do
FOLDER = Path(longdraft.__file__).parent / "assets"


class NoDigits(LogitsProcessor):
    """A processor of one's own must be a function of (input_ids, scores): it is applied to every
    drafted token.
    """

    def __init__(self, tokenizer):
        vocabulary = tokenizer.get_vocab().items()
        self.digits = [number for token, number in vocabulary if any(c.isdigit() for c in token)]

    def __call__(self, input_ids, scores):
        scores[:, self.digits] = float("-inf")
        return scores


tokenizer = AutoTokenizer.from_pretrained(FOLDER / "models" / "target")
# In bfloat16 the two outputs below can diverge where two tokens tie within rounding.
model = AutoModelForCausalLM.from_pretrained(FOLDER / "models" / "target", dtype="float32")
text = (FOLDER / "text" / "great-expectations.txt").read_text(encoding="utf-8")
inputs = tokenizer(text[:6000], return_tensors="pt")
settings = {"max_new_tokens": 60, "do_sample": False, "logits_processor": [NoDigits(tokenizer)]}

stats = longdraft.Stats()
output = model.generate(
    **inputs,
    **settings,
    custom_generate=longdraft.hf_generate,
    method="vegas",
    gamma=4,
    stats=stats,
    streamer=TextStreamer(tokenizer, skip_prompt=True),
)
print("equal to plain generate:", output.tolist() == model.generate(**inputs, **settings).tolist())
print(f"{stats.mean_acceptance_length:.2f} tokens per decoding step")
