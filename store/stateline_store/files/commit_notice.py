"""The commit notice: a small mapped file per store partition. It announces commits to readers in other processes.

Layout: u64 slots in the machine's byte order (the file never leaves its machine). On disk: never change.

    0 magic "STLNOTE1"    3 committed_at_ms    6 state (StoreState)
    1 generation          4 staged_records     7 restore_remaining
    2 commit_number       5 staged_bytes

- **generation** changes at each opening by an owner and at each wipe; 0 means that there is no database now.
  A reader that sees another generation than it opened opens again.
- **commit_number** grows by one per commit. It is published after its RocksDB batch was written, so a reader
  that sees it can demand it.

Each slot is written by one aligned 8-byte store (`memoryview.cast("Q")`), so no reader sees half of it. Slots are
not written together. A reader is not misled by that: it demands the number that it saw from the database's own row
(`secondary.py`), and opens again after a change of generation. `restore_remaining` is above 0 before rows are
written that are ahead of their Position. The other slots are figures for display.

The file is never replaced, truncated or unlinked once it is valid, because readers keep it mapped. Only
deleting the task does that, after generation 0 was written: a reader that sees 0 looks the path up again.
"""

from __future__ import annotations

import enum
import mmap
import os
import secrets
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from stateline_store.errors import NewerFormatError, NotPresentError, RetryLaterError, StorageError
from stateline_store.files.durable_files import replace_file

_MAGIC = int.from_bytes(b"STLNOTE1", "big")  # on disk: never change
_SLOTS = 8
_SIZE = _SLOTS * 8
_EMPTY = struct.pack(f"={_SLOTS}Q", _MAGIC, *[0] * (_SLOTS - 1))
_GENERATION, _NUMBER, _COMMITTED_AT, _STAGED_RECORDS, _STAGED_BYTES, _STATE, _REMAINING = range(1, _SLOTS)


class StoreState(enum.IntEnum):
    """The state of a store partition, as its owner last published it. In the notice: never renumber."""

    CLOSED = 0
    RESTORING = 1
    ACTIVE = 2
    STANDBY = 3


_STATES = tuple(StoreState)  # by number; quicker than asking the class, which every read does


class NoticeStatus(NamedTuple):
    """The slots of a notice behind the commit number. `state_number` is a `StoreState`."""

    committed_at_ms: int
    staged_records: int
    staged_bytes: int
    state_number: int
    restore_remaining: int

    @property
    def state(self) -> StoreState:
        """The state of the store."""
        return _STATES[self.state_number]


class NoticeView:
    """A reader's view of a notice. Each attribute reads the mapping, which takes a few nanoseconds."""

    __slots__ = ("_mapping", "path", "said", "slots")

    said: Callable[[], bytes]
    """Returns all slots as bytes, for comparison and for `taken_apart`."""

    def __init__(self, path: Path) -> None:
        """Map the notice. Raises `NotPresentError` when no owner has created it yet, `NewerFormatError` for one of a
        newer version."""
        self.path = path
        mapping = _map(path, mmap.PROT_READ)
        if mapping is None:
            raise NotPresentError(f"{path} does not exist yet: no owner has opened this store here. Ask again.")
        self._take(mapping)

    def _take(self, mapping: mmap.mmap) -> None:
        self._mapping, self.slots = mapping, memoryview(mapping).cast("Q")
        # No call in Python, because each read of a key asks.
        self.said = partial(mapping.__getitem__, slice(8, _SIZE))  # type: ignore[assignment]  # bytes of a slice

    @property
    def generation(self) -> int:
        """Which opening of which database this is; 0 when there is none."""
        return self.slots[_GENERATION]

    @property
    def commit_number(self) -> int:
        """The newest commit, 0 before the first."""
        return self.slots[_NUMBER]

    @property
    def committed_at_ms(self) -> int:
        """The time of that commit, in milliseconds since the epoch. 0 before the first commit."""
        return self.slots[_COMMITTED_AT]

    @property
    def staged_records(self) -> int:
        """The number of staged records, as last published."""
        return self.slots[_STAGED_RECORDS]

    @property
    def staged_bytes(self) -> int:
        """The approximate number of staged bytes, as last published."""
        return self.slots[_STAGED_BYTES]

    @property
    def status(self) -> NoticeStatus:
        """All slots behind the commit number."""
        return NoticeStatus._make(self.slots[_COMMITTED_AT:].tolist())

    @property
    def state(self) -> StoreState:
        """The state of the store. A killed owner leaves its last state: check its lock."""
        return _STATES[self.slots[_STATE]]

    @property
    def restore_remaining(self) -> int:
        """The number of offsets that a restore still has to read. It stays after an interrupted restore, because the
        rows may then be ahead of their Position."""
        return self.slots[_REMAINING]

    def look_again(self) -> None:
        """Map the file that the path names now. After generation 0 it can be another file. Raises `NotPresentError`
        when there is none; the old mapping stays then."""
        fresh = NoticeView(self.path)
        self.close()
        self._take(fresh._mapping)

    def close(self) -> None:
        """Unmap; a second call does nothing."""
        self.slots.release()
        self._mapping.close()


def taken_apart(said: bytes) -> tuple[int, int, NoticeStatus]:
    """Return generation, commit number and status of `NoticeView.said`."""
    generation, number, *status = memoryview(said).cast("Q").tolist()
    return generation, number, NoticeStatus._make(status)


class CommitNotice:
    """The owner's side. The task's lock allows one owner at a time. Not thread-safe."""

    __slots__ = ("_mapping", "_slots", "path")

    def __init__(self, path: Path) -> None:
        """Map the notice, creating it when there is none. Its values stay as the last owner left them. Raises
        `StorageError` when the file system refuses, `NewerFormatError` for a notice of a newer version."""
        self.path = path
        try:
            mapping = _map(path, mmap.PROT_READ | mmap.PROT_WRITE)
            if mapping is None:
                replace_file(path, _EMPTY, sync=False, only_writer=True)  # also after a power cut
                mapping = _map(path, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}. Make it writable.") from error
        if mapping is None:
            raise RetryLaterError(f"{path} vanished while it was being created: another process deletes here.")
        self._mapping = mapping
        self._slots = memoryview(mapping).cast("Q")

    def open(self, commit_number: int, committed_at_ms: int) -> None:
        """Publish a new generation, with the newest commit of the opened database. Readers open it again. The
        generation is written last, so that a reader of the generation also finds the number of its database."""
        self._slots[_STAGED_RECORDS] = self._slots[_STAGED_BYTES] = 0
        self._slots[_COMMITTED_AT] = committed_at_ms
        self._slots[_NUMBER] = commit_number
        # Random, not counted up: a notice that was deleted and made again must not repeat an old generation.
        self._slots[_GENERATION] = secrets.randbits(63) | 1

    def publish(self, commit_number: int, committed_at_ms: int) -> None:
        """Publish a commit that the database has. Sets the staged records and bytes to 0."""
        slots = self._slots
        slots[_STAGED_RECORDS] = slots[_STAGED_BYTES] = 0
        slots[_COMMITTED_AT] = committed_at_ms
        slots[_NUMBER] = commit_number

    def publish_staged(self, records: int, size_bytes: int) -> None:
        """Publish how much is staged."""
        self._slots[_STAGED_RECORDS] = records
        self._slots[_STAGED_BYTES] = size_bytes

    def publish_state(self, state: StoreState, restore_remaining: int | None = None) -> None:
        """Publish the store's state. `restore_remaining` of None leaves the published number, but an active store has
        0."""
        if state is StoreState.ACTIVE:
            restore_remaining = 0
        if restore_remaining is not None:
            self._slots[_REMAINING] = restore_remaining
        self._slots[_STATE] = state

    @property
    def restore_remaining(self) -> int:
        """The number of offsets that a restore still has to read, as last published."""
        return self._slots[_REMAINING]

    def publish_end(self) -> None:
        """Publish that the store is closed. A standby stays a standby."""
        self.publish_staged(0, 0)
        if self._slots[_STATE] != StoreState.STANDBY:
            self.publish_state(StoreState.CLOSED)

    def withdraw(self) -> None:
        """Publish that there is no database (generation 0), then unmap. Call before the files are deleted."""
        self._slots[_GENERATION] = self._slots[_REMAINING] = 0
        self._slots[_STATE] = StoreState.CLOSED
        self.close()

    def close(self) -> None:
        """Unmap; a second call does nothing."""
        self._slots.release()
        self._mapping.close()


def _map(path: Path, protection: int) -> mmap.mmap | None:
    """The mapping of a valid notice; None when there is none. Raises OSError when it cannot be opened,
    `NewerFormatError` for a notice of a newer version."""
    try:
        fd = os.open(path, (os.O_RDWR if protection & mmap.PROT_WRITE else os.O_RDONLY) | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        magic = int.from_bytes(os.pread(fd, 8, 0), sys.byteorder)
        if magic >> 8 == _MAGIC >> 8 and magic > _MAGIC:  # its last letter is the version
            raise NewerFormatError.of(path, f"version {chr(magic & 0xFF)}", "up to 1")
        if magic != _MAGIC or os.fstat(fd).st_size != _SIZE:
            return None  # emptied by a power cut: no reader can have mapped it, the owner makes it again
        return mmap.mmap(fd, _SIZE, mmap.MAP_SHARED, protection)
    finally:
        os.close(fd)
