"""An engine in another Python interpreter, whose packages never meet ours: lines of JSON over its
stdin and stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from weakref import finalize

from longdraft.bench.peers.base import CannotRun
from longdraft.bench.peers.llama_server import unpinned

ISOLATED = ("-I",)  # the interpreter's own packages only: no PYTHONPATH, no folder of the script


class Worker:
    """Runs `script`; each request gets one answer, in order. Raises CannotRun if it cannot be
    started.

    The process ends with `close`, or when nothing uses this object.
    """

    def __init__(self, python: Path, script: Path):
        self._log = TemporaryFile()  # noqa: SIM115  # as long as the process
        try:
            with unpinned():
                self._process = subprocess.Popen(
                    [str(python), *ISOLATED, str(script)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    text=True,
                )
        except OSError as error:
            raise CannotRun(f"{python} cannot be run ({error.strerror})") from None
        self.close = finalize(self, _end, self._process)

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to one request. Raises CannotRun with the engine's own error, or the process's
        last words.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):  # the pipe is broken, or closed
            line = ""
        if not line:
            raise CannotRun(f"its process has ended ({self._last_words()})")
        answer = json.loads(line)
        if "error" in answer:
            raise CannotRun(answer["error"])
        return answer

    def _last_words(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), 4096, max(size - 4096, 0)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:200] if lines else "without a message"


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was not sent is lost
                pipe.close()


@cache
def installed(python: Path, package: str) -> str:
    """The version of a package that an interpreter has. Raises CannotRun."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    try:
        done = subprocess.run(
            [str(python), *ISOLATED, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{python} cannot be run ({error})") from None
    if done.returncode or not done.stdout.strip():
        raise CannotRun(f"{python} has no package {package}")
    return done.stdout.strip()
