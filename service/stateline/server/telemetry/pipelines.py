"""The metrics of pipelines, from drivers on this node, and from drivers without a node beside them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stateline.server.state.pipeline_states import NOT_RUNNING, PipelineStates, PipelineStatus, of_all_nodes

_STATES = {NOT_RUNNING: 0, "starting": 1, "running": 2, "waiting": 3, "restarting": 4, "failed": 5}


class PipelineCollector(Collector):
    """A pipeline without a status has only its state, and not even that if another node has its status."""

    def __init__(self, states: PipelineStates) -> None:
        self.elsewhere: Collection[str] = ()
        self.reported: Collection[tuple[str, Mapping[str, PipelineStatus]]] = ()
        """Of drivers that no node is beside."""
        self._states = states

    def collect(self) -> Iterator[Metric]:
        states = of_all_nodes(self._states.read(), self.reported, "")
        found = {name: status for name, status in states.items() if status is not None or name not in self.elsewhere}
        yield _state(found)
        written = {name: status for name, status in found.items() if status is not None}
        yield from _gauges(written)
        yield _steps(written)
        yield from _counters(written)


_Statuses = Mapping[str, Mapping[str, Any]]


def _state(found: Mapping[str, Mapping[str, Any] | None]) -> Metric:
    about = "0 not running, 1 starting, 2 running, 3 waiting for records, 4 failed and restarting, 5 failed."
    gauge = _gauge("state", about)
    for name, status in found.items():
        gauge.add_metric([name], _STATES.get(status["state"], 0) if status is not None else 0)
    return gauge


_GAUGES = {
    "batch_id": ("batch_id", 1, "Number of the newest micro-batch."),
    "batch_seconds": ("duration_ms", 1000, "Duration of the newest micro-batch."),
    "watermark_seconds": ("watermark_ms", 1000, "The pipeline's watermark, in seconds since the epoch."),
    "restarts": ("restarts", 1, "Restarts since the last stop in order."),
}


def _gauges(written: _Statuses) -> Iterator[Metric]:
    for metric, (member, divisor, about) in _GAUGES.items():
        gauge = _gauge(metric, about)
        for name, status in written.items():
            if status[member] is not None:
                gauge.add_metric([name], status[member] / divisor)
        yield gauge
    age = _gauge("last_batch_age_seconds", "Time since the end of the newest micro-batch.")
    for name, status in written.items():
        if status["batch_at_ms"] is not None:
            age.add_metric([name], max(0.0, time.time() - status["batch_at_ms"] / 1000))
    yield age
    lag = _gauge("lag_records", "Offsets of a topic that the newest micro-batch had left, at its end.", "topic")
    for name, status in written.items():
        for topic, records in (status["lag_by_topic"] or {}).items():
            lag.add_metric([name, topic], records)
    yield lag


def _steps(written: _Statuses) -> Metric:
    gauge = _gauge("step_seconds", "Duration of a step of the newest micro-batch.", "step")
    for name, status in written.items():
        for step, duration_ms in (status["steps_ms"] or {}).items():
            gauge.add_metric([name, step], duration_ms / 1000)
    return gauge


_COUNTERS = {
    "batches": "Micro-batches since the driver started.",
    "rows_in": "Records read since the driver started.",
    "rows_out": "Records written, including tombstones.",
    "tombstones": "Tombstones written.",
    "skipped": "Records left out because they could not be read.",
    "dead_lettered": "Records sent to the dead-letter topic.",
}


def _counters(written: _Statuses) -> Iterator[Metric]:
    for member, about in _COUNTERS.items():
        counter = CounterMetricFamily(f"stateline_pipeline_{member}", about, labels=("pipeline",))
        for name, status in written.items():
            if (count := (status["totals"] or {}).get(member)) is not None:
                counter.add_metric([name], count)
        yield counter


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"stateline_pipeline_{name}", about, labels=("pipeline", *labels))
