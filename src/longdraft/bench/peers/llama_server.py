"""A llama.cpp server: what it is started with, what is asked of it and what it answers."""

from __future__ import annotations

import http.client
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import finalize

from longdraft.bench.peers.base import CannotRun, Work
from longdraft.ops.threads import are_pinned, pin, release

TIMEOUT = 3600  # seconds for one request
NGRAM = "ngram-"  # how llama.cpp's kinds of speculation from n-grams begin
SAVED = "prompt"  # name of the file with the prompt's keys and values


@dataclass(frozen=True)
class LlamaServerSettings:
    """The settings that a server is started with.

    file: the model, GGUF. context: slots of all rows together. folder: where the prompt's keys and
    values are saved. kind: llama.cpp's name of a speculation. draft: a GGUF file that drafts. rope:
    the model's rope_parameters.
    """

    file: Path
    context: int
    threads: int
    folder: str = ""
    kind: str = "none"
    draft: Path | None = None
    rows: int = 1
    rope: dict[str, Any] = field(default_factory=dict)


class Build(ABC):
    """llama.cpp as it was built: by name, as records and tables have it, and with `facts`, how it
    was built.
    """

    def __init__(self, name: str, version: str, facts: dict[str, Any]):
        self.name = name
        self.version = version
        self.facts = facts

    @abstractmethod
    def check(self, kind: str) -> None:
        """Raises CannotRun if it does not offer this kind of speculation."""

    @abstractmethod
    def ngrams(self) -> list[str]:
        """The kinds of speculation from n-grams that it offers. Raises CannotRun."""

    @abstractmethod
    def start(self, settings: LlamaServerSettings) -> LlamaServer:
        """Raises CannotRun."""


class LlamaServer:
    """Its cache keeps the last prompt, of which a request that starts with it reads the last token
    alone.

    address: as in http://127.0.0.1:8080. end: ends the server; called by close, or when nothing
    uses this object.
    """

    def __init__(self, address: str, end: Callable[[], object]):
        self.address = address
        self.close = finalize(self, end)
        place = urlsplit(address)
        self._place = place.hostname or "", place.port

    def vocab(self) -> int | None:
        (model,) = self._ask("GET", "/v1/models")["data"]
        return model.get("meta", {}).get("n_vocab")

    def complete(self, work: Work, limit: int) -> dict[str, Any]:
        """`tokens` and `timings`. The prompt goes in as token ids, and nothing but temperature
        changes the sampling.
        """
        sampler = {
            "temperature": work.sampler.temperature,
            "samplers": ["temperature"],
            "seed": work.seed,
        }
        body = {
            "prompt": work.prompts[0],
            "n_predict": limit,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        body |= {"return_tokens": True, "response_fields": ["tokens", "timings"], **sampler}
        return self._ask("POST", "/completion", body)

    def likeliest(self, prompt: list[int], count: int) -> dict[int, float]:
        """The log-probabilities of the `count` likeliest tokens after these."""
        body = {
            "prompt": prompt,
            "n_predict": 1,
            "temperature": 0.0,
            "n_probs": count,
            "cache_prompt": False,
        }
        [first] = self._ask("POST", "/completion", body)["completion_probabilities"]
        return {each["id"]: each["logprob"] for each in first["top_logprobs"]}

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
            raise CannotRun(
                f"its server answers {answer.status}: {text[:200].decode(errors='replace')}"
            )
        return json.loads(text)


@contextmanager
def unpinned() -> Iterator[None]:
    """This process's threads may run anywhere inside the block: a server's would inherit the one
    processor of this.
    """
    were = are_pinned()
    release()
    try:
        yield
    finally:
        if were:
            pin()
