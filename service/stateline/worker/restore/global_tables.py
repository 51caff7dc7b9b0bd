"""Global tables: each worker has all partitions of their topics, beside its tasks.

Before the first task runs, each table is read to the end of its topic. Then the tables follow their topics, without an
order with the records of tasks.

A table on disk commits its rows with the offset of each partition. After a stop, a failure or a crash it continues from
there (Kafka Streams: the `.checkpoint` of its global stores). A table in memory is read from the beginning. The table
of `global_table_store` says how a store begins.

If a topic is deleted and created again, the worker starts over, as for a task's topic (`topic_watch`), and the table is
emptied. The worker recognizes it by a repeated offset or another topic id. It waits a few seconds for a missing topic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from stateline.deployment.workers.figures import StoreFigures
from stateline.log.interface import Admin, Record, TopicInfo
from stateline.model.topic import Topic
from stateline.processing.event_times import EventTimes
from stateline.processing.failures import FailureHandler, reading_of
from stateline.processing.reading import keyed, readable, since_1970
from stateline.query.values import HostedPartition
from stateline.worker.context import WorkerContext
from stateline.worker.files.topic_ids import recreated, remember
from stateline.worker.restore.changelog_follower import ChangelogFollower
from stateline.worker.restore.global_table_store import GlobalTableStore
from stateline_store import StoreContext, StoreState, TaskLock, TopicPartition, TransactionalStore
from stateline_store.errors import DoesNotExistError, LogUnavailableError
from stateline_store.files.directory import global_task
from stateline_store.steps import reached

logger = logging.getLogger(__name__)

_LOOK_S = 0.01  # between two polls
_BACK_S, _BACK_LOOK_S = 5.0, 0.05  # how long a topic may be missing, and how often the worker looks for it
_IDS_LOOK_S = 60.0  # between two looks at the topic ids, if records were read


class GlobalTables:
    """`stores` has all tables by name, for reading only. `place` is their id in `StateDirectory`."""

    def __init__(self, context: WorkerContext) -> None:
        config = context.config
        self._log, self._directory = context.log, context.directory
        self._follower = ChangelogFollower(context.log, lambda: self._passed.items(), passes_over_deleted=True)
        self._files, self._queries = context.files, context.queries
        self.place = global_task(context.files.registration.instance)
        # Every worker reads every record, in memory at each start again, so no record is one dead letter.
        reading = config.deserialization_exception_handler
        self._failures = FailureHandler("fail" if reading == "fail" else "skip", "fail", None)
        self._sync = config.statestore_sync
        self._commit_s, self._most_staged = config.commit_interval_ms / 1000, config.worker_uncommitted_max_bytes
        self._definitions = [d for d in context.topology.global_tables.values() if d.source is not None]
        self._topics: dict[str, Topic] = {d.source.name: d.source for d in self._definitions if d.source is not None}
        self.stores: dict[str, TransactionalStore] = {}
        self._tables: list[GlobalTableStore] = []
        self._times = EventTimes(())
        self._lock: TaskLock | None = None
        self._ends: dict[TopicPartition, int] = {}  # of partitions that are not read up to there yet
        self._ids: dict[str, str] = {}
        self._passed: dict[TopicPartition, int] = {}  # the next offset of each partition
        self._read = self._read_at_look = 0
        self._look_s = self._commit_due_s = self._ids_look_s = 0.0

    def open(self) -> None:
        """Open the tables at their own offsets.

        Raises `LogUnavailableError`, `DoesNotExistError` if a topic is missing for a few seconds, and the errors of a
        task's stores for files on disk."""
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
        self._passed = _least(table.next_offsets for table in self._tables)
        self._times = EventTimes(
            self._topics.values(), partition_times=_least(t.partition_times() for t in self._tables)
        )
        self._ends = {place: end for place, end in ends.items() if self._passed[place] < end}
        self._follower.change()
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
        """Let the next `advance` poll in any case."""
        self._look_s = 0.0

    def advance(self, timeout_s: float) -> bool:
        """Read and apply one slice, and return whether the tables are whole. While they are not, wait up to
        `timeout_s`. Raises `RecordError` for an unreadable record under the policy fail, and `LogUnavailableError` if a
        topic is missing or was created again: then `open` must follow."""
        now_s = time.monotonic()
        if not self._tables or (not self._ends and now_s < self._look_s):
            return True
        self._look_s = now_s + _LOOK_S
        is_loading = bool(self._ends)
        for source, records in self._polled(timeout_s if is_loading else 0.0).items():
            self._refuse_to_go_back(source, records)
            self._failures.give(reading_of(source.topic), len(records))
            timed = since_1970(self._times.admitted(self._times.stamped(records), self._failures), self._failures)
            readables = keyed(readable(self._topics[source.topic], timed, self._failures), self._failures)
            for table in self._tables:
                if table.topic.name == source.topic:
                    table.stage(source, readables, records[-1].offset)
            self._read += len(records)
        self._ends = {s: end for s, end in self._ends.items() if not self._follower.has_passed(s, end)}
        if is_loading or now_s >= self._commit_due_s or self._is_full():
            self._look_at_ids(now_s)
            self.commit()
        if is_loading and not self._ends:
            logger.info("Global tables are whole: %d records read", self._read)
            self._say(self.state)
        return not self._ends

    def _polled(self, timeout_s: float) -> dict[TopicPartition, list[Record]]:
        try:
            return self._follower.poll(timeout_s)
        except DoesNotExistError as error:  # deleted, and perhaps created again at once
            raise LogUnavailableError(str(error)) from error

    @property
    def state(self) -> StoreState:
        return StoreState.RESTORING if self._ends else StoreState.ACTIVE

    def hosted(self, store: str, partition: int) -> HostedPartition | None:
        """Return a table to be queried, as partition 0 of its store; None for any other store."""
        found = self.stores.get(store) if partition == 0 else None
        return None if found is None else HostedPartition(found, self.state, has_all_partitions=True)

    def figures(self, now_s: float) -> dict[str, StoreFigures]:
        return {table.store.name: table.figures(now_s) for table in self._tables}

    def lag(self) -> dict[str, int]:
        """Return how many offsets of each topic were not read, as of the last poll. Leaves out unknown ones."""
        if not self._tables:
            return {}
        lags = {place: self._follower.lag(place) for place in self._passed}
        unknown = {place.topic for place, lag in lags.items() if lag is None}
        return {
            name: sum(lag for place, lag in lags.items() if place.topic == name and lag is not None)
            for name in self._topics.keys() - unknown
        }

    def commit(self) -> None:
        if not self._tables:
            return
        self._commit_due_s = time.monotonic() + self._commit_s
        before = [table.store.commit_number for table in self._tables]
        for table in self._tables:
            table.commit(self._follower.next_offset, self._times.partition_times)
            reached("global-tables:table-committed")
        if before != [table.store.commit_number for table in self._tables]:
            self._queries.announce_commit()

    def close(self) -> None:
        self._follower.close()
        for table in self._tables:
            table.store.close()
        if self._lock is not None:
            self._lock.release()
        self._lock, self._ends, self._read = None, {}, 0
        self._read_at_look = 0
        self._files.global_tables = None
        self.stores.clear()
        self._tables.clear()

    def _refuse_to_go_back(self, source: TopicPartition, records: Sequence[Record]) -> None:
        offset, passed = records[0].offset, self._passed[source]
        if offset < passed:
            raise LogUnavailableError(
                f"{source} went back from offset {passed} to {offset}: it is another, or lost its end."
            )
        self._passed[source] = records[-1].offset + 1

    def _look_at_ids(self, now_s: float) -> None:
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
        self._files.global_tables = "restoring" if state is StoreState.RESTORING else "running"


def _least(found: Iterable[Mapping[TopicPartition, int]]) -> dict[TopicPartition, int]:
    least: dict[TopicPartition, int] = {}
    for each in found:
        for place, number in each.items():
            least[place] = min(number, least.get(place, number))
    return least
