"""The metrics of store partitions, from their owners' notices in the open secondaries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stateline.server.state.partitions import Partitions
from stateline_store.files.commit_notice import NoticeStatus, StoreState

# With more partitions, each store has one sum: eight series for each of 5,000 partitions would be 3 MB.
MAX_PARTITIONS = 500

_PARTITION = ("task", "store")


class Noticed(NamedTuple):
    """The notice of a store partition. `task` is empty if it is of a whole store."""

    task: str
    store: str
    commit_number: int
    status: NoticeStatus


def noticed(partitions: Partitions) -> list[Noticed]:
    """Return every open partition. A microsecond or two each."""
    return [
        Noticed(task_id, store, reader.notice.commit_number, reader.notice.status)
        for task_id, store, reader in partitions.opened()
    ]


def shown_partitions(found: Sequence[Noticed], most: int = MAX_PARTITIONS) -> Sequence[Noticed]:
    """Return each partition. Beyond `most`, return each store: sums, the time of the newest commit, and a state that is
    not active if any partition has one."""
    if len(found) <= most:
        return found
    by_store: dict[str, list[Noticed]] = {}
    for each in found:
        by_store.setdefault(each.store, []).append(each)
    return [_as_one(store, partitions) for store, partitions in by_store.items()]


def _as_one(store: str, partitions: Sequence[Noticed]) -> Noticed:
    statuses = [each.status for each in partitions]
    states = {one.state_number for one in statuses}
    summed = NoticeStatus(
        max(one.committed_at_ms for one in statuses),
        sum(one.staged_records for one in statuses),
        sum(one.staged_bytes for one in statuses),
        min(states - {StoreState.ACTIVE}, default=StoreState.ACTIVE),
        sum(one.restore_remaining for one in statuses),
    )
    return Noticed("", store, sum(each.commit_number for each in partitions), summed)


class StoreCollector(Collector):
    """Shows the notices of `seen`, and whether the server is ready. Thread-safe, except while these are set."""

    def __init__(self) -> None:
        self.seen: Sequence[Noticed] = ()
        self.ready = False

    def collect(self) -> Iterator[Metric]:
        gauges = {
            "committed_at_ms": _gauge("committed_at_ms", "Time of the newest commit, in ms since the epoch."),
            "commit_number": _gauge("commit_number", "Number of the newest commit."),
            "staged_records": _gauge("staged_records", "Records that are staged and not committed."),
            "staged_bytes": _gauge("staged_bytes", "About how many bytes are staged and not committed."),
            "restore_remaining": _gauge("restore_remaining", "Offsets of the changelog that a restore has left."),
            "state": _gauge("state", "0 closed, 1 restoring, 2 active, 3 standby."),
        }
        age = _gauge("commit_age_seconds", "Age of the newest commit. Absent before the first commit.")
        for task_id, store, number, status in shown_partitions(self.seen):
            figures = {"commit_number": number, "state": status.state_number, **status._asdict()}
            for name, gauge in gauges.items():
                gauge.add_metric([task_id, store], float(figures[name]))
            if status.committed_at_ms:
                age.add_metric([task_id, store], max(0.0, time.time() - status.committed_at_ms / 1000))
        yield from gauges.values()
        yield age
        ready = GaugeMetricFamily("stateline_server_ready", "1 if /readyz answers 200.")
        ready.add_metric([], float(self.ready))
        yield ready


def _gauge(name: str, about: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"stateline_store_{name}", about, labels=_PARTITION)
