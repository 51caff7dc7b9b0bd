"""KeyValueStore: a transactional store of bytes by key (KIP-892), persistent or in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from stateline_store.layout import StoreKind
from stateline_store.scan import StoreIterator
from stateline_store.stores.transactional_store import TransactionalStore


class KeyValueStore(TransactionalStore):
    """Bytes by key. Values are stored as they are (plain format, v1). Empty bytes are a value, None is absence."""

    kind: ClassVar[StoreKind] = "key_value"

    def get(self, key: bytes) -> bytes | None:
        """Return the value, staged or committed, None if there is none. Raises `InvalidArgumentError` unless the key is
        bytes, like every method with a key."""
        return self._get(key)

    def range(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> StoreIterator:
        """Scan rows from `lower` to `upper` in byte order, both included, None open, staged over committed.

        The scan is a snapshot: the owner may write and commit meanwhile. If `lower` is above `upper`, the scan is empty
        and a warning is logged.
        """
        return self._own_reader().range(lower, upper, reverse=reverse)

    def prefix_scan(self, prefix: bytes, *, reverse: bool = False) -> StoreIterator:
        """Scan the rows whose key begins with `prefix`, like `range`."""
        return self._own_reader().prefix_scan(prefix, reverse=reverse)

    def all(self, *, reverse: bool = False) -> StoreIterator:
        """Scan all rows, like `range`."""
        return self.range(None, None, reverse=reverse)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage a value. None deletes. Raises `InvalidArgumentError` unless key and value are bytes."""
        if self._engine is None or self._failure is not None:
            self._open()
        self._buffer.put(key, value)

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        """Stage the value if the key has none. Returns the value that was there, None if there was none."""
        found = self.get(key)
        if found is None:
            self.put(key, value)
        return found

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Stage many entries. The last of equal keys counts. On `InvalidArgumentError`, nothing is staged."""
        self._open()
        self._buffer.put_all(entries)

    def delete(self, key: bytes) -> bytes | None:
        """Stage a delete. Returns the value that was there, None if there was none."""
        found = self.get(key)
        self._stage(key, None)
        return found
