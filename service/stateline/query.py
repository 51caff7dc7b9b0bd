"""Queries as values, their execution on one partition's Reader, and the merge of several partitions' answers.

Pure: no files, no sockets, no clock, and a query never writes. Keys and values are raw stored bytes; the
server gives them types. The same code answers in the server (secondaries), in the worker (uncommitted state,
stores in memory) and wherever else a Reader is at hand.

Which partitions hold a key: Kafka's partitioner puts it into ``(murmur2(key) & 0x7fffffff) % n``, its *home*.
Not every topic is written with that partitioner, and a processor may put any key into its own partition's
store. So a key is looked up at home first and, when it is absent there, in the other partitions too. An
absent key therefore costs a look at every partition, a present one at a single one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Literal

from confluent_kafka import murmur2

from stateline_store import (
    IsolationLevel,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    NotUpToBoundError,
    Position,
    PositionBound,
    Reader,
    StatelineError,
    StoreState,
    TransactionalStore,
)

# A scan stops after about this many bytes, whatever its limit: one answer must not fill the memory of the
# worker or the server, nor hold up the worker's thread for long. The entries that are left out are told by
# `truncated`.
MAX_RESULT_BYTES = 4 * 1024 * 1024

Entry = tuple[bytes, bytes]
ServedBy = Literal["active", "standby", "restoring"]


@dataclass(frozen=True, slots=True)
class KeysQuery:
    """The values of these keys; an absent key has no entry in the answer."""

    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """The value of one key; the answer has one entry, or none when the key is absent."""

    key: bytes


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """Entries from `lower` to `upper`, both inclusive and None open, or those whose key begins with `prefix`.

    In the order of serialized keys, or against it when `reverse`; at most `limit` of them.
    """

    lower: bytes | None = None
    upper: bytes | None = None
    prefix: bytes | None = None
    reverse: bool = False
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class CountQuery:
    """About how many entries there are."""


@dataclass(frozen=True, slots=True)
class PositionQuery:
    """Nothing but the position that every answer carries."""


Query = KeyQuery | KeysQuery | RangeQuery | CountQuery | PositionQuery


@dataclass(frozen=True, slots=True)
class Terms:
    """What an asker demands of whoever answers, whatever the query."""

    store: str
    isolation_level: IsolationLevel
    bound: PositionBound = field(default_factory=PositionBound)
    require_active: bool = False


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The copy of a partition that an answer comes from; times are milliseconds since the epoch."""

    served_by: ServedBy
    staged_records: int
    staged_bytes: int
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query found. `truncated`: there are entries beyond the last one given. `count` is for
    CountQuery.
    """

    entries: Sequence[Entry] = ()
    truncated: bool = False
    count: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one partition answered, and the position that its rows reflect."""

    rows: Rows
    position: Position
    copy: CopyStatus


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one partition did not answer; `position` is where it stands, `owner` the instance that has it,
    if known.
    """

    error: StatelineError
    position: Position | None = None
    owner: str | None = None


Outcome = Answer | Failure


@dataclass(frozen=True, slots=True)
class HostedPartition:
    """A store partition that a worker hosts, and what state its task is in."""

    store: TransactionalStore
    state: StoreState

    def status(self) -> CopyStatus:
        """The status that goes with an answer; on the owner's thread."""
        return CopyStatus(
            served_by(self.state),
            self.store.staged_records,
            self.store.approximate_num_uncommitted_bytes,
            self.store.committed_at_ms,
        )


def served_by(state: StoreState) -> ServedBy:
    """The contract's word for a copy in this state. A copy that no owner keeps up to date counts as a
    standby.
    """
    if state is StoreState.ACTIVE:
        return "active"
    return "restoring" if state is StoreState.RESTORING else "standby"


def home_partition(key: bytes, partitions: int) -> int:
    """Where Kafka's partitioner puts this key, of a topic with so many partitions."""
    return int(murmur2(key, partitions))  # masks to 31 bits itself, as Kafka does


def execute(query: Query, reader: Reader, partition: int, terms: Terms, copy: CopyStatus) -> Outcome:
    """Answer a query from one partition, or say why not. Synchronous: the reader must not move meanwhile.

    The bound is checked against the reader's own position: what it has committed, or, when it reads
    uncommitted records, that merged with what is pending. Errors of the store itself pass through.
    """
    if terms.require_active and copy.served_by != "active":
        return Failure(_not_active(terms.store, partition, copy), reader.position)
    position = reader.position
    if not terms.bound.is_met(position, partition):
        return Failure(_behind(terms.store, partition), position)
    return Answer(_read(query, reader), position, copy)


def _read(query: Query, reader: Reader) -> Rows:
    match query:
        case KeyQuery(key):
            value = reader.get(key)
            return Rows() if value is None else Rows(((key, value),))
        case KeysQuery(keys):
            found = ((key, reader.get(key)) for key in keys)
            return Rows([(key, value) for key, value in found if value is not None])
        case RangeQuery():
            return _scan(query, reader)
        case CountQuery():
            return Rows(count=reader.approximate_num_entries())
        case PositionQuery():
            return Rows()


def _scan(query: RangeQuery, reader: Reader) -> Rows:
    if query.lower is not None and query.upper is not None and query.lower > query.upper:
        return Rows()  # the reader would say the same, with a warning in the log for each such request
    if query.prefix is not None:
        iterator = reader.prefix_scan(query.prefix, reverse=query.reverse)
    else:
        iterator = reader.range(query.lower, query.upper, reverse=query.reverse)
    entries: list[Entry] = []
    size = 0
    with iterator:
        for entry in iterator:
            if len(entries) >= query.limit or size >= MAX_RESULT_BYTES:
                return Rows(entries, truncated=True)
            entries.append(entry)
            size += len(entry[0]) + len(entry[1])
    return Rows(entries)


def merge_rows(parts: Iterable[Rows], query: Query) -> Rows:
    """One Rows out of several partitions': entries in key order (a scan's direction and limit), counts
    added.
    """
    parts = list(parts)
    if isinstance(query, RangeQuery):
        return parts[0] if len(parts) == 1 else _merge_scans(parts, query)
    return Rows([entry for part in parts for entry in part.entries], count=sum(part.count for part in parts))


def _merge_scans(parts: list[Rows], query: RangeQuery) -> Rows:
    """Nothing beyond the last entry of a truncated part may appear: that part may hold what belongs
    before it.
    """
    ends = [part.entries[-1][0] for part in parts if part.truncated]
    merged = heapq.merge(*(part.entries for part in parts), key=itemgetter(0), reverse=query.reverse)
    entries = list(islice(merged, query.limit + 1))
    kept = entries[: query.limit]
    if ends:
        end = max(ends) if query.reverse else min(ends)
        kept = [entry for entry in kept if (entry[0] >= end if query.reverse else entry[0] <= end)]
    return Rows(kept, truncated=bool(ends) or len(entries) > query.limit)


def merged_position(answers: Iterable[Answer]) -> Position:
    """The positions of all answers as one."""
    position = Position()
    for answer in answers:
        position = position.merge(answer.position)
    return position


def answers_of(outcomes: Mapping[int, Outcome]) -> dict[int, Answer]:
    """The partitions that answered, in ascending order."""
    return {p: outcome for p, outcome in sorted(outcomes.items()) if isinstance(outcome, Answer)}


def failures_of(outcomes: Mapping[int, Outcome]) -> dict[int, Failure]:
    """The partitions that failed, in ascending order."""
    return {p: outcome for p, outcome in sorted(outcomes.items()) if isinstance(outcome, Failure)}


def any_behind(outcomes: Iterable[Outcome]) -> bool:
    """Whether a wait could help: some partition is behind the bound."""
    return any(isinstance(o, Failure) and isinstance(o.error, NotUpToBoundError) for o in outcomes)


def any_may_come(outcomes: Iterable[Outcome]) -> bool:
    """Whether a wait could help in the server: some partition is behind the bound, or its copy is not there, not
    active or not readable for the moment.
    """
    passing = (NotUpToBoundError, NotPresentError, NotActiveError, NotReadyError)
    return any(isinstance(o, Failure) and isinstance(o.error, passing) for o in outcomes)


def _behind(store: str, partition: int) -> NotUpToBoundError:
    return NotUpToBoundError(
        f"Partition {partition} of {store!r} is still behind position_bound: wait longer (wait_ms), ask "
        "again, or ask with a lower bound."
    )


def _not_active(store: str, partition: int, copy: CopyStatus) -> NotActiveError:
    return NotActiveError(
        f"Partition {partition} of {store!r} is {copy.served_by} here: ask again in a moment, or without "
        "require_active."
    )
