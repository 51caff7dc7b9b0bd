"""`Still`: an active partition at one commit. While it is there, a read of a key only reads the value.

Most reads do, because commits are rarer. A worker publishes what it has staged more often than it commits. Then only
the figures of the copy are read again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from stateline.query.values import CopyStatus
from stateline.server.state.ownership import Ownership
from stateline_store import SecondaryReader, StoreState
from stateline_store.files.commit_notice import taken_apart


class Opened(Protocol):
    """An open secondary, and the time of its last query (`time.monotonic`)."""

    reader: SecondaryReader
    asked_s: float


class Still:
    """A partition of the task `task_id`, which has answered with `copy`. For the event loop's thread."""

    __slots__ = ("_commit", "_found", "_generation", "_ownership", "_reader", "_said", "_task_id", "copy", "position")

    def __init__(self, found: Opened, task_id: str, copy: CopyStatus, ownership: Ownership) -> None:
        self._found, self._reader, self._task_id, self._ownership = found, found.reader, task_id, ownership
        self._commit, self._generation = found.reader.shown, found.reader.generation
        self._said = b""
        self.position = found.reader.position
        self.copy = copy
        """The status of the copy, as of the last look. Equal figures are the same object."""

    def value(self, key: bytes, now_s: float) -> tuple[bytes | None] | None:
        """Return the stored value of this key in a tuple, which has None for an absent key. Returns None if the
        partition may have changed. `now_s` is the time (`time.monotonic`). Raises the reader's errors."""
        reader = self._reader
        # The commit itself is compared: a reopened secondary may show more than was announced.
        if reader.shown is not self._commit or not self._ownership.is_active(self._task_id):
            return None
        said = reader.notice.said()
        if said != self._said and not self._is_same_commit(said):
            return None
        self._found.asked_s = now_s
        return (reader.get(key),)

    def _is_same_commit(self, said: bytes) -> bool:
        """Return whether the notice still has this commit, of an active owner. Then note what else it says."""
        generation, number, status = taken_apart(said)
        if (
            generation != self._generation
            or number > self._reader.shown_number
            or status.state is not StoreState.ACTIVE
        ):
            return False
        now = replace(
            self.copy,
            staged_records=status.staged_records,
            staged_bytes=status.staged_bytes,
            committed_at_ms=status.committed_at_ms,
        )
        if now != self.copy:
            self.copy = now
        self._said = said
        return True
