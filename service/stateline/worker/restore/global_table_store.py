"""One global table's store: opened, compared with its topic, filled.

| its own offset of a partition | the store                                                                            |
|-------------------------------|--------------------------------------------------------------------------------------|
| none                          | reads the partition from its first record                                            |
| an offset                     | continues behind it                                                                  |
| beyond the topic's end        | is emptied and read from the beginning: the topic lost its end, or is another one    |
| before the first record       | continues at the first record with a warning, and keeps its rows (`restore_plan`)    |

It is also emptied if its topic has another id, or if its files are damaged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from stateline.deployment.workers.figures import StoreFigures
from stateline.log.interface import Record
from stateline.model.reset_command import of_store
from stateline.model.store_definition import StoreDefinition
from stateline.model.table_topics import beginning_is_lost
from stateline.processing.changelog import stage
from stateline.processing.event_times import PARTITION_TIME
from stateline.worker.files.figures import StoreCommits
from stateline.worker.restore.restore_plan import say_never_read
from stateline.worker.tasks.readable_stores import refuse_unreadable
from stateline_store import DamagedDataError, Position, StoreContext, TopicPartition, TransactionalStore

logger = logging.getLogger(__name__)


class GlobalTableStore:
    """`next_offsets` are the next ones to read, by partition."""

    def __init__(self, definition: StoreDefinition, context: StoreContext) -> None:
        store = definition.build()
        assert isinstance(store, TransactionalStore), "a timestamped key-value store is one"
        assert definition.source is not None, "a global table is of a topic"
        self.store, self.topic, self._context = store, definition.source, context
        self._definition = definition
        self._commits = StoreCommits(time.monotonic())
        self.next_offsets: dict[TopicPartition, int] = {}

    def open(self, bounds: Mapping[TopicPartition, tuple[int, int]], *, is_anew: bool) -> None:
        """Open the store, and find the next offset of each partition. `bounds`: first offset and end of each.
        `is_anew`: the topic has another id than before. Raises `TopologyError` if the rows have other types, or are
        unreadable."""
        store = self.store
        try:
            with of_store(store.name):
                store.init(self._context)
        except DamagedDataError as error:
            self._empty(f"it is damaged: {error}")
        if is_anew:
            self._empty("the topic was created again")
        for source, (_, end) in bounds.items():
            offset = store.committed_offset(source)
            if offset is not None and offset + 1 > end:
                self._empty(f"it has offset {offset} of partition {source.partition}, which ends before")
        with of_store(store.name):
            refuse_unreadable(self._definition, store, "the global tables")
        self._find_starts(bounds)

    def partition_times(self) -> dict[TopicPartition, int]:
        found = {source: self.store.committed_offset(_time_of(source)) for source in self.next_offsets}
        return {source: at for source, at in found.items() if at is not None}

    def stage(self, source: TopicPartition, records: Sequence[Record], last_offset: int) -> None:
        """Stage the records of a partition that the table has not read. The partition is read up to `last_offset`."""
        first = self.next_offsets[source]
        if last_offset < first:
            return
        stage(self.store, records if not records or records[0].offset >= first else _from(first, records))
        self.store.advance(Position.of({source: last_offset}))
        self.store.publish_staged()

    def commit(self, next_offset: Callable[[TopicPartition], int | None], times: Mapping[TopicPartition, int]) -> None:
        """Commit what is staged, with the `next_offset` that each partition is read from, and its time."""
        for source, known in self.next_offsets.items():
            self.next_offsets[source] = max(known, next_offset(source) or 0)
        offsets = {source: following - 1 for source, following in self.next_offsets.items() if following > 0}
        beside = {_time_of(source): at for source, at in times.items() if source in self.next_offsets}
        began_s = time.perf_counter()
        self.store.commit({**offsets, **beside})
        self._commits.committed(time.perf_counter() - began_s)

    def figures(self, now_s: float) -> StoreFigures:
        return self._commits.sample(now_s, self.store.approximate_num_uncommitted_bytes)

    def _find_starts(self, bounds: Mapping[TopicPartition, tuple[int, int]]) -> None:
        lost: dict[TopicPartition, int] = {}
        missed: dict[TopicPartition, range] = {}
        for source, (first, _) in bounds.items():
            offset = self.store.committed_offset(source)
            self.next_offsets[source] = first if offset is None else max(first, offset + 1)
            if offset is None and first > 0:
                lost[source] = first
            elif offset is not None and offset + 1 < first:
                missed[source] = range(offset + 1, first)
        if lost:
            logger.warning("%s", beginning_is_lost(self.store.name, lost))
        if missed:
            say_never_read(self.store.name, missed, forgets=False)

    def _empty(self, why: str) -> None:
        name = self.store.name
        logger.warning("Global table %s is emptied and read again from %s: %s", name, self.topic.name, why)
        self.store.close()
        self.store.wipe()
        self.store.init(self._context)


def _time_of(source: TopicPartition) -> TopicPartition:
    """Return the place beside the offsets where the store has a partition's time. On disk: never change."""
    return TopicPartition(PARTITION_TIME.topic, source.partition)


def _from(first: int, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.offset >= first]
