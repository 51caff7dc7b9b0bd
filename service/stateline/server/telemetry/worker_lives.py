"""Which workers of this state directory live, and how often each was started, as their locks say on a full disk too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stateline.deployment.instance_file import instance_path, lock_path, locked_instances, starts
from stateline_store.inspection import lock_holder


class WorkerLives(Collector):
    """The metrics. For one thread at a time."""

    def __init__(self, application: Path) -> None:
        self._application = application
        self._seen: set[str] = set()  # alive, since this server started

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "stateline_worker_up",
            "1 while the worker's process lives, else 0.",
            labels=("worker",),
        )
        started = CounterMetricFamily(
            "stateline_worker_starts", "Starts of workers of this name in this state directory.", labels=("worker",)
        )
        alive = 0
        for name in locked_instances(self._application):
            lives = lock_holder(lock_path(self._application, name))[0]
            alive += lives is True
            if lives:
                self._seen.add(name)
            if lives or (lives is False and self._is_missed(name)):
                up.add_metric((name,), float(lives))
            if (times := starts(self._application, name)) is not None:
                started.add_metric((name,), times)
        yield up
        yield started
        yield GaugeMetricFamily("stateline_workers", "Live workers of the server's state directory.", value=alive)

    def describe(self) -> Iterable[Metric]:
        return ()  # registering asks for nothing

    def _is_missed(self, name: str) -> bool:
        """Whether it lived lately: one that was killed leaves its file."""
        return name in self._seen or instance_path(self._application, name).exists()
