"""KeyValueStore: a transactional store of bytes by key (KIP-892), persistent or in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from stateline_store.layout import StoreKind
from stateline_store.scan import StoreIterator
from stateline_store.transactional_store import TransactionalStore


class KeyValueStore(TransactionalStore):
    """Bytes by key. Values are stored as they are (plain format, v1); empty bytes are a value, None is
    absence.
    """

    kind: ClassVar[StoreKind] = "key_value"

    def get(self, key: bytes) -> bytes | None:
        """The value, staged or committed; None when there is none. Raises `InvalidArgumentError` unless the key is
        bytes, as every method does that takes one.
        """
        return self._get(key)

    def range(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> StoreIterator:
        """Rows from `lower` to `upper` in byte order, both included, None open; staged over committed.

        A snapshot: the owner may write and commit while iterating. `lower` above `upper` gives none and logs
        a warning.
        """
        return self._own_reader().range(lower, upper, reverse=reverse)

    def prefix_scan(self, prefix: bytes, *, reverse: bool = False) -> StoreIterator:
        """Rows whose key begins with `prefix`, as `range` gives them."""
        return self._own_reader().prefix_scan(prefix, reverse=reverse)

    def all(self, *, reverse: bool = False) -> StoreIterator:
        """Every row, as `range` gives them."""
        return self.range(None, None, reverse=reverse)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage a value; None deletes. Raises `InvalidArgumentError` unless key and value are bytes."""
        if self._engine is None or self._failure is not None:
            self._open()
        self._buffer.put(key, value)

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        """Stage the value if there is none for this key; returns the value found, None when there was
        none.
        """
        found = self.get(key)
        if found is None:
            self.put(key, value)
        return found

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Stage many, the last of equal keys wins. Stages nothing when one is refused
        (`InvalidArgumentError`).
        """
        self._open()
        self._buffer.put_all(entries)

    def delete(self, key: bytes) -> bytes | None:
        """Stage a delete; returns the value that was there, None when there was none."""
        found = self.get(key)
        self._stage(key, None)
        return found
