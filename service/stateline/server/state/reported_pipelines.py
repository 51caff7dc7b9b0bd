"""How far pipelines are whose drivers are on other machines, as these say in the log.

`deployment.pipeline_reports` has the topic.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.pipeline_reports import SILENT_S, PipelineReport, follow_reports
from stateline.model.topology import Topology
from stateline.server.state.pipeline_states import shown_status
from stateline_store import StatelineError
from stateline_store.process_metadata import known_process_id

_WAIT_S = 0.5
_RETRY_S = 5.0

_log = logging.getLogger(__name__)


class ReportedPipelines:
    """One per server process. Thread-safe. It reads from when it is first asked, so that a server that nobody asks for
    pipelines costs nothing."""

    def __init__(self, topology: Topology, config: Config) -> None:
        self._application_id, self._names, self._config = topology.application_id, set(topology.pipelines), config
        self._found: dict[str, tuple[PipelineReport, float]] = {}  # and when it was heard
        self._unread: dict[str, PipelineReport | None] = {}
        self._was_read = False  # the topic, to where it ended when this reading began
        self._lock = threading.Lock()
        self._started, self._stopping = False, threading.Event()

    def told(self, linked: Collection[str]) -> list[tuple[str, Mapping[str, Mapping[str, Any]]]]:
        """The node of each driver and its pipeline's status, but for those whose state directory is this server's, or
        one of a `linked` node's, which knows better. Of the first call what has been read yet, which is nothing."""
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
