"""A model's chat template, rendered in a process that can be killed.

An endless loop stops no server and no chat.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from threading import Lock
from time import monotonic

from longdraft.errors import InputError
from longdraft.models.chat import Asked

PROCESS = Path(__file__).with_name("template_process.py")
START_S = 60.0


class Templates:
    """Renders templates in a process that ends when it exceeds its limits.

    A template that takes longer than `limit_s`, or writes more than `most` bytes, ends its process
    and one request. The process starts with the first conversation or at `start`, and again after
    it was ended. Call it from any thread.
    """

    def __init__(self, limit_s: float = 2.0, most: int = 32 << 20):
        self.limit_s = limit_s
        self.most = most
        self._lock = Lock()
        self._process = None
        self._ready = False  # whether the process has said that it is

    def start(self) -> None:
        """Start the process, so that no request has to wait for it; this does not wait either."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def render(self, asked: Asked) -> dict[str, str]:
        """The result of `template_process.rendered` for a conversation.

        Raises InputError where a limit ends it.
        """
        line = json.dumps(asked).encode() + b"\n"
        with self._lock:
            return json.loads(self._exchange(line))

    def _exchange(self, line: bytes) -> bytes:
        """The process's answer to a line.

        After any error, the next request finds a process that works.
        """
        process = self._running()
        assert process.stdin is not None
        try:
            if not self._ready:
                self._read(process, START_S, 64)
                self._ready = True
            process.stdin.write(line)
            process.stdin.flush()
            return self._read(process, self.limit_s, self.most)
        except TimeoutError:
            why = f"took longer than {self.limit_s:g} s"
        except OverflowError:
            why = f"wrote more than {self.most} bytes"
        except OSError:
            why = "ended its process"
        except BaseException:  # an interrupt: a late answer must not be read as the next one
            self._end()
            raise
        self._end()
        raise InputError(f"the model's chat template {why} for this conversation: send another one")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            command = [sys.executable, "-I", str(PROCESS)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
                start_new_session=True,  # Ctrl-C in a terminal ends an answer, not this process
            )
            self._ready = False
        return self._process

    def _read(self, process: subprocess.Popen[bytes], limit_s: float, most: int) -> bytes:
        """A line that the process writes. Raises TimeoutError, OverflowError and OSError."""
        assert process.stdout is not None
        end = monotonic() + limit_s
        parts = list[bytes]()
        size = 0
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN | select.POLLHUP)
        while not (parts and parts[-1].endswith(b"\n")):
            if not poll.poll(max(end - monotonic(), 0) * 1000):
                raise TimeoutError
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                raise BrokenPipeError
            parts.append(part)
            size += len(part)
            if size > most:
                raise OverflowError
        return b"".join(parts)

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None
