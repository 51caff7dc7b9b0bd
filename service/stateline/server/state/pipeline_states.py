"""The progress of the application's pipelines, from reports of their drivers (`deployment.pipelines.status`)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.pipelines.reports import SILENT_S, PipelineReport, follow_reports
from stateline.deployment.pipelines.status import PipelineStatus as Written
from stateline.deployment.pipelines.status import lock_path, pipelines_directory, read_status
from stateline.model.topology import Topology
from stateline.server.contract.hidden_paths import without_paths
from stateline_store import DamagedDataError, StatelineError
from stateline_store.files.process_metadata import known_process_id
from stateline_store.inspection.inspection import lock_holder

_log = logging.getLogger(__name__)

# Members of a status that HTTP shows. Ids of processes and queries are not among them.
_SHOWN = (
    "state", "batch_id", "rows_in", "rows_out", "tombstones", "skipped", "dead_lettered", "duration_ms", "steps_ms",
    "batch_at_ms", "lag", "lag_by_topic", "watermark_ms", "totals", "restarts", "last_error", "last_error_at_ms",
    "next_start_at_ms", "updated_at_ms",
)  # fmt: skip

NOT_RUNNING = "not running"

PipelineStatus = Mapping[str, Any]
"""A status as it is shown."""


class PipelineStates:
    """Reads the files of an application's pipelines whenever it is asked. Thread-safe: it keeps nothing."""

    def __init__(self, topology: Topology, state_dir: Path) -> None:
        pipelines = pipelines_directory(state_dir, topology.application_id)
        self._directories = {name: pipelines / name for name in topology.pipelines}

    def read(self) -> dict[str, PipelineStatus | None]:
        """Each pipeline's status; None for one that was stopped in order, never ran, or runs on another node.

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
    running, _ = lock_holder(lock_path(directory))
    return shown_status(written, is_gone=running is False)


def shown_status(written: Written, *, is_gone: bool) -> dict[str, Any]:
    """Return the part of a driver's status that clients see. `is_gone`: the driver has ended without a word."""
    status: dict[str, Any] = {name: getattr(written, name) for name in _SHOWN}
    if status["last_error"] is not None:
        status["last_error"] = without_paths(status["last_error"])
    if is_gone and status["state"] != "failed":
        status |= {"state": NOT_RUNNING, "next_start_at_ms": None}
    return status


def of_all_nodes(
    own: Mapping[str, PipelineStatus | None], told: Iterable[tuple[str, Mapping[str, PipelineStatus]]], node: str | None
) -> dict[str, PipelineStatus | None]:
    """Return each pipeline's status with its `node`, from this node (`own`) or other nodes (`told`).

    If there are several, a running one counts, else the newest. If this node has no name, return `own` unchanged."""
    if node is None:
        return dict(own)
    here = {name: status for name, status in own.items() if status is not None}
    found: dict[str, PipelineStatus | None] = dict.fromkeys(own)
    for each, statuses in ((node, here), *told):
        for name, status in statuses.items():
            if name in found and _counts_more(status, found[name]):
                found[name] = {**status, "node": each}
    return found


def _counts_more(status: PipelineStatus, known: PipelineStatus | None) -> bool:
    return known is None or _weight(status) > _weight(known)


def _weight(status: PipelineStatus) -> tuple[bool, int]:
    return status.get("state") != NOT_RUNNING, status.get("updated_at_ms") or 0


_WAIT_S = 0.5
_RETRY_S = 5.0


class ReportedPipelines:
    """Reads the drivers' reports. One per server process. Thread-safe. It starts at the first call of `told`."""

    def __init__(self, topology: Topology, config: Config) -> None:
        self._application_id, self._names, self._config = topology.application_id, set(topology.pipelines), config
        self._found: dict[str, tuple[PipelineReport, float]] = {}  # with the time of the report
        self._unread: dict[str, PipelineReport | None] = {}
        self._was_read = False  # whether the topic was read to its end
        self._lock = threading.Lock()
        self._started, self._stopping = False, threading.Event()

    def told(self, linked: Collection[str]) -> list[tuple[str, Mapping[str, Mapping[str, Any]]]]:
        """Return the node of each driver with its pipeline's status. The first call returns nothing yet.

        Left out are drivers with the state directory of this server or of a `linked` node, which have newer reports."""
        if not self._names:
            return []
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._follow, name="pipeline-status", daemon=True).start()
        known = {str(known_process_id(self._config.state_dir / self._application_id)), *linked}
        now_s = time.monotonic()
        with self._lock:
            return [
                (report.node, {name: shown_status(report.status, is_gone=now_s - heard_s > SILENT_S)})
                for name, (report, heard_s) in self._found.items()
                if name in self._names and report.directory not in known
            ]

    def close(self) -> None:
        """Stop reading."""
        self._stopping.set()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            self._unread.clear()
            self._was_read = False
            try:
                with closing(configured_log(self._config)) as log:
                    follow_reports(log, self._application_id, self._heard, _WAIT_S)
            except StatelineError as error:
                _log.debug("Pipelines on other machines are not heard of: %s", error)
                self._stopping.wait(_RETRY_S)

    def _heard(self, reports: Sequence[tuple[str, PipelineReport | None]], is_read: bool) -> bool:
        """A reading of the topic repeats old reports first: one that is known already proves no life of its driver."""
        self._unread.update(reports)
        if is_read:
            with self._lock:
                for name, report in self._unread.items():
                    if report is None:
                        self._found.pop(name, None)
                    elif self._was_read or name not in self._found or self._found[name][0] != report:
                        self._found[name] = (report, time.monotonic())
            self._was_read = True
            self._unread.clear()
        return not self._stopping.is_set()
