"""Notices what becomes of topics while a worker reads them.

One that was deleted and created anew makes the worker start over. A broker says nothing of it: the consumer begins
anew, or goes on in the middle of another topic. What tells is the topic's id, and a consumer that gives what was
processed already. Partitions that were added to a topic of which stores are made end the worker; the group gives them
to somebody within seconds (``topic.metadata.refresh.interval.ms``).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from stateline.config.settings import Config
from stateline.deployment.new_stores import refuse_lost_changelogs
from stateline.deployment.partition_counts import counted_topics, refuse_grown
from stateline.deployment.topics import ensure_topics, report_other_settings
from stateline.log.interface import Admin, Consumer, TopicInfo
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.topology import Topology
from stateline.worker.tasks.task import Task, TaskState
from stateline_store import LogUnavailableError, TopicPartition

# How often, at most, a worker that commits looks whether its topics are still the same ones.
_LOOK_INTERVAL_S = 60.0


class TopicWatch:
    """One worker's, on its thread. `found` are the topics as of the last assignment, `ids` their ids; `counted` those
    of which stores are made, as they were counted before; `created` those that `prepare` has made."""

    def __init__(self, admin: Admin, topology: Topology, config: Config) -> None:
        self._admin = admin
        self._topology = topology
        self._also_required = [] if config.dead_letter_topic is None else [config.dead_letter_topic]
        self._configured = ConfiguredTopics.of(config)
        self.found: dict[str, TopicInfo] = {}
        self.ids: dict[str, str] = {}
        self.counted: dict[str, TopicInfo] = {}
        self.created: Collection[str] = ()
        self._before: Collection[str] | None = None  # the topics there were when `prepare` was called first
        self._read_up_to: dict[TopicPartition, int] = {}  # when the ids were looked at last
        self._last_look = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last look was long ago."""
        return time.monotonic() - self._last_look >= _LOOK_INTERVAL_S

    def prepare(self, counted: Mapping[str, TopicInfo]) -> None:
        """Create the topics that are Stateline's own, and take note of all. `counted`: as the last worker found them.
        After an error it can be called again.

        Raises as `ensure_topics`, `refuse_lost_changelogs` and `remember`.
        """
        self.counted = dict(counted)
        self.found = self._admin.topics()
        self._before = self._before if self._before is not None else self.found.keys()
        refuse_lost_changelogs(self._topology, self.found, self._admin)
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
        """These partitions were assigned: their topics. Those that were deleted, or created anew, since before.

        Raises `PartitionsChangedError` when partitions were added that must not be.
        """
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
        """Raise `LogUnavailableError` when one of these sources, or a changelog of these tasks, was created anew: start
        over; `PartitionsChangedError` as `remember`.

        `back_at` is where the consumer was seen to begin anew in it. The group's offset may be the old topic's then:
        committed, by name, after the new one was made. What it would pass over and nobody has read is given back.
        """
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
        """The consumer gives what the task has passed already: a consumer whose place is gone begins anew.

        Always raises `LogUnavailableError`.
        """
        self.look(by_source, consumer, {source: offset})
        raise LogUnavailableError(f"{source} went back from offset {passed} to {offset}: its end was lost.")

    def _counted(self, assigned: Iterable[TopicPartition] = ()) -> dict[str, TopicInfo]:
        """All topics, with the partitions that the group knows of: one broker may know sooner than another."""
        found = self._admin.topics()
        for topic, partition in assigned:
            if topic in found and partition >= found[topic].partitions:
                found[topic] = replace(found[topic], partitions=partition + 1)
        refuse_grown(self._topology, self.counted, found)
        return found
