"""Results of the client: frozen dataclasses, read from JSON by their annotations.

Times are milliseconds since the epoch. Values and keys are those of JSON: numbers, strings, objects. `bytes` values are
base64, `bytes` keys base64url. Keys of types such as `json` are `JsonKey`. A key of an answer can be sent back
unchanged.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

from pydantic import PlainValidator

from stateline_store import IsolationLevel, Position

Headers = tuple[tuple[str, bytes | None], ...]


def _headers(given: Any) -> Headers | None:
    """Read a record's headers: pairs of a name, and a text, null or an object with `base64`."""
    if given is None:
        return None
    return tuple((str(name), value if value is None else _header_value(value)) for name, value in given)


def _header_value(value: Any) -> bytes:
    return base64.b64decode(value["base64"]) if isinstance(value, Mapping) else str(value).encode()


HeadersJson = Annotated[Headers | None, PlainValidator(_headers)]
PositionJson = Annotated[Position, PlainValidator(Position.from_json)]
E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The failure of a request, or of one partition: HTTP's problem document."""

    reason: str
    detail: str
    status: int
    store: str | None = None
    partition: int | None = None
    position: PositionJson | None = None
    bound: PositionJson | None = None
    owner: str | None = None
    """The URL of the node that has the partition."""
    retry_after_s: float | None = None
    failures: Mapping[int, Problem] = field(default_factory=dict)
    """Every partition that failed."""
    reasons: tuple[str, ...] = ()
    """Why the service is not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """One partition's share of an answer."""

    position: PositionJson
    served_by: str
    """`active`, `standby` or `restoring`."""
    node: str | None = None
    """The answering node; None without several nodes."""
    staged_records: int
    staged_bytes: int
    committed_at_ms: int
    """The time of the last commit; 0 before the first."""
    lag_ms: int | None = None
    """How long a standby has lacked records. None if unknown, and for other copies."""
    lag_records: int | None = None
    """Records that a standby lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The members of every answer to a query."""

    store: str
    isolation_level: IsolationLevel
    position: PositionJson
    """The input that the answer reflects; usable as `bound`."""
    partitions: Mapping[int, PartitionAnswer]
    failures: Mapping[int, Problem] = field(default_factory=dict)
    """Partitions that failed; empty without `allow_partial`."""
    stopped: str | None = None
    """Why no worker runs the store any more. The answer is then its last committed state. None while one may run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAnswer(Answer):
    """The value of one key. An absent key has `found=False`. With `failures`, a failed partition may have it."""

    found: bool
    key: Any
    value: Any
    timestamp: int | None
    """None if the store keeps none, or it is unknown."""
    valid_to: int | None = None
    """End of the validity in a versioned store, exclusive; None while valid."""
    headers: HeadersJson = None
    """The record's headers; None if the store keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key and its value."""

    key: Any
    value: Any
    timestamp: int | None
    valid_to: int | None = None
    """End of the validity in a versioned store, exclusive; None while valid."""
    headers: HeadersJson = None
    """The record's headers; None if the store keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEntry:
    """A requested key, whether it exists, and its value."""

    found: bool
    key: Any
    value: Any
    timestamp: int | None
    valid_to: int | None = None
    headers: HeadersJson = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A value that was valid from `timestamp` until `valid_to`, exclusive. None: it is still valid."""

    value: Any
    timestamp: int
    valid_to: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window or session of one key, and its value."""

    start: int
    end: int
    value: Any
    timestamp: int | None
    headers: HeadersJson = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedWindow(Window):
    """A window or session of any key."""

    key: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysAnswer(Answer):
    """The values of many keys: each key once, in the requested order."""

    entries: tuple[FoundEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Answer, Generic[E]):
    """A part of a scan. All pages of a scan are of one state, so they have the same `position`."""

    entries: tuple[E, ...]
    cursor: str | None = None
    """The cursor of the next page; None on the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountAnswer(Answer):
    """RocksDB's estimate. It may be many times too large if keys are overwritten."""

    approximate_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCountAnswer(Answer):
    """The number of entries."""

    exact_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionAnswer(Answer):
    """The Position of each partition, at both isolation levels."""

    committed: Mapping[int, PositionJson]
    uncommitted: Mapping[int, PositionJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartition:
    """A partition of a store, as the server sees it."""

    task: str
    owner: str | None = None
    """The instance that runs it; None without one."""
    node: str | None = None
    """The node that has it, with several nodes; None if unknown."""
    url: str | None = None
    """That node's URL for clients."""
    state: str | None = None
    lag_records: int | None = None
    """Records of the changelog that it lacks. None if unknown, like the next two."""
    lag_ms: int | None = None
    restore_remaining: int | None = None
    """Offsets that a restore has left."""
    staged_records: int | None = None
    staged_bytes: int | None = None
    committed_at_ms: int | None = None
    unreadable: str | None = None
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreType:
    """A store's declaration."""

    kind: str
    key_type: str
    value_type: str
    persistent: bool
    logged: bool
    retention_ms: int | None = None
    external: str | None = None
    """The Kafka Streams application that owns the store; None for Stateline's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreColumn:
    """A column of a store's rows in Arrow streams."""

    name: str
    type: str
    """Arrow's name: `string`, `binary`, `int32`, `int64`, `double`."""
    nullable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDetails(StoreType):
    """A store and its partitions."""

    store: str
    columns: tuple[StoreColumn, ...] = ()
    default_isolation_level: IsolationLevel
    changelog: str | None = None
    partitions: Mapping[int, StoredPartition] = field(default_factory=dict)
    not_ready: str | None = None
    """Why the store has no partitions yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Every store."""

    stores: tuple[StoreDetails, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
    """Processors and stores that read the same topics."""

    ordinal: int
    sources: tuple[str, ...]
    stores: tuple[str, ...]
    processors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicType:
    """A topic of the application."""

    topic: str
    key_type: str
    value_type: str
    internal: bool
    external: str | None = None
    """The Kafka Streams application that owns this changelog; None for other topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """The progress of a pipeline. Times are milliseconds since the epoch, and None before the first micro-batch."""

    state: str
    """`starting`, `running`, `waiting` (for records), `restarting`, `failed`, or `not running` (ended without a
    report)."""
    batch_id: int
    rows_in: int
    rows_out: int
    tombstones: int
    """Tombstones among `rows_out`."""
    skipped: int
    dead_lettered: int
    duration_ms: int
    steps_ms: Mapping[str, int]
    """Duration of each step of the newest micro-batch."""
    batch_at_ms: int | None
    lag: int | None
    """Records in its topics after the newest micro-batch."""
    lag_by_topic: Mapping[str, int]
    watermark_ms: int | None
    totals: Mapping[str, int]
    """Sums since the driver started."""
    restarts: int
    last_error: str | None
    last_error_at_ms: int | None
    next_start_at_ms: int | None
    updated_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A Spark pipeline of the application."""

    reads: tuple[str, ...]
    static: tuple[str, ...]
    writes: str
    key: tuple[str, ...]
    timestamp: str | None
    output_mode: str
    tables: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    status: PipelineStatus | None = None
    """None if it was stopped in order, never ran, or runs on another machine than the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The application's parts: subtopologies, topics, stores and pipelines."""

    application_id: str
    subtopologies: tuple[Subtopology, ...]
    topics: tuple[TopicType, ...]
    stores: Mapping[str, StoreType]
    pipelines: Mapping[str, Pipeline]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A worker and its tasks (task → state). A killed worker is not `alive` and has no tasks. A worker that hangs is
    alive, but not `reachable`."""

    instance: str
    pid: int
    alive: bool
    reachable: bool
    tasks: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Workers and their tasks."""

    instances: tuple[Instance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether every store can be queried. `reasons` has the reasons if not."""

    ready: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """One partition of a store in a snapshot: its state at one commit."""

    path: str
    """The path of its rows on the server."""
    position: PositionJson
    commit: int
    committed_at_ms: int
    node: str | None = None
    """The node that keeps it, with several nodes."""
    url: str | None = None
    """The whole address at that node; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDetails:
    """A consistent snapshot of all partitions of some stores, kept until `expires_at`."""

    id: str
    created_at: int
    expires_at: int
    position: PositionJson
    stores: Mapping[str, Mapping[int, SnapshotPart]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotList:
    """The existing snapshots."""

    snapshots: tuple[SnapshotDetails, ...]
