"""stateline_store: transactional stores of stream state, and their readers. Knows neither Kafka nor HTTP.

Depends on the standard library and rocksdict only. RocksDB does not survive `fork()`: start processes with
spawn.

Public names are loaded when they are first asked for: errors need no RocksDB, and who only reads no writers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline_store import queries as queries
    from stateline_store.cleaning import *
    from stateline_store.commit_notice import CommitNotice as CommitNotice
    from stateline_store.commit_notice import NoticeView as NoticeView
    from stateline_store.commit_notice import StoreState as StoreState
    from stateline_store.directory import StateDirectory as StateDirectory
    from stateline_store.directory import TaskLock as TaskLock
    from stateline_store.directory import notice_path as notice_path
    from stateline_store.directory import store_path as store_path
    from stateline_store.errors import *
    from stateline_store.expiring_key_value import ExpiringKeyValueStore as ExpiringKeyValueStore
    from stateline_store.key_value import *
    from stateline_store.layout import Layout as Layout
    from stateline_store.layout import StoreKind as StoreKind
    from stateline_store.layout import StoreTypes as StoreTypes
    from stateline_store.position import *
    from stateline_store.queries import QueryResult as QueryResult
    from stateline_store.query_types import *
    from stateline_store.readers import *
    from stateline_store.relocation import Settled as Settled
    from stateline_store.relocation import plan_relocation as plan_relocation
    from stateline_store.relocation import relocate as relocate
    from stateline_store.relocation import settle_places as settle_places
    from stateline_store.relocation_journal import Move as Move
    from stateline_store.scan import KeyRange as KeyRange
    from stateline_store.scan import Scan as Scan
    from stateline_store.scan import StoreIterator as StoreIterator
    from stateline_store.scan import TimestampedIterator as TimestampedIterator
    from stateline_store.scan import ValueAndTimestamp as ValueAndTimestamp
    from stateline_store.secondary import *
    from stateline_store.segments import Segments as Segments
    from stateline_store.session_reads import *
    from stateline_store.session_store import *
    from stateline_store.state_store import *
    from stateline_store.store_schema import *
    from stateline_store.timestamped_key_value import *
    from stateline_store.timestamped_rows import TimestampedWindowedIterator as TimestampedWindowedIterator
    from stateline_store.timestamped_rows import TimestampedWindowIterator as TimestampedWindowIterator
    from stateline_store.transaction_buffer import TransactionBuffer as TransactionBuffer
    from stateline_store.transactional_store import *
    from stateline_store.versioned_reads import *
    from stateline_store.versioned_store import NOT_PUT as NOT_PUT
    from stateline_store.versioned_store import VersionedStore as VersionedStore
    from stateline_store.window_reads import *
    from stateline_store.window_store import *
    from stateline_store.windowed_keys import Windowed as Windowed

_NAMES = {  # what is public in which module
    "cleaning": "clean",
    "commit_notice": "CommitNotice NoticeView StoreState",
    "directory": "StateDirectory TaskLock notice_path store_path",
    "errors": (
        "CallerError ConfigurationError CursorExpiredError DamagedDataError DoesNotExistError FencedError "
        "ForbiddenError InDoubtError InvalidArgumentError LockedError LogUnavailableError NewerFormatError "
        "NotAcceptableError NotActiveError NotPresentError NotReadyError NotUpToBoundError PoisonedError RecordError "
        "RetryLaterError SchemaRegistryUnavailableError StatelineError StorageError StoreClosedError "
        "TooManyRequestsError TopologyError UnauthenticatedError UnknownQueryTypeError"
    ),
    "key_value": "KeyValueStore",
    "layout": "Layout StoreKind StoreTypes",
    "position": "Position PositionBound TopicPartition",
    "queries": "QueryResult",
    "query_types": (
        "CountQuery KeyQuery KeysQuery MultiVersionedKeyQuery Order PositionQuery PrefixQuery Query RangeQuery "
        "SessionKeyQuery SessionRangeQuery TimestampedKeyQuery TimestampedRangeQuery VersionedKeyQuery "
        "VersionedKeysQuery VersionedPrefixQuery VersionedRangeQuery WindowKeyQuery WindowRangeQuery"
    ),
    "readers": "CommittedReader Reader UncommittedReader",
    "relocation": "Settled plan_relocation relocate settle_places",
    "relocation_journal": "Move",
    "scan": "KeyRange Scan StoreIterator TimestampedIterator ValueAndTimestamp",
    "secondary": "SecondaryReader",
    "segments": "Segments",
    "session_reads": "SessionReads",
    "session_store": "SessionStore TimestampedSessionStore",
    "state_store": "Change IsolationLevel StateStore StoreContext",
    "store_schema": "StoreSchema",
    "expiring_key_value": "ExpiringKeyValueStore",
    "timestamped_key_value": "TimestampedKeyValueStore",
    "timestamped_rows": "TimestampedWindowedIterator TimestampedWindowIterator",
    "transaction_buffer": "TransactionBuffer",
    "transactional_store": "TransactionalStore",
    "versioned_reads": "VersionedReads VersionedRecord",
    "versioned_store": "NOT_PUT VersionedStore",
    "window_reads": "WindowedIterator WindowIterator WindowReads window_end_ms",
    "window_store": "TimestampedWindowStore WindowStore",
    "windowed_keys": "Windowed",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = ["queries", *_HOMES]

if not TYPE_CHECKING:  # types know the names above, and each that is not there is an error; a test compares them

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'stateline_store' has no attribute {name!r}")
        home = importlib.import_module(f"stateline_store.{_HOMES.get(name, name)}")
        globals()[name] = found = getattr(home, name) if name in _HOMES else home
        return found

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
