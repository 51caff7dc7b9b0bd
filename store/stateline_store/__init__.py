"""stateline_store: transactional stores of stream state, and their readers. Knows neither Kafka nor HTTP.

Depends on the standard library and rocksdict only. RocksDB does not survive `fork()`: start processes with
spawn.

Public names are loaded when they are first asked for: errors need no RocksDB, and who only reads no writers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline_store.errors import *
    from stateline_store.files.cleaning import *
    from stateline_store.files.commit_notice import CommitNotice as CommitNotice
    from stateline_store.files.commit_notice import NoticeView as NoticeView
    from stateline_store.files.commit_notice import StoreState as StoreState
    from stateline_store.files.directory import StateDirectory as StateDirectory
    from stateline_store.files.directory import TaskLock as TaskLock
    from stateline_store.files.directory import notice_path as notice_path
    from stateline_store.files.directory import store_path as store_path
    from stateline_store.files.relocation import Settled as Settled
    from stateline_store.files.relocation import plan_relocation as plan_relocation
    from stateline_store.files.relocation import relocate as relocate
    from stateline_store.files.relocation import settle_places as settle_places
    from stateline_store.files.relocation_journal import Move as Move
    from stateline_store.layout import Layout as Layout
    from stateline_store.layout import StoreKind as StoreKind
    from stateline_store.layout import StoreTypes as StoreTypes
    from stateline_store.position import *
    from stateline_store.reads import queries as queries
    from stateline_store.reads.queries import QueryResult as QueryResult
    from stateline_store.reads.query_types import *
    from stateline_store.reads.readers import *
    from stateline_store.reads.secondary import *
    from stateline_store.reads.session_reads import SessionReads as SessionReads
    from stateline_store.reads.versioned_reads import *
    from stateline_store.reads.window_reads import WindowedIterator as WindowedIterator
    from stateline_store.reads.window_reads import WindowIterator as WindowIterator
    from stateline_store.reads.window_reads import WindowReads as WindowReads
    from stateline_store.reads.window_reads import window_end_ms as window_end_ms
    from stateline_store.reads.window_reads import windows_of as windows_of
    from stateline_store.rows.segments import Segments as Segments
    from stateline_store.rows.store_schema import *
    from stateline_store.rows.timestamped_rows import TimestampedWindowedIterator as TimestampedWindowedIterator
    from stateline_store.rows.timestamped_rows import TimestampedWindowIterator as TimestampedWindowIterator
    from stateline_store.rows.transaction_buffer import TransactionBuffer as TransactionBuffer
    from stateline_store.rows.windowed_keys import Windowed as Windowed
    from stateline_store.scan import KeyRange as KeyRange
    from stateline_store.scan import Scan as Scan
    from stateline_store.scan import StoreIterator as StoreIterator
    from stateline_store.scan import TimestampedIterator as TimestampedIterator
    from stateline_store.scan import ValueAndTimestamp as ValueAndTimestamp
    from stateline_store.state_store import *
    from stateline_store.stores.expiring_key_value import ExpiringKeyValueStore as ExpiringKeyValueStore
    from stateline_store.stores.key_value import *
    from stateline_store.stores.session_store import *
    from stateline_store.stores.timestamped_key_value import *
    from stateline_store.stores.transactional_store import *
    from stateline_store.stores.versioned_store import NOT_PUT as NOT_PUT
    from stateline_store.stores.versioned_store import VersionedStore as VersionedStore
    from stateline_store.stores.window_store import *

_NAMES = {  # what is public in which module
    "files.cleaning": "clean",
    "files.commit_notice": "CommitNotice NoticeView StoreState",
    "files.directory": "StateDirectory TaskLock notice_path store_path",
    "errors": (
        "CallerError ConfigurationError CursorExpiredError DamagedDataError DoesNotExistError FencedError "
        "ForbiddenError InDoubtError InvalidArgumentError LockedError LogUnavailableError McpNotInstalledError "
        "NewerFormatError NotAcceptableError NotActiveError NotPresentError NotReadyError NotUpToBoundError "
        "PoisonedError RecordError RetryLaterError SchemaRegistryUnavailableError SqlInvalidError SqlNotAllowedError "
        "SqlNotInstalledError SqlTimeoutError SqlTooLargeError StatelineError StorageError StoreClosedError "
        "TooManyRequestsError TopologyError UnauthenticatedError UnknownQueryTypeError"
    ),
    "stores.key_value": "KeyValueStore",
    "layout": "Layout StoreKind StoreTypes",
    "position": "Position PositionBound TopicPartition",
    "reads.queries": "QueryResult",
    "reads.query_types": (
        "CountQuery KeyQuery KeysQuery MultiVersionedKeyQuery Order PositionQuery PrefixQuery Query RangeQuery "
        "SessionKeyQuery SessionRangeQuery TimestampedKeyQuery TimestampedRangeQuery VersionedKeyQuery "
        "VersionedKeysQuery VersionedPrefixQuery VersionedRangeQuery WindowKeyQuery WindowRangeQuery"
    ),
    "reads.readers": "CommittedReader Reader UncommittedReader",
    "files.relocation": "Settled plan_relocation relocate settle_places",
    "files.relocation_journal": "Move",
    "scan": "KeyRange Scan StoreIterator TimestampedIterator ValueAndTimestamp",
    "reads.secondary": "SecondaryReader",
    "rows.segments": "Segments",
    "reads.session_reads": "SessionReads",
    "stores.session_store": "SessionStore TimestampedSessionStore",
    "state_store": "Change IsolationLevel StateStore StoreContext",
    "rows.store_schema": "StoreSchema",
    "stores.expiring_key_value": "ExpiringKeyValueStore",
    "stores.timestamped_key_value": "TimestampedKeyValueStore",
    "rows.timestamped_rows": "TimestampedWindowedIterator TimestampedWindowIterator",
    "rows.transaction_buffer": "TransactionBuffer",
    "stores.transactional_store": "TransactionalStore",
    "reads.versioned_reads": "VersionedReads VersionedRecord",
    "stores.versioned_store": "NOT_PUT VersionedStore",
    "reads.window_reads": "WindowedIterator WindowIterator WindowReads window_end_ms windows_of",
    "stores.window_store": "TimestampedWindowStore WindowStore",
    "rows.windowed_keys": "Windowed",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = ["queries", *_HOMES]

if not TYPE_CHECKING:  # types know the names above, and each that is not there is an error; a test compares them

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'stateline_store' has no attribute {name!r}")
        home = importlib.import_module(f"stateline_store.{_HOMES.get(name, 'reads.queries')}")
        globals()[name] = found = getattr(home, name) if name in _HOMES else home
        return found

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
