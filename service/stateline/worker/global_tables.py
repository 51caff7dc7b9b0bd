"""The tables that a worker has whole: all partitions of their topics, in memory, beside its tasks.

They are read with a consumer of their own, which is in no group. Before the first task runs, each has come to where its
topic ended; then they follow it, without any order between them and the records of tasks. After a failure they are read
anew, from the beginning.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from pathlib import Path

from stateline.log.interface import Consumer, Log
from stateline.model.table_topics import beginning_is_lost
from stateline.model.topic import Topic
from stateline.model.topology import Topology
from stateline.processing.changelog import stage
from stateline.processing.event_times import EventTimes
from stateline.processing.failures import FailureHandler, Policy
from stateline.processing.reading import readable
from stateline.worker.polled_records import by_partition
from stateline_store import DoesNotExistError, StoreContext, TopicPartition, TransactionalStore

logger = logging.getLogger(__name__)

_MAX_RECORDS = 5_000
_LOOK_S = 0.01  # so much later than it is read may a record be seen


class GlobalTables:
    """One worker's, on its thread. `stores`, by name, are those of all tables: only to be read."""

    def __init__(self, log: Log, topology: Topology, directory: Path, reading: Policy) -> None:
        """`directory` is what stores are told that have no files."""
        self._log, self._directory = log, directory
        # Every worker reads every record, and again at each start: none of them is one dead letter.
        self._failures = FailureHandler("fail" if reading == "fail" else "skip", "fail", None)
        self._tables = [(d, d.source) for d in topology.global_tables.values() if d.source is not None]
        self.stores: dict[str, TransactionalStore] = {}
        self._topics: dict[str, Topic] = {topic.name: topic for _, topic in self._tables}
        self._times = EventTimes(self._topics.values())
        self._stores_of: dict[str, list[TransactionalStore]] = {}
        self._consumer: Consumer | None = None
        self._ends: dict[TopicPartition, int] = {}  # where topics ended that have not been read so far yet
        self._look_s = 0.0

    def open(self) -> None:
        """Begin to read, from the first records on. Raises `LogUnavailableError`, and `DoesNotExistError` for a topic
        that is not there."""
        self.close()
        if not self._tables:
            return
        firsts: dict[TopicPartition, int] = {}
        self._times = EventTimes(self._topics.values())
        with closing(self._log.admin()) as admin:
            there = admin.topics()
            for name in self._topics:
                if name not in there:
                    raise DoesNotExistError(f"There is no topic {name}, of which a global table is kept: create it.")
                for number in range(there[name].partitions):
                    source = TopicPartition(name, number)
                    firsts[source], self._ends[source] = admin.watermarks(source)
        for definition, topic in self._tables:
            lost = {source: first for source, first in firsts.items() if source.topic == topic.name and first > 0}
            if lost:
                logger.warning("%s", beginning_is_lost(definition.name, lost))
            store = definition.build()
            assert isinstance(store, TransactionalStore), "a timestamped key-value store is one"
            store.init(StoreContext("global", self._directory))
            self.stores[definition.name] = store
            self._stores_of.setdefault(topic.name, []).append(store)
        self._consumer = self._log.consumer()
        self._consumer.assign(firsts)

    def look_now(self) -> None:
        """Let the next `advance` look for records, however short ago the last one did."""
        self._look_s = 0.0

    def advance(self, timeout_s: float) -> bool:
        """Read what has come, waiting for it at most so long while there is known to be more; whether everything has
        been read once. Raises `RecordError` for a record that cannot be read, under the policy fail."""
        now_s = time.monotonic()
        if self._consumer is None or (not self._ends and now_s < self._look_s):
            return True
        self._look_s = now_s + _LOOK_S
        consumer = self._consumer
        for source, records in by_partition(consumer.poll(_MAX_RECORDS, timeout_s if self._ends else 0.0)).items():
            timed = self._times.admitted(self._times.stamped(records), self._failures)
            readables = readable(self._topics[source.topic], timed, self._failures, key_required=True)
            for store in self._stores_of[source.topic]:
                stage(store, readables)
        for store in self.stores.values():
            store.commit({})
        self._ends = {source: end for source, end in self._ends.items() if (consumer.next_offset(source) or 0) < end}
        return not self._ends

    def close(self) -> None:
        """Let go of everything that was read."""
        if self._consumer is not None:
            self._consumer.close()
        for store in self.stores.values():
            store.close()
        self._consumer, self._ends = None, {}
        self.stores.clear()
        self._stores_of.clear()
