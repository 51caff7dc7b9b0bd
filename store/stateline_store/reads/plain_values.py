"""A timestamped store over files in the plain (v1) format, during its upgrade (KIP-258).

The code above sees ``timestamp:i64 ‖ value``, and the disk has the value alone. Values that are read back have
timestamp -1, unknown, as in Kafka Streams. The changelog still gets the timestamps, because it is written from staged
rows. So the timestamped store that is built from it has all timestamps.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping, Sequence

from stateline_store.engines.engine import Commit, Engine
from stateline_store.position import Position
from stateline_store.reads.readers import Reader
from stateline_store.rows.expiry import IndexChanges, IndexRow
from stateline_store.rows.headers import NO_HEADERS, without_headers
from stateline_store.rows.segments import SegmentRange
from stateline_store.scan import KeyRange, Scan, StoreIterator
from stateline_store.state_store import IsolationLevel

_UNKNOWN = struct.pack(">q", -1)  # Kafka Streams' value for rows written without a timestamp
_WIDTH = len(_UNKNOWN)


class PlainValuesEngine:
    """An `Engine` over another one that keeps the timestamps, and in a store with `headers` these too, off the
    disk."""

    def __init__(self, plain: Engine, *, headers: bool = False) -> None:
        self._plain, self._headers = plain, headers
        self._prefix = prefix_of(headers=headers)

    def get(self, key: bytes) -> bytes | None:
        value = self._plain.get(key)
        return None if value is None else self._prefix + value

    def get_many(self, keys: Sequence[bytes], *, again: bool = True) -> list[bytes | None]:
        return [None if value is None else self._prefix + value for value in self._plain.get_many(keys, again=again)]

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        return _rows_with(self._prefix, self._plain.scan(keys, reverse=reverse))

    def write(
        self,
        rows: Mapping[bytes, bytes | None],
        commit: Commit,
        expired: KeyRange | None = None,
        index: IndexChanges | None = None,
        *,
        sync: bool = False,
    ) -> None:
        del index  # plain files have no timestamps
        plain = {key: None if stored is None else stored[_WIDTH:] for key, stored in rows.items()}
        if self._headers:
            plain = {key: None if value is None else without_headers(value) for key, value in plain.items()}
        self._plain.write(plain, commit, expired, sync=sync)

    def due(self, start: bytes, most: int) -> list[IndexRow]:
        del start, most
        return []

    def last_commit(self) -> Commit:
        return self._plain.last_commit()

    def approximate_num_entries(self) -> int:
        return self._plain.approximate_num_entries()

    def properties(self) -> Mapping[str, int]:
        return self._plain.properties()

    def close(self) -> None:
        self._plain.close()


class PlainValuesReader(Reader):
    """A `Reader` of plain files that shows rows like a timestamped store's reader. For the thread of the other
    reader."""

    def __init__(self, plain: Reader, *, headers: bool = False) -> None:
        self._plain = plain
        self._prefix = prefix_of(headers=headers)

    @property
    def isolation_level(self) -> IsolationLevel:
        return self._plain.isolation_level

    @property
    def position(self) -> Position:
        return self._plain.position

    @property
    def stream_time_ms(self) -> int:
        return self._plain.stream_time_ms

    def get(self, key: bytes) -> bytes | None:
        value = self._plain.get(key)
        return None if value is None else self._prefix + value

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        return _rows_with(self._prefix, self._plain.scan(keys, reverse=reverse))

    def approximate_num_entries(self) -> int:
        return self._plain.approximate_num_entries()


def prefix_of(*, headers: bool) -> bytes:
    """Return the bytes that stand before a value of plain files."""
    return _UNKNOWN + NO_HEADERS if headers else _UNKNOWN


def _rows_with(prefix: bytes, rows: StoreIterator) -> StoreIterator:
    return Scan.of_chunks(_prefixed(prefix, rows))


def _prefixed(prefix: bytes, rows: StoreIterator) -> Generator[list[tuple[bytes, bytes]], None, None]:
    with rows:
        for chunk in rows.chunks():
            yield [(key, prefix + value) for key, value in chunk]
