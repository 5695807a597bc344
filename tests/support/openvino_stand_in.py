"""Stands in for a Python with openvino-genai: run as an interpreter, it executes longdraft's script
with fake packages.

Its model is what follows GGUF in the file: {"tokens": those it decodes, "refuses": an error,
"dies": last words}.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class LLMPipeline:
    def __init__(self, file: str, device: str, **options: object):
        text = Path(file).read_bytes().removeprefix(b"GGUF") if Path(file).is_file() else b""
        self.model = json.loads(text or "{}")
        self.options = options
        if "refuses" in self.model:
            raise RuntimeError(
                f"Exception from a source file:\nCheck 'x' failed\n\n{self.model['refuses']}\n\n"
            )
        if options.get("enable_save_ov_model"):
            (Path(file).parent / "openvino_model.xml").write_text("saved")

    def generate(
        self, inputs: SimpleNamespace, config: SimpleNamespace, streamer: StreamerBase
    ) -> SimpleNamespace:
        print("native code prints this to stdout")
        if "dies" in self.model:
            print(self.model["dies"], file=sys.stderr, flush=True)
            os._exit(3)
        assert config.ignore_eos and not config.do_sample and inputs.ids.shape == inputs.mask.shape
        tokens = self.model["tokens"][: config.max_new_tokens]
        speculates = "prompt_lookup" in self.options or "draft_model" in self.options
        assert speculates is hasattr(config, "num_assistant_tokens")
        size = 3 if speculates else 1
        for part in [tokens[:1], *(tokens[i : i + size] for i in range(1, len(tokens), size))]:
            streamer.write(part if len(part) > 1 else part[0])
        return SimpleNamespace(tokens=[tokens])


class StreamerBase:
    def write(self, tokens: object) -> object: ...


def draft_model(folder: str, device: str, **options: object) -> str:
    assert (Path(folder) / "openvino_model.xml").read_text() == "saved"
    return folder


def main() -> None:
    if "-c" in sys.argv:
        print("2026.4.1.0")
        return
    core = SimpleNamespace(get_property=lambda device, name: "bfloat16")
    modules: dict[str, Any] = sys.modules
    modules["openvino"] = SimpleNamespace(
        __version__="2026.4.1", Core=lambda: core, Tensor=lambda array: array
    )
    modules["openvino_genai"] = SimpleNamespace(
        LLMPipeline=LLMPipeline,
        StreamerBase=StreamerBase,
        StreamingStatus=SimpleNamespace(RUNNING=0),
        TokenizedInputs=lambda ids, mask: SimpleNamespace(ids=ids, mask=mask),
        GenerationConfig=SimpleNamespace,
        draft_model=draft_model,
        get_version=lambda: "2026.4.1.0",
    )
    runpy.run_path(sys.argv[-1], run_name="__main__")


if __name__ == "__main__":
    main()
