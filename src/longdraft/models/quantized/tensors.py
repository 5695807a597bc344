"""The tensors of a model's safetensors files, checked before they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from longdraft.core.files import read_json
from longdraft.errors import InputError

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
AGAIN = "copy or download it again"
HALVES = (torch.float16, torch.bfloat16, torch.float32)  # kinds of scales


class Checkpoint:
    """All tensors of a model by name; each is read when it is asked for.

    check_weights must have accepted the model's index of shards. Raises InputError for damaged
    files, and for tensors of another kind or shape than asked for.
    """

    def __init__(self, where: str, local: bool):
        self.where = where
        self._files = dict[str, Any]()
        for name in _shards(where, local):
            path = cached_file(where, name, local_files_only=local)
            try:
                file = safe_open(path, "pt")
            except (OSError, SafetensorError) as error:
                raise self.error(f"{name} is damaged ({error})") from None
            self._files |= dict.fromkeys(file.keys(), file)

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def has(self, name: str) -> bool:
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read."""
        if name not in self._files:
            raise self.error(f"the tensor {name[:80]} is missing")
        return tuple(self._files[name].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """A tensor of any kind and shape."""
        self.shape(name)
        try:
            return self._files[name].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise self.error(f"{name[:80]} cannot be read ({error})") from None

    def words(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """int32 of this shape, whose bits are codes."""
        return self.of(name, (torch.int32, torch.uint32), shape).view(torch.int32)

    def scales(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """float32 of this shape. Raises InputError for numbers that are not finite."""
        scales = self.of(name, HALVES, shape).float()
        if not scales.isfinite().all():
            raise self.error(f"{name[:80]} contains numbers that are not finite")
        return scales

    def of(self, name: str, kinds: tuple[torch.dtype, ...], shape: tuple[int, ...]) -> Tensor:
        """A tensor of one of these kinds and this shape."""
        if self.shape(name) != shape:
            found, wanted = ("x".join(map(str, x)) for x in (self.shape(name), shape))
            raise self.error(f"{name[:80]} is {found}, but the config implies {wanted}")
        tensor = self.read(name)
        if tensor.dtype not in kinds:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise self.error(f"{name[:80]} contains {kind}, which its format does not have there")
        return tensor

    def error(self, problem: str) -> InputError:
        return InputError(f"{self.where}: {problem}: {AGAIN}")


def _shards(where: str, local: bool) -> list[str]:
    quiet: dict[str, Any] = {"_raise_exceptions_for_missing_entries": False}
    index = cached_file(where, INDEX, local_files_only=local, **quiet)
    if index is None:
        return [WHOLE]
    shards = read_json(Path(index)).get("weight_map")
    return sorted(set(shards.values())) if isinstance(shards, dict) else []
