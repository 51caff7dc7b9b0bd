"""MemoryEngine: keeps committed rows in memory until it is closed."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from stateline_store.engines.engine import Commit, no_key
from stateline_store.errors import StoreClosedError
from stateline_store.rows.expiry import IndexChanges, IndexRow
from stateline_store.rows.segments import SegmentRange
from stateline_store.rows.sorted_map import MaybeRow, SortedMap
from stateline_store.scan import ChunkSource, KeyRange, Scan, StoreIterator


class MemoryEngine:
    """An `Engine` over a SortedMap."""

    def __init__(self) -> None:
        self._map: SortedMap | None = SortedMap()
        self._index = SortedMap()
        self._commit = Commit()
        self._sources: weakref.WeakSet[ChunkSource] = weakref.WeakSet()

    def get(self, key: bytes) -> bytes | None:
        if not isinstance(key, bytes):
            raise no_key(key)
        return self._open().rows.get(key)

    def get_many(self, keys: Sequence[bytes], *, again: bool = True) -> list[bytes | None]:
        del again
        rows = self._open().rows
        if wrong := [key for key in keys if not isinstance(key, bytes)]:
            raise no_key(wrong[0])
        return [rows.get(key) for key in keys]

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        scan = Scan.of_chunks(_present(self._open().scan(keys, reverse=reverse)))
        self._sources.add(scan.source)
        return scan

    def write(
        self,
        rows: Mapping[bytes, bytes | None],
        commit: Commit,
        expired: KeyRange | None = None,
        index: IndexChanges | None = None,
        *,
        sync: bool = False,
    ) -> None:
        del sync  # memory has nothing to sync
        data = self._open()
        data.update({key: value for key, value in rows.items() if value is not None})
        data.remove(key for key, value in rows.items() if value is None)
        if expired is not None:
            with data.scan(expired) as gone:
                keys = [key for key, _ in gone]
            data.remove(keys)
        if index is not None:
            self._index.remove(index.removed)
            self._index.update({**dict(index.added)})
        self._commit = replace(commit, offsets={**self._commit.offsets, **commit.offsets})

    def due(self, start: bytes, most: int) -> list[IndexRow]:
        self._open()
        with Scan.of_chunks(_present(self._index.scan(KeyRange(start)))) as rows:
            return [*islice(rows, most)]

    def last_commit(self) -> Commit:
        return self._commit

    def approximate_num_entries(self) -> int:
        return len(self._open().rows)

    def properties(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        self._map = None
        for source in list(self._sources):
            source.cut_off()

    def _open(self) -> SortedMap:
        if self._map is None:
            raise StoreClosedError("This memory store is closed: call init first.")
        return self._map


def _present(rows: Scan[MaybeRow]) -> Generator[list[tuple[bytes, bytes]], None, None]:
    with rows:
        for chunk in rows.chunks():
            yield [(key, value) for key, value in chunk if value is not None]  # always so: removed rows leave the map
