"""Some partitions of one topic, read for one reader of changes. Blocks.

The log may have deleted what comes next, and a consumer then begins at the first record kept. So a missing offset is
compared with the log's start, and a topic's id with its id before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from stateline.log import Consumer, Log, Record
from stateline.processing.changelog import position_of_changelog, without_former_owners
from stateline_store import (
    CursorExpiredError,
    DoesNotExistError,
    LogUnavailableError,
    Position,
    PositionBound,
    TopicPartition,
)

T = TypeVar("T")

POLL_RECORDS = 500
# How long a poll waits for existing records, and so how long closing may wait for it.
_POLL_S = 0.05
# Commits are looked for by halves until so few offsets are left: reading them costs less than another seek.
_FEW_OFFSETS = 2_000
_SEARCH_PATIENCE_S = 15.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class After:
    """Begin after these offsets of the topic, by partition. A partition that is not named begins at offset 0.

    `exactly`: what comes next must still be there. Otherwise reading begins at the first record kept.
    """

    offsets: Mapping[int, int]
    exactly: bool = True


@dataclass(frozen=True, slots=True)
class AfterInput:
    """Begin after the last commit of a changelog that this Position of the store's input covers.

    `exactly`: the input must reach that far, and the log must have every commit that comes next. Otherwise reading
    begins at the first record kept.
    """

    position: Position
    exactly: bool = True


Begin = After | AfterInput


class CommittedRecords:
    """Committed records of some partitions of a topic. One thread at a time uses it.

    Every method may raise `LogUnavailableError`; `CursorExpiredError` when the log has lost what comes next.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        partitions: Sequence[int],
        stopped: Event,
        poll_records: int = POLL_RECORDS,
        *,
        is_changelog: bool = True,
    ) -> None:
        """`is_changelog`: workers write it, so records that an owner wrote after a later owner are left out, as far as
        records of the later one were read before. Raises `DoesNotExistError` if there is no such topic."""
        self._log = log
        self._topic = topic
        self._partitions = {p: TopicPartition(topic, p) for p in partitions}
        self._stopped = stopped
        self._poll_records = poll_records
        self._is_changelog = is_changelog
        self._epochs: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._admin = log.admin()
        self.topic_id = self._current_id()
        """The id of the topic that is read."""
        self._consumer: Consumer | None = None  # not needed to find offsets

    def begin(self, begin: Begin) -> dict[int, int]:
        """Begin to read. Return the next offset of each partition."""
        self._next = {p: self._start(p, begin) for p in self._partitions}
        self._epochs.clear()
        self._consumer = self._consumer or self._log.consumer()
        self._consumer.assign({self._partitions[p]: at for p, at in self._next.items()})
        return dict(self._next)

    def ends_of_commits(self, seen: Mapping[int, Position], known: Mapping[int, int]) -> dict[int, int]:
        """Return the offset after the last commit of a changelog that these Positions cover, by partition. It is at
        least the one that is `known`."""
        found = {}
        for p, position in seen.items():
            first, visible = self._admin.watermarks(self._partitions[p])
            found[p] = self._after_input(p, position, min(max(first, known.get(p, 0)), visible), visible)
        return found

    def read(self, without: frozenset[int]) -> tuple[list[Record], dict[int, int]]:
        """Return some records, if any come at once, of all partitions but these, and how far each was read. After
        `begin`."""
        assert self._consumer is not None, "begin says where to read"
        self._pause(self._consumer, without)
        records = self._consumer.poll(self._poll_records, _POLL_S)
        self._refuse_gaps(records)
        for p, partition in self._partitions.items():
            self._next[p] = max(self._next[p], self._consumer.next_offset(partition) or 0)
        return self._of_owners(records) if self._is_changelog else records, dict(self._next)

    def _of_owners(self, records: Sequence[Record]) -> list[Record]:
        found: dict[int, list[Record]] = {}
        for record in records:
            found.setdefault(record.partition, []).append(record)
        owned: list[Record] = []
        for p, each in found.items():
            kept, self._epochs[p] = without_former_owners(each, self._epochs.get(p, 0))
            owned += kept
        return owned

    def ends(self) -> dict[int, int]:
        """Return the offset after the last record that can be read now, by partition."""
        return {p: self._admin.watermarks(partition)[1] for p, partition in self._partitions.items()}

    def check_topic(self) -> None:
        """Raise `CursorExpiredError` if the topic was deleted or created again."""
        if self._current_id() != self.topic_id:
            raise recreated(self._topic)

    def close(self) -> None:
        with closing(self._admin):
            if self._consumer is not None:
                self._consumer.close()

    def _current_id(self) -> str:
        topic = self._admin.topics().get(self._topic)
        if topic is None:
            raise DoesNotExistError(f"There is no topic {self._topic!r}.")
        return topic.topic_id

    def _start(self, partition: int, begin: Begin) -> int:
        first, visible = self._admin.watermarks(self._partitions[partition])
        if isinstance(begin, AfterInput):
            if begin.exactly:
                self._refuse_unwritten(partition, begin.position)
            at = self._after_input(partition, begin.position, first, visible)
            if begin.exactly and at == first > 0:
                raise expired(self._partitions[partition], first)
            return at
        at = begin.offsets.get(partition, -1) + 1
        end = self._admin.log_end(self._partitions[partition])
        if begin.exactly and not first <= at <= end:
            place = self._partitions[partition]
            raise expired(place, first) if at < first else beyond(place, at - 1, end)
        return min(max(at, first), end)

    def _refuse_unwritten(self, partition: int, seen: Position) -> None:
        """Raise if the input is shorter than this Position. An answer can be ahead of commits, never of its input."""
        for place, offset in seen:
            if place.partition == partition and offset >= (end := self._input_end(place)):
                raise beyond(place, offset, end)

    def _input_end(self, place: TopicPartition) -> int:
        try:
            return self._admin.log_end(place)
        except DoesNotExistError as error:  # or one without a leader now, or of a topic that may not be seen
            raise LogUnavailableError(f"{place} is not to be seen now, where the position's offset is of.") from error

    def _after_input(self, partition: int, seen: Position, low: int, end: int) -> int:
        """Return the offset after the last commit that `seen` covers. Positions only grow along a changelog, so it is
        searched by halves. Records after the last Position belong to a commit that is not covered."""
        high = end
        while high - low > _FEW_OFFSETS:
            middle = (low + high) // 2
            commit = next(self._commits(partition, middle, high), None)
            if commit is not None and is_covered(commit, seen):
                low = commit.offset + 1
            else:
                high = middle
        for commit in self._commits(partition, low, high):
            if not is_covered(commit, seen):
                break
            low = commit.offset + 1
        return low

    def _commits(self, partition: int, begin: int, end: int) -> Iterator[Record]:
        """Yield the last records of commits between these offsets. They carry their Position."""
        place = self._partitions[partition]
        # A consumer of its own: that of `read` stays where it is.
        with closing(self._log.consumer()) as consumer:
            consumer.assign({place: begin})
            deadline, epoch = time.monotonic() + _SEARCH_PATIENCE_S, 0
            while (consumer.next_offset(place) or begin) < end:
                records = consumer.poll(POLL_RECORDS, _POLL_S)
                owned, epoch = without_former_owners(records, epoch)
                yield from (r for r in owned if r.offset < end and position_of_changelog([r]))
                if records:
                    deadline = time.monotonic() + _SEARCH_PATIENCE_S
                if self._stopped.is_set() or time.monotonic() > deadline:
                    raise LogUnavailableError(f"{place} was not read up to offset {end}.")

    def _pause(self, consumer: Consumer, without: frozenset[int]) -> None:
        if without != self._paused:
            consumer.resume([self._partitions[p] for p in self._paused - without])
            consumer.pause([self._partitions[p] for p in without - self._paused])
            self._paused = without

    def _refuse_gaps(self, records: Sequence[Record]) -> None:
        """Raise if the log has deleted what was to be read next. Offsets are also missing where transactions ended and
        where a compaction removed records."""
        found: dict[int, list[int]] = {}
        for record in records:
            found.setdefault(record.partition, []).append(record.offset)
        for p, offsets in found.items():
            wanted, place = self._next[p], self._partitions[p]
            if offsets[0] < wanted:
                raise recreated(self._topic)
            if offsets[-1] - wanted >= len(offsets) and (first := self._admin.watermarks(place)[0]) > wanted:
                raise expired(place, first)


def is_covered(record: Record, seen: Position) -> bool:
    """Return whether this changelog record ends a commit, and `seen` covers the Position that it carries."""
    position = position_of_changelog([record])
    return bool(position) and PositionBound(position).is_met(seen, record.partition)


def expired(partition: TopicPartition, first: int) -> CursorExpiredError:
    """Say that the log has deleted what comes next."""
    return CursorExpiredError(
        f"{partition} begins at offset {first} now: what follows the position asked for was deleted. Start over: read "
        "the store (a snapshot, or range), then its changes from the position of that answer."
    )


def beyond(partition: TopicPartition, offset: int, end: int) -> CursorExpiredError:
    """Say that the log has not reached a position. `end` is the offset after its last record."""
    last = f"the last offset of {partition} is {end - 1}" if end else f"{partition} is empty"
    return CursorExpiredError(
        f"The position is at offset {offset}, and {last}. The topic was deleted, created again, or has lost its end. "
        "Start over: read the store (a snapshot, or range), then its changes from the position of that answer."
    )


def recreated(topic: str) -> CursorExpiredError:
    """Say that a position is of another topic of the same name."""
    return CursorExpiredError(
        f"{topic!r} is not the topic of this position any more: it was deleted, created again, or has lost its end. "
        "Start over: read the store (a snapshot, or range), then its changes from the position of that answer."
    )
