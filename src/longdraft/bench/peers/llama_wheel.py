"""llama.cpp as the wheel of the package xllamacpp, in this process: built for any processor, not
for this one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from longdraft.bench.peers.base import CannotRun
from longdraft.bench.peers.llama_server import (
    NGRAM,
    Build,
    LlamaServer,
    LlamaServerSettings,
    unpinned,
)

WHEEL = "llama.cpp (wheel)"
PREFIX = "COMMON_SPECULATIVE_TYPE_"


def _kind(name: str) -> str:
    """A type of the package as llama.cpp's command line names it; "" for any other name."""
    return name.removeprefix(PREFIX).lower().replace("_", "-") if name.startswith(PREFIX) else ""


def package() -> Any:
    """The package xllamacpp. Raises CannotRun."""
    try:
        return import_module("xllamacpp")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp"
        why = "is not installed" if missing else f"cannot be imported ({str(error)[:200]})"
        raise CannotRun(f"the package xllamacpp {why}: pip install 'longdraft[peers]'") from None


class Wheel(Build):
    """Flash attention is as the wheel has it by default. Raises CannotRun when made."""

    def __init__(self) -> None:
        self.lib = package()
        facts: dict[str, Any] = {"from": "wheel", "flash_attention": "auto"}
        if (told := getattr(self.lib, "get_system_info", None)) is not None:
            facts["system_info"] = told()
        if "compiler" in (build := getattr(self.lib, "BUILD_INFO", {})):
            facts["compiler"] = build["compiler"]
        super().__init__(WHEEL, f"xllamacpp {self.lib.__version__}", facts)

    def check(self, kind: str) -> None:
        self._type(kind)

    def ngrams(self) -> list[str]:
        kinds = getattr(self.lib, "common_speculative_type", None)
        return [k for name in dir(kinds) if (k := _kind(name)).startswith(NGRAM)]

    def start(self, settings: LlamaServerSettings) -> LlamaServer:
        p = self.lib.CommonParams()
        s = settings
        p.model.path = str(s.file)
        p.n_ctx = s.context
        p.n_parallel = s.rows
        p.cache_ram_mib = 0
        p.fit_params = False
        p.verbosity = 0
        p.port = 0
        if s.folder:
            p.slot_save_path = s.folder + "/"
        p.speculative.types = [self._type(s.kind)]
        if s.draft is not None:
            p.speculative.draft.mparams.path = str(s.draft)
        for each in (p, p.speculative.draft):
            each.cpuparams.n_threads = s.threads
            each.cpuparams_batch.n_threads = s.threads
        self._scale(p, s.rope)
        with unpinned():
            try:
                kept = [self.lib.Server(p)]  # it ends when nothing refers to it
            except RuntimeError as error:
                raise CannotRun(f"it cannot load {s.file.name} ({str(error)[:200]})") from None
        return LlamaServer(kept[0].listening_address, kept.clear)

    def _type(self, kind: str) -> Any:
        name = f"{PREFIX}{kind.upper().replace('-', '_')}"
        if (
            value := getattr(getattr(self.lib, "common_speculative_type", None), name, None)
        ) is None:
            raise CannotRun(f"{self.version} does not offer {kind}")
        return value

    def _scale(self, p: Any, rope: dict[str, Any]) -> None:
        """The scaling of the model's rotations; a kind that only a GGUF file can describe is left
        to the file.
        """
        kind = rope.get("rope_type")
        if kind not in ("yarn", "linear"):
            return
        p.rope_scaling_type = getattr(
            self.lib.llama_rope_scaling_type, f"LLAMA_ROPE_SCALING_TYPE_{kind.upper()}"
        )
        p.rope_freq_scale = 1 / rope["factor"]
        if kind == "yarn":
            p.yarn_orig_ctx = int(rope["original_max_position_embeddings"])
            p.yarn_beta_fast = rope.get("beta_fast") or 32.0
            p.yarn_beta_slow = rope.get("beta_slow") or 1.0
