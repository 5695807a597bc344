"""Writes a GGUF file of random weights in a real model's shape, to measure speed without the model.

    python benchmarks/random_gguf.py qwen3-30b-a3b --layers 12 --to runs/moe.gguf

Matrices have the types that llama.cpp's mixture Q4_K_M (of Gemma 3: Q4_0; of
gpt-oss: Q8_0, and MXFP4 for experts) gives them. Their codes are random, and the scales such that
entries have a mean near 0 and a standard deviation of 0.02 or less, as in a model before training;
so the file loads and decodes in llama.cpp as well (`longdraft bench peers -m FILE --peers
llama.cpp`), and both compute nearly the same probabilities. The tokenizer has the 256 bytes, and
names for the other tokens. Without all its layers a model has the speed of its layers' share, and
nearly the same ratios between methods and engines.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log2, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from arguments import Arguments, at_least, status
from tokenizers.pre_tokenizers import ByteLevel

from longdraft.errors import InputError

STD = 0.02  # of the entries of matrices
CHUNK = 1 << 16  # blocks that are random; they repeat after this many
ALIGNMENT = 32
# types of metadata; the integers of lists are signed
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
FORMS = {int: "<I", float: "<f"}


@dataclass(frozen=True)
class Shape:
    """What a model's config says of its sizes."""

    architecture: str
    layers: int
    width: int
    heads: int
    key_heads: int
    dim: int
    mlp: int
    vocab: int
    experts: int = 0
    chosen: int = 0
    inner: int = 0
    window: int = 0
    rope: float = 1e6
    positions: int = 32768

    @property
    def is_oss(self) -> bool:
        return self.architecture == "gpt-oss"

    @property
    def is_gemma(self) -> bool:
        return self.architecture == "gemma3"


SHAPES = {
    "qwen3-30b-a3b": Shape("qwen3moe", 48, 2048, 32, 4, 128, 6144, 151936, 128, 8, 768),
    "qwen3-4b": Shape("qwen3", 36, 2560, 32, 8, 128, 9728, 151936),
    "gpt-oss-20b": Shape(
        "gpt-oss", 24, 2880, 64, 8, 64, 2880, 201088, 32, 4, 2880, 128, 150000.0, 131072
    ),
    "gemma-3-4b": Shape("gemma3", 34, 2560, 8, 4, 256, 10240, 262144, window=1024),
}


@dataclass(frozen=True)
class BlockType:
    """number: its number in files. entries, size: of a block, which has `size` bytes."""

    number: int
    entries: int
    size: int


F32 = BlockType(0, 1, 4)
Q4_0 = BlockType(2, 32, 18)
Q8_0 = BlockType(8, 32, 34)
MXFP4 = BlockType(39, 32, 17)
Q4_K = BlockType(12, 256, 144)
Q6_K = BlockType(14, 256, 210)


def blocks(kind: BlockType, count: int, std: float, random: np.random.Generator) -> np.ndarray:
    """Random blocks [count,size]; entries have a mean near 0."""
    made = random.integers(0, 256, (count, kind.size), dtype=np.uint8)
    scales = random.integers(24, 41, (count, 16), dtype=np.uint8)
    if kind is Q4_0:  # (code - 8) * scale
        made[:, :2] = np.full((count, 1), std / 4.6, "<f2").view(np.uint8)
    elif kind is Q8_0:  # signed codes have a deviation of 74
        made[:, :2] = np.full((count, 1), std / 74, "<f2").view(np.uint8)
    elif kind is MXFP4:  # values up to 12, of a deviation of 6, times a power of 2
        made[:, 0] = 128 + round(log2(std / 6))
    elif kind is Q4_K:  # (code - 7.5) * scale; codes from 0 to 15 have a deviation of 4.6
        step = np.full((count, 1), std / (32 * 4.6), "<f2")
        made[:, :2] = step.view(np.uint8)
        made[:, 2:4] = (step * np.float16(7.5)).astype("<f2").view(np.uint8)
        low, high = scales[:, :4], scales[:, 4:8]
        made[:, 4:8] = made[:, 8:12] = low | high >> 4 << 6
        made[:, 12:16] = high & 15 | (high & 15) << 4
    else:  # (code - 32) * scale; codes from 0 to 63 have a deviation of 18.5
        made[:, 192:208] = scales * random.choice(np.array([1, 255], np.uint8), (count, 16))
        made[:, 208:] = np.full((count, 1), std / (32 * 18.5), "<f2").view(np.uint8)
    return made


def has_more_bits(layer: int, layers: int) -> bool:
    """Whether Q4_K_M stores a layer's values, and what is down, with 6 bits."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors(s: Shape) -> Iterator[tuple[str, tuple[int, ...], BlockType]]:
    """Names, shapes as in torch, and types."""
    most = Q4_0 if s.is_gemma else Q8_0 if s.is_oss else Q4_K
    table, head = (Q6_K, None) if s.is_gemma else (Q8_0, Q8_0) if s.is_oss else (Q4_K, Q6_K)
    yield "token_embd.weight", (s.vocab, s.width), table
    yield "output_norm.weight", (s.width,), F32
    if head is not None:  # else it is the embedding
        yield "output.weight", (s.vocab, s.width), head
    for i in range(s.layers):
        finer = Q6_K if most is Q4_K and has_more_bits(i, s.layers) else most
        for name, rest in (attention(s, most, finer) | mlp(s, most, finer)).items():
            leaf = "" if "." in name else ".weight"
            yield (f"blk.{i}.{name}{leaf}", *rest)


Parts = dict[str, tuple[tuple[int, ...], BlockType]]


def attention(s: Shape, most: BlockType, finer: BlockType) -> Parts:
    """A layer's tensors around its attention; a name with a dot is of no weight."""
    queries, keys = s.heads * s.dim, s.key_heads * s.dim
    parts: Parts = {
        "attn_norm": ((s.width,), F32),
        "attn_q": ((queries, s.width), most),
        "attn_k": ((keys, s.width), most),
        "attn_v": ((keys, s.width), finer),
        "attn_output": ((s.width, queries), most),
    }
    if s.is_oss:
        biases = {"q": queries, "k": keys, "v": keys, "output": s.width}
        parts |= {f"attn_{name}.bias": ((n,), F32) for name, n in biases.items()}
        return parts | {
            "attn_sinks": ((s.heads,), F32),
            "post_attention_norm": ((s.width,), F32),
        }
    parts |= {
        "attn_q_norm": ((s.dim,), F32),
        "attn_k_norm": ((s.dim,), F32),
        "ffn_norm": ((s.width,), F32),
    }
    if s.is_gemma:
        parts |= {f"post_{name}_norm": ((s.width,), F32) for name in ("attention", "ffw")}
    return parts


def mlp(
    s: Shape, most: BlockType, finer: BlockType
) -> dict[str, tuple[tuple[int, ...], BlockType]]:
    """The tensors of a layer's MLP, or of its experts."""
    if not s.experts:
        return {
            "ffn_gate": ((s.mlp, s.width), most),
            "ffn_up": ((s.mlp, s.width), most),
            "ffn_down": ((s.width, s.mlp), finer),
        }
    if s.is_oss:
        most = finer = MXFP4
    parts: Parts = {
        "ffn_gate_inp": ((s.experts, s.width), F32),
        "ffn_gate_exps": ((s.experts, s.inner, s.width), most),
        "ffn_up_exps": ((s.experts, s.inner, s.width), most),
        "ffn_down_exps": ((s.experts, s.width, s.inner), finer),
    }
    if s.is_oss:
        parts |= {
            "ffn_gate_inp.bias": ((s.experts,), F32),
            "ffn_gate_exps.bias": ((s.experts, s.inner), F32),
            "ffn_up_exps.bias": ((s.experts, s.inner), F32),
            "ffn_down_exps.bias": ((s.experts, s.width), F32),
        }
    return parts


def metadata(s: Shape) -> dict[str, Any]:
    of_model = {
        "block_count": s.layers,
        "context_length": s.positions,
        "embedding_length": s.width,
        "feed_forward_length": s.mlp,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.key_heads,
        "attention.key_length": s.dim,
        "attention.value_length": s.dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": s.rope,
    }
    if s.experts:
        of_model |= {
            "expert_count": s.experts,
            "expert_used_count": s.chosen,
            "expert_feed_forward_length": s.inner,
        }
    if s.is_oss:
        of_model |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
        }
    if s.window:
        of_model["attention.sliding_window"] = s.window
    letters = sorted(ByteLevel.alphabet())
    words = [*letters, "he", *(f"<{i}>" for i in range(len(letters) + 1, s.vocab))]
    of_tokenizer = {
        "model": "gpt2",
        "pre": "gpt-4o" if s.is_oss else "qwen2",
        "tokens": words,
        "token_type": [1] * (len(letters) + 1) + [5] * (s.vocab - len(letters) - 1),
        "merges": ["h e"],
        "eos_token_id": s.vocab - 1,
    }
    return {
        "general.architecture": s.architecture,
        **{f"{s.architecture}.{key}": value for key, value in of_model.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in of_tokenizer.items()},
    }


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def packed(value: Any) -> tuple[int, bytes]:
    """A value of the metadata: its type, and its bytes."""
    if isinstance(value, str):
        return STRING, text(value)
    if isinstance(value, list):
        each = [packed(item) for item in value]
        kind = INT32 if each[0][0] == UINT32 else each[0][0]
        head = struct.pack("<IQ", kind, len(each))
        return ARRAY, head + b"".join(data for _, data in each)
    kind = UINT32 if isinstance(value, int) else FLOAT32
    return kind, struct.pack(FORMS[type(value)], value)


class Weights:
    """The data of tensors. Matrices that add to the residual stream have smaller entries, as before
    training, or the smallest difference would decide what a deep model says.
    """

    def __init__(self, layers: int, seed: int):
        self.random = np.random.default_rng(seed)
        self.added = STD / sqrt(2 * layers)
        self._known: dict[tuple[BlockType, float], np.ndarray] = {}

    def of(self, name: str, sizes: tuple[int, ...], kind: BlockType) -> Iterator[bytes]:
        """The bytes of a tensor: norms of 1, other vectors and routers of random numbers, else
        random blocks, which repeat except in embeddings and outputs: these would tie.
        """
        if kind is F32:
            is_norm = name.endswith("norm.weight")
            numbers = np.ones(sizes) if is_norm else self.random.normal(0, STD, sizes)
            yield numbers.astype("<f4").tobytes()
            return
        std = self.added if "attn_output" in name or "ffn_down" in name else STD
        left = prod(sizes) // kind.entries
        while left:
            some = self._some(kind, std, repeats=name.startswith("blk."))[:left]
            left -= len(some)
            yield some.tobytes()

    def _some(self, kind: BlockType, std: float, repeats: bool) -> np.ndarray:
        if not repeats:
            return blocks(kind, CHUNK, std, self.random)
        key = (kind, std)
        if key not in self._known:
            self._known[key] = blocks(kind, CHUNK, std, self.random)
        return self._known[key][int(self.random.integers(0, CHUNK)) :]


def write(shape: Shape, out: Path, seed: int) -> int:
    """Write the file -> its size in bytes."""
    weights = Weights(shape.layers, seed)
    listed = list(tensors(shape))
    facts = metadata(shape)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(facts))
    for key, value in facts.items():
        kind, data = packed(value)
        head += text(key) + struct.pack("<I", kind) + data
    at = 0
    for name, sizes, kind in listed:
        form = f"<I{len(sizes)}QIQ"
        head += text(name) + struct.pack(form, len(sizes), *sizes[::-1], kind.number, at)
        at += _whole(prod(sizes) // kind.entries * kind.size)
    with out.open("wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for name, sizes, kind in listed:
            for data in weights.of(name, sizes, kind):
                file.write(data)
            file.write(bytes(-file.tell() % ALIGNMENT))
        return file.tell()


def _whole(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument("shape", choices=list(SHAPES), help="the model whose shape it has")
    parser.add_argument("--layers", type=at_least(1), metavar="N", help="layers (default: all)")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="the file")
    parser.share("seed")
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    shape = SHAPES[given.shape]
    if given.layers is not None:
        shape = replace(shape, layers=given.layers)
    if given.to.exists():
        raise InputError(f"{given.to} exists: give another --to")
    given.to.parent.mkdir(parents=True, exist_ok=True)
    print(f"{given.to}: {write(shape, given.to, given.seed) / 1e9:.2f} GB")


if __name__ == "__main__":
    sys.exit(status(main))
