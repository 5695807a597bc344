"""A server in a process of its own that can write no file, and what is seen of it from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from importlib.resources import files
from pathlib import Path
from typing import Self
from urllib.request import urlopen

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
# a file can have one block: Python tries whether a temporary file can be written
LIMITED = 'ulimit -f 1; exec "$@"'


class ServerProcess:
    """`longdraft serve` with the bundled model and a chat template, in empty folders; a context
    ends it.

    template: of its chats. log: the last lines of its standard error. errors: those that begin a
    traceback, or log an error. loaded_s: how long it took to start.
    """

    def __init__(self, place: Path, *options: str, method: str = "vegas", template: str = CHAT):
        self.place = place
        self.options = options
        self.method = method
        model = place / "model"
        if not model.exists():
            shutil.copytree(str(files("longdraft") / "assets" / "models" / "target"), model)
            (model / "chat_template.jinja").write_text(template)
        (place / "home" / "tmp").mkdir(parents=True, exist_ok=True)
        self.errors = 0
        self.log = deque[str](maxlen=50)
        self.start()

    def start(self) -> None:
        home = self.place / "home"
        begin = time.monotonic()
        words = [
            "-m",
            "longdraft",
            "serve",
            "-m",
            str(self.place / "model"),
            "--name",
            "tiny",
            "--port",
            "0",
        ]
        words += ["--method", self.method, "--dtype", "float32", "--context", "2048", *self.options]
        folders = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            ["sh", "-c", LIMITED, "sh", sys.executable, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=home,
            env=os.environ | folders | {"HF_HUB_OFFLINE": "1"},
        )
        self._ready = threading.Event()
        threading.Thread(target=self._follow, args=(self.process,), daemon=True).start()
        if not self._ready.wait(120) or self.process.poll() is not None:
            self.kill()
            raise RuntimeError("the server did not start: " + "".join(self.log))
        self.loaded_s = time.monotonic() - begin

    def _follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line)
            self.errors += line.startswith("Traceback") or " ERROR " in line
            if " at http://" in line:
                host, port = line.split("//")[1].split("/")[0].split(":")
                self.address = host, int(port)
                self._ready.set()
        self._ready.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    @property
    def rss_mb(self) -> float:
        """Memory that is resident, as /proc says."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    @property
    def written(self) -> list[str]:
        """What lies in the folders that were empty when it started, except the folder that
        importing torch makes.
        """
        home = self.place / "home"
        found = [
            p
            for p in home.rglob("*")
            if p != home / "tmp" and not p.name.startswith("torchinductor_")
        ]
        return sorted(str(p.relative_to(home)) for p in found)

    def metrics(self) -> dict[str, float]:
        """The values of /metrics that have no labels of their own."""
        with urlopen("http://{}:{}/metrics".format(*self.address), timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name.split("{")[0]: float(value) for name, value in pairs}

    def settle(self, most_s: float = 30) -> bool:
        """Wait until nothing runs or waits -> whether that came about."""
        deadline = time.monotonic() + most_s
        while time.monotonic() < deadline:
            found = self.metrics()
            if not found["vllm:num_requests_running"] and not found["vllm:num_requests_waiting"]:
                return True
            time.sleep(0.05)
        return False
