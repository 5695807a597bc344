"""The MTP layers in a checkpoint: where families of models put them, and under which names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

from longdraft.drafters.mtp.block import MtpLayers, placed
from longdraft.errors import InputError
from longdraft.models.lm import LM

Places = dict[str, Path]  # the name of each tensor -> the file that has it
COPIES = re.compile(r"embed_tokens\.weight|shared_head\.head\.weight|.*rotary_emb\.inv_freq")  # the target's own
EXPERTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


@dataclass(frozen=True)
class Layout:
    """The names of MTP layer i begin with `at`, with i (after_body: the target's number of layers plus i) in place of
    {}. parts: our names of a layer's own parts -> theirs; those of its decoder layer are the target's, or in `inner`.
    outside: where the parts lie, if not in the layer; such a checkpoint has one layer.
    """

    at: str
    parts: Mapping[str, str]
    inner: Mapping[str, str] = field(default_factory=dict)
    outside: str | None = None
    after_body: bool = False
    hidden_first: bool = False
    sliding: bool = False

    def prefix(self, target: LM, i: int) -> str:
        return self.at.format(i + target.config.num_hidden_layers * self.after_body)

    def of_part(self, name: str, prefix: str) -> str:
        """The stored name of one of a layer's own parts."""
        return f"{prefix if self.outside is None else self.outside}{self.parts[name]}.weight"


COMMON = {"norm_token": "enorm", "norm_feature": "hnorm", "fuse": "eh_proj"}
LAYOUTS = (
    # DeepSeek-V3, GLM-4-MoE and their relatives
    Layout("model.layers.{}.", COMMON | {"norm_out": "shared_head.norm"}, after_body=True),
    # MiMo-V2-Flash
    Layout(
        "model.mtp.layers.{}.",
        COMMON | {"norm_out": "final_layernorm"},
        {"post_attention_layernorm": "pre_mlp_layernorm", "self_attn.sinks": "self_attn.attention_sink_bias"},
        sliding=True,
    ),
    # MiMo
    Layout(
        "model.mtp_layers.{}.",
        {
            "norm_token": "token_layernorm",
            "norm_feature": "hidden_layernorm",
            "fuse": "input_proj",
            "norm_out": "final_layernorm",
        },
        hidden_first=True,
    ),
    # Mellum, as Qwen3-Next names them
    Layout(
        "mtp.layers.{}.",
        {
            "norm_token": "pre_fc_norm_embedding",
            "norm_feature": "pre_fc_norm_hidden",
            "fuse": "fc",
            "norm_out": "norm",
        },
        outside="mtp.",
    ),
)


def read_mtp(target: LM) -> MtpLayers:
    """The MTP layers in the target's own checkpoint. Raises InputError if it has none, or not whole ones."""
    folder = folder_of(target)
    places = places_in(folder)
    for layout in LAYOUTS:
        count = 0
        while layout.of_part("fuse", layout.prefix(target, count)) in places and (not layout.outside or not count):
            count += 1
        if count:
            return Reader(folder, places, target, layout).read(count)
    what = f"{folder} has no multi-token-prediction layers (eh_proj, fc or input_proj after the model's own layers)"
    raise InputError(f"{what}: use another method than mtp, or a checkpoint that still has them")


def folder_of(target: LM) -> Path:
    """The folder of the target's checkpoint. Raises InputError."""
    where = str(target.hf.name_or_path)
    if where and Path(where).is_dir():
        return Path(where)
    if not where or Path(where).is_file():
        what = "a GGUF file" if where else "no folder of weights"
        raise InputError(f"mtp reads layers from the model's safetensors, but this one comes from {what}: give a folder")
    try:
        return Path(snapshot_download(where, local_files_only=True))  # the target has been loaded from it
    except Exception as error:  # the library raises many types
        raise InputError(f"cannot find {where} among the Hub's downloads ({type(error).__name__}): download it") from None


def places_in(folder: Path) -> Places:
    """Every tensor of the folder's safetensors. Raises InputError."""
    found: Places = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as f:
                found |= dict.fromkeys(f.keys(), file)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file} is damaged ({error}): download it again") from None
    return found


@dataclass
class Reader:
    """Reads the layers of one checkpoint in one layout, each tensor once and none left over."""

    folder: Path
    places: Places
    target: LM
    layout: Layout

    def read(self, count: int) -> MtpLayers:
        starts = [self.layout.prefix(self.target, i) for i in range(count)]
        mine = {name for name in self.places if name.startswith((*starts, self.layout.outside or starts[0]))}
        self.left = {n for n in mine if not any(COPIES.fullmatch(n.removeprefix(at)) for at in starts)}
        sparse = any(".mlp.experts." in name for name in self.left)
        types = getattr(self.target.config, "mtp_layer_types", None) or getattr(self.target.config, "layer_types", None)
        sliding = types[-1] == "sliding_attention" if types else bool(self.target.windows)
        layout = self.layout
        module = placed(MtpLayers(self.target, count, sparse, layout.sliding or sliding, layout.hidden_first))
        with torch.no_grad():
            for name, tensor in module.state_dict().items():
                _, i, rest = name.split(".", 2)
                tensor.copy_(self.whole(rest, starts[int(i)], list(tensor.shape)))
        if self.left:
            what = f"{self.folder}: an MTP layer of {self.target.config.model_type} has no {min(self.left)}"
            raise InputError(f"{what}: longdraft does not know this layout of MTP layers")
        return module

    def whole(self, name: str, prefix: str, shape: list[int]) -> Tensor:
        """A layer's tensor by our name; that of all experts is put together from theirs."""
        part = name.removesuffix(".weight")
        if part in self.layout.parts:
            return self.one(self.layout.of_part(part, prefix), shape)
        name = name.removeprefix("layer.")
        for inner, theirs in self.layout.inner.items():
            name = re.sub(f"^{re.escape(inner)}\\b", theirs, name)
        base, _, last = name.rpartition(".")
        if not base.endswith("mlp.experts") or prefix + name in self.places:
            return self.one(prefix + name, shape)
        parts, (count, rows, *rest) = EXPERTS[last], shape
        each = [rows // len(parts), *rest]
        experts = [[self.one(f"{prefix}{base}.{e}.{p}.weight", each) for p in parts] for e in range(count)]
        return torch.stack([torch.cat(expert) for expert in experts])

    def one(self, name: str, shape: list[int]) -> Tensor:
        """A stored tensor of this shape."""
        if name not in self.places:
            raise InputError(f"{self.folder} lacks {name}: its MTP layers are incomplete, download it again")
        with safe_open(self.places[name], "pt") as f:
            found = f.get_tensor(name)
        self.left.discard(name)
        if found.dtype.itemsize < 2:
            kind = str(found.dtype).removeprefix("torch.")
            raise InputError(f"{self.folder}: {name} is stored as {kind}: give a checkpoint in bfloat16 or float32")
        if list(found.shape) != shape:
            what = f"{self.folder}: {name} is {list(found.shape)}, and must be {shape} by its config.json"
            raise InputError(f"{what}: use weights and a config that belong together")
        return found
