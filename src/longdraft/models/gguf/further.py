"""Layers of a GGUF file that predict further tokens, behind the model's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longdraft.models.gguf import file as gguf
from longdraft.models.gguf.config import READ, further_layers
from longdraft.models.gguf.experts import HOLDER, MATRICES
from longdraft.models.gguf.file import GGUF, Stored
from longdraft.models.gguf.model import module_of, weight
from longdraft.ops.packed import Packed

# What such a layer has beside a decoder layer: names in a file, and in a checkpoint of DeepSeek-V3.
OWN = {
    "eh_proj": "eh_proj",
    "enorm": "enorm",
    "hnorm": "hnorm",
    "shared_head_norm": "shared_head.norm",
    "shared_head_head": "shared_head.head",
    "embed_tokens": "embed_tokens",
}


class FurtherLayers:
    """The tensors of these layers under the names of a DeepSeek-V3 checkpoint, in float32."""

    def __init__(self, path: Path, config: Any):
        """config: that of the file's model. Raises InputError."""
        self.where = str(path)
        file = gguf.read(path)
        found = dict(_tensors(file, config))
        for holder in {name.partition(HOLDER)[0] for name in found if HOLDER in name}:
            matrices = [found.pop(f"{holder}{HOLDER}.{part}.weight", None) for part in MATRICES]
            gate, up, down = matrices
            if gate is None or up is None or down is None:
                continue  # the reader says what is missing
            found[f"{holder}{HOLDER}.gate_up_proj"] = partial(_both, gate, up)
            found[f"{holder}{HOLDER}.down_proj"] = down
        self._found = found

    @property
    def names(self) -> set[str]:
        return set(self._found)

    def read(self, name: str) -> Tensor:
        return self._found[name]()


def has_further_layers(path: Path) -> bool:
    """Whether a file has some that longdraft could read. Raises InputError."""
    file = gguf.read(path)
    kind = file.required("general.architecture", str)
    return kind in READ and further_layers(file, kind) > 0


def _tensors(file: GGUF, config: Any) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    kind = file.required("general.architecture", str)
    first = config.num_hidden_layers
    for stored in file.tensors.values():
        match = re.fullmatch(r"blk\.(\d{1,6})\.(nextn\.)?([\w.]+)\.(\w+)", stored.name)
        if match is None or int(match[1]) < first:
            continue
        own = OWN.get(match[3]) if match[2] else None
        name = f"model.layers.{match[1]}.{own}.{match[4]}" if own else module_of(stored.name, kind)
        yield name or stored.name, partial(_numbers, file, stored, name or "", config)


def _numbers(file: GGUF, stored: Stored, name: str, config: Any) -> Tensor:
    made = weight(file, stored, name, config, torch.float32)
    numbers = made.dequantized() if isinstance(made, Packed) else made.float()
    return numbers.view(stored.shape)


def _both(gate: Callable[[], Tensor], up: Callable[[], Tensor]) -> Tensor:
    return torch.cat([gate(), up()], 1)
