"""The topic ``<application.id>-pipeline-status``: the progress of pipelines, for servers that do not see their files.

It is compacted, with one partition. A driver on Kafka writes it:

    key   := name of the pipeline, UTF-8
    value := {"node", "directory": id of the state directory, "status": PipelineStatus}      JSON; a tombstone when the
             pipeline was stopped in order

In the log: never change. A driver repeats its newest record at least every `REPEAT_S`. A reader takes it for gone after
`SILENT_S` without one, by the reader's own clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

import orjson

from stateline.deployment.json_files import decoded
from stateline.deployment.nodes_topic import ensure_of_one_partition, follow_records
from stateline.deployment.pipelines.status import MOST_BYTES, PipelineStatus
from stateline.log.interface import Log, Producer, Record
from stateline_store import DamagedDataError, DoesNotExistError, StatelineError, TopicPartition
from stateline_store.clock import now_ms

REPEAT_S, SILENT_S = 10.0, 30.0
_PAUSE_S = 1.0  # between two reports of one pipeline
_RETRY_S = 5.0
# Compact early: nobody reads replaced reports, and there is one a second.
_SETTINGS = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"}
_LEAVE_S = 2.0  # how long an ending driver waits for its last report

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """A pipeline's status, with its node's name, for people, and the id of its driver's state directory."""

    node: str
    directory: str
    status: PipelineStatus

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, value: bytes) -> PipelineReport | None:
        """None for other content, which may be a newer build's, and beyond 64 KiB."""
        if len(value) > MOST_BYTES:
            return None
        try:
            members = orjson.loads(value)
            status = decoded(PipelineStatus, orjson.dumps(members["status"]))
            return cls(str(members["node"]), str(members["directory"]), status)
        except (orjson.JSONDecodeError, KeyError, TypeError, DamagedDataError):
            return None


def reports_partition(application_id: str) -> TopicPartition:
    return TopicPartition(f"{application_id}-pipeline-status", 0)


def follow_reports(
    log: Log,
    application_id: str,
    told: Callable[[Sequence[tuple[str, PipelineReport | None]], bool], bool],
    wait_s: float,
) -> None:
    """Read the topic from its start until `told(heard, is_read)` returns False.

    `heard` has the pipeline and report of each record of a batch; the report of a stopped pipeline is None. The rest is
    as in `nodes_topic.follow_nodes`. Raises what the log raises, `DoesNotExistError` if the topic is missing.
    """
    place = reports_partition(application_id)
    with closing(log.admin()) as admin:
        if place.topic not in admin.topics([place.topic]):
            raise DoesNotExistError(f"There is no topic {place.topic}: no pipeline has been started on this Kafka.")

    def on_records(records: Sequence[Record], is_read: bool) -> bool:
        return told([_told(record) for record in records], is_read)

    follow_records(log, place, on_records, wait_s)


def _told(record: Record) -> tuple[str, PipelineReport | None]:
    report = None if record.value is None else PipelineReport.decode(record.value)
    return (record.key or b"").decode(errors="replace"), report


class PipelineReporter:
    """A driver's reports, written on its own thread until `close`. Thread-safe. A failed write is logged once and
    retried."""

    def __init__(self, log: Log, application_id: str, node: str, directory: str) -> None:
        self._log, self._place = log, reports_partition(application_id)
        self._node, self._directory = node, directory
        self._newest: dict[str, PipelineStatus | None] = {}
        self._unsaid: set[str] = set()
        self._changed = threading.Condition()
        self._closing = False
        self._fault = ""
        self._thread = threading.Thread(target=self._work, name="pipeline-status", daemon=True)
        self._thread.start()

    def say(self, pipeline: str, status: PipelineStatus | None) -> None:
        """Report this status; None: the pipeline was stopped in order. Returns at once."""
        with self._changed:
            self._newest[pipeline] = status
            self._unsaid.add(pipeline)
            self._changed.notify()

    def close(self) -> None:
        """Write the last reports and end. Waits up to 2 s for Kafka."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_LEAVE_S)

    def _work(self) -> None:
        while True:
            try:
                with closing(self._log.admin()) as admin:
                    ensure_of_one_partition(self._place.topic, _SETTINGS, admin)
                with closing(self._log.producer()) as producer:
                    self._fault = ""
                    while self._write(producer):
                        pass
                    return
            except StatelineError as error:
                if str(error) != self._fault:
                    _log.warning("How far pipelines are cannot be told to other machines now: %s", error)
                self._fault = str(error)
            with self._changed:
                if self._closing or self._changed.wait_for(lambda: self._closing, _RETRY_S):
                    return
                self._unsaid |= self._newest.keys()

    def _write(self, producer: Producer) -> bool:
        """Wait for reports and write them. Returns whether there will be more."""
        began_s = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._unsaid or self._closing, REPEAT_S)
            said = {name: self._newest[name] for name in (self._unsaid or set(self._newest))}
            self._unsaid.clear()
            is_last = self._closing
        for name, status in said.items():
            value = None if status is None else PipelineReport(self._node, self._directory, status).encode()
            producer.produce(
                self._place.topic, name.encode(), value, timestamp_ms=now_ms(), partition=self._place.partition
            )
        producer.flush()
        with self._changed:  # a stop is reported once
            for name in [name for name, status in said.items() if status is None and self._newest[name] is None]:
                del self._newest[name]
            self._changed.wait_for(lambda: self._closing, max(0.0, began_s + _PAUSE_S - time.monotonic()))
        return not is_last
