"""Counters for Prometheus.

A metric that means the same as one of vLLM has vLLM's name, so that one dashboard serves both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest

from longdraft.engine.session import Event, Session
from longdraft.server.decode.reply import Reply

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
SHORT = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
LABELS = ("model_name", "method")


class Metrics:
    """Counts what one server has done, labeled with the names of its model and its method."""

    def __init__(self, session: Session, model: str, method: str):
        self.session = session
        self.registry = CollectorRegistry()
        named = {"model_name": model, "method": method}

        def counter(name: str, about: str, *more: str) -> Counter:
            return Counter(name, about, [*LABELS, *more], registry=self.registry)

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(name, about, LABELS, registry=self.registry).labels(**named)

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, about, LABELS, registry=self.registry, buckets=buckets).labels(
                **named
            )

        self.named = named
        self.running = gauge("vllm:num_requests_running", "Requests that are decoded.")
        self.waiting = gauge(
            "vllm:num_requests_waiting", "Requests that wait or whose prompt is being read."
        )
        self.cache_use = gauge(
            "vllm:kv_cache_usage_perc", "Share of the slots that running requests may fill."
        )
        self.prefix_use = gauge(
            "longdraft:prefix_cache_usage_perc", "Share of the prefix cache that is in use."
        )
        self.ended = counter(
            "vllm:request_success", "Finished requests, by reason.", "finished_reason"
        )
        self.refused = counter(
            "longdraft:requests_refused", "Requests that were refused, by status.", "status"
        )
        self.prompt = counter("vllm:prompt_tokens", "Prompt tokens of requests that ended.").labels(
            **named
        )
        self.written = counter("vllm:generation_tokens", "New tokens.").labels(**named)
        self.queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up.").labels(
            **named
        )
        self.hits = counter(
            "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache."
        ).labels(**named)
        self.drafts = counter("vllm:spec_decode_num_drafts", "Drafts that were verified.").labels(
            **named
        )
        self.drafted = counter(
            "vllm:spec_decode_num_draft_tokens", "Depths of drafts, summed."
        ).labels(**named)
        self.accepted = counter(
            "vllm:spec_decode_num_accepted_tokens", "Accepted draft tokens."
        ).labels(**named)
        self.by_position = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by position.",
            "position",
        )
        self.first_token = histogram(
            "vllm:time_to_first_token_seconds", "From request to first token.", SECONDS
        )
        self.between = histogram("vllm:inter_token_latency_seconds", "Time between tokens.", SHORT)
        self.whole = histogram(
            "vllm:e2e_request_latency_seconds", "From request to its end.", SECONDS
        )
        self._asked = 0
        self._reused = 0

    def took(self, event: Event, since_s: float, first: bool) -> None:
        """Count an event of a request.

        since_s: the time after the event before it, or after the request.
        """
        self.written.inc(len(event.tokens))
        if event.drafted:
            self.drafts.inc()
            self.drafted.inc(event.drafted)
            self.accepted.inc(event.accepted)
            for i in range(event.accepted):
                self.by_position.labels(**self.named, position=str(i)).inc()
        if event.tokens and first:
            self.first_token.observe(since_s)
        for _ in event.tokens[first:]:
            self.between.observe(since_s / len(event.tokens))

    def finished(self, how: str, prompt: int, replies: list[Reply], took_s: float) -> None:
        for reply in replies:
            self.ended.labels(**self.named, finished_reason=reply.finish or how).inc()
        self.prompt.inc(prompt)
        self.whole.observe(took_s)

    def refuse(self, status: int) -> None:
        self.refused.labels(**self.named, status=str(status)).inc()

    def measure(self) -> None:
        """Take over the counts of the session."""
        session = self.session
        self.running.set(session.running)
        self.waiting.set(session.waiting)
        self.cache_use.set(session.needed / session.total)
        if session.prefixes is not None:
            asked = session.prefixes.asked
            reused = session.prefixes.hits
            self.queries.inc(asked - self._asked)
            self.hits.inc(reused - self._reused)
            self._asked = asked
            self._reused = reused
            self.prefix_use.set(session.prefixes.used)


class _Together:
    """The metrics of several models, each name once: samples differ in their labels."""

    def __init__(self, metrics: Sequence[Metrics]):
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for metrics in self.metrics:
            for family in metrics.registry.collect():
                merged.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                merged[family.name].samples += family.samples
        yield from merged.values()


def together(metrics: Sequence[Metrics]) -> bytes:
    """All metrics of these models in Prometheus' format."""
    for each in metrics:
        each.measure()
    return generate_latest(_Together(metrics))  # type: ignore[arg-type]
