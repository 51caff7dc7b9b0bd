"""The tables that a worker has whole: all partitions of their topics, beside its tasks.

They are read with a consumer of their own, which is in no group. Before the first task runs, each has come to where its
topic ended; then they follow it, without any order between them and the records of tasks.

A table on disk has its offsets beside its rows, one for each partition, in the same commit: it goes on from there after
a stop, a failure or a crash (Kafka Streams: its global stores' `.checkpoint`). What is in memory is read anew from the
beginning. What a worker is to do with what it finds at its start is said in `global_table_store`.

A topic that is deleted and made anew while they are read makes the worker start over, as a task's topic does
(`topic_watch`): its table is emptied then. It shows by a record whose offset was passed already, by the topic's id, or
by a topic that is gone, which has a few seconds to come back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing

from stateline.config.settings import Config
from stateline.deployment.worker_figures import StoreFigures
from stateline.log.interface import Admin, Consumer, Log, Record, TopicInfo
from stateline.model.topic import Topic
from stateline.model.topology import Topology
from stateline.processing.event_times import EventTimes
from stateline.processing.failures import FailureHandler
from stateline.processing.reading import readable, since_1970
from stateline.query.values import HostedPartition
from stateline.worker.files.topic_ids import recreated, remember
from stateline.worker.restore.global_table_store import GlobalTableStore
from stateline.worker.restore.polled_records import by_partition
from stateline_store import (
    DoesNotExistError,
    LogUnavailableError,
    StateDirectory,
    StoreContext,
    StoreState,
    TaskLock,
    TopicPartition,
    TransactionalStore,
)
from stateline_store.directory import global_task
from stateline_store.steps import reached

logger = logging.getLogger(__name__)

_MAX_RECORDS = 5_000
_LOOK_S = 0.01  # so much later than it is read may a record be seen
_BACK_S, _BACK_LOOK_S = 5.0, 0.05  # how long a topic that was there may be gone, and how often it is looked for
_IDS_LOOK_S = 60.0  # how often, at most, topics of which something was read are asked for their ids


class GlobalTables:
    """One worker's, on its thread. `stores`, by name, are those of all tables: only to be read. `place` is where those
    on disk are, an id of the `StateDirectory`'s."""

    def __init__(
        self,
        log: Log,
        topology: Topology,
        directory: StateDirectory,
        config: Config,
        instance: str,
        announce: Callable[[], None],
    ) -> None:
        """`announce` is called when they were committed."""
        self._log, self._directory, self._announce = log, directory, announce
        self.place = global_task(instance)
        # Every worker reads every record, and in memory again at each start: none of them is one dead letter.
        reading = config.deserialization_exception_handler
        self._failures = FailureHandler("fail" if reading == "fail" else "skip", "fail", None)
        self._sync = config.statestore_sync
        self._commit_s, self._most_staged = config.commit_interval_ms / 1000, config.worker_uncommitted_max_bytes
        self._definitions = [d for d in topology.global_tables.values() if d.source is not None]
        self._topics: dict[str, Topic] = {d.source.name: d.source for d in self._definitions if d.source is not None}
        self.stores: dict[str, TransactionalStore] = {}
        self._tables: list[GlobalTableStore] = []
        self._times = EventTimes(())
        self._lock: TaskLock | None = None
        self._consumer: Consumer | None = None
        self._ends: dict[TopicPartition, int] = {}  # where topics ended that have not been read so far yet
        self._ids: dict[str, str] = {}
        self._passed: dict[TopicPartition, int] = {}  # the first offset of each partition that has not come yet
        self._read = self._read_at_look = 0
        self._look_s = self._commit_due_s = self._ids_look_s = 0.0

    def open(self) -> None:
        """Begin to read, each table from where it is. Raises `LogUnavailableError`, `DoesNotExistError` for a topic
        that is not there, at once or after a moment where it was there before, and of files on disk as a task's stores
        do."""
        self.close()
        if not self._definitions:
            return
        if any(definition.persistent for definition in self._definitions):
            self._lock = self._directory.lock_task(self.place)
        with closing(self._log.admin()) as admin:
            topics = self._found(admin, time.monotonic() + (_BACK_S if self._ids else 0.0))
            places = [place for info in topics.values() for place in info.places]
            bounds, ends = admin.bounds(places), admin.committed_ends(places)
        self._ids = {name: info.topic_id for name, info in topics.items()}
        self._open_tables(topics, bounds)
        self._passed = starts = _least(table.next_offsets for table in self._tables)
        self._times = EventTimes(
            self._topics.values(), partition_times=_least(t.partition_times() for t in self._tables)
        )
        self._ends = {place: end for place, end in ends.items() if starts[place] < end}
        self._consumer = self._log.consumer()
        self._consumer.assign(starts)
        now_s = time.monotonic()
        self._commit_due_s, self._ids_look_s = now_s + self._commit_s, now_s + _IDS_LOOK_S
        self._say(self.state)

    def _found(self, admin: Admin, until_s: float) -> dict[str, TopicInfo]:
        while missing := sorted(self._topics.keys() - (there := admin.topics()).keys()):
            if time.monotonic() >= until_s:
                gone = ", ".join(missing)
                raise DoesNotExistError(f"There is no topic {gone}, of which a global table is kept: create it.")
            time.sleep(_BACK_LOOK_S)
        return {name: there[name] for name in self._topics}

    def _open_tables(self, topics: Mapping[str, TopicInfo], bounds: Mapping[TopicPartition, tuple[int, int]]) -> None:
        folder = self._directory.task(self.place)
        anew = recreated(folder, self._ids)
        for definition in self._definitions:
            context = StoreContext(self.place, folder, sync=self._sync, types=definition.types)
            table = GlobalTableStore(definition, context)
            self._tables.append(table)
            source = table.topic.name
            table.open(bounds={place: bounds[place] for place in topics[source].places}, is_anew=source in anew)
            self.stores[definition.name] = table.store
        if self._lock is not None:
            remember(folder, self._ids)

    def look_now(self) -> None:
        """Let the next `advance` look for records, however short ago the last one did."""
        self._look_s = 0.0

    def advance(self, timeout_s: float) -> bool:
        """Read what has come, waiting for it at most so long while there is known to be more; whether everything has
        been read once. Raises `RecordError` for a record that cannot be read, under the policy fail, and
        `LogUnavailableError` when a topic is gone, or is another one: open them anew."""
        now_s = time.monotonic()
        if self._consumer is None or (not self._ends and now_s < self._look_s):
            return True
        self._look_s = now_s + _LOOK_S
        consumer, is_loading = self._consumer, bool(self._ends)
        for source, records in by_partition(self._polled(consumer, timeout_s if is_loading else 0.0)).items():
            self._refuse_to_go_back(source, records)
            timed = since_1970(self._times.admitted(self._times.stamped(records), self._failures), self._failures)
            readables = readable(self._topics[source.topic], timed, self._failures, key_required=True)
            for table in self._tables:
                if table.topic.name == source.topic:
                    table.stage(source, readables, records[-1].offset)
            self._read += len(records)
        self._ends = {source: end for source, end in self._ends.items() if (consumer.next_offset(source) or 0) < end}
        if is_loading or now_s >= self._commit_due_s or self._is_full():
            self._look_at_ids(now_s)
            self.commit()
        if is_loading and not self._ends:
            logger.info("Global tables are whole: %d records read", self._read)
            self._say(self.state)
        return not self._ends

    def _polled(self, consumer: Consumer, timeout_s: float) -> list[Record]:
        try:
            return consumer.poll(_MAX_RECORDS, timeout_s)
        except DoesNotExistError as error:  # deleted, and perhaps made anew at once
            raise LogUnavailableError(str(error)) from error

    @property
    def state(self) -> StoreState:
        """What they are: restoring until everything has been read once."""
        return StoreState.RESTORING if self._ends else StoreState.ACTIVE

    @property
    def told(self) -> str | None:
        """The same as in `Instance.global_tables`."""
        if not self.stores:
            return None
        return "restoring" if self._ends else "running"

    def hosted(self, store: str, partition: int) -> HostedPartition | None:
        """What queries read of a table, which is one partition of a store; None of another one."""
        found = self.stores.get(store) if partition == 0 else None
        return None if found is None else HostedPartition(found, self.state, has_all_partitions=True)

    def figures(self, now_s: float) -> dict[str, StoreFigures]:
        """Each table's, as `StoreCommits.sample`."""
        return {table.store.name: table.figures(now_s) for table in self._tables}

    def lag(self) -> dict[str, int]:
        """How many offsets of each topic were not read, as of the last poll; without those that cannot tell now."""
        if self._consumer is None:
            return {}
        lags = {place: self._consumer.lag(place) for place in self._passed}
        unknown = {place.topic for place, lag in lags.items() if lag is None}
        return {
            name: sum(lag for place, lag in lags.items() if place.topic == name and lag is not None)
            for name in self._topics.keys() - unknown
        }

    def commit(self) -> None:
        """Commit what was read, if anything was."""
        consumer = self._consumer
        if consumer is None:
            return
        self._commit_due_s = time.monotonic() + self._commit_s
        before = [table.store.commit_number for table in self._tables]
        for table in self._tables:
            table.commit(consumer, self._times.partition_times)
            reached("global-tables:table-committed")
        if before != [table.store.commit_number for table in self._tables]:
            self._announce()

    def close(self) -> None:
        """Let go of everything; what was not committed is read again."""
        if self._consumer is not None:
            self._consumer.close()
        for table in self._tables:
            table.store.close()
        if self._lock is not None:
            self._lock.release()
        self._consumer, self._lock, self._ends, self._read = None, None, {}, 0
        self._read_at_look = 0
        self.stores.clear()
        self._tables.clear()

    def _refuse_to_go_back(self, source: TopicPartition, records: Sequence[Record]) -> None:
        """A consumer whose place is gone begins anew."""
        offset, passed = records[0].offset, self._passed[source]
        if offset < passed:
            raise LogUnavailableError(
                f"{source} went back from offset {passed} to {offset}: it is another, or lost its end."
            )
        self._passed[source] = records[-1].offset + 1

    def _look_at_ids(self, now_s: float) -> None:
        """See whether the topics are the same ones, when that was long ago and something has come since."""
        if now_s < self._ids_look_s or self._read == self._read_at_look:
            return
        with closing(self._log.admin()) as admin:
            there = admin.topics()
        if other := [n for n, topic_id in self._ids.items() if n not in there or there[n].topic_id != topic_id]:
            raise LogUnavailableError(f"{', '.join(sorted(other))}: deleted, or created again.")
        self._ids_look_s, self._read_at_look = now_s + _IDS_LOOK_S, self._read

    def _is_full(self) -> bool:
        staged = sum(table.store.approximate_num_uncommitted_bytes for table in self._tables)
        return 0 <= self._most_staged < staged

    def _say(self, state: StoreState) -> None:
        for table in self._tables:
            table.store.set_state(state)


def _least(found: Iterable[Mapping[TopicPartition, int]]) -> dict[TopicPartition, int]:
    """Of each partition the least number that any of these has."""
    least: dict[TopicPartition, int] = {}
    for each in found:
        for place, number in each.items():
            least[place] = min(number, least.get(place, number))
    return least
