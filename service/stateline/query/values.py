"""Queries to one partition and its answers, in any process.

The queries are the store library's (`stateline_store.reads.query_types`). `execution` runs them. `kinds` declares their
entries and the order of these. Pure: no files, no sockets, no clock. Keys and values are raw stored bytes, to which the
server gives types.

Which partitions hold a key: Kafka's partitioner puts it into ``(murmur2(key) & 0x7fffffff) % n``, its *home*
(`stateline.serde.partitioner`).
Not every topic is written with that partitioner, and a processor may put any key into its own partition's
store. So a key is looked up at home first and, when it is absent there, in the other partitions too. An
absent key therefore costs a look at every partition, a present one at a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from stateline_store import (
    IsolationLevel,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    NotUpToBoundError,
    Position,
    PositionBound,
    Query,
    Scan,
    StatelineError,
    StoreState,
    TransactionalStore,
    VersionedRecord,
    Windowed,
)

# A scan stops after about this many bytes, whatever its limit: one answer must not fill the memory of the
# worker or the server, nor hold up the worker's thread for long. The entries that are left out are
# in `rest`.
MAX_RESULT_BYTES = 4 * 1024 * 1024

# Most bytes of the entries of many keys, which are answered all at once.
MAX_KEYS_BYTES = 4 * MAX_RESULT_BYTES

ScanQuery: TypeAlias = Query[Scan[Any]]
SortKey: TypeAlias = Callable[[Any], Any]
Value: TypeAlias = bytes | VersionedRecord
Entry: TypeAlias = tuple[bytes | Windowed, Value]
ServedBy = Literal["active", "standby", "restoring"]


@dataclass(frozen=True, slots=True)
class Terms:
    """An asker's demands on the answering copy, for any query. `limit` is how many entries of a scan are wanted at
    first."""

    store: str
    isolation_level: IsolationLevel
    bound: PositionBound = field(default_factory=PositionBound)
    require_active: bool = False
    limit: int = 1000
    max_staleness_ms: int | None = None
    """A copy whose owner may be elsewhere answers when its `lag_ms` is at most this; None: not for that reason."""
    stored_rows: bool = False
    """Windows and sessions of all keys come as stored rows. Only for partitions that this process reads itself."""


@dataclass(slots=True)  # not frozen, which makes it take three times as long, for every read
class CopyStatus:
    """The copy of a partition that an answer comes from; times are milliseconds since the epoch.

    For a standby, `lag_records` are the offsets of its changelog that it lacks, and `lag_ms` is the time since it last
    lacked none. None: not known.
    """

    served_by: ServedBy
    staged_records: int
    staged_bytes: int
    committed_at_ms: int
    lag_ms: int | None = None
    lag_records: int | None = None


class Rest(Protocol):
    """The entries of a scan after those already given. They are of the same state, whatever is committed meanwhile."""

    async def more(self, limit: int) -> QueryRows:
        """The next entries, at most `limit`; with a `rest` of None there are none after them.

        Raises `CursorExpiredError` when the state is gone, or what a read may raise.
        """

    def close(self) -> None:
        """Release the state. A second call does nothing."""


@dataclass(slots=True)
class QueryRows:
    """The result of a query. `rest` has the entries beyond the last one given; None when there are none. `count` is for
    CountQuery, `interval_ms` for the windows of all keys: how long a segment of time is.
    """

    entries: Sequence[Entry] = ()
    count: int = 0
    interval_ms: int = 0
    rest: Rest | None = None


@dataclass(slots=True)
class PartitionAnswer:
    """One partition's answer, and the Position that its rows reflect."""

    rows: QueryRows
    position: Position
    copy: CopyStatus
    epochs: tuple[int, ...] = ()
    """Of what is to be seen in whole epochs, the numbers of those that it reflects."""
    worker: str | None = None
    """Of the same, the instance that has the task; None when none has."""
    node: str | None = None
    """The node whose copy answered; None where there is one node."""
    offset: int | None = None
    """Of a standby that a worker has in memory, the last offset of its changelog that it has; None of any other."""
    stopped: str | None = None
    """Why no worker runs the store any more, so that this is its last state; None while one may."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one partition did not answer; `position` is where it stands, `owner` the URL of the node that
    has it, if known.
    """

    error: StatelineError
    position: Position | None = None
    owner: str | None = None


Outcome: TypeAlias = PartitionAnswer | Failure


@dataclass(frozen=True, slots=True)
class HostedPartition:
    """A store partition that a worker hosts, and what state its task is in. For a standby, `offset` is the last one
    of its changelog that it has. `lag_ms` is the time since it was the owner's and lacked nothing; None if it was not,
    or this is not known. `has_all_partitions`: a global table, so a bound is one of all partitions."""

    store: TransactionalStore
    state: StoreState
    offset: int | None = None
    lag_ms: int | None = None
    has_all_partitions: bool = False

    def status(self) -> CopyStatus:
        """The status that goes with an answer; on the owner's thread."""
        return CopyStatus(
            served_by(self.state),
            self.store.staged_records,
            self.store.approximate_num_uncommitted_bytes,
            self.store.committed_at_ms,
            self.lag_ms,
        )


def served_by(state: StoreState) -> ServedBy:
    """The contract's word for a copy in this state. A copy that no owner keeps up to date counts as a
    standby.
    """
    if state is StoreState.ACTIVE:
        return "active"
    return "restoring" if state is StoreState.RESTORING else "standby"


def merged_position(answers: Iterable[PartitionAnswer]) -> Position:
    """The positions of all answers as one."""
    position = Position()
    for answer in answers:
        position = position.merge(answer.position)
    return position


def answers_of(outcomes: Mapping[int, Outcome]) -> dict[int, PartitionAnswer]:
    """The partitions that answered, in ascending order."""
    return {p: outcome for p, outcome in sorted(outcomes.items()) if isinstance(outcome, PartitionAnswer)}


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
