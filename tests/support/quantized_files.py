"""Writes tiny checkpoints whose weights are quantized, in the formats of other packages.

Codes, zeros and scales are random; the weights that they stand for are computed in float64.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support import tiny
from torch import Tensor, nn

from longdraft.backends.packed_experts import matrices_of

SIZES = {"intermediate_size": 128}  # whole groups of 32 and 64
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of outputs in a word
Tensors = dict[str, Tensor]
# (outputs, inputs, a source of random numbers) -> tensors of a layer, and its weights in float64
Write = Callable[[int, int, torch.Generator], tuple[Tensors, Tensor]]


@dataclass(frozen=True)
class Format:
    """A way to write: settings of config.json, and what it writes of each layer.

    key: of these settings. bits: those of the packed form in memory; 0: unpacked. tables: whether
    embeddings are quantized, too. options: of the model's config.
    """

    key: str
    settings: dict[str, Any]
    write: Write
    bits: int
    tables: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def words(codes: Tensor, bits: int) -> Tensor:
    """Codes [rows,N] -> int32 [rows,N*bits/32], from the lowest bits on."""
    parts = codes.long().unflatten(1, (-1, 32 // bits))
    total = (parts << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(total >= 1 << 31, total - (1 << 32), total).to(torch.int32)


def codes(bits: int, rows: int, columns: int, g: torch.Generator) -> Tensor:
    return torch.randint(0, 1 << bits, (rows, columns), generator=g)


def scales(rows: int, columns: int, g: torch.Generator, kind: torch.dtype, bits: int = 4) -> Tensor:
    """Those that give weights of the size of a tiny model's."""
    return ((0.03 + 0.04 * torch.rand(rows, columns, generator=g)) / 2.0 ** (bits - 4)).to(kind)


def zeros(bits: int, symmetric: bool, rows: int, columns: int, g: torch.Generator) -> Tensor:
    middle = 1 << bits - 1
    least, most = (middle, middle) if symmetric else (middle // 2, middle + middle // 2)
    return torch.randint(least, most + 1, (rows, columns), generator=g)


def entries(q: Tensor, z: Tensor, s: Tensor, index: Tensor) -> Tensor:
    """float64: (code - zero) * scale, with the groups of the inputs."""
    return (q - z[:, index]).double() * s.double()[:, index]


def gptq(
    bits: int = 4, group: int = 32, sym: bool = True, version: int = 1, sort: bool = False
) -> Format:
    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        size = inputs if group == -1 else group
        count = -(-inputs // size)
        index = torch.arange(inputs) // size
        if sort:
            index = index[torch.randperm(inputs, generator=g)]
        q, z = codes(bits, outputs, inputs, g), zeros(bits, sym, outputs, count, g)
        s = scales(outputs, count, g, torch.float16, bits)
        made = {
            "qweight": words(q, bits).T.contiguous(),
            "qzeros": words((z - int(version == 1)).T, bits),
            "scales": s.T.contiguous(),
            "g_idx": index.int(),
        }
        return made, entries(q, z, s, index)

    settings = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym}
    settings |= {"desc_act": sort, "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    packed = (4 if sym else 5) if bits == 4 else 8
    return Format("quantization_config", settings, write, 0 if sort else packed)


def awq(group: int = 32, sym: bool = False) -> Format:
    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        q, z = codes(4, outputs, inputs, g), zeros(4, sym, outputs, inputs // group, g)
        s = scales(outputs, inputs // group, g, torch.float16)

        def ordered(x: Tensor) -> Tensor:
            """[outputs,N] -> words [N,outputs/8]."""
            return words(x.T.unflatten(1, (-1, 8))[..., list(AWQ_ORDER)].flatten(1), 4)

        made = {"qweight": ordered(q), "qzeros": ordered(z), "scales": s.T.contiguous()}
        return made, entries(q, z, s, torch.arange(inputs) // group)

    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
    settings |= {"zero_point": True, "modules_to_not_convert": None}
    return Format("quantization_config", settings, write, 4 if sym else 5)


def _compressed(form: str, weights: dict[str, Any], write: Write, bits: int, **more: Any) -> Format:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None} | more
    settings = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    settings |= {"config_groups": {"group_0": group}, "quantization_status": "compressed"}
    return Format("quantization_config", settings, write, bits)


def compressed(bits: int = 4, group: int = 32, sym: bool = True, sort: bool = False) -> Format:
    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        size = inputs if group == -1 else group
        index = torch.arange(inputs) // size
        if sort:
            index = index[torch.randperm(inputs, generator=g)]
        q, z = codes(bits, outputs, inputs, g), zeros(bits, sym, outputs, inputs // size, g)
        s = scales(outputs, inputs // size, g, torch.bfloat16, bits)
        made = {"weight_packed": words(q, bits), "weight_scale": s}
        made["weight_shape"] = torch.tensor([outputs, inputs])
        if not sym:
            made["weight_zero_point"] = words(z.T, bits).T.contiguous()
        if sort:
            made["weight_g_idx"] = index.int()
        return made, entries(q, z, s, index)

    weights = {"num_bits": bits, "type": "int", "symmetric": sym, "strategy": "group"}
    weights |= {"group_size": group, "actorder": "group" if sort else None}
    packed = (4 if sym else 5) if bits == 4 else 8
    return _compressed("pack-quantized", weights, write, 0 if sort else packed)


def eight_bits(sym: bool = True) -> Format:
    """Codes of 8 bits with a scale per row, for activations of 8 bits."""

    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        q = codes(8, outputs, inputs, g) - 128
        z = torch.randint(-40, 41, (outputs, 1), generator=g) * (not sym)
        s = scales(outputs, 1, g, torch.bfloat16, 8)
        made = {"weight": q.to(torch.int8), "weight_scale": s}
        if not sym:
            made["weight_zero_point"] = z.to(torch.int8)
        return made, entries(q, z, s, torch.zeros(inputs, dtype=torch.long))

    weights = {"num_bits": 8, "type": "int", "symmetric": sym, "strategy": "channel"}
    inputs = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
    return _compressed("int-quantized", weights, write, 8, input_activations=inputs)


def fp8(blocks: tuple[int, int] | None = None) -> Format:
    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        numbers = torch.randn(outputs, inputs, generator=g).to(torch.float8_e4m3fn)
        rows, columns = blocks or (1, inputs)
        s = scales(outputs // rows, inputs // columns, g, torch.bfloat16, 2)
        each = s.double().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return {"weight": numbers, "weight_scale": s}, numbers.double() * each

    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    return _compressed("float-quantized", weights, write, 0)


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
E2M1 = torch.cat([E2M1, -E2M1])


def fp4_numbers(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Codes [outputs,inputs], and the numbers that they are."""
    q = codes(4, outputs, inputs, g)
    return q, E2M1[q]


def powers(outputs: int, inputs: int, g: torch.Generator) -> Tensor:
    """uint8 [outputs,inputs/32]: of 2, from -127 on."""
    return torch.randint(119, 125, (outputs, inputs // 32), generator=g).to(torch.uint8)


def power_of(power: Tensor) -> Tensor:
    return (2.0 ** (power.double() - 127)).repeat_interleave(32, 1)


def two_in_a_byte(q: Tensor) -> Tensor:
    return (q[:, ::2] | q[:, 1::2] << 4).to(torch.uint8)


def compressed_mxfp4() -> Format:
    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        q, numbers = fp4_numbers(outputs, inputs, g)
        power = powers(outputs, inputs, g)
        made = {"weight_packed": two_in_a_byte(q), "weight_scale": power}
        return made, numbers * power_of(power)

    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group"}
    weights |= {"group_size": 32, "scale_dtype": "torch.uint8"}
    return _compressed("mxfp4-pack-quantized", weights, write, 4)


def compressed_nvfp4() -> Format:
    """Scales of FP8 that were multiplied by one number of the matrix."""

    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        q, numbers = fp4_numbers(outputs, inputs, g)
        whole = 500 + 3000 * torch.rand(1, generator=g)
        s = (scales(outputs, inputs // 16, g, torch.float32, 5) * whole).to(torch.float8_e4m3fn)
        made = {"weight_packed": two_in_a_byte(q), "weight_scale": s, "weight_global_scale": whole}
        made["input_global_scale"] = torch.ones(1)
        return made, numbers * (s.float() / whole).double().repeat_interleave(16, 1)

    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group"}
    inputs = {"num_bits": 4, "type": "float", "dynamic": "local", "strategy": "tensor_group"}
    weights |= {"group_size": 16}
    return _compressed("nvfp4-pack-quantized", weights, write, 8, input_activations=inputs)


def mlx_fp4(mode: str) -> Format:
    """mode: mxfp4, or nvfp4, whose scales are numbers of FP8 in groups of 16."""
    group = 32 if mode == "mxfp4" else 16

    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        q, numbers = fp4_numbers(outputs, inputs, g)
        made = {"weight": words(q, 4).view(torch.uint32)}
        if mode == "mxfp4":
            made["scales"] = powers(outputs, inputs, g)
            return made, numbers * power_of(made["scales"])
        s = scales(outputs, inputs // 16, g, torch.float32, 5).to(torch.float8_e4m3fn)
        made["scales"] = s.view(torch.uint8)
        return made, numbers * s.double().repeat_interleave(16, 1)

    settings = {"group_size": group, "bits": 4, "mode": mode}
    options = {"tie_word_embeddings": False}
    return Format("quantization", settings, write, 4 if group == 32 else 8, True, options)


def mlx(bits: int = 4, group: int = 32, tied: bool = False) -> Format:
    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        q = codes(bits, outputs, inputs, g)
        s = scales(outputs, inputs // group, g, torch.bfloat16, bits)
        around = 0.8 + 0.4 * torch.rand(s.shape, generator=g)
        bias = (-s.float() * (1 << bits - 1) * around).bfloat16()
        made = {"weight": words(q, bits).view(torch.uint32), "scales": s, "biases": bias}
        index = torch.arange(inputs) // group
        return made, q * s.double()[:, index] + bias.double()[:, index]

    options = {"tie_word_embeddings": tied}
    settings = {"group_size": group, "bits": bits}
    return Format("quantization", settings, write, bits, True, options)


def bnb_eight() -> Format:
    """bitsandbytes in 8 bits: rows of int8, and their largest magnitudes."""

    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        q = codes(8, outputs, inputs, g).clamp(min=1) - 128
        most = 0.1 + torch.rand(outputs, generator=g)
        made = {"weight": q.to(torch.int8), "SCB": most}
        made["weight_format"] = torch.tensor(0, dtype=torch.uint8)
        return made, q * (most.double() / 127).float().double()[:, None]

    settings = {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}
    return Format("quantization_config", settings, write, 8)


# half of FP4's numbers; the others are negative
FP4 = (0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)


def bnb_four(kind: str, nested: bool, storage: torch.dtype = torch.uint8) -> Format:
    """bitsandbytes in 4 bits: a table, and blocks of 64 whose maxima may be codes themselves."""

    def write(outputs: int, inputs: int, g: torch.Generator) -> tuple[Tensors, Tensor]:
        q = torch.randint(0, 16, (outputs * inputs,), generator=g)
        table = torch.tensor([*FP4, *(-x for x in FP4)])
        if kind == "nf4":
            table = torch.rand(16, generator=g).sort()[0] * 2 - 1
        blocks = outputs * inputs // 64
        state = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16"}
        state["shape"] = [outputs, inputs]
        most = 0.1 + torch.rand(blocks, generator=g)
        made = {"weight.absmax": most}
        if nested:
            index = torch.randint(0, 256, (blocks,), generator=g)
            numbers = torch.rand(256, generator=g) * 2 - 1
            each = 0.1 + torch.rand(-(-blocks // 32), generator=g)
            state |= {"nested_blocksize": 32, "nested_dtype": "float32", "nested_offset": 0.53}
            most = numbers[index] * each.repeat_interleave(32)[:blocks] + torch.tensor(0.53)
            made = {"weight.absmax": index.to(torch.uint8), "weight.nested_absmax": each}
            made["weight.nested_quant_map"] = numbers
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        made |= {"weight.quant_map": table, f"weight.quant_state.bitsandbytes__{kind}": text}
        pairs = (q[::2] << 4 | q[1::2]).to(torch.uint8)
        made["weight"] = pairs.view(storage)[:, None]
        weights = table[q].double() * most.double().repeat_interleave(64)
        return made, weights.view(outputs, inputs)

    settings = {"quant_method": "bitsandbytes", "load_in_8bit": False, "load_in_4bit": True}
    return Format("quantization_config", settings | {"bnb_4bit_quant_type": kind}, write, 0)


FORMATS: dict[str, Format] = {
    "gptq": gptq(),
    "gptq, asymmetric": gptq(group=64, sym=False),
    "gptq v2, asymmetric": gptq(sym=False, version=2),
    "gptq, a group per row": gptq(group=-1),
    "gptq, 8 bits": gptq(8, 64),
    "gptq, 8 bits, asymmetric": gptq(8, sym=False),
    "gptq, sorted": gptq(sym=False, sort=True),
    "awq": awq(),
    "awq, groups of 64": awq(64),
    "awq, symmetric": awq(sym=True),
    "compressed": compressed(),
    "compressed, asymmetric": compressed(sym=False),
    "compressed, 8 bits": compressed(8, -1),
    "compressed, 8 bits, asymmetric": compressed(8, sym=False),
    "compressed, sorted": compressed(sort=True),
    "w8a8": eight_bits(),
    "w8a8, asymmetric": eight_bits(sym=False),
    "fp8": fp8(),
    "fp8 in blocks": fp8((16, 32)),
    "mlx": mlx(group=64),
    "mlx, groups of 32, tied": mlx(tied=True),
    "mlx, 8 bits": mlx(8, 64),
    "mxfp4": compressed_mxfp4(),
    "nvfp4": compressed_nvfp4(),
    "mlx, mxfp4": mlx_fp4("mxfp4"),
    "mlx, nvfp4": mlx_fp4("nvfp4"),
    "bitsandbytes, 8 bits": bnb_eight(),
    "bitsandbytes, nf4": bnb_four("nf4", False),
    "bitsandbytes, nf4, nested": bnb_four("nf4", True),
    "bitsandbytes, fp4, in bfloat16": bnb_four("fp4", True, torch.bfloat16),
}


def _experts(name: str, own: Any, form: Format, g: torch.Generator) -> Tensors:
    """The tensors of a layer's experts, matrix by matrix; `own` gets the same numbers."""
    found = Tensors()
    first, last = (getattr(own, leaf).data for leaf in matrices_of(own))
    for i, (both, down) in enumerate(zip(first, last, strict=True)):
        halves = zip(("gate", "up"), both.chunk(2), strict=True) if own.has_gate else [("up", both)]
        for part, into in (*halves, ("down", down)):
            made, weights = form.write(into.shape[0], into.shape[1], g)
            into.copy_(weights)
            found |= {f"{name}.{i}.{part}_proj.{leaf}": x for leaf, x in made.items()}
    return found


def saved_oss(
    folder: Path, change: Callable[[Tensors], Any] = lambda tensors: None
) -> dict[str, Tensor]:
    """Write a gpt-oss with experts in MXFP4 -> their matrices in float64, as Transformers has them.

    change: what to change of the tensors before they are written.
    """
    hf = tiny.stock("gpt-oss")
    g = torch.Generator().manual_seed(6)
    tensors = {n: x.detach().clone() for n, x in hf.state_dict().items()}
    found = dict[str, Tensor]()
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, inputs, outputs = tensors.pop(name).shape
        q = torch.randint(0, 16, (count, outputs, inputs // 32, 16, 2), generator=g)
        power = torch.randint(119, 125, (count, outputs, inputs // 32), generator=g)
        tensors[f"{name}_blocks"] = (q[..., 0] | q[..., 1] << 4).to(torch.uint8)
        tensors[f"{name}_scales"] = power.to(torch.uint8)
        values = E2M1[q].flatten(-2) * 2.0 ** (power[..., None] - 127).double()
        found[name] = values.flatten(-2).mT.contiguous()
    hf.config.save_pretrained(folder)
    change(tensors)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: x.contiguous() for n, x in tensors.items()}, folder / "model.safetensors")
    return found


def saved(
    folder: Path,
    form: Format,
    model: str = "llama",
    change: Callable[[Tensors, dict[str, Any]], Any] = lambda tensors, config: None,
) -> Any:
    """Write a checkpoint into a folder -> an ordinary model in float32 with the same numbers.

    change: what to change of the tensors and of config.json before they are written.
    """
    changes: Any = SIZES | form.options
    hf = tiny.stock(model, **changes)
    g = torch.Generator().manual_seed(5)
    kinds = (nn.Linear, nn.Embedding) if form.tables else (nn.Linear,)
    head = "lm_head" if not form.tables or form.options["tie_word_embeddings"] else ""
    layers = [n for n, m in hf.named_modules() if isinstance(m, kinds) and n != head]
    tensors = {n: x.detach().clone() for n, x in hf.state_dict().items()}
    if hf.config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    for name in layers:
        own: Any = hf.get_submodule(name)
        rows, columns = own.weight.shape
        made, weights = form.write(rows, columns, g)
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{leaf}": x for leaf, x in made.items()}
        own.weight.data.copy_(weights)
    for name, own in hf.named_modules():
        if name.endswith(".experts"):
            for leaf in matrices_of(own):
                del tensors[f"{name}.{leaf}"]
            tensors |= _experts(name, own, form, g)
    hf.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {form.key: deepcopy(form.settings)}
    change(tensors, config)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: x.contiguous() for n, x in tensors.items()}, folder / "model.safetensors")
    return hf
