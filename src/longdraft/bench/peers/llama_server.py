"""A llama.cpp server in this process, with one row: what is asked of it and what it answers."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from longdraft.bench.peers.base import CannotRun, Work
from longdraft.ops.threads import are_pinned, pin, release

TIMEOUT = 3600  # seconds for one request
SAVED = "prompt"  # name of the file with the prompt's keys and values


def package() -> Any:
    """The package xllamacpp. Raises CannotRun."""
    try:
        return import_module("xllamacpp")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp"
        why = "is not installed" if missing else f"cannot be imported ({str(error)[:200]})"
        raise CannotRun(f"the package xllamacpp {why}: pip install 'longdraft[peers]'") from None


class LlamaServer:
    """Its cache keeps the last prompt, of which a request that starts with it reads the last token alone."""

    def __init__(self, parameters: Any):
        with _unpinned():  # its threads would inherit the one processor of this thread
            try:
                self._server = package().Server(parameters)
            except RuntimeError as error:
                raise CannotRun(f"it cannot load {Path(parameters.model.path).name} ({str(error)[:200]})") from None
        address = urlsplit(self._server.listening_address)
        self._place = address.hostname or "", address.port

    def vocab(self) -> int | None:
        (model,) = self._ask("GET", "/v1/models")["data"]
        return model.get("meta", {}).get("n_vocab")

    def complete(self, work: Work, limit: int) -> dict[str, Any]:
        """`tokens` and `timings`. The prompt goes in as token ids, and nothing but temperature changes the sampling."""
        sampler = {"temperature": work.sampler.temperature, "samplers": ["temperature"], "seed": work.seed}
        body = {"prompt": work.prompts[0], "n_predict": limit, "ignore_eos": True, "cache_prompt": True}
        body |= {"return_tokens": True, "response_fields": ["tokens", "timings"], **sampler}
        return self._ask("POST", "/completion", body)

    def save(self) -> None:
        """Write the prompt's keys and values to its folder (`slot_save_path`)."""
        self._ask("POST", "/slots/0?action=save", {"filename": SAVED})

    def restore(self) -> None:
        """Read what another server has saved in the same folder."""
        self._ask("POST", "/slots/0?action=restore", {"filename": SAVED})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        link = http.client.HTTPConnection(*self._place, timeout=TIMEOUT)
        try:
            link.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = link.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise CannotRun(f"its server does not answer ({error})") from None
        finally:
            link.close()
        if answer.status != 200:
            raise CannotRun(f"its server answers {answer.status}: {text[:200].decode(errors='replace')}")
        return json.loads(text)


@contextmanager
def _unpinned() -> Iterator[None]:
    """This process's threads may run anywhere inside the block."""
    were = are_pinned()
    release()
    try:
        yield
    finally:
        if were:
            pin()
