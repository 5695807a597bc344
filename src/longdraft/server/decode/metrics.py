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
    """Counts what one server has done.

    Requests are counted under the method that they used, and what all of them share under the
    server's own.
    """

    def __init__(self, session: Session, model: str, method: str):
        self.session = session
        self.model = model
        self.own = method
        self.registry = CollectorRegistry()
        self.running = self._gauge("vllm:num_requests_running", "Requests that are decoded.")
        self.waiting = self._gauge(
            "vllm:num_requests_waiting", "Requests that wait or whose prompt is being read."
        )
        self.cache_use = self._gauge(
            "vllm:kv_cache_usage_perc", "Share of the slots that running requests may fill."
        )
        self.prefix_use = self._gauge(
            "longdraft:prefix_cache_usage_perc", "Share of the prefix cache that is in use."
        )
        self.ended = self._counter(
            "vllm:request_success", "Finished requests, by reason.", "finished_reason"
        )
        self.refused = self._counter(
            "longdraft:requests_refused", "Requests that were refused, by status.", "status"
        )
        self.queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up.")
        self.hits = self._counter(
            "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache."
        )
        self.prompt = self._counter("vllm:prompt_tokens", "Prompt tokens of requests that ended.")
        self.written = self._counter("vllm:generation_tokens", "New tokens.")
        self.drafts = self._counter("vllm:spec_decode_num_drafts", "Drafts that were verified.")
        self.drafted = self._counter(
            "vllm:spec_decode_num_draft_tokens", "Depths of drafts, summed."
        )
        self.accepted = self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Accepted draft tokens."
        )
        self.by_position = self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by position.",
            "position",
        )
        self.by_source = self._counter(
            "longdraft:accepted_draft_tokens",
            "Accepted draft tokens by what proposed them.",
            "source",
        )
        self.first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From request to first token.", SECONDS
        )
        self.between = self._histogram(
            "vllm:inter_token_latency_seconds", "Time between tokens.", SHORT
        )
        self.whole = self._histogram(
            "vllm:e2e_request_latency_seconds", "From request to its end.", SECONDS
        )
        self._asked = 0
        self._reused = 0

    def _counter(self, name: str, about: str, *more: str) -> Counter:
        """Without more labels it is reported as 0 from the start."""
        made = Counter(name, about, [*LABELS, *more], registry=self.registry)
        if not more:
            made.labels(self.model, self.own)
        return made

    def _gauge(self, name: str, about: str) -> Gauge:
        made = Gauge(name, about, LABELS, registry=self.registry)
        return made.labels(self.model, self.own)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(name, about, LABELS, registry=self.registry, buckets=buckets)
        made.labels(self.model, self.own)
        return made

    def took(self, event: Event, since_s: float, first: bool, method: str) -> None:
        """Count an event of a request that uses this method.

        since_s: the time after the event before it, or after the request.
        """
        labels = self.model, method
        self.written.labels(*labels).inc(len(event.tokens))
        if event.drafted:
            self.drafts.labels(*labels).inc()
            self.drafted.labels(*labels).inc(event.drafted)
            self.accepted.labels(*labels).inc(event.accepted)
            for i in range(event.accepted):
                self.by_position.labels(*labels, str(i)).inc()
            for source in event.sources:
                self.by_source.labels(*labels, source).inc()
        if event.tokens and first:
            self.first_token.labels(*labels).observe(since_s)
        between = self.between.labels(*labels)
        for _ in event.tokens[first:]:
            between.observe(since_s / len(event.tokens))

    def finished(
        self, how: str, prompt: int, replies: list[Reply], took_s: float, method: str
    ) -> None:
        for reply in replies:
            self.ended.labels(self.model, method, reply.finish or how).inc()
        self.prompt.labels(self.model, method).inc(prompt)
        self.whole.labels(self.model, method).observe(took_s)

    def refuse(self, status: int) -> None:
        self.refused.labels(self.model, self.own, str(status)).inc()

    def measure(self) -> None:
        """Take over the counts of the session."""
        session = self.session
        self.running.set(session.running)
        self.waiting.set(session.waiting)
        self.cache_use.set(session.needed / session.total)
        if session.prefixes is not None:
            asked = session.prefixes.asked
            reused = session.prefixes.hits
            self.queries.labels(self.model, self.own).inc(asked - self._asked)
            self.hits.labels(self.model, self.own).inc(reused - self._reused)
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
