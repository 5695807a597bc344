"""The tables of scale.md, from the shapes of models and by counting bytes: `python docs/scale.py`
writes them there.

With --check it writes nothing and exits with 1 if they are out of date. No weights are loaded and
nothing is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
)

from longdraft.backends.features.latent import latents_of
from longdraft.backends.quantize import bytes_saved
from longdraft.core.states import ROOM
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import head_size, size_of, slot_bytes, weights_of
from longdraft.ops import coded

PAGE = Path(__file__).resolve().parent / "scale.md"
BEGIN = "<!-- begin: written by docs/scale.py -->"
END = "<!-- end: written by docs/scale.py -->"
BEGIN_HYBRID = "<!-- begin: hybrids, by docs/scale.py -->"
END_HYBRID = "<!-- end: hybrids, by docs/scale.py -->"
BEGIN_LATENT = "<!-- begin: latents, by docs/scale.py -->"
END_LATENT = "<!-- end: latents, by docs/scale.py -->"
CONTEXTS = {"32K": 1 << 15, "128K": 1 << 17, "1M": 1 << 20}
# bytes of a device's memory
GB = 1e9
DEVICE = 80e9
SHARE = 0.9  # of it for weights, keys and values


def shape(
    kind: type, vocab: int, layers: int, hidden: int, heads: int, mlp: int
) -> PretrainedConfig:
    sizes = {
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": mlp,
    }
    return kind(
        **sizes, num_attention_heads=heads, num_key_value_heads=8, tie_word_embeddings=False
    )


MODELS = {  # the shapes that their authors published
    "Llama-3.1-8B": shape(LlamaConfig, 128256, 32, 4096, 32, 14336),
    "Qwen2.5-14B-1M": shape(Qwen2Config, 152064, 48, 5120, 40, 13824),
    "Llama-3.1-70B": shape(LlamaConfig, 128256, 80, 8192, 64, 28672),
}

DEEPSEEK_V2 = {
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 5120,
}
LATENT = {  # with latent attention; what is not stated is the published default of the type
    "DeepSeek-V3": ("deepseek_v3", {}),
    "DeepSeek-V2": ("deepseek_v2", DEEPSEEK_V2),
    "LongCat-Flash": ("longcat_flash", {}),
    "GLM-4.7-Flash": ("glm4_moe_lite", {}),
    "MiniCPM3-4B": ("minicpm3", {}),
}

QWEN = {
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
NEMOTRON = {
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
}
NEMOTRON |= {"n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856}
NEMOTRON |= {"moe_shared_expert_intermediate_size": 3712, "tie_word_embeddings": False}
PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"  # Mamba-2, experts, attention


def hybrid(
    kind: str, hidden: int, heads: int, keys: int, **others: Any
) -> tuple[str, dict[str, Any]]:
    return kind, {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        **others,
    }


HYBRIDS = {  # what is not stated is the default of the type
    "Qwen3.5-0.8B": hybrid(
        "qwen3_5_text", 1024, 8, 2, num_hidden_layers=24, intermediate_size=3584, linear_num_value_heads=16,
        tie_word_embeddings=True, **QWEN,
    ),
    "Qwen3.5-4B": hybrid(
        "qwen3_5_text", 2560, 16, 4, num_hidden_layers=32, intermediate_size=9216, linear_num_value_heads=32,
        tie_word_embeddings=True, **QWEN,
    ),
    "Qwen3.5-27B": hybrid(
        "qwen3_5_text", 5120, 24, 4, num_hidden_layers=64, intermediate_size=17408, linear_num_value_heads=48, **QWEN
    ),
    "Qwen3.5-35B-A3B": hybrid(
        "qwen3_5_moe_text", 2048, 16, 2, num_hidden_layers=40, linear_num_value_heads=32, **QWEN
    ),
    "Nemotron-3-Nano-30B-A3B": hybrid("nemotron_h", 2688, 32, 2, hybrid_override_pattern=PATTERN, **NEMOTRON),
}  # fmt: skip


class Bytes:
    """What one row's pass reads of a model in bfloat16, in bytes: `weights`, and `slot` for each
    token of context.
    """

    def __init__(self, config: PretrainedConfig):
        with torch.device("meta"):
            self.model = LM(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16))
        self.weights, self.slot = weights_of(self.model).read(1), slot_bytes(self.model)
        self.memory = sum(p.nbytes for p in self.model.hf.parameters())
        self.layer, self.head = size_of(self.model.hf.model.layers[0]), head_size(self.model)

    def plain(self, context: int) -> float:
        return self.weights + self.slot * context

    def processes(self, context: int) -> int:
        """The fewest processes, one device each, that hold weights and keys; they divide the 8 key
        heads.
        """
        needed = self.memory + self.slot * context
        return next((n for n in (1, 2, 4, 8) if needed / n <= SHARE * DEVICE), 0)

    def drafts(self, context: int, processes: int) -> dict[str, tuple[int, float]]:
        """Of each method its tokens per draft, and the bytes of all of them, summed over the
        processes.

        A drafter with its own weights is whole in each process; a draft by the target is divided as
        the target is.
        """
        w = self.weights
        keys = self.slot * context
        count = self.model.config.num_hidden_layers
        int8, int4 = (w * (1 - self.model.saving(kind)) for kind in ("int8", "int4"))
        # heads of 128 numbers in bfloat16
        some = 0.07 * keys
        codes = keys * coded.width(128, 4) / (2 * 128)
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
            cells.append(
                f"{keys / GB:.1f} ({keys / b.plain(context):.0%}), "
                f"{b.processes(context) or 'more than 8'}"
            )
        yield f"| {name} | {b.weights / GB:.1f} | {b.slot / 1024:.0f} | " + " | ".join(cells) + " |"
    yield ""
    for name, b in sizes.items():
        yield f"{name}, break-even tokens per step (maximum):"
        yield ""
        columns = [
            (c, n) for c in CONTEXTS for n in (1, 8) if n == 8 or b.processes(CONTEXTS[c]) == 1
        ]
        yield "| | " + " | ".join(f"{c}, {n} process{'es' * (n > 1)}" for c, n in columns) + " |"
        yield "| --- |" + " --- |" * len(columns)
        found = [(b.drafts(CONTEXTS[c], n), b.plain(CONTEXTS[c])) for c, n in columns]
        for method in found[0][0]:
            cells = [
                f"{1 + drafts[method][1] / plain:.2f} of {drafts[method][0] + 1}"
                for drafts, plain in found
            ]
            yield f"| `{method}` | " + " | ".join(cells) + " |"
        yield ""


@dataclass(frozen=True)
class Recurrent:
    """Bytes in one recurrent layer: of a sequence's state, float32, and of the inputs of a node, in
    bfloat16.

    The state is that of the scan and the last inputs of the convolution. Gates of delta nets are
    float32.
    """

    state: int
    inputs: int


def recurrent(config: PretrainedConfig) -> Recurrent:
    if hasattr(config, "mamba_num_heads"):
        heads = config.mamba_num_heads
        size = config.mamba_head_dim
        width = config.ssm_state_size
        # the time step
        keys = config.n_groups * width
        taps = config.conv_kernel
        gates = 2 * heads
    else:
        heads = config.linear_num_value_heads
        size = config.linear_value_head_dim
        width = config.linear_key_head_dim
        keys = config.linear_num_key_heads * width
        taps = config.linear_conv_kernel_dim
        gates = (4 + 2) * heads
    channels = heads * size + 2 * keys
    return Recurrent(
        4 * heads * size * width + 2 * channels * (taps - 1),
        2 * (channels + heads * size + keys) + gates,
    )


class HybridBytes:
    """What one row's pass moves of a hybrid in bfloat16, in bytes: states are read and written."""

    def __init__(self, kind: str, changes: dict[str, Any]):
        with torch.device("meta"):
            config = AutoConfig.for_model(kind, **changes)
            self.model = LM(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16))
        self.weights = weights_of(self.model)
        sizes = recurrent(config)
        a = self.model.architecture
        self.slot = len(a.with_keys) * 2 * config.num_key_value_heads * config.head_dim * 2
        self.state = a.scans * sizes.state
        self.inputs = a.scans * sizes.inputs
        # attention and experts are two layers
        layer = a.with_keys[0]
        apart = hasattr(config, "mamba_num_heads")
        parts = self.model.hf.model.layers[layer : layer + 1 + apart]
        experts = sum(p.nbytes for name, p in parts.named_parameters() if ".experts." in name)
        # one layer, with the experts of a token
        self.block = size_of(parts) - experts * (1 - self.weights.each)
        self.head = head_size(self.model)

    def plain(self, context: int) -> float:
        return self.passed(context, 1)

    def passed(self, keys: float, nodes: int) -> float:
        """A pass over nodes that choose their experts independently, which sees this many keys."""
        return self.weights.read(nodes) + self.slot * keys + 2 * self.state

    def verification(self, context: int, nodes: int) -> float:
        """With the replay of what was accepted, which reads and writes the states again."""
        return self.passed(context, nodes) + 2 * self.state

    def drafts(self, context: int) -> dict[str, tuple[int, float]]:
        """Of each method its tokens per draft, and the bytes of all of them."""
        one = self.passed(0, 1)
        keys = self.slot * context
        count = len(self.model.architecture.with_keys)
        int8, int4 = (
            one - bytes_saved(self.model.hf, kind, weights_of(self.model).each)
            for kind in ("int8", "int4")
        )
        size = self.model.config.head_dim
        return {
            "`suffix`": (16, 0.0),
            "`suffix`, 4 tokens": (4, 0.0),
            "`vegas`": (7, 7 * (one + 0.07 * keys)),
            "no keys": (7, 7 * one),
            "`vegas`, int8 copy": (7, 7 * (int8 + 0.07 * keys)),
            "`quantspec`": (4, 4 * (int4 + keys * coded.width(size, 4) / (2 * size))),
            "a layer": (3, 3 * (self.block + self.head + keys / count)),
        }


def hybrid_tables() -> Iterator[str]:
    sizes = {name: HybridBytes(*model) for name, model in HYBRIDS.items()}
    contexts = {name: CONTEXTS[name] for name in ("32K", "128K")}
    yield (
        "| | weights of a step, GB | keys and values of a token, KB | states of a sequence, MB | "
        + " | ".join(f"{c}: weights, keys, states" for c in contexts)
        + " |"
    )
    yield "| --- |" + " --- |" * 5
    for name, b in sizes.items():
        cells = [f"{b.weights.read(1) / GB:.1f}", f"{b.slot / 1024:.0f}", f"{b.state / 1e6:.1f}"]
        for n in contexts.values():
            parts = (b.weights.read(1), b.slot * n, 2 * b.state)
            cells.append(", ".join(f"{part / b.plain(n):.1%}" for part in parts))
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""
    yield "Memory of a sequence beside its keys:"
    yield ""
    yield (
        "| | states, MB | inputs of a node, KB | inputs of 8 nodes, MB | 8 states, MB | "
        "inputs / states | " + (f"inputs of {ROOM} slots, MB |")
    )
    yield "| --- |" + " --- |" * 6
    for name, b in sizes.items():
        cells = [f"{b.state / 1e6:.1f}", f"{b.inputs / 1024:.0f}", f"{8 * b.inputs / 1e6:.1f}"]
        cells += [
            f"{8 * b.state / 1e6:.0f}",
            f"1/{b.state / b.inputs:.0f}",
            f"{ROOM * b.inputs / 1e6:.0f}",
        ]
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""
    yield (
        "Tokens per step at which a method moves as many bytes as plain decoding, and the gain "
        "if all are accepted:"
    )
    yield ""
    methods = next(iter(sizes.values())).drafts(0)
    yield "| | | " + " | ".join(methods) + " |"
    yield "| --- | --- |" + " --- |" * len(methods)
    for name, b in sizes.items():
        for c, n in contexts.items():
            cells = []
            for tokens, drafted in b.drafts(n).values():
                needed = (drafted + b.verification(n, tokens + 1)) / b.plain(n)
                cells.append(f"{needed:.2f} of {tokens + 1} ({(tokens + 1) / needed:.1f}x)")
            yield f"| {name} | {c} | " + " | ".join(cells) + " |"
    yield ""
    yield "Bytes of verifying chains, in plain steps at 32K:"
    yield ""
    counts = (2, 4, 8, 17)
    yield "| | " + " | ".join(f"{n} nodes" for n in counts) + " |"
    yield "| --- |" + " --- |" * len(counts)
    for name, b in sizes.items():
        n = contexts["32K"]
        yield (
            f"| {name} | "
            + " | ".join(f"{b.verification(n, k) / b.plain(n):.2f}" for k in counts)
            + " |"
        )


def latent_table() -> Iterator[str]:
    units = ("numbers of a layer", "KB of a token", "GB of 128K tokens")
    yield (
        "| | "
        + " | ".join(f"{unit}: {kept}" for unit in units for kept in ("heads", "latent"))
        + " |"
    )
    yield "| --- |" + " --- |" * 2 * len(units)
    for name, (kind, changes) in LATENT.items():
        with torch.device("meta"):
            layers = latents_of(
                AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **changes))
            ).values()
        heads = [n.heads * (n.dim + n.rotated + n.value) for n in layers]
        latent = [n.rank + n.rotated for n in layers]
        tokens = [2 * sum(heads), 2 * sum(latent)]
        cells = [f"{heads[0]:,}", f"{latent[0]:,}", *(f"{n / 1024:,.0f}" for n in tokens)]
        cells += [f"{n * CONTEXTS['128K'] / GB:,.1f}" for n in tokens]
        yield f"| {name} | " + " | ".join(cells) + " |"


def main(argv: list[str]) -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = before
    for begin, lines, end in (
        (BEGIN, tables(), END),
        (BEGIN_HYBRID, hybrid_tables(), END_HYBRID),
        (BEGIN_LATENT, latent_table(), END_LATENT),
    ):
        head, rest = after.split(begin)
        after = f"{head}{begin}\n" + "\n".join(lines).rstrip() + f"\n{end}" + rest.split(end)[1]
    if "--check" in argv:
        return int(after != before)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
