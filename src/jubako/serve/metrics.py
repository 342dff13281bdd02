"""Figures for Prometheus, at /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from .ask import Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)


class Metrics:
    """All counts of one server. `paths` are the ones told apart; anything else counts as "other"."""

    def __init__(self, paths: frozenset[str] = frozenset()) -> None:
        self.paths = paths
        self.registry = registry = CollectorRegistry()
        self._requests = Counter("jubako_requests", "Answered requests", ["path", "status"], registry=registry)
        self._seconds = Histogram(
            "jubako_request_seconds",
            "Time from request to end of answer",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._tokens = Counter("jubako_tokens", "Tokens by kind", ["kind"], registry=registry)
        self._first = Histogram("jubako_prompt_seconds", "Time to read a prompt", buckets=_SECONDS, registry=registry)
        self._each = Histogram(
            "jubako_token_seconds", "Mean time per token of an answer", buckets=_PER_TOKEN, registry=registry
        )
        self._finished = Counter("jubako_answers", "Complete answers by reason", ["reason"], registry=registry)
        self._gauges = {
            name: Gauge(f"jubako_{name}", text, registry=registry)
            for name, text in {
                "running": "Requests the engine works on",
                "waiting": "Requests in the queue",
                "engine_up": "1 when the engine can answer",
                "engine_restarts": "Times the engine was started again",
                "tokens_per_second": "Tokens generated per second, lately",
                "prefix_hits": "Prompts that began with something known",
                "prefix_misses": "Prompts that did not",
                "prefix_bytes": "Memory of the prefix store",
                "kv_bytes": "Memory of keys and values",
            }.items()
        }

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count one request."""
        path = path if path in self.paths else "other"
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def answer(self, reason: str, usage: Usage) -> None:
        """Count one complete answer."""
        self._finished.labels(reason).inc()
        for kind in ("prompt", "cached", "completion", "reasoning"):
            self._tokens.labels(kind).inc(getattr(usage, kind))
        self._first.observe(usage.stats.prefill_seconds)
        if usage.stats.tokens_per_second:
            self._each.observe(1 / usage.stats.tokens_per_second)

    def text(self, gauges: Mapping[str, float], status: Mapping[str, Any]) -> bytes:
        """The page that Prometheus reads; `status` is what the engine tells."""
        prefix, speed, kv = (status.get(name) or {} for name in ("prefix", "speed", "kv"))
        found = {
            **gauges,
            "tokens_per_second": speed.get("tokens_per_second"),
            "prefix_hits": prefix.get("hits"),
            "prefix_misses": prefix.get("misses"),
            "prefix_bytes": prefix.get("bytes"),
            "kv_bytes": kv.get("bytes"),
        }
        for name, value in found.items():
            if isinstance(value, (int, float)):
                self._gauges[name].set(value)
        return generate_latest(self.registry)
