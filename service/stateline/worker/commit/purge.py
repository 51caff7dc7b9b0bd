"""`Purge`: processed records of repartition topics, which a worker deletes after commits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from stateline.model.topology import Topology
from stateline.worker.context import WorkerContext
from stateline.worker.tasks.task import Task
from stateline_store import StatelineError, TopicPartition

logger = logging.getLogger(__name__)


def purged_topics(topology: Topology) -> frozenset[str]:
    """Return the repartition topics that are read only once: they have no table, and no pipeline reads them. Pure."""
    others = {topic.name for pipeline in topology.pipelines.values() for topic in pipeline.inputs}
    others |= {table.source.name for table in topology.global_tables.values() if table.source is not None}
    return frozenset(
        topic.name
        for subtopology in topology.subtopologies
        for topic in subtopology.sources
        if topic.internal and not subtopology.tables(topic.name) and topic.name not in others
    )


class Purge:
    """Deletes processed records of repartition topics, as Kafka Streams does: nobody else reads them. After a failure a
    later commit deletes them."""

    def __init__(self, context: WorkerContext) -> None:
        self._admin = context.admin
        self._topics = purged_topics(context.topology)
        self._interval_s = context.config.repartition_purge_interval_ms / 1000
        self._due_s = time.monotonic() + self._interval_s
        self._purged: dict[TopicPartition, int] = {}
        self._failed = False

    def after_commit(self, tasks: Iterable[Task]) -> None:
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
            if not self._failed:  # once
                logger.warning("Repartition topics keep what has been processed until this is mended: %s", error)
            self._failed = True
            self._purged.clear()  # a topic may have been created again
            return
        self._failed = False
        self._purged.update(committed)
