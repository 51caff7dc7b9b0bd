"""Results of the client: frozen dataclasses, read from JSON by their annotations.

Times are milliseconds since the epoch. Values and keys are as JSON shows them: numbers, strings, objects; `bytes`
values in base64, `bytes` keys in base64url. Keys that JSON texts are, as of type `json`, are `JsonKey`. A key of an
answer can be sent back as it is.
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
    """Read the headers of a record: pairs of a name and a text, null, or an object with base64."""
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
    """Why a request, or one partition of it, failed: the contract's problem document."""

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
    """Which node has answered; None where there is one alone."""
    staged_records: int
    staged_bytes: int
    committed_at_ms: int
    """When the last commit was; 0 before the first."""
    lag_ms: int | None = None
    """Of a standby: for how long it has lacked something; None when that is not known, and of others."""
    lag_records: int | None = None
    """Of a standby: what it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The members of every answer to a query."""

    store: str
    isolation_level: IsolationLevel
    position: PositionJson
    """The input that the answer reflects; usable as `bound`."""
    partitions: Mapping[int, PartitionAnswer]
    failures: Mapping[int, Problem] = field(default_factory=dict)
    """Partitions that failed; empty unless `allow_partial` was asked for."""
    stopped: str | None = None
    """Why no worker runs the store any more: this is its last committed state. None while one may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAnswer(Answer):
    """The value of one key. An absent key is `found=False`; with `failures`, it may be in a partition that failed."""

    found: bool
    key: Any
    value: Any
    timestamp: int | None
    """None where the store keeps none, or it is not known."""
    valid_to: int | None = None
    """Of a versioned store: until when, exclusive; None while it is valid."""
    headers: HeadersJson = None
    """Of the record, in a store that keeps them; None in others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key and its value."""

    key: Any
    value: Any
    timestamp: int | None
    valid_to: int | None = None
    """Of a versioned store: until when, exclusive; None while it is valid."""
    headers: HeadersJson = None
    """Of the record, in a store that keeps them; None in others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEntry:
    """A key that was asked for, whether it was there, and its value."""

    found: bool
    key: Any
    value: Any
    timestamp: int | None
    valid_to: int | None = None
    headers: HeadersJson = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A value that was valid from `timestamp` until `valid_to`, exclusive; None: it still is."""

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
    """Many keys at once: each key once, in the order asked."""

    entries: tuple[FoundEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Answer, Generic[E]):
    """Some of the entries asked for. All pages of one scan are of one state, so `position` is the same in each."""

    entries: tuple[E, ...]
    cursor: str | None = None
    """Where the next page begins; None on the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountAnswer(Answer):
    """RocksDB's estimate. It may be many times the number of entries, where keys are overwritten."""

    approximate_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCountAnswer(Answer):
    """How many entries there are."""

    exact_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionAnswer(Answer):
    """How far each partition has come, at both levels."""

    committed: Mapping[int, PositionJson]
    uncommitted: Mapping[int, PositionJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartition:
    """A partition of a store, as the server sees it."""

    task: str
    owner: str | None = None
    """The instance that runs it; None while none does."""
    node: str | None = None
    """Which node has it, where there are several; None while none is known to."""
    url: str | None = None
    """Where clients reach that node."""
    state: str | None = None
    lag_records: int | None = None
    """What it lacks of the changelog; None where it is not known, as for the next two."""
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
    """The Kafka Streams application whose store it is; None of Stateline's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreColumn:
    """A column of a store's rows, as Arrow streams have it."""

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
    """Why it has no partitions yet."""


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
    """The Kafka Streams application whose changelog it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """How far a pipeline is. Times are milliseconds since the epoch; None before the first micro-batch."""

    state: str
    """`starting`, `running`, `waiting` (for records), `restarting`, `failed`, or `not running`: gone without a word."""
    batch_id: int
    rows_in: int
    rows_out: int
    tombstones: int
    """Of `rows_out`."""
    skipped: int
    dead_lettered: int
    duration_ms: int
    steps_ms: Mapping[str, int]
    """How long each step of the newest micro-batch took."""
    batch_at_ms: int | None
    lag: int | None
    """How many records its topics have behind the newest micro-batch."""
    lag_by_topic: Mapping[str, int]
    watermark_ms: int | None
    totals: Mapping[str, int]
    """Sums since its driver started."""
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
    """None when it was stopped in order, never ran, or runs on another machine than the server."""


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
    """A worker and the tasks that it runs: task → state. One that was killed is not `alive`, and runs none; one that
    hangs is alive and not `reachable`."""

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
    """Whether every store can be queried; `reasons` why not."""

    ready: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """One partition of a store in a snapshot: the state as of one commit."""

    path: str
    """Where on the server its rows are read."""
    position: PositionJson
    commit: int
    committed_at_ms: int
    node: str | None = None
    """Which node keeps it, where there are several."""
    url: str | None = None
    """The whole address at that node, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDetails:
    """One consistent cut of several stores over all partitions, kept until `expires_at`."""

    id: str
    created_at: int
    expires_at: int
    position: PositionJson
    stores: Mapping[str, Mapping[int, SnapshotPart]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotList:
    """The snapshots that there are."""

    snapshots: tuple[SnapshotDetails, ...]
