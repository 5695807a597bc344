"""The models of a server, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from longdraft.server.decode.metrics import together
from longdraft.server.decode.service import Service
from longdraft.server.http.problems import Problem

LATEST = ":latest"


class Models:
    """At least one service, each with a name and its own engine; the page shows the first."""

    def __init__(self, services: Sequence[Service]):
        self.first = services[0]
        self._services = {service.model: service for service in services}
        assert len(self._services) == len(services), "two models have one name"

    def __iter__(self) -> Iterator[Service]:
        return iter(self._services.values())

    @property
    def ready(self) -> bool:
        return all(service.ready for service in self)

    def of(self, name: str | None) -> Service:
        """The model of this name; None: the first. Raises Problem.

        NAME:latest, as Ollama's clients name it, is NAME.
        """
        if name is None:
            return self.first
        if name not in self._services:
            name = name.removesuffix(LATEST)
        if name not in self._services:
            names = " or ".join(map(repr, self._services))
            raise Problem(
                404,
                f"there is no model {name[:80]!r} here: use {names}",
                "model",
                "model_not_found",
            )
        return self._services[name]

    def metrics(self) -> bytes:
        """The metrics of all models, in Prometheus' format."""
        return together([service.metrics for service in self])


def about(service: Service) -> dict[str, Any]:
    """A model as OpenAI lists it; max_model_len, as in vLLM, is the maximum length in tokens.

    sampling_defaults: for fields that a request does not send; other fields have the API's.
    """
    return {
        "id": service.model,
        "object": "model",
        "created": service.created,
        "owned_by": "longdraft",
        "max_model_len": service.room,
        "sampling_defaults": dict(service.defaults.settings),
        "methods": service.methods.names,
    }
