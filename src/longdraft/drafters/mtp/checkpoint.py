"""The MTP layers in a checkpoint: where families of models put them, and under which names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

from longdraft.drafters.mtp.block import MtpLayers, placed
from longdraft.errors import InputError
from longdraft.models.gguf.further import FurtherLayers, has_further_layers
from longdraft.models.lm import LM

# of the target's tables
COPIES = re.compile(r"embed_tokens\.weight|(shared_head\.|lm_)head\.weight|.*rotary_emb\.inv_freq")
EXPERTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
PARTS = ("norm_token", "norm_feature", "fuse", "norm_out")


@dataclass(frozen=True)
class MtpLayout:
    """The places in a checkpoint where a family of models keeps its MTP layers.

    layer: how the names of layer i begin, with i in place of {} (after_body: the target's number of
    layers plus i). parts: the names of PARTS, in the layer or `outside`, where only one layer can
    have them. The rest of a layer has the names of the target's own layers, except for `inner`:
    ours -> theirs.
    """

    layer: str
    parts: str
    outside: str | None = None
    inner: Mapping[str, str] = field(default_factory=dict)
    after_body: bool = False
    sliding: bool = False
    hidden_first: bool = False
    raw: bool = False

    def prefix(self, target: LM, i: int) -> str:
        return self.layer.format(i + target.config.num_hidden_layers * self.after_body)

    def of_part(self, part: str, prefix: str) -> str:
        """The stored name of a layer's own part."""
        name = self.parts.split()[PARTS.index(part)]
        return f"{prefix if self.outside is None else self.outside}{name}.weight"


LAYOUTS = (
    # DeepSeek-V3, GLM-4-MoE and others
    MtpLayout("model.layers.{}.", "enorm hnorm eh_proj shared_head.norm", after_body=True),
    # Qwen3-Next, Qwen 3.5 and Mellum
    MtpLayout("mtp.layers.{}.", "pre_fc_norm_embedding pre_fc_norm_hidden fc norm", outside="mtp."),
    # MiMo
    MtpLayout(
        "model.mtp_layers.{}.",
        "token_layernorm hidden_layernorm input_proj final_layernorm",
        hidden_first=True,
        raw=True,
    ),
    # MiMo-V2-Flash
    MtpLayout(
        "model.mtp.layers.{}.",
        "enorm hnorm eh_proj final_layernorm",
        inner={
            "post_attention_layernorm": "pre_mlp_layernorm",
            "self_attn.sinks": "self_attn.attention_sink_bias",
        },
        sliding=True,
    ),
)


class Tensors(Protocol):
    """A checkpoint's tensors by name. where: the file or folder; read raises InputError."""

    where: str

    @property
    def names(self) -> set[str]: ...

    def read(self, name: str) -> Tensor: ...


class FolderTensors:
    """The tensors of all safetensors of a folder."""

    def __init__(self, folder: Path):
        """Raises InputError."""
        self.where = str(folder)
        self._places = places_in(folder)

    @property
    def names(self) -> set[str]:
        return set(self._places)

    def read(self, name: str) -> Tensor:
        with safe_open(self._places[name], "pt") as f:
            tensor: Tensor = f.get_tensor(name)
        if tensor.dtype.itemsize < 2:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InputError(
                f"{self.where}: {name} is stored as {kind}: give a checkpoint in bfloat16 "
                "or float32"
            )
        return tensor


def read_mtp(target: LM) -> MtpLayers:
    """The MTP layers in the target's own checkpoint. Raises InputError if it has none, or not whole
    ones.
    """
    tensors = tensors_of(target)
    names = tensors.names
    for layout in LAYOUTS:
        count = 0
        while layout.of_part("fuse", layout.prefix(target, count)) in names and (
            not layout.outside or not count
        ):
            count += 1
        if count:
            return Reader(tensors, target, layout).read(count)
    fault = (
        f"{tensors.where} has no multi-token-prediction layers (eh_proj, fc or input_proj after "
        "the model's own layers)"
    )
    raise InputError(f"{fault}: use another method than mtp, or a checkpoint that still has them")


def has_layers(folder: Path) -> bool:
    """Whether a model's folder or GGUF file has MTP layers. Raises InputError."""
    if folder.is_file():
        return has_further_layers(folder)
    names = [
        re.escape(layout.of_part("fuse", layout.layer)).replace(r"\{\}", r"\d+")
        for layout in LAYOUTS
    ]
    return any(re.fullmatch("|".join(names), name) for name in places_in(folder))


def tensors_of(target: LM) -> Tensors:
    """The tensors of the target's checkpoint. Raises InputError."""
    where = str(target.hf.name_or_path)
    if where and Path(where).is_dir():
        return FolderTensors(Path(where))
    if where and Path(where).is_file():
        return FurtherLayers(Path(where), target.config)
    if not where:
        raise InputError(
            "mtp reads layers from the model's own weights, but this one comes from none: give a "
            "folder or a GGUF file"
        )
    try:
        # the target has been loaded from it
        return FolderTensors(Path(snapshot_download(where, local_files_only=True)))
    except InputError:
        raise
    except Exception as error:  # the library raises many types
        raise InputError(
            f"cannot find {where} among the Hub's downloads ({type(error).__name__}): download it"
        ) from None


def places_in(folder: Path) -> dict[str, Path]:
    """The name of each tensor of the folder's safetensors -> its file. Raises InputError."""
    places = dict[str, Path]()
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as f:
                places |= dict.fromkeys(f.keys(), file)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file} is damaged ({error}): download it again") from None
    return places


@dataclass
class Reader:
    """Reads the layers of one checkpoint in one layout, each tensor once and none left over."""

    tensors: Tensors
    target: LM
    layout: MtpLayout

    def read(self, count: int) -> MtpLayers:
        starts = [self.layout.prefix(self.target, i) for i in range(count)]
        roots = (*starts, self.layout.outside or starts[0])
        self.names = self.tensors.names
        own = {name for name in self.names if name.startswith(roots)}
        self.left = {
            name
            for name in own
            if not any(COPIES.fullmatch(name.removeprefix(root)) for root in roots)
        }
        sparse = any(".mlp.experts." in name for name in self.left)
        types = getattr(self.target.config, "mtp_layer_types", None) or getattr(
            self.target.config, "layer_types", None
        )
        sliding = types[-1] == "sliding_attention" if types else bool(self.target.windows)
        sliding = self.layout.sliding or sliding
        hidden_first = self.layout.hidden_first
        module = placed(
            MtpLayers(self.target, count, sparse, sliding, hidden_first, self.layout.raw)
        )
        with torch.no_grad():
            for name, mine in module.state_dict().items():
                _, i, rest = name.split(".", 2)
                mine.copy_(self.tensor(rest, starts[int(i)], list(mine.shape)))
        if self.left:
            fault = (
                f"{self.tensors.where}: an MTP layer of {self.target.config.model_type} has no "
                f"{min(self.left)}"
            )
            raise InputError(f"{fault}: longdraft does not know this layout of MTP layers")
        return module

    def tensor(self, name: str, prefix: str, shape: list[int]) -> Tensor:
        """A layer's tensor by our name; that of all experts is put together from theirs."""
        part = name.removesuffix(".weight")
        if part in PARTS:
            return self.stored(self.layout.of_part(part, prefix), shape)
        name = name.removeprefix("layer.")
        for inner, theirs in self.layout.inner.items():
            name = re.sub(f"^{re.escape(inner)}\\b", theirs, name)
        base, _, last = name.rpartition(".")
        if not base.endswith("mlp.experts") or prefix + name in self.names:
            return self.stored(prefix + name, shape)
        parts, (count, rows, *rest) = EXPERTS[last], shape
        each = [rows // len(parts), *rest]
        experts = [
            [self.stored(f"{prefix}{base}.{e}.{p}.weight", each) for p in parts]
            for e in range(count)
        ]
        return torch.stack([torch.cat(expert) for expert in experts])

    def stored(self, name: str, shape: list[int]) -> Tensor:
        """A stored tensor of this shape."""
        if name not in self.names:
            raise InputError(
                f"{self.tensors.where} lacks {name}: its MTP layers are incomplete, download it "
                "again"
            )
        tensor = self.tensors.read(name)
        self.left.discard(name)
        if [n for n in tensor.shape if n != 1] != [n for n in shape if n != 1]:
            fault = (
                f"{self.tensors.where}: {name} is {list(tensor.shape)}, and must be {shape} by its "
                "config"
            )
            raise InputError(f"{fault}: use weights and a config that belong together")
        return tensor.view(shape)
