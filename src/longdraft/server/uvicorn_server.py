"""Runs the application under uvicorn until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from types import FrameType
from typing import Any

import uvicorn

from longdraft.engine.generate import border_of
from longdraft.engine.session import Session
from longdraft.errors import InputError
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.ops.threads import release
from longdraft.server.anthropic.messages_routes import add_anthropic
from longdraft.server.app import create_app
from longdraft.server.decode.decoding_thread import DecodingThread
from longdraft.server.decode.method_choice import PLAIN, MethodChoice
from longdraft.server.decode.metrics import Metrics
from longdraft.server.decode.sampling_defaults import SamplingDefaults
from longdraft.server.decode.service import Service
from longdraft.server.decode.work import Times
from longdraft.server.http.access import Access
from longdraft.server.http.connection import Connection
from longdraft.server.http.guard import Guard
from longdraft.server.http.server_log import failure, say
from longdraft.server.llama.infill_routes import add_infill
from longdraft.server.models import Models
from longdraft.server.ollama.routes import add_ollama
from longdraft.server.traces import Tracer

HEADERS = 64 << 10  # bytes of a request's headers that are still incomplete
# each connection is one; without a limit it is -1
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
CONNECTIONS = 1024 if FILES < 0 else min(1024, FILES // 2)


@dataclass(frozen=True)
class Served:
    """A further model of a server: its session and tokenizer, and the names of model and method.

    methods: that requests may choose, too.
    """

    session: Session
    tokenizer: Any
    model: str
    method: str
    methods: Sequence[str] = (PLAIN,)


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server.

    hosts: names that a Host header may have; None: any. Times are in seconds, most_body in bytes.
    page: whether there is a page at /, with traces for it. share_prefixes: see Guard.shared.
    client_s: how long a client may take to send a request, or to read what was sent. strict: fields
    without an effect are errors. sampling: see SamplingDefaults.of. methods: see Served.
    parse_special: see Service.trusting.
    """

    model: str
    method: str
    host: str = "127.0.0.1"
    port: int = 8000
    keys: Collection[bytes] = ()
    hosts: Collection[str] | None = None
    most_new: int = 4096
    queue_s: float = 120.0
    request_s: float = 600.0
    client_s: float = 30.0
    grace_s: float = 30.0
    most_body: int = 4 << 20
    client_requests: int = 64
    page: bool = True
    share_prefixes: bool = False
    strict: bool = False
    sampling: Mapping[str, float] = field(default_factory=dict)
    methods: Sequence[str] = (PLAIN,)
    parse_special: bool = False


def _first(session: Session, tokenizer: Any, settings: ServerSettings) -> Served:
    return Served(session, tokenizer, settings.model, settings.method, settings.methods)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at this address.

    Raises InputError if there can be none.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=CONNECTIONS)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise InputError(
            f"cannot listen on {host}:{port} ({why}): give another --port or --host"
        ) from None


class Server(uvicorn.Server):
    """Drains at the first SIGTERM or SIGINT (see Guard).

    It ends when the running requests have ended, or the grace time has.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Any,
        settings: ServerSettings,
        weights: DrafterWeights | None = None,
        others: Sequence[Served] = (),
    ):
        self.settings = settings
        served = (_first(session, tokenizer, settings), *others)
        if others:
            release()  # the threads of several engines share the processors
        self.models = Models([self._service(each, not others) for each in served])
        self.service = self.models.first
        self.engine = self.models.first.engine
        for service in self.models:
            service.templates = self.service.templates  # one process renders all
        tracer = Tracer(self.service, weights or DrafterWeights(), settings.method)
        self.until = 0.0  # when the grace time ends
        application = create_app(self.models, tracer if settings.page else None, settings.strict)
        add_ollama(application, self.models)
        add_anthropic(application, self.models)
        add_infill(application, self.models)
        self.guard = Guard(
            application,
            keys=settings.keys,
            hosts=settings.hosts,
            most_body=settings.most_body,
            most_requests=settings.client_requests,
            shared=settings.share_prefixes,
            draining=lambda: self.service.stopping,
        )
        self.access = Access(self.guard, strict=settings.strict)
        super().__init__(
            uvicorn.Config(
                self.access,
                host=settings.host,
                port=settings.port,
                log_config=None,
                log_level="error",  # a warning for each malformed request would fill a disk
                http=Connection,
                ws="none",
                proxy_headers=False,  # a client on this machine could choose its address
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=HEADERS,
                limit_concurrency=CONNECTIONS,
                lifespan="on",
            )
        )

    def _service(self, served: Served, alone: bool) -> Service:
        settings = self.settings
        metrics = Metrics(served.session, served.model, served.method)
        times = Times(settings.queue_s, settings.request_s)
        engine = DecodingThread(served.session, alone)
        defaults = SamplingDefaults.of(served.session.target, settings.sampling)
        tokenizer = served.tokenizer
        most_new = settings.most_new
        methods = MethodChoice(served.method, served.methods)
        trusting = settings.parse_special
        return Service(
            engine, tokenizer, served.model, metrics, times, most_new, defaults, methods, trusting
        )

    @property
    def _failed(self) -> bool:
        """Tells whether decoding has failed for good."""
        return any(service.engine.failure is not None for service in self.models)

    def run(self, sockets: list[socket.socket] | None = None) -> int:  # type: ignore[override]
        """Serve until a signal, and return the exit status: 1 if decoding has failed for good.

        sockets: where it listens; None: at its settings' address. Raises InputError.
        """
        super().run(sockets or [listening(self.settings.host, self.settings.port)])
        self.access.report(last=True)
        for error in (service.engine.failure for service in self.models):
            if error is not None:
                failure(error)
        status = 1 if self._failed or not self.started else 0
        say(logging.INFO, "ended", exit_status=status)
        return status

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started and self.servers:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            names = ", ".join(service.model for service in self.models)
            say(
                logging.INFO,
                f"serving {names} at http://{host}:{port}/v1",
                method=self.settings.method,
            )
        for service in self.models:
            say(logging.INFO, f"sampling defaults: {service.defaults}", model=service.model)
            for name, value in service.defaults.unusable.items():
                text = f"the model recommends {name} {value}, which is out of range: ignored"
                say(logging.WARNING, text, model=service.model)
            if (border := border_of(service.target)) is not None:
                text = (
                    "without max_tokens, answers end where the text reaches the border of the "
                    "model's rotations"
                )
                say(logging.INFO, text, model=service.model, tokens=border)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # ten ticks are a second
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.close_if_stuck(self.settings.client_s)
            self.access.report()
        drained = self.service.stopping and not self.guard.busy
        return await super().on_tick(counter) or drained or self._failed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port and all connections.

        Answers that were decoded may be read for the rest of the grace time.
        """
        self.config.timeout_graceful_shutdown = int(max(self.until - monotonic(), 0)) + 5
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain; a second signal ends the process at once.

        The inherited method would end the process by the first signal, after draining.
        """
        if self.service.stopping:
            os._exit(1)
        for service in self.models:
            service.stopping = True
        self.until = monotonic() + self.settings.grace_s
        # nothing that takes a lock, in a signal handler
        asyncio.get_running_loop().call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        say(logging.INFO, "draining", requests=self.guard.busy, grace_s=self.settings.grace_s)
        asyncio.get_running_loop().call_later(self.settings.grace_s, self._cut)

    def _cut(self) -> None:
        """End the running requests, since the grace time is over."""
        say(logging.WARNING, "grace time is over", requests=self.guard.busy)
        for service in self.models:
            service.engine.cancel_all()
        self.should_exit = True
