"""llama.cpp as a llama-server binary, in a process beside this one: built for this processor, it is
at its best.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic, sleep
from typing import IO, Any

from longdraft.bench.peers.base import CannotRun
from longdraft.bench.peers.llama_server import (
    NGRAM,
    Build,
    LlamaServer,
    LlamaServerSettings,
    unpinned,
)

NAME = "llama.cpp"
# which is faster depends on the processor and the context, so both are measured
FLASH = (
    "on",
    "off",
)
BUILD_FILE = "build.json"  # beside the binary: what benchmarks/build_llama_cpp.py built it from
LOADING = 600  # seconds until a server must have loaded its model


class Binary(Build):
    """One binary with one choice of flash attention. Raises CannotRun when made."""

    def __init__(self, file: Path, flash: str):
        self.file = file
        self.flash = flash
        version, facts = _asked(file)
        super().__init__(NAME, version, facts | {"flash_attention": flash})

    def check(self, kind: str) -> None:
        if kind not in _kinds(self.file):
            raise CannotRun(f"{self.file.name} ({self.version}) does not offer {kind}")

    def ngrams(self) -> list[str]:
        return [kind for kind in _kinds(self.file) if kind.startswith(NGRAM)]

    def start(self, settings: LlamaServerSettings) -> LlamaServer:
        with TemporaryFile() as log:
            with unpinned():
                process = _started([str(self.file), *self.words(settings)], log)
            try:
                return LlamaServer(_address(process, log, settings.file), partial(_end, process))
            except BaseException:
                _end(process)
                raise

    def words(self, s: LlamaServerSettings) -> list[str]:
        """The options of its command line."""
        line = ["--model", str(s.file), "--ctx-size", str(s.context), "--parallel", str(s.rows)]
        line += [
            "--threads",
            str(s.threads),
            "--threads-batch",
            str(s.threads),
            "--flash-attn",
            self.flash,
        ]
        line += [
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--cache-ram",
            "0",
            "--fit",
            "off",
            "--offline",
        ]
        line += ["--slot-save-path", s.folder] if s.folder else []
        line += ["--spec-type", s.kind] if s.kind != "none" else []
        if s.draft is not None:
            line += ["--model-draft", str(s.draft), "--threads-draft", str(s.threads)]
            line += ["--threads-batch-draft", str(s.threads)]
        return line + _scale(s.rope)


def _scale(rope: dict[str, Any]) -> list[str]:
    """The scaling of the model's rotations; a kind that only a GGUF file can describe is left to
    the file.
    """
    kind = rope.get("rope_type")
    if kind not in ("yarn", "linear"):
        return []
    words = ["--rope-scaling", kind, "--rope-freq-scale", repr(1 / rope["factor"])]
    if kind == "yarn":
        words += ["--yarn-orig-ctx", str(int(rope["original_max_position_embeddings"]))]
        words += ["--yarn-beta-fast", str(rope.get("beta_fast") or 32.0)]
        words += ["--yarn-beta-slow", str(rope.get("beta_slow") or 1.0)]
    return words


@cache
def _asked(file: Path) -> tuple[str, dict[str, Any]]:
    """Its version, and how it was built as it says itself. Raises CannotRun."""
    told = _output(file, "--version")
    if (version := re.search(r"^version: (.+)$", told, re.M)) is None:
        raise CannotRun(
            f"{file.name} --version does not answer as llama-server does: {told.strip()[:200]!r}"
        )
    facts: dict[str, Any] = {"from": "binary"}
    if compiler := re.search(r"^built with (.+)$", told, re.M):
        facts["compiler"] = compiler[1]
    # It says what it computes with before it misses the model.
    started = _output(
        file, "--model", "no-such-model.gguf", "--port", "0", "--offline", "--verbosity", "4"
    )
    if flags := re.search(r"system_info: .*? \| (CPU.*?)\s*$", started, re.M):
        facts["system_info"] = flags[1]
    with suppress(OSError, ValueError):  # a binary of another origin has no such file
        facts |= {
            "from": "source",
            **json.loads((file.parent / BUILD_FILE).read_text(encoding="utf-8")),
        }
    return version[1], facts


@cache
def _kinds(file: Path) -> list[str]:
    """The kinds of speculation that its help names, in its order."""
    match = re.search(r"^--spec-type\s+(\S+)", _output(file, "--help"), re.M)
    return list(dict.fromkeys(["none", *(match[1].split(",") if match else [])]))


def _output(file: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            [str(file), *words], capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{file} cannot be run ({error})") from None
    return done.stdout + done.stderr


def _started(words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise CannotRun(f"{words[0]} cannot be run ({error.strerror})") from None


def _address(process: subprocess.Popen[bytes], log: IO[bytes], file: Path) -> str:
    """The address that it listens on, once it has loaded its model. Raises CannotRun."""
    deadline = monotonic() + LOADING
    while monotonic() < deadline:
        # the process writes at the file's place
        text = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
        if match := re.search(r"listening on (http://\S+)", text):
            return match[1]
        if process.poll() is not None:
            lines = [
                line for line in text.splitlines() if "error" in line.lower()
            ] or text.splitlines()
            raise CannotRun(f"it cannot load {file.name} ({' '.join(lines[-1:])[:200]})")
        sleep(0.02)
    raise CannotRun(f"it has not loaded {file.name} in {LOADING} seconds")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
