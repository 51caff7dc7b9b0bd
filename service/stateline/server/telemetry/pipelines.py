"""How far the application's pipelines are, as their drivers say (`stateline.deployment.pipeline_status`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stateline.deployment.pipeline_status import lock_path, pipelines_directory, read_status
from stateline.model.topology import Topology
from stateline.server.contract.hidden_paths import without_paths
from stateline_store import DamagedDataError
from stateline_store.inspection import lock_holder

_log = logging.getLogger(__name__)

# Of a status; what is not here says nothing to who asks over HTTP (the process's id, the query's).
_SHOWN = (
    "state", "batch_id", "rows_in", "rows_out", "tombstones", "skipped", "dead_lettered", "duration_ms", "steps_ms",
    "batch_at_ms", "lag", "lag_by_topic", "watermark_ms", "totals", "restarts", "last_error", "last_error_at_ms",
    "next_start_at_ms", "updated_at_ms",
)  # fmt: skip

NOT_RUNNING = "not running"
_STATES = {NOT_RUNNING: 0, "starting": 1, "running": 2, "waiting": 3, "restarting": 4, "failed": 5}


class PipelineStates:
    """Reads the files of an application's pipelines whenever it is asked. Thread-safe: it keeps nothing."""

    def __init__(self, topology: Topology, state_dir: Path) -> None:
        pipelines = pipelines_directory(state_dir, topology.application_id)
        self._directories = {name: pipelines / name for name in topology.pipelines}

    def read(self) -> dict[str, dict[str, Any] | None]:
        """Each pipeline's status; None for one that was stopped in order, never ran, or runs on another machine.

        ``state`` is `not running` for one whose driver is gone without a word.
        """
        return {name: _status(directory) for name, directory in self._directories.items()}


def _status(directory: Path) -> dict[str, Any] | None:
    try:
        written = read_status(directory)
    except (OSError, DamagedDataError) as error:
        _log.debug("%s cannot be read: %s", directory, error)
        return None
    if written is None:
        return None
    status: dict[str, Any] = {name: getattr(written, name) for name in _SHOWN}
    if status["last_error"] is not None:
        status["last_error"] = without_paths(status["last_error"])
    running, _ = lock_holder(lock_path(directory))
    if running is False and status["state"] != "failed":
        status |= {"state": NOT_RUNNING, "next_start_at_ms": None}
    return status


class PipelineCollector(Collector):
    """The metrics of pipelines; those of a pipeline that says nothing are left out, but for its state."""

    def __init__(self, states: PipelineStates) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        found = self._states.read()
        yield _state(found)
        written = {name: status for name, status in found.items() if status is not None}
        yield from _gauges(written)
        yield _steps(written)
        yield from _counters(written)

    def describe(self) -> Iterable[Metric]:
        return ()  # registering asks for nothing


_Statuses = Mapping[str, Mapping[str, Any]]


def _state(found: Mapping[str, Mapping[str, Any] | None]) -> Metric:
    about = "0 not running, 1 starting, 2 running, 3 waiting for records, 4 failed and starts again, 5 failed."
    gauge = _gauge("state", about)
    for name, status in found.items():
        gauge.add_metric([name], _STATES.get(status["state"], 0) if status is not None else 0)
    return gauge


_GAUGES = {
    "batch_id": ("batch_id", 1, "Number of the newest micro-batch."),
    "batch_seconds": ("duration_ms", 1000, "How long the newest micro-batch took."),
    "watermark_seconds": ("watermark_ms", 1000, "Its watermark, in seconds since the epoch."),
    "restarts": ("restarts", 1, "How often it was started again since it was last stopped in order."),
}


def _gauges(written: _Statuses) -> Iterator[Metric]:
    for metric, (member, divisor, about) in _GAUGES.items():
        gauge = _gauge(metric, about)
        for name, status in written.items():
            if status[member] is not None:
                gauge.add_metric([name], status[member] / divisor)
        yield gauge
    age = _gauge("last_batch_age_seconds", "How long ago the newest micro-batch ended.")
    for name, status in written.items():
        if status["batch_at_ms"] is not None:
            age.add_metric([name], max(0.0, time.time() - status["batch_at_ms"] / 1000))
    yield age
    lag = _gauge("lag_records", "Records of a topic behind the newest micro-batch.", "topic")
    for name, status in written.items():
        for topic, records in (status["lag_by_topic"] or {}).items():
            lag.add_metric([name, topic], records)
    yield lag


def _steps(written: _Statuses) -> Metric:
    gauge = _gauge("step_seconds", "How long a step of the newest micro-batch took.", "step")
    for name, status in written.items():
        for step, duration_ms in (status["steps_ms"] or {}).items():
            gauge.add_metric([name, step], duration_ms / 1000)
    return gauge


_COUNTERS = {
    "batches": "Micro-batches since its driver started.",
    "rows_in": "Records that they read.",
    "rows_out": "Records that they wrote, tombstones included.",
    "tombstones": "Of these, tombstones.",
    "skipped": "Records left out because they could not be read.",
    "dead_lettered": "Records that went to the dead-letter topic.",
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
