"""stateline_store: transactional stores of stream state, and their readers. Knows neither Kafka nor HTTP.

Depends on the standard library and rocksdict only. RocksDB does not survive `fork()`: start processes with
spawn.
"""

from stateline_store import queries
from stateline_store.cleaning import clean
from stateline_store.commit_notice import CommitNotice, NoticeView, StoreState
from stateline_store.directory import StateDirectory, TaskLock, notice_path, store_path
from stateline_store.errors import (
    CallerError,
    ConfigurationError,
    CursorExpiredError,
    DamagedDataError,
    DoesNotExistError,
    FencedError,
    ForbiddenError,
    InDoubtError,
    InvalidArgumentError,
    LockedError,
    LogUnavailableError,
    NewerFormatError,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    NotUpToBoundError,
    PoisonedError,
    RecordError,
    RetryLaterError,
    StatelineError,
    StoreClosedError,
    TooManyRequestsError,
    TopologyError,
    UnauthenticatedError,
    UnknownQueryTypeError,
)
from stateline_store.key_value import KeyValueStore
from stateline_store.layout import Layout, StoreKind, StoreTypes
from stateline_store.position import Position, PositionBound, TopicPartition
from stateline_store.queries import QueryResult
from stateline_store.query_types import (
    CountQuery,
    KeyQuery,
    KeysQuery,
    MultiVersionedKeyQuery,
    Order,
    PositionQuery,
    PrefixQuery,
    Query,
    RangeQuery,
    SessionKeyQuery,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    VersionedKeyQuery,
    VersionedKeysQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from stateline_store.readers import CommittedReader, Reader, UncommittedReader
from stateline_store.relocation import Settled, plan_relocation, relocate, settle_places
from stateline_store.relocation_journal import Move
from stateline_store.scan import KeyRange, Scan, StoreIterator, TimestampedIterator, ValueAndTimestamp
from stateline_store.secondary import SecondaryReader
from stateline_store.segments import Segments
from stateline_store.session_reads import SessionReads
from stateline_store.session_store import SessionStore
from stateline_store.state_store import Change, IsolationLevel, StateStore, StoreContext
from stateline_store.store_schema import StoreSchema
from stateline_store.timestamped_key_value import TimestampedKeyValueStore
from stateline_store.timestamped_rows import TimestampedWindowedIterator, TimestampedWindowIterator
from stateline_store.timestamped_session_store import TimestampedSessionStore
from stateline_store.timestamped_window_store import TimestampedWindowStore
from stateline_store.transaction_buffer import TransactionBuffer
from stateline_store.transactional_store import TransactionalStore
from stateline_store.versioned_reads import VersionedReads, VersionedRecord
from stateline_store.versioned_store import NOT_PUT, VersionedStore
from stateline_store.window_reads import WindowedIterator, WindowIterator, WindowReads, window_end_ms
from stateline_store.window_store import WindowStore
from stateline_store.windowed_keys import Windowed

__all__ = [  # noqa: RUF022  # grouped by topic, for the reader
    # the contract
    "StateStore",
    "StoreContext",
    "Change",
    "TransactionalStore",
    "Layout",
    "StoreKind",
    "IsolationLevel",
    # stores
    "KeyValueStore",
    "TimestampedKeyValueStore",
    "ValueAndTimestamp",
    "WindowStore",
    "TimestampedWindowStore",
    "WindowReads",
    "window_end_ms",
    "SessionStore",
    "TimestampedSessionStore",
    "SessionReads",
    "Segments",
    "Windowed",
    "VersionedStore",
    "VersionedRecord",
    "VersionedReads",
    "NOT_PUT",
    "TransactionBuffer",
    # readers
    "Reader",
    "CommittedReader",
    "UncommittedReader",
    "SecondaryReader",
    "KeyRange",
    "Scan",
    "StoreIterator",
    "TimestampedIterator",
    "WindowIterator",
    "WindowedIterator",
    "TimestampedWindowIterator",
    "TimestampedWindowedIterator",
    # queries
    "queries",
    "StoreSchema",
    "Query",
    "QueryResult",
    "Order",
    "KeyQuery",
    "TimestampedKeyQuery",
    "KeysQuery",
    "RangeQuery",
    "TimestampedRangeQuery",
    "PrefixQuery",
    "WindowKeyQuery",
    "WindowRangeQuery",
    "SessionKeyQuery",
    "VersionedKeyQuery",
    "VersionedKeysQuery",
    "MultiVersionedKeyQuery",
    "CountQuery",
    "PositionQuery",
    # positions
    "TopicPartition",
    "Position",
    "PositionBound",
    # between processes
    "CommitNotice",
    "NoticeView",
    "StoreState",
    "StoreTypes",
    # on disk
    "StateDirectory",
    "TaskLock",
    "notice_path",
    "store_path",
    "clean",
    "settle_places",
    "Settled",
    "plan_relocation",
    "relocate",
    "Move",
    # errors
    "StatelineError",
    "CallerError",
    "InvalidArgumentError",
    "ConfigurationError",
    "TopologyError",
    "DoesNotExistError",
    "UnauthenticatedError",
    "ForbiddenError",
    "UnknownQueryTypeError",
    "StoreClosedError",
    "RecordError",
    "RetryLaterError",
    "NotUpToBoundError",
    "NotPresentError",
    "NotActiveError",
    "NotReadyError",
    "TooManyRequestsError",
    "CursorExpiredError",
    "LockedError",
    "LogUnavailableError",
    "NewerFormatError",
    "FencedError",
    "InDoubtError",
    "PoisonedError",
    "DamagedDataError",
]
