"""The tables of scale.md, from the shapes of models and by counting bytes: `python docs/scale.py` writes them there.

With --check it writes nothing and exits with 1 if they are out of date. No weights are loaded and nothing is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config

from longdraft.backends.latent import latents_of
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import head_size, size_of, slot_bytes, weights_of
from longdraft.ops import coded

PAGE = Path(__file__).resolve().parent / "scale.md"
BEGIN, END = "<!-- begin: written by docs/scale.py -->", "<!-- end: written by docs/scale.py -->"
BEGIN_LATENT, END_LATENT = "<!-- begin: latents, by docs/scale.py -->", "<!-- end: latents, by docs/scale.py -->"
CONTEXTS = {"32K": 1 << 15, "128K": 1 << 17, "1M": 1 << 20}
GB, DEVICE = 1e9, 80e9  # bytes of a device's memory
ROOM = 0.9  # of it for weights, keys and values


def shape(kind: type, vocab: int, layers: int, hidden: int, heads: int, mlp: int) -> PretrainedConfig:
    sizes = {"vocab_size": vocab, "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": mlp}
    return kind(**sizes, num_attention_heads=heads, num_key_value_heads=8, tie_word_embeddings=False)


MODELS = {  # the shapes that their authors published
    "Llama-3.1-8B": shape(LlamaConfig, 128256, 32, 4096, 32, 14336),
    "Qwen2.5-14B-1M": shape(Qwen2Config, 152064, 48, 5120, 40, 13824),
    "Llama-3.1-70B": shape(LlamaConfig, 128256, 80, 8192, 64, 28672),
}

DEEPSEEK_V2 = {"num_hidden_layers": 60, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 5120}
LATENT = {  # with latent attention; what is not stated is the published default of the type
    "DeepSeek-V3": ("deepseek_v3", {}),
    "DeepSeek-V2": ("deepseek_v2", DEEPSEEK_V2),
    "LongCat-Flash": ("longcat_flash", {}),
    "GLM-4.7-Flash": ("glm4_moe_lite", {}),
    "MiniCPM3-4B": ("minicpm3", {}),
}


class Bytes:
    """What one row's pass reads of a model in bfloat16, in bytes: `weights`, and `slot` for each token of context."""

    def __init__(self, config: PretrainedConfig):
        with torch.device("meta"):
            self.model = LM(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16))
        self.weights, self.slot = weights_of(self.model).read(1), slot_bytes(self.model)
        self.memory = sum(p.nbytes for p in self.model.hf.parameters())
        self.layer, self.head = size_of(self.model.hf.model.layers[0]), head_size(self.model)

    def plain(self, context: int) -> float:
        return self.weights + self.slot * context

    def processes(self, context: int) -> int:
        """The fewest processes, one device each, that hold weights and keys; they divide the 8 key heads."""
        needed = self.memory + self.slot * context
        return next((n for n in (1, 2, 4, 8) if needed / n <= ROOM * DEVICE), 0)

    def drafts(self, context: int, processes: int) -> dict[str, tuple[int, float]]:
        """Of each method its tokens per draft, and the bytes of all of them, summed over the processes.

        A drafter of its own is whole in each process; a draft by the target is divided as the target is.
        """
        w, keys, count = self.weights, self.slot * context, self.model.config.num_hidden_layers
        int8, int4 = (w * (1 - self.model.saving(kind)) for kind in ("int8", "int4"))
        some, codes = 0.07 * keys, keys * coded.width(128, 4) / (2 * 128)  # heads of 128 numbers in bfloat16
        return {
            "suffix": (16, 0.0),
            "vegas": (7, 7 * (w + some)),
            "vegas, int8 copy": (7, 7 * (int8 + some)),
            "quantspec": (4, 4 * (int4 + codes)),
            "longspec-chain": (5, 5 * (processes * self.layer + self.head + keys / count)),
            "eagle3": (7, 7 * processes * (self.layer + 2 * 32000 * self.model.config.hidden_size)),
        }


def tables() -> Iterator[str]:
    sizes = {name: Bytes(config) for name, config in MODELS.items()}
    yield "| | weights, GB | keys and values of a token, KB | " + " ".join(
        f"{context}: keys, GB (share of a step), processes |" for context in CONTEXTS
    )
    yield "| --- | --- | --- |" + " --- |" * len(CONTEXTS)
    for name, b in sizes.items():
        cells = []
        for context in CONTEXTS.values():
            keys = b.slot * context
            cells.append(f"{keys / GB:.1f} ({keys / b.plain(context):.0%}), {b.processes(context) or 'more than 8'}")
        yield f"| {name} | {b.weights / GB:.1f} | {b.slot / 1024:.0f} | " + " | ".join(cells) + " |"
    yield ""
    for name, b in sizes.items():
        yield f"{name}, tokens per step at which a method reads what plain decoding reads, of the most there can be:"
        yield ""
        columns = [(c, n) for c in CONTEXTS for n in (1, 8) if n == 8 or b.processes(CONTEXTS[c]) == 1]
        yield "| | " + " | ".join(f"{c}, {n} process{'es' * (n > 1)}" for c, n in columns) + " |"
        yield "| --- |" + " --- |" * len(columns)
        found = [(b.drafts(CONTEXTS[c], n), b.plain(CONTEXTS[c])) for c, n in columns]
        for method in found[0][0]:
            cells = [f"{1 + drafts[method][1] / plain:.2f} of {drafts[method][0] + 1}" for drafts, plain in found]
            yield f"| `{method}` | " + " | ".join(cells) + " |"
        yield ""


def latent_table() -> Iterator[str]:
    units = ("numbers of a layer", "KB of a token", "GB of 128K tokens")
    yield "| | " + " | ".join(f"{unit}: {kept}" for unit in units for kept in ("heads", "latent")) + " |"
    yield "| --- |" + " --- |" * 2 * len(units)
    for name, (kind, changes) in LATENT.items():
        with torch.device("meta"):
            layers = latents_of(AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **changes))).values()
        heads, latent = [n.heads * (n.dim + n.rotated + n.value) for n in layers], [n.rank + n.rotated for n in layers]
        tokens = [2 * sum(heads), 2 * sum(latent)]
        cells = [f"{heads[0]:,}", f"{latent[0]:,}", *(f"{n / 1024:,.0f}" for n in tokens)]
        cells += [f"{n * CONTEXTS['128K'] / GB:,.1f}" for n in tokens]
        yield f"| {name} | " + " | ".join(cells) + " |"


def main(argv: list[str]) -> int:
    before = PAGE.read_text(encoding="utf-8")
    head, rest = before.split(BEGIN)
    after = f"{head}{BEGIN}\n" + "\n".join(tables()).rstrip() + f"\n{END}" + rest.split(END)[1]
    head, rest = after.split(BEGIN_LATENT)
    after = f"{head}{BEGIN_LATENT}\n" + "\n".join(latent_table()) + f"\n{END_LATENT}" + rest.split(END_LATENT)[1]
    if "--check" in argv:
        return int(after != before)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
