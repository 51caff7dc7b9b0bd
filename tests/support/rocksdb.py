"""The RocksDB behind a store: stores do not flush, compact or fail on demand, and tests need all three.

Do not keep what these functions return: a store with a reference to its database left does not close it.
"""

from __future__ import annotations

from typing import Any

from rocksdict import Rdict

from stateline_store.reads.plain_values import PlainValuesEngine
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rocksdb.writes import RocksDBWrites
from stateline_store.stores.committed_store import CommittedStore


def engine_of(store: CommittedStore) -> RocksDBEngine:
    """The engine of a persistent store that is open."""
    engine = store._engine
    if isinstance(engine, PlainValuesEngine):
        engine = engine._plain
    assert isinstance(engine, RocksDBEngine)
    return engine


def database_of(of: CommittedStore | RocksDBEngine) -> Rdict:
    """The column family of its rows."""
    return _engine(of)._db


def offsets_of(of: CommittedStore | RocksDBEngine) -> Rdict:
    """The column family of what a commit says of itself."""
    return _engine(of)._offsets


def write_to(of: CommittedStore | RocksDBEngine, database: Any) -> None:
    """Have commits write to this database instead, which may fail."""
    writes_of(of)._db = database


def writes_of(of: CommittedStore | RocksDBEngine) -> RocksDBWrites:
    """What its commits go through."""
    return _engine(of)._writes


def _engine(of: CommittedStore | RocksDBEngine) -> RocksDBEngine:
    return of if isinstance(of, RocksDBEngine) else engine_of(of)
