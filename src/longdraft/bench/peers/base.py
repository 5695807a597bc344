"""Another engine in a benchmark: it reads the prompts once and decodes them any number of times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from longdraft.core.sampling import Sampler
from longdraft.models.lm import LM
from longdraft.recording.decode_figures import DecodedRows


class CannotRun(Exception):
    """A peer cannot do what it was asked to; the message is the reason, in one line. The benchmark
    goes on.
    """


@dataclass(frozen=True)
class Work:
    """The work of all engines at one context: greedy at temperature 0, else sampled from the whole
    distribution.
    """

    target: LM
    prompts: list[list[int]]
    new_tokens: int
    sampler: Sampler
    seed: int
    # what the peers of one engine use together
    shared: dict[Any, Any] = field(default_factory=dict)


@dataclass
class PeerOutput(DecodedRows):
    """own: fields of the record that replace those computed from `stats`."""

    own: dict[str, Any] = field(default_factory=dict)

    def describe(self, *args: Any) -> dict[str, Any]:
        return super().describe(*args) | self.own


class Reading(ABC):
    """A peer that has read the prompts. Each decode starts from the prompts alone."""

    @abstractmethod
    def decode(self, limit: int, sampler: Sampler | None = None) -> PeerOutput:
        """Decode `limit` tokens of each row past any end token. sampler: in place of the work's.
        Raises CannotRun.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the prompts take."""


class Peer(ABC):
    """An entry of a benchmark beside the methods (MethodSpec). name: the engine; label: what of it,
    in tables.
    """

    speculative = False
    pace = False

    def __init__(self, name: str, label: str, version: str, options: dict[str, Any]):
        self.name = name
        self.label = label
        self.options = options
        self.origin = {
            "peer": "transformers" if name.startswith("hf-") else name,
            "peer_version": version,
        }

    @abstractmethod
    def read(self, work: Work) -> Reading:
        """Read the prompts. Raises CannotRun."""


class Absent(Peer):
    """A peer that cannot be had here, so that the records say why."""

    def __init__(self, name: str, label: str, why: CannotRun):
        super().__init__(name, label, "", {})
        self.why = why

    def read(self, work: Work) -> Reading:
        raise self.why
