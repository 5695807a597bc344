"""Writes GGUF files, of tiny models too, and decodes their blocks, for the tests of GGUF files."""

from __future__ import annotations

import struct
import tracemalloc
from functools import cache, partial
from math import prod
from pathlib import Path

import numpy as np
import torch
from support.tiny import BASE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from longdraft.errors import InputError
from longdraft.models.gguf import config as gguf_config
from longdraft.models.gguf import file as gguf
from longdraft.models.gguf import model as gguf_model
from longdraft.models.gguf import tokenizer as gguf_tokenizer

U16 = 2
U32 = 4
I32 = 5
F32 = 6
BOOL = 7
STRING = 8
ARRAY = 9
U64 = 10
CODES = {U16: "<H", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}
NUMBER = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
}
NUMBER |= {"MXFP4": 39, "Q2_K": 10, "Q3_K": 11, "IQ4_XS": 23, "Q6_K": 14, "IQ4_NL": 20, "BF16": 30}
SIZES = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
}
SIZES |= {
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
NUMBER |= {"TQ1_0": 34, "TQ2_0": 35}
SIZES |= {
    "TQ1_0": (256, 54),
    "TQ2_0": (256, 66),
    "MXFP4": (32, 17),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
}
# where scales are; others: 0
HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
}
HALVES |= {"TQ1_0": (52,), "TQ2_0": (64,)}
HALVES |= {"Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,)}
QUANTIZED = [name for name in SIZES if name not in ("F32", "F16", "BF16")]


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind: int, what) -> bytes:
    """what of an ARRAY: (kind of its values, values)."""
    if kind == STRING:
        return text(what)
    if kind == ARRAY:
        inner, values = what
        return struct.pack("<IQ", inner, len(values)) + b"".join(
            value(inner, each) for each in values
        )
    return struct.pack(CODES[kind], what)


def contents(metadata: dict, tensors: dict, version: int = 3) -> bytes:
    """metadata {key: (kind, value)}; tensors {name: (type, shape as in torch, bytes)}."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(
        text(key) + struct.pack("<I", kind) + value(kind, what)
        for key, (kind, what) in metadata.items()
    )
    body = b""
    for name, (kind, shape, data) in tensors.items():
        body += bytes(-len(body) % 32)
        number = NUMBER.get(kind, kind)
        head += text(name) + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *shape[::-1], number, len(body)
        )
        body += data
    return head + bytes(-len(head) % 32) + body


def blocks(kind: str, shape: tuple[int, ...], seed: int = 0, scale: float = 0.01) -> bytes:
    """Random codes, with scales near `scale`."""
    entries, size = SIZES[kind]
    g = np.random.default_rng(seed)
    made = g.integers(0, 256, (prod(shape) // entries, size), dtype=np.uint8)
    if kind == "MXFP4":  # powers of 2 near the scale
        made[:, 0] = round(np.log2(scale)) + 128 + g.integers(-2, 3, len(made))
        return made.tobytes()
    if kind == "TQ1_0":  # no byte is more than all digits of 2
        digits = g.integers(0, 243, (len(made), 52))
        digits[:, 48:] -= digits[:, 48:] % 3  # four digits
        made[:, :52] = (digits * 256 + 242) // 243
    if kind == "TQ2_0":
        digits = g.integers(0, 3, (len(made), 64, 4))
        made[:, :64] = (digits << np.array([0, 2, 4, 6])).sum(-1)
    for at in HALVES.get(kind, (0,)):
        made[:, at : at + 2] = (g.normal(0, scale, len(made)).astype("<f2"))[:, None].view(np.uint8)
    return made.tobytes()


def plain(kind: str, tensor: torch.Tensor) -> bytes:
    to = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    return tensor.detach().to(to).contiguous().view(torch.uint8).numpy().tobytes()


def decoded(kind: str, data: bytes) -> list[float]:
    """The entries of one block, one after another as ggml's C code computes them."""

    def half(at: int) -> np.float32:
        return np.float32(np.frombuffer(data, "<f2", 1, at)[0])

    def signed(byte: int) -> int:
        return byte - 256 if byte > 127 else byte

    def minimum(j: int, q: bytes) -> tuple[int, int]:
        if j < 4:
            return q[j] & 63, q[j + 4] & 63
        return q[j + 4] & 15 | (q[j - 4] >> 6) << 4, q[j + 4] >> 4 | (q[j] >> 6) << 4

    if kind == "MXFP4":
        step = np.ldexp(np.float32(1), data[0] - 128)
        codes = [x & 15 for x in data[1:]] + [x >> 4 for x in data[1:]]
        return [step * np.float32(FP4[code & 7] * (-1 if code & 8 else 1)) for code in codes]
    if kind == "TQ1_0":
        places = [(i, n) for n in range(5) for i in range(32)]
        places += [(32 + i, n) for n in range(5) for i in range(16)]
        places += [(48 + i, n) for n in range(4) for i in range(4)]
        digits = [(data[i] * 3**n % 256) * 3 >> 8 for i, n in places]
        return [half(52) * np.float32(x - 1) for x in digits]
    if kind == "TQ2_0":
        codes = [data[i // 128 * 32 + i % 32] >> i // 32 % 4 * 2 & 3 for i in range(256)]
        return [half(64) * np.float32(x - 1) for x in codes]
    d = half(0)
    q = data[2:]
    if kind == "Q8_0":
        return [d * np.float32(signed(x)) for x in q]
    if kind in ("Q4_0", "IQ4_NL"):
        levels = range(-8, 8) if kind == "Q4_0" else IQ4
        return [d * np.float32(levels[x & 15]) for x in q] + [
            d * np.float32(levels[x >> 4]) for x in q
        ]
    if kind == "Q4_1":
        m = half(2)
        q = data[4:]
        return [d * np.float32(x & 15) + m for x in q] + [d * np.float32(x >> 4) + m for x in q]
    if kind in ("Q5_0", "Q5_1"):
        at = 2 if kind == "Q5_0" else 4
        m, less = (np.float32(0), 16) if kind == "Q5_0" else (half(2), 0)
        high = int.from_bytes(data[at : at + 4], "little")
        q = data[at + 4 :]
        codes = [x & 15 for x in q] + [x >> 4 for x in q]
        return [d * np.float32((c | (high >> i & 1) << 4) - less) + m for i, c in enumerate(codes)]
    if kind in ("Q4_K", "Q5_K"):
        least = half(2)
        scales = data[4:16]
        high, q = (bytes(32), data[16:]) if kind == "Q4_K" else (data[16:48], data[48:])
        found = []
        for j in range(8):
            s, m = minimum(j, scales)
            for i in range(32):
                code = q[j // 2 * 32 + i] >> 4 * (j % 2) & 15 | (high[i] >> j & 1) << 4
                found.append((d * np.float32(s)) * np.float32(code) - least * np.float32(m))
        return found
    if kind == "IQ4_XS":
        more = int.from_bytes(data[2:4], "little")
        low = data[4:8]
        q = data[8:]
        found = []
        for j in range(8):
            s = d * np.float32((low[j // 2] >> 4 * (j % 2) & 15 | (more >> 2 * j & 3) << 4) - 32)
            part = q[16 * j : 16 * j + 16]
            found += [s * np.float32(IQ4[x & 15]) for x in part] + [
                s * np.float32(IQ4[x >> 4]) for x in part
            ]
        return found
    if kind == "Q2_K":
        d = half(80)
        least = half(82)
        q = data[16:80]
        return [
            d
            * np.float32(data[i // 16] & 15)
            * np.float32(q[i // 128 * 32 + i % 32] >> i // 32 % 4 * 2 & 3)
            - least * np.float32(data[i // 16] >> 4)
            for i in range(256)
        ]
    if kind == "Q3_K":
        d = half(108)
        q = data[32:96]
        s = data[96:108]
        scales = [
            (s[j % 8] >> j // 8 * 4 & 15 | (s[8 + j % 4] >> j // 4 * 2 & 3) << 4) - 32
            for j in range(16)
        ]
        codes = [q[i // 128 * 32 + i % 32] >> i // 32 % 4 * 2 & 3 for i in range(256)]
        low = [c - (0 if data[i % 32] >> i // 32 & 1 else 4) for i, c in enumerate(codes)]
        return [d * np.float32(scales[i // 16]) * np.float32(c) for i, c in enumerate(low)]
    assert kind == "Q6_K"
    d = half(208)
    found = [np.float32(0)] * 256
    for n in (0, 1):
        low = data[64 * n :]
        high = data[128 + 32 * n :]
        scales = data[192 + 8 * n :]
        for i in range(32):
            codes = (
                low[i] & 15 | (high[i] & 3) << 4,
                low[i + 32] & 15 | (high[i] >> 2 & 3) << 4,
                low[i] >> 4 | (high[i] >> 4 & 3) << 4,
                low[i + 32] >> 4 | (high[i] >> 6) << 4,
            )
            for part, code in enumerate(codes):
                s = signed(scales[i // 16 + 2 * part])
                found[128 * n + 32 * part + i] = d * np.float32(s) * np.float32(code - 32)
    return found


FP4 = (0, 1, 2, 3, 4, 6, 8, 12)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def tokenizer() -> dict:
    """Metadata of a byte-level tokenizer: 256 bytes, 3 merges, 2 control tokens and a user-defined
    one.
    """
    merges = ["h e", "he l", "Ġ t"]
    tokens = [*sorted(ByteLevel.alphabet()), "he", "hel", "Ġt", "<|start|>", "<|end|>", "<think>"]
    key = "tokenizer.ggml."
    return {
        f"{key}model": (STRING, "gpt2"),
        f"{key}pre": (STRING, "smollm"),
        f"{key}tokens": (ARRAY, (STRING, tokens)),
        f"{key}token_type": (ARRAY, (I32, [1] * 259 + [3, 3, 4])),
        f"{key}merges": (ARRAY, (STRING, merges)),
        f"{key}bos_token_id": (U32, 259),
        f"{key}eos_token_id": (U32, 260),
        "tokenizer.chat_template": (
            STRING,
            "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}",
        ),
    }


def sizes(config, arch: str) -> dict:
    c = config
    dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    rope = getattr(c, "rope_parameters", None) or {"rope_theta": 10000.0}
    of_experts = {}
    if getattr(c, "num_experts", 0):
        inner = getattr(c, "moe_intermediate_size", c.intermediate_size)
        of_experts = {
            f"{arch}.expert_count": (U32, c.num_experts),
            f"{arch}.expert_used_count": (U32, c.num_experts_per_tok),
            f"{arch}.expert_feed_forward_length": (U32, inner),
        }
    if arch == "gpt-oss":
        original = rope["original_max_position_embeddings"]
        of_experts |= {
            f"{arch}.attention.sliding_window": (U32, c.sliding_window),
            f"{arch}.rope.scaling.type": (STRING, "yarn"),
            f"{arch}.rope.scaling.factor": (F32, float(rope["factor"])),
            f"{arch}.rope.scaling.original_context_length": (U32, original),
        }
    return of_experts | {
        "general.architecture": (STRING, arch),
        f"{arch}.block_count": (U32, c.num_hidden_layers),
        f"{arch}.context_length": (U32, c.max_position_embeddings),
        f"{arch}.embedding_length": (U32, c.hidden_size),
        f"{arch}.feed_forward_length": (U32, c.intermediate_size),
        f"{arch}.attention.head_count": (U32, c.num_attention_heads),
        f"{arch}.attention.head_count_kv": (U32, c.num_key_value_heads),
        f"{arch}.attention.key_length": (U32, dim),
        f"{arch}.attention.value_length": (U32, dim),
        f"{arch}.rope.dimension_count": (U32, dim),
        f"{arch}.rope.freq_base": (F32, float(rope.get("full_attention", rope)["rope_theta"])),
        **(
            {f"{arch}.attention.layer_norm_rms_epsilon": (F32, c.rms_norm_eps)}
            if hasattr(c, "rms_norm_eps")
            else {}
        ),
    }


PARTS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
PARTS |= {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
PARTS |= {
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
PARTS |= {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
PARTS |= {"mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp"}
PARTS |= {f"mlp.experts.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")}
OF_OSS = PARTS | {"post_attention_layernorm": "post_attention_norm"}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
TOP |= {"model.embedding_norm": "token_embd_norm", "model.embeddings": "token_embd"}


def name_of(parameter: str, parts: dict[str, str] = PARTS) -> str:
    module, _, leaf = parameter.rpartition(".")
    if leaf == "sinks":
        return f"blk.{module.split('.')[2]}.attn_sinks.weight"
    if module in TOP:
        return f"{TOP[module]}.{leaf}"
    layer, part = module.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{parts[part]}.{leaf}"


def parameters(hf):
    """(name, numbers) of each parameter; of experts as files have them."""
    for name, p in hf.named_parameters():
        x = p.detach()
        holder, _, leaf = name.rpartition(".")
        if not holder.endswith(".experts"):
            yield name, x
            continue
        module = hf.get_submodule(holder)
        is_bias = leaf.endswith("_bias")
        rows = x.mT if module.is_transposed and not is_bias else x
        kind = "bias" if is_bias else "weight"
        if not leaf.startswith("gate"):
            yield f"{holder}.{leaf.partition('_')[0]}.{kind}", rows
            continue
        halves = rows.chunk(2, 1) if module.is_concatenated else (rows[:, ::2], rows[:, 1::2])
        for part, half in zip(("gate", "up"), halves, strict=True):
            yield f"{holder}.{part}.{kind}", half


def of_model(
    hf, kind: str = "F32", quantized: str | None = None, words: bool = True
) -> tuple[dict, dict]:
    """(metadata, tensors) of a Transformers model; `quantized` stores matrices as random blocks of
    that type instead.

    As converters do, rows of queries and keys of a llama are stored with rotated pairs beside each
    other.
    """
    c = hf.config
    arch = ARCHITECTURES.get(hf.config.model_type, hf.config.model_type)
    tensors = {}
    for name, x in parameters(hf):
        stored = name_of(name, OF_OSS if arch == "gpt-oss" else PARTS)
        if arch == "llama" and (".attn_q." in stored or ".attn_k." in stored):
            heads = c.num_attention_heads if ".attn_q." in stored else c.num_key_value_heads
            x = x.view(heads, 2, c.head_dim // 2, -1).transpose(1, 2).reshape(x.shape)
        is_matrix = x.dim() > 1 and stored.endswith("weight") and "ffn_gate_inp" not in stored
        if quantized and is_matrix:
            scale = (
                0.0004
                if SIZES[quantized][0] == 256
                else 0.002
                if quantized in ("Q8_0", "IQ4_NL")
                else 0.02
            )
            tensors[stored] = (
                quantized,
                tuple(x.shape),
                blocks(quantized, tuple(x.shape), len(tensors), scale),
            )
        else:
            tensors[stored] = (
                kind if is_matrix else "F32",
                tuple(x.shape),
                plain(kind if is_matrix else "F32", x),
            )
    return sizes(c, arch) | (tokenizer() if words else {}), tensors


def write(path: Path, metadata: dict, tensors: dict, version: int = 3) -> Path:
    path.write_bytes(contents(metadata, tensors, version))
    return path


def split(
    folder: Path,
    metadata: dict,
    tensors: dict,
    count: int = 3,
    change=lambda i, metadata, tensors: None,
) -> list[Path]:
    """Writes a model in parts as llama-gguf-split does -> their files.

    `change` may change what goes into part i.
    """
    names = list(tensors)
    most = -(-len(names) // count)
    paths = []
    for i in range(count):
        own = dict(metadata) if i == 0 else {}
        own |= {
            "split.no": (U16, i),
            "split.count": (U16, count),
            "split.tensors.count": (I32, len(tensors)),
        }
        some = {name: tensors[name] for name in names[i * most : (i + 1) * most]}
        change(i, own, some)
        paths.append(write(folder / f"model-{i + 1:05}-of-{count:05}.gguf", own, some))
    return paths


def try_to_load(path: Path) -> None:
    """Raises nothing but InputError, and allocates little."""
    tracemalloc.start()
    try:
        file = gguf.read(path)
        gguf_model.build(file, gguf_config.config_of(file), torch.float32)
        gguf_tokenizer.build(file)
    except InputError as error:
        assert "\n" not in str(error)
        raise
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 64 << 20


# Tiny models in files -----------------------------------------------------------------------------

VOCAB = 262
KINDS = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "qwen3_moe": partial(
        Qwen3MoeConfig,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
    ),
    "gpt_oss": partial(
        GptOssConfig,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        max_position_embeddings=131072,
    ),
}
ARCHITECTURES = {"qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}  # in files, where the name differs


@cache
@torch.inference_mode(False)
def stock(kind: str = "llama", tied: bool = False, **sizes):
    torch.manual_seed(0)
    config = KINDS[kind](**{**BASE, "vocab_size": VOCAB, "tie_word_embeddings": tied, **sizes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, p in model.named_parameters():
        torch.nn.init.normal_(p, mean=float("norm" in name), std=0.1)
    return model


def saved(
    folder: Path, *args, change=lambda metadata, tensors: None, version: int = 3, hf=None, **options
) -> Path:
    metadata, tensors = of_model(hf or stock(), *args, **options)
    change(metadata, tensors)
    return write(folder / "model.gguf", metadata, tensors, version)


IDS = torch.arange(3, 40)[None] * 5 % VOCAB


@torch.inference_mode()
def logits(hf, ids=IDS):
    return hf(input_ids=ids, use_cache=False).logits


@torch.inference_mode()
def ours(path: Path):
    file = gguf.read(path)
    return logits(gguf_model.build(file, gguf_config.config_of(file), torch.float32))


def tokens(change):
    """For `saved`: the tokens of the vocabulary are changed by `change`."""

    def apply(metadata, tensors):
        kind, (inner, values) = metadata["tokenizer.ggml.tokens"]
        metadata["tokenizer.ggml.tokens"] = kind, (inner, change(values))

    return apply
