"""Deletes the records of repartition topics that have been processed: nobody else reads these topics.

As Kafka Streams does it, after commits. It is best effort: what could not be deleted is deleted another time, and a
worker goes on without.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from stateline.log.interface import Admin
from stateline.model.topology import Topology
from stateline.worker.tasks.task import Task
from stateline_store import StatelineError, TopicPartition

logger = logging.getLogger(__name__)


def purged_topics(topology: Topology) -> frozenset[str]:
    """The repartition topics that are read once only: no table is kept of them, and no pipeline reads them. Pure."""
    others = {topic.name for pipeline in topology.pipelines.values() for topic in pipeline.inputs}
    others |= {table.source.name for table in topology.global_tables.values() if table.source is not None}
    return frozenset(
        topic.name
        for subtopology in topology.subtopologies
        for topic in subtopology.sources
        if topic.internal and not subtopology.tables(topic.name) and topic.name not in others
    )


class Purge:
    """One worker's, on its thread."""

    def __init__(self, admin: Admin, topology: Topology, interval_ms: int) -> None:
        self._admin = admin
        self._topics = purged_topics(topology)
        self._interval_s = interval_ms / 1000
        self._due_s = time.monotonic() + self._interval_s
        self._purged: dict[TopicPartition, int] = {}
        self._failed = False

    def after_commit(self, tasks: Iterable[Task]) -> None:
        """Delete what these tasks have committed, unless that was done within the interval."""
        now_s = time.monotonic()
        if not self._topics or now_s < self._due_s:
            return
        self._due_s = now_s + self._interval_s
        committed = {
            partition: offset
            for task in tasks
            for partition, offset in task.processing.committed_next_offsets.items()
            if partition.topic in self._topics and offset > self._purged.get(partition, 0)
        }
        try:
            self._admin.delete_records(committed)
        except StatelineError as error:
            if not self._failed:  # and not again every time
                logger.warning("Repartition topics keep what has been processed until this is mended: %s", error)
            self._failed = True
            self._purged.clear()  # a topic may have been made anew
            return
        self._failed = False
        self._purged.update(committed)
