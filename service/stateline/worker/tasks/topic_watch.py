"""Notices changes of topics while a worker reads them.

A topic that was deleted and created again makes the worker start over. A broker does not announce it: the consumer
begins again, or continues in the middle of the other topic. The topic's id differs then, or the consumer returns
offsets that were processed already. Partitions that were added to a topic of stores end the worker: the group gives
them to a member within seconds (``topic.metadata.refresh.interval.ms``).
New topics that a pattern matches are only logged: all workers have to read them from the same moment on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from stateline.deployment.partition_counts import counted_topics, refuse_grown
from stateline.deployment.stores.new_stores import refuse_lost_changelogs
from stateline.deployment.topics import ensure_topics, report_other_settings
from stateline.log.interface import Consumer, TopicInfo
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.topic_patterns import unread
from stateline.worker.context import WorkerContext
from stateline.worker.tasks.task import Task, TaskState
from stateline_store import LogUnavailableError, TopicPartition

_log = logging.getLogger(__name__)

# How often, at most, a worker that commits compares topic ids.
_LOOK_INTERVAL_S = 60.0


class TopicWatch:
    """`found` are the topics as of the last assignment, `ids` their ids, `counted` the topics of stores with the
    partitions that they had before, `created` those that `prepare` has made."""

    def __init__(self, context: WorkerContext) -> None:
        config = context.config
        self._admin = context.admin
        self._topology = context.topology
        self._also_required = [] if config.dead_letter_topic is None else [config.dead_letter_topic]
        self._configured = ConfiguredTopics.of(config)
        self._backup_location = config.backup_location
        self.found: dict[str, TopicInfo] = {}
        self.ids: dict[str, str] = {}
        self.counted: dict[str, TopicInfo] = {}
        self.created: Collection[str] = ()
        self._before: Collection[str] | None = None  # the topics there were when `prepare` was called first
        self._read_up_to: dict[TopicPartition, int] = {}  # when the ids were looked at last
        self._last_look = time.monotonic()
        self._told: set[str] = set()  # unread topics that were logged

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._last_look >= _LOOK_INTERVAL_S

    def prepare(self, counted: Mapping[str, TopicInfo]) -> None:
        """Create Stateline's own topics, and remember all. After an error it can be called again. `counted`: as the
        last worker found them. Raises as `ensure_topics`, `refuse_lost_changelogs` and `remember`."""
        self.counted = dict(counted)
        self.found = self._admin.topics()
        self._before = self._before if self._before is not None else self.found.keys()
        refuse_lost_changelogs(self._topology, self.found, self._admin, self._backup_location)
        counts = ensure_topics(
            self._topology,
            self._admin,
            also_required=self._also_required,
            counted=self.counted,
            configured=self._configured,
        )
        self.created = counts.keys() - self._before
        report_other_settings(self._topology, self._admin, configured=self._configured)
        self.remember()

    def remember(self, assigned: Iterable[TopicPartition] = ()) -> set[str]:
        """Remember the topics at an assignment. Returns those that were deleted, or created again, since the last one.
        Raises `PartitionsChangedError` if partitions were added that must not be."""
        before, self.found = self.ids, self._counted(assigned)
        self.ids = {name: info.topic_id for name, info in self.found.items()}
        self.counted = counted_topics(self._topology, self.found, self.counted)
        self._read_up_to, self._last_look = {}, time.monotonic()
        return {name for name, topic_id in before.items() if self.ids.get(name) != topic_id}

    def look(
        self,
        by_source: Mapping[TopicPartition, Task],
        consumer: Consumer,
        back_at: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Raise `LogUnavailableError` if a source or changelog of these tasks was created again, and
        `PartitionsChangedError` as `remember`. `back_at` is the offset at which the consumer began again. The group's
        offset may be the old topic's then, committed after the new topic was made. It is set back, so that no unread
        record is passed over."""
        ids = {name: info.topic_id for name, info in self._counted().items()}
        self._last_look = time.monotonic()
        logs = {topic for task in by_source.values() for topic in task.topology.log_topics()}
        other = {topic for topic in logs if ids.get(topic, self.ids.get(topic)) != self.ids.get(topic)}
        anew = [tp for tp in by_source if tp.topic in other]
        running = {tp: task for tp, task in by_source.items() if task.state is TaskState.RUNNING}
        if not other:
            self._read_up_to = {tp: task.processing.next_offsets.get(tp, 0) for tp, task in running.items()}
            return
        firsts = {tp: self._admin.watermarks(tp)[0] for tp in anew if tp in running}
        seen_to_begin = back_at or {}
        # Read up to here of the old topic: the new one's records before it were passed over.
        unread = {tp: at for tp, at in firsts.items() if tp in seen_to_begin or at < self._read_up_to.get(tp, 0)}
        consumer.commit(unread)
        raise LogUnavailableError(f"{', '.join(sorted(other))}: deleted and created again.")

    def refuse_to_go_back(
        self,
        source: TopicPartition,
        offset: int,
        passed: int,
        by_source: Mapping[TopicPartition, Task],
        consumer: Consumer,
    ) -> None:
        """The consumer has returned an offset that the task has passed already. Always raises `LogUnavailableError`."""
        self.look(by_source, consumer, {source: offset})
        raise LogUnavailableError(f"{source} went back from offset {passed} to {offset}: its end was lost.")

    def _counted(self, assigned: Iterable[TopicPartition] = ()) -> dict[str, TopicInfo]:
        """Return all topics, with at least the partitions that the group has assigned: brokers may differ."""
        found = self._admin.topics()
        for topic, partition in assigned:
            if topic in found and partition >= found[topic].partitions:
                found[topic] = replace(found[topic], partitions=partition + 1)
        refuse_grown(self._topology, self.counted, found)
        self._tell_unread(found)
        return found

    def _tell_unread(self, found: Collection[str]) -> None:
        for topic in sorted(unread(self._topology, found) - self._told):
            self._told.add(topic)
            _log.warning(
                "A pattern of app.stream matches topic %s, which is not read yet: stop all workers, then start them. "
                "If you set topology.pattern.topics, name it there first.",
                topic,
            )
