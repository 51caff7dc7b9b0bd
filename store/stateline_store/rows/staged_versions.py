"""StagedVersions: the puts to a versioned store since its last commit, in order, for its changelog.

It also has the keys that were changed by these puts and by restored changes, which are not logged again.
"""

from __future__ import annotations

from stateline_store.state_store import Change

# Estimated for 64-bit CPython: a Change (64), two bytes headers (33 each), an int (32), a pointer in the list (8), a
# set slot at its usual load (about 50).
_CHANGE_OVERHEAD = 220


class StagedVersions:
    """Not thread-safe: the store's owner uses it."""

    __slots__ = ("_undo", "changes", "keys", "size_bytes")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all puts, keys and the savepoint."""
        self.changes: list[Change] = []
        self.size_bytes = 0
        self.keys: set[bytes] = set()
        # At the savepoint: how many changes there were, and their size; since then: keys that changed first after it.
        self._undo: tuple[int, int, set[bytes]] | None = None

    def add(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Add a put that is to be logged."""
        self.changes.append(Change(key, value, timestamp))
        self.size_bytes += len(key) + (len(value) if value else 0) + _CHANGE_OVERHEAD
        if key not in self.keys:
            self.add_key(key)

    def add_key(self, key: bytes) -> None:
        """Add a key that was changed."""
        if self._undo is not None and key not in self.keys:
            self._undo[2].add(key)
        self.keys.add(key)

    def savepoint(self) -> None:
        """Set the point that `rollback_to_savepoint` goes back to. An earlier savepoint is forgotten."""
        self._undo = (len(self.changes), self.size_bytes, set())

    def rollback_to_savepoint(self) -> None:
        """Drop what was added since `savepoint`, and forget it. Nothing happens without one."""
        if self._undo is not None:
            count, self.size_bytes, newly_changed = self._undo
            del self.changes[count:]
            self.keys -= newly_changed
            self._undo = None
