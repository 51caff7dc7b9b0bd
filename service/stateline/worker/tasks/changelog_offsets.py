"""How far each store of a task has applied its changelog, by its own offset and by the task's `.checkpoint`.

`.checkpoint` is written when the stores are open and when they close. A commit writes it only if a persistent store
does not manage its own offsets. A store that is not transactional writes before a commit. Exactly once, its rows after
a crash may never have been committed, so its entry is "unknown" while it is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stateline.processing.changelog import OWNER_EPOCH
from stateline_store import StateStore, TopicPartition, TransactionalStore
from stateline_store.files.offset_checkpoint import (
    OFFSET_CHECKPOINT,
    OFFSET_UNKNOWN,
    read_offset_checkpoint,
    write_offset_checkpoint,
)


class ChangelogOffsets:
    """The changelog offset that each open store has applied last, and the task's `.checkpoint`."""

    def __init__(
        self,
        directory: Path,
        stores: Mapping[str, StateStore],
        changelogs: Mapping[str, TopicPartition],
        *,
        exactly_once: bool,
    ) -> None:
        self._path = directory / OFFSET_CHECKPOINT
        self._stores = stores
        self._changelogs = changelogs
        self._exactly_once = exactly_once
        # By store, if it does not manage its own.
        self._own: dict[str, dict[TopicPartition, int]] = {}

    def committed(self, name: str) -> int | None:
        """Return the changelog offset that this store has applied last; None for none."""
        changelog = self._changelogs.get(name)
        return None if changelog is None else self._at(name, changelog)

    def owner_epoch(self, name: str) -> int:
        """Return the largest owner epoch among this store's records; 0 if no record has one."""
        return self._at(name, OWNER_EPOCH) or 0

    def _at(self, name: str, place: TopicPartition) -> int | None:
        store = self._stores[name]
        if not store.persistent and not isinstance(store, TransactionalStore):
            return None  # a store of a user's own kind in memory is always restored from the beginning
        return store.committed_offset(place) if store.manages_offsets else self._own.get(name, {}).get(place)

    def commit(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit this store with these offsets. Other processes do not see it yet."""
        store = self._stores[name]
        if isinstance(store, TransactionalStore):
            store.commit(offsets, announce=False)
        else:
            store.commit(offsets)
        if not store.manages_offsets:
            self._own.setdefault(name, {}).update(offsets)

    def take_over(self, name: str, changelog: TopicPartition, noted: int) -> bool:
        """Let the store continue from its entry in `.checkpoint`. Returns whether it has committed that offset."""
        store = self._stores[name]
        if store.manages_offsets:
            store.commit({changelog: noted})
        else:
            self._own[name] = {changelog: noted}
        return store.manages_offsets

    def forget(self, name: str) -> None:
        self._own.pop(name, None)

    def needs_checkpoint(self, name: str) -> bool:
        return self._stores[name].persistent and not self._stores[name].manages_offsets

    def is_unclean(self, store: StateStore, noted: int | None) -> bool:
        """Return whether the store's rows may never have been committed."""
        return self._exactly_once and not store.transactional and noted == OFFSET_UNKNOWN

    def read_checkpoint(self) -> Mapping[TopicPartition, int]:
        return read_offset_checkpoint(self._path)

    def write_checkpoint(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        write_offset_checkpoint(self._path, self.checkpoint_entries(clean=False) if offsets is None else offsets)

    def checkpoint_entries(self, *, clean: bool) -> dict[TopicPartition, int]:
        """Return the offsets of open stores. `clean`: nothing was put since the commit, and nothing will be."""
        found: dict[TopicPartition, int] = {}
        for name, changelog in self._changelogs.items():
            offset, store = self.committed(name), self._stores[name]
            if self._exactly_once and not store.transactional and store.persistent and not clean:
                offset = OFFSET_UNKNOWN
            if offset is not None and store.persistent:
                found[changelog] = offset
        return found
