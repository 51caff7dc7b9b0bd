"""stateline_store: transactional stores of stream state, and their readers. Knows neither Kafka nor HTTP.

Depends on the standard library and rocksdict only. RocksDB does not survive `fork()`: start processes with
spawn.
"""

from stateline_store.commit_notice import CommitNotice, NoticeView, StoreState
from stateline_store.directory import StateDirectory, TaskLock, notice_path, store_path
from stateline_store.errors import (
    CallerError,
    ConfigurationError,
    DamagedDataError,
    DoesNotExistError,
    FencedError,
    InDoubtError,
    InvalidArgumentError,
    LockedError,
    LogUnavailableError,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    NotUpToBoundError,
    PoisonedError,
    RecordError,
    RetryLaterError,
    StatelineError,
    StoreClosedError,
    TopologyError,
    UnknownQueryTypeError,
)
from stateline_store.key_value import KeyValueStore
from stateline_store.layout import Layout, StoreKind
from stateline_store.position import Position, PositionBound, TopicPartition
from stateline_store.readers import CommittedReader, Reader, UncommittedReader
from stateline_store.scan import KeyRange, Scan, StoreIterator, TimestampedIterator, ValueAndTimestamp
from stateline_store.secondary import SecondaryReader
from stateline_store.state_store import Change, IsolationLevel, StateStore, StoreContext
from stateline_store.timestamped_key_value import TimestampedKeyValueStore
from stateline_store.transaction_buffer import TransactionBuffer
from stateline_store.transactional_store import TransactionalStore

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
    # positions
    "TopicPartition",
    "Position",
    "PositionBound",
    # between processes
    "CommitNotice",
    "NoticeView",
    "StoreState",
    # on disk
    "StateDirectory",
    "TaskLock",
    "notice_path",
    "store_path",
    # errors
    "StatelineError",
    "CallerError",
    "InvalidArgumentError",
    "ConfigurationError",
    "TopologyError",
    "DoesNotExistError",
    "UnknownQueryTypeError",
    "StoreClosedError",
    "RecordError",
    "RetryLaterError",
    "NotUpToBoundError",
    "NotPresentError",
    "NotActiveError",
    "NotReadyError",
    "LockedError",
    "LogUnavailableError",
    "FencedError",
    "InDoubtError",
    "PoisonedError",
    "DamagedDataError",
]
