"""OpenVINO GenAI, run by an interpreter that has it: each line of JSON on stdin gets a line of JSON
on stdout.

This file imports nothing of longdraft, whose packages that interpreter lacks. Requests, by `do`:

load    file, threads, kind (none, prompt lookup, draft model), keys (u8, ...), draft -> facts,
load_s decode  prompt (token ids), limit -> tokens, and of each part of them: counts, times in
seconds since the request

Prefix caching is on, as it is by default here: the second decode of a prompt reads its last tokens
alone.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

SETTINGS = {  # those of OpenVINO's own samples
    "none": {},
    "prompt lookup": {"num_assistant_tokens": 5, "max_ngram_size": 3},
    "draft model": {"num_assistant_tokens": 5},
}


class Engine:
    """One model with one kind of speculation."""

    def __init__(self, file: str, threads: int, kind: str, keys: str, draft: str | None = None):
        self.ov = import_module("openvino")
        self.lib = import_module("openvino_genai")
        self.numpy = import_module("numpy")
        self.kind = kind
        device = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": keys}
        more: dict[str, Any] = {"prompt_lookup": True} if kind == "prompt lookup" else {}
        begin = perf_counter()
        if draft is not None:
            self.folder = TemporaryDirectory(prefix="longdraft-")
            more["draft_model"] = self.lib.draft_model(self.converted(draft), "CPU", **device)
        self.pipeline = self.lib.LLMPipeline(file, "CPU", **device, **more)
        self.load_s = perf_counter() - begin

    def converted(self, draft: str) -> str:
        """A folder with the draft model in OpenVINO's form: as a draft, it does not read GGUF."""
        link = Path(self.folder.name) / "draft.gguf"
        link.symlink_to(Path(draft).resolve())
        self.lib.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
        return self.folder.name

    def facts(self) -> dict[str, Any]:
        """How it computes by its own account: what is not set is OpenVINO's choice for this
        processor.
        """
        told: dict[str, Any] = {
            "from": "wheel",
            "openvino": self.ov.__version__,
            "genai": self.lib.get_version(),
        }
        core = self.ov.Core()
        for name in ("INFERENCE_PRECISION_HINT", "OPTIMIZATION_CAPABILITIES"):
            with suppress(Exception):  # a device need not have each property
                told[name.lower()] = str(core.get_property("CPU", name))
        return told

    def decode(self, prompt: list[int], limit: int) -> dict[str, Any]:
        """Greedily, past any end token."""
        array = self.numpy
        tensor = self.ov.Tensor
        ids = array.array([prompt], dtype=array.int64)
        inputs = self.lib.TokenizedInputs(tensor(ids), tensor(array.ones_like(ids)))
        config = self.lib.GenerationConfig()
        settings = {
            "max_new_tokens": limit,
            "ignore_eos": True,
            "do_sample": False,
            "apply_chat_template": False,
        }
        for name, value in (settings | SETTINGS[self.kind]).items():
            setattr(config, name, value)
        clock = self._clock()
        output = self.pipeline.generate(inputs, config, clock)
        return {"tokens": list(output.tokens[0]), "counts": clock.counts, "times": clock.times}

    def _clock(self) -> Any:
        lib = self.lib
        begin = perf_counter()

        class Clock(lib.StreamerBase):
            def __init__(self) -> None:
                super().__init__()
                self.counts: list[int] = []
                self.times: list[float] = []

            def write(self, tokens: Any) -> Any:
                self.times.append(perf_counter() - begin)
                self.counts.append(len(tokens) if isinstance(tokens, list) else 1)
                return lib.StreamingStatus.RUNNING

            def end(self) -> None: ...

        return Clock()


def error_line(error: BaseException) -> str:
    """The last line of an error that says something: OpenVINO puts its own source lines before."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else repr(error))[:200]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what native code prints goes to stderr
    engine: Engine | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request.pop("do") == "load":
                engine = Engine(**request)
                answer = {"facts": engine.facts(), "load_s": engine.load_s}
            else:
                assert engine is not None
                answer = engine.decode(**request)
        except Exception as error:
            answer = {"error": error_line(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
